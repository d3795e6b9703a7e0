"""Approvals survive a server that is killed, and commands decide on them beside the server."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import chat_script
import pytest
from approvals_rig import ID, say
from openai import AsyncOpenAI
from process_tree import kill_tree
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import RawUpstream
from waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ACT = "effect__act"
ENV = {"TOOLRELAY_POLICY__APPROVE": '["effect__act"]'}


def turns() -> list[Any]:
    """Return turns of a model that calls the tool once and then says that it is done."""
    return [chat_script.reply(None, ("call_a", ACT, "{}")), *[chat_script.reply("Done.")] * 3]


@asynccontextmanager
async def command(folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command beside the server, on the same record; kill it at the end if it still runs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOOLRELAY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "proxy",
        "approvals",
        *arguments,
        cwd=folder,
        env={**clean, **ENV},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def told(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command; return its status, output and errors."""
    async with asyncio.timeout(PATIENCE_S), command(folder, *arguments) as process:
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


def client_of(proxy: ProxyProcess) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="x", max_retries=0)


async def killed(proxy: ProxyProcess) -> None:
    """Kill the supervisor and its workers, so that none of them can end what it does."""
    kill_tree(proxy.process.pid)
    await proxy.ended()


async def test_an_approval_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    """If the server is killed while a call waits, and again while it runs, the call runs only once."""
    async with RawUpstream(*turns()) as upstream:
        write_config(tmp_path, upstream.url, allow=(ACT,))
        conversation: list[Any] = [{"role": "user", "content": "Act."}]
        async with serving(tmp_path, env=ENV) as proxy, client_of(proxy) as client:
            (approval_id,) = ID.findall(await say(client, "chat", conversation, stream=False))[:1]
            await killed(proxy)
        status, out, _ = await told(tmp_path, "approve", approval_id)
        assert status == 0
        call, said = out.splitlines()
        assert call == f"{approval_id}: {ACT} with {{}}"
        assert said.startswith(f"{approval_id} ({ACT}): User ")
        assert " approved this call; it runs once, when its client sends the next request before " in out
        conversation.append({"role": "user", "content": "Go on."})
        async with serving(tmp_path, env=ENV) as proxy, client_of(proxy) as client:
            going = asyncio.create_task(say(client, "chat", list(conversation), stream=False))
            await proxy.appears("started")
            worker = proxy.rows("SELECT status FROM approvals")
            assert worker == [("used",)]
            await killed(proxy)
            with pytest.raises(Exception):  # noqa: B017, PT011
                await going
        (tmp_path / "started").unlink()
        (tmp_path / "go").touch()
        async with serving(tmp_path, env=ENV) as proxy, client_of(proxy) as client:
            assert await say(client, "chat", conversation, stream=False) == "Done."
            assert not (tmp_path / "started").exists()
            assert b"nobody knows" in upstream.requests[-1].body
        status, _, err = await told(tmp_path, "deny", approval_id)
        assert status == 1
        assert "can no longer be denied. User " in err
        assert "it was interrupted while it ran: nobody knows whether it took effect." in err


async def test_the_commands_give_list_and_revoke_grants(tmp_path: Path) -> None:
    """The commands approve a call with a grant; later calls run unasked until the grant is revoked."""
    (tmp_path / "go").touch()
    acts = chat_script.reply(None, ("call_b", ACT, "{}"))
    async with RawUpstream(*turns()[:2], acts, chat_script.reply("Again."), acts) as upstream:
        write_config(tmp_path, upstream.url, allow=(ACT,))
        conversation: list[Any] = [{"role": "user", "content": "Act."}]
        async with serving(tmp_path, env=ENV) as proxy, client_of(proxy) as client:
            (id_,) = ID.findall(await say(client, "chat", conversation, stream=False))[:1]
            for options, words in (
                (("--for", "soon"), "must be a duration"),
                (("--for", "9w"), "lasts at most 86400 seconds"),
                (("--arguments", "a={max=1}"), "needs a grant to limit"),
                (("--for", "1h", "--arguments", "a=["), "is not a valid limit"),
                (("--for", "1h", "--arguments", "a={max=1}"), "grant.arguments limits 'a'"),
            ):
                status, _, err = await told(tmp_path, "approve", id_, *options)
                assert status != 0
                assert words in err
            status, out, _ = await told(tmp_path, "approve", id_, "--for", "1h")
            assert (status, out.splitlines()[2]) == (0, f"Later calls of {ACT} by open run without asking.")
            conversation.append({"role": "user", "content": "Go on."})
            assert await say(client, "chat", conversation, stream=False) == "Done."
            again: list[Any] = [{"role": "user", "content": "Act again."}]
            assert await say(client, "chat", again, stream=False) == "Again."
            status, out, _ = await told(tmp_path, "grants", "--json")
            grant = json.loads(out)
            assert (status, grant["tool"], grant["uses"]) == (0, ACT, 1)
            assert grant["made_by"].startswith("user ")
            assert grant["id"] in (await told(tmp_path, "grants"))[1].replace("\n", "")
            status, out, _ = await told(tmp_path, "revoke", grant["id"])
            assert (status, out) == (
                0,
                f"{grant['id']} is revoked: later calls of {ACT} by open ask again.\n",
            )
            assert (await told(tmp_path, "grants"))[1] == "There are no active grants.\n"
            assert (await told(tmp_path, "revoke", "grant_0"))[0] == 1
            again = [{"role": "user", "content": "Act once more."}]
            assert "waiting for approval" in await say(client, "chat", again, stream=False)


async def test_the_commands_watch_show_and_deny(tmp_path: Path) -> None:
    """The commands print a call that begins to wait, show it with a log line, and deny it with a reason."""
    async with RawUpstream(*turns()) as upstream:
        write_config(tmp_path, upstream.url, allow=(ACT,))
        conversation: list[Any] = [{"role": "user", "content": "Act."}]
        async with (
            serving(tmp_path, env=ENV) as proxy,
            client_of(proxy) as client,
            command(tmp_path, "watch") as watching,
        ):
            (approval_id,) = ID.findall(await say(client, "chat", conversation, stream=False))[:1]
            assert watching.stdout is not None
            async with asyncio.timeout(PATIENCE_S):
                line = (await watching.stdout.readline()).decode()
            assert line.startswith(f"{approval_id} {ACT} {{}} (for open, until ")
            watching.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENCE_S):
                assert await watching.wait() == 130
            status, out, err = await told(tmp_path, "show", approval_id)
            assert status == 0
            assert '"arguments": {}' in out
            assert "approval_read" in err
            status, out, _ = await told(tmp_path, "deny", approval_id, "--reason", "Not now.")
            assert status == 0
            assert out.startswith(f"{approval_id} ({ACT}): User ")
            assert out.endswith(" denied this call, so it does not run.\n")
            conversation.append({"role": "user", "content": "Well?"})
            assert await say(client, "chat", conversation, stream=False) == "Done."
            assert b"Not now." in upstream.requests[-1].body
            assert not (tmp_path / "started").exists()
