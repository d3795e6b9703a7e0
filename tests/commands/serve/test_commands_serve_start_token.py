"""``serve`` prints its start token once; all its processes accept it for as long as it runs."""

import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from chat_script import content, finish, role, stream
from process_tree import children
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import RawUpstream
from waiting import until

ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
HELLO = stream(role(), content("Hello."), finish())
AUTO = '[auth]\nmode = "auto"\n'
LINE = r"auth: start token; clients send: Authorization: Bearer (tr_\S{43})$"


@asynccontextmanager
async def closed(
    folder: Path, *arguments: str, more: str = AUTO, **server: Any
) -> AsyncIterator[tuple[ProxyProcess, str]]:
    """Run a command without configured keys in front of a scripted upstream; yield it and its token."""
    async with RawUpstream(HELLO) as upstream:
        write_config(folder, upstream.url, more=more, **server)
        async with serving(folder, *arguments) as proxy:
            yield proxy, (await proxy.says(LINE))[1]


async def statuses(proxy: ProxyProcess, token: str, times: int = 8) -> set[tuple[int, int]]:
    """Return the statuses of requests with and without the token, over several connections."""
    shown = {"Authorization": f"Bearer {token}"}
    return {((await proxy.ask(ASK, shown)).status, (await proxy.ask(ASK)).status) for _ in range(times)}


async def restart(proxy: ProxyProcess, times: int) -> None:
    """Have all workers replaced for the ``times``-th time, and wait until the old ones have ended."""
    before = set(children(proxy.process.pid))
    proxy.signal(signal.SIGHUP)
    await proxy.says("restarted: 2 new workers serve", times)
    await until(lambda: before.isdisjoint(children(proxy.process.pid)))


async def test_one_token_for_every_worker_and_every_restart(tmp_path: Path) -> None:
    """The token works at all workers, even after a crash or SIGHUP; it is printed once and never logged."""
    async with closed(tmp_path, "--workers", "2", more=AUTO + "[limits]\nrequests=[]\ntool_calls=[]\n") as (
        proxy,
        token,
    ):
        assert await statuses(proxy, token) == {(200, 401)}
        os.kill(children(proxy.process.pid)[0], signal.SIGKILL)
        await proxy.says('"event":"worker_started"')
        assert await statuses(proxy, token) == {(200, 401)}
        for times in (1, 2):
            await restart(proxy, times)
            assert await statuses(proxy, token) == {(200, 401)}
        proxy.signal()
        assert await proxy.ended() == 0
        assert sum(token in line for line in proxy.lines) == 1
        assert token not in "".join(proxy.log)


async def test_reload_keeps_the_token_and_a_new_door_is_said(tmp_path: Path) -> None:
    """A reload keeps the token; it is printed again if a changed file asks for a token again."""
    async with closed(tmp_path, "--reload") as (proxy, token):
        file = tmp_path / "toolrelay.toml"
        closed_text = file.read_text()
        file.write_text(closed_text + "[store]\nkeep_days = 3\n")
        await proxy.says("restarted: 1 new worker serves")
        assert await statuses(proxy, token, 1) == {(200, 401)}
        file.write_text(closed_text.replace('mode = "auto"', 'mode = "open"'))
        await proxy.says("auth: open; everybody")
        await until(lambda: len(children(proxy.process.pid)) == 1)
        assert await statuses(proxy, token, 1) == {(200, 200)}
        file.write_text(closed_text)
        assert (await proxy.says(LINE, 2))[1] == token
        await until(lambda: len(children(proxy.process.pid)) == 1)
        assert await statuses(proxy, token, 1) == {(200, 401)}


async def test_each_start_has_a_token_of_its_own(tmp_path: Path) -> None:
    """The token of one start opens no other."""
    tokens = []
    for _ in range(2):
        async with closed(tmp_path) as (proxy, token):
            tokens.append(token)
            assert await statuses(proxy, tokens[0], 1) == {(200 if len(tokens) == 1 else 401, 401)}
    assert tokens[0] != tokens[1]


async def test_open_is_one_word(tmp_path: Path) -> None:
    """``serve --open`` asks for no token, and says so."""
    async with RawUpstream(HELLO) as upstream:
        write_config(tmp_path, upstream.url, more=AUTO)
        async with serving(tmp_path, "--open") as proxy:
            await proxy.says("auth: open; everybody who reaches the address")
            assert (await proxy.ask(ASK)).status == 200
            assert not [line for line in proxy.lines if re.search("tr_", line)]


async def test_record_asks_for_a_token_too(tmp_path: Path) -> None:
    """``record`` asks for the start token, too, and neither logs nor saves it."""
    async with RawUpstream(HELLO) as upstream:
        write_config(tmp_path, upstream.url, more=AUTO)
        arguments = ("--upstream", upstream.url, "--out", "saved")
        async with serving(tmp_path, *arguments, command="record") as proxy:
            token = (await proxy.says(LINE))[1]
            assert await statuses(proxy, token, 1) == {(200, 401)}
            proxy.signal()
            assert await proxy.ended() == 0
            assert token not in "".join(proxy.log)
    saved = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    assert saved
    assert not [path for path in saved if token.encode() in path.read_bytes()]
