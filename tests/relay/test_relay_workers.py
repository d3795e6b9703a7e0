"""Server processes that share a record: each knows what another one began, also after a kill."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_script import content, payloads_of, text_of
from chat_script import reply as chat_reply
from looping import ANSWER, ASK, CLIENT_TOOL, called, messages_of
from process_tree import kill_tree
from raw_upstream import FIN, RawUpstream, Step, chunk, head, whole
from running_proxy import ProxyAddress
from store_postgres import need_postgres, new_schema
from waiting import until

TOOLS = """
import asyncio
from pathlib import Path
from proxy.tools.providers.function import tool
from proxy.tools.contract.spec import Redaction

@tool(effect="external_side_effect", redaction=Redaction(output=("done",)))
async def buy(what: str) -> dict[str, str]:
    "Write down what was bought."
    with open("bought", "a") as file:
        file.write(f"{what}\\n")
    while Path("hold").exists():
        await asyncio.sleep(0.01)
    return {"done": what}

@tool(effect="read_only", redaction=Redaction())
async def book() -> str:
    "A text too long to be shown."
    return "".join(f"line {number}\\n" for number in range(3000))
"""
BUY = called(("call_b", "shop__buy", '{"what":"milk"}'))
ADA = [("x-user", "ada")]
AGAIN = [*ADA, ("x-stainless-retry-count", "1")]


@pytest.fixture
async def postgres_url() -> AsyncIterator[str]:
    """A schema of the test's own; the test is skipped where there is no server."""
    need_postgres()
    async with new_schema() as url:
        yield url


class Worker(ProxyAddress):
    """A served process, which a test asks like a proxy in its own process."""

    def __init__(self, port: int, process: asyncio.subprocess.Process) -> None:
        self.port = port
        self.process = process

    async def wrote(self) -> None:
        """Wait until all earlier writes are on record: the health check writes after them."""

        async def ready() -> bool:
            return (await self.ask(method="GET", path="/readyz")).status == 200

        await until(ready)

    async def kill(self) -> None:
        """Kill the supervisor and the process that serves with ``kill -9``."""
        kill_tree(self.process.pid)
        await self.process.wait()


class Site:
    """A folder with a configuration and tools, and the workers that serve it."""

    def __init__(self, folder: Path, upstream: RawUpstream, *, url: str = "", content: str = "tools") -> None:
        self.folder = folder
        (folder / "shop.py").write_text(TOOLS)
        (folder / "toolrelay.toml").write_text(
            f'[upstreams.default]\nbase_url = "{upstream.url}"\nwires = ["chat"]\n'
            '[tools]\nmodules = ["shop.py"]\n'
            '[policy]\nallow = ["shop__*", "core__*"]\nmax_result_bytes = 2000\n'
            '[auth]\nmode = "open"\nend_user = "header:x-user"\n'
            f'[store]\nurl = "{url or "sqlite:///r.db"}"\ncontent = "{content}"\n'
        )

    def bought(self) -> list[str]:
        """What the calls of the tool have bought."""
        path = self.folder / "bought"
        return path.read_text().split() if path.exists() else []

    async def until_bought(self) -> None:
        """Wait until another process has bought something."""
        await until(lambda: bool(self.bought()))

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """Start one process, and end it with the block."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOOLRELAY_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy", "serve", "--port", "0",
            cwd=self.folder,
            env={**kept, "OPENAI_API_KEY": "sk-test"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            found = None
            while found is None:
                line = await process.stdout.readline()
                assert line, "the server did not start"
                found = re.search(rb"http://127\.0\.0\.1:(\d+)", line)
            yield Worker(int(found[1]), process)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


@asynccontextmanager
async def site(
    folder: Path, *scripts: Sequence[Step], url: str = "", content: str = "tools"
) -> AsyncIterator[tuple[Site, RawUpstream]]:
    """A site before an upstream that plays one script for each request, whichever worker asks."""
    async with RawUpstream(*scripts) as upstream:
        yield Site(folder, upstream, url=url, content=content), upstream


def given(upstream: RawUpstream, request: int) -> str:
    """The last tool result that the model got with this request."""
    return str(messages_of(upstream.requests[request])[-1]["content"])


async def _other_words(folder: Path, url: str) -> None:
    """Repeat a request with other calls of the model: after a kill in an effect, and in a third process."""
    (folder / "hold").touch()
    eggs, bread = [called(("call_b", "shop__buy", f'{{"what":"{what}"}}')) for what in ("eggs", "bread")]
    async with site(folder, BUY, eggs, eggs, ANSWER, bread, bread, bread, ANSWER, url=url) as (
        served,
        upstream,
    ):
        async with served.worker() as one:
            first = asyncio.create_task(one.ask(ASK, ADA))
            await served.until_bought()
            await one.kill()
            await asyncio.gather(first, return_exceptions=True)
        (folder / "hold").unlink()
        async with served.worker() as two, served.worker() as three:
            for worker in (two, three):
                answer = await worker.ask(ASK, AGAIN)
                assert text_of(payloads_of(answer.body)) == "It is noon."
    assert served.bought() == ["milk", "eggs", "bread"]
    told = [json.loads(given(upstream, request)) for request in (2, 5, 6)]
    assert [each["error_code"] for each in told] == ["already_ran"] * 3
    assert [each["earlier_call"]["arguments"]["what"] for each in told] == ["milk", "milk", "eggs"]
    assert ["unknown" in each["earlier_call"]["outcome"] for each in told] == [True, True, False]
    assert told[2]["earlier_call"]["result"] == '{"done":"eggs"}'
    assert [given(upstream, request) for request in (3, 7)] == ['{"done":"eggs"}', '{"done":"bread"}']


async def test_other_words_at_another_worker_buy_nothing_twice(tmp_path: Path) -> None:
    """Rule R5: if a repeat calls differently at another worker, the model is told of the earlier effects."""
    await _other_words(tmp_path, "")


async def test_other_words_at_another_machine_buy_nothing_twice(tmp_path: Path, postgres_url: str) -> None:
    """Rule R5: if a repeat calls differently, the model is told of earlier effects, also with PostgreSQL."""
    await _other_words(tmp_path, postgres_url)


async def _one_effect(folder: Path, url: str) -> None:
    """Repeat a request at another worker during the effect, after it, and after a restart."""
    (folder / "hold").touch()
    async with site(folder, BUY, BUY, ANSWER, ANSWER, BUY, ANSWER, url=url) as (served, upstream):
        async with served.worker() as one:
            async with served.worker() as two:
                first = asyncio.create_task(one.ask(ASK, ADA))
                await served.until_bought()
                second = asyncio.create_task(two.ask(ASK, AGAIN))
                await upstream.asked(2)
                (folder / "hold").unlink()
                for answer in await asyncio.gather(first, second):
                    assert text_of(payloads_of(answer.body)) == "It is noon."
            await one.kill()
        async with served.worker() as three:
            await three.ask(ASK, AGAIN)
        assert served.bought() == ["milk"]
        assert [given(upstream, request) for request in (2, 3, 5)] == ['{"done":"milk"}'] * 3


async def test_a_repeat_at_another_worker_buys_nothing_twice(tmp_path: Path) -> None:
    """Rule R5: workers on one file, and one started later, give a repeat the result of the first attempt."""
    await _one_effect(tmp_path, "")


async def test_a_repeat_at_another_machine_buys_nothing_twice(tmp_path: Path, postgres_url: str) -> None:
    """Rule R5: workers that share PostgreSQL give a repeat the result of the first attempt."""
    await _one_effect(tmp_path, postgres_url)


SESSION = [*ADA, ("x-claude-code-session-id", "s-1"), ("x-stainless-retry-count", "0")]
"""The headers that Claude Code sends with the first request and with its repeat."""


async def _unsaid_repeats(folder: Path, url: str) -> None:
    """Send the same body without ``stream`` after a lost stream, to another worker and after a restart."""
    lost: list[Step] = [
        head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"), chunk(content("Bou")), FIN
    ]  # fmt: skip
    bought = chat_reply(None, ("call_b", "shop__buy", '{"what":"milk"}'))
    answer = chat_reply("Bought.")
    unstreamed = {**ASK, "stream": False}
    script = (BUY, lost, bought, lost, bought, answer, bought, answer)
    async with site(folder, *script, url=url) as (served, upstream):
        async with served.worker() as two:
            async with served.worker() as one:
                assert b"error" in (await one.ask(ASK, SESSION)).body
            # This process knows nothing of the first request; its answer is lost, too.
            assert (await two.ask(unstreamed, SESSION)).status == 502
            assert served.bought() == ["milk"]
        async with served.worker() as three:
            assert b"Bought." in (await three.ask(unstreamed, SESSION)).body
            assert served.bought() == ["milk"]
        async with served.worker() as four:
            # The request has an answer now, so the same request once more buys again.
            assert b"Bought." in (await four.ask(unstreamed, SESSION)).body
            assert served.bought() == ["milk", "milk"]
        assert [given(upstream, request) for request in (3, 5)] == ['{"done":"milk"}'] * 2


async def test_an_unsaid_repeat_at_another_worker_buys_nothing_twice(tmp_path: Path) -> None:
    """Rule R5: another worker learns from the record how the first request ended, and buys nothing."""
    await _unsaid_repeats(tmp_path, "")


async def test_an_unsaid_repeat_at_another_machine_buys_nothing_twice(
    tmp_path: Path, postgres_url: str
) -> None:
    """Rule R5: a worker learns from PostgreSQL how the first request ended, and buys nothing."""
    await _unsaid_repeats(tmp_path, postgres_url)


async def test_an_unsaid_repeat_after_a_kill_buys_nothing_twice(tmp_path: Path) -> None:
    """Rule R5: a worker that starts after a kill finds out that the first request died, and buys nothing."""
    (tmp_path / "hold").touch()
    async with site(tmp_path, BUY, BUY, ANSWER) as (served, upstream):
        async with served.worker() as one:
            first = asyncio.create_task(one.ask(ASK, SESSION))
            await served.until_bought()
            await one.kill()
            await asyncio.gather(first, return_exceptions=True)
        (tmp_path / "hold").unlink()
        async with served.worker() as two:
            await two.ask(ASK, SESSION)
        assert served.bought() == ["milk"]
        assert "nobody knows how it ended" in json.loads(given(upstream, 2))["message"]


async def test_a_repeat_elsewhere_is_one_of_the_newest_request(tmp_path: Path) -> None:
    """Rule R5: at any worker, a repeat belongs to the newest request and not to an older, answered one."""
    refused = whole(REFUSAL, status="500 Oops")
    async with (
        site(tmp_path, BUY, ANSWER, refused, BUY, ANSWER, BUY, ANSWER) as (served, _),
        served.worker() as one,
        served.worker() as two,
    ):
        await one.ask(ASK, ADA)
        await one.ask(ASK, ADA)
        await one.wrote()
        for worker in (two, one):
            await worker.ask(ASK, AGAIN)
            assert served.bought() == ["milk", "milk"]


async def test_after_a_kill_in_an_effect_nobody_repeats_it(tmp_path: Path) -> None:
    """Rule R5: after a kill, a repeat is told that the outcome is unknown; a new request buys again."""
    (tmp_path / "hold").touch()
    async with site(tmp_path, BUY, BUY, ANSWER, BUY, ANSWER) as (served, upstream):
        async with served.worker() as one:
            first = asyncio.create_task(one.ask(ASK, ADA))
            await served.until_bought()
            await one.kill()
            await asyncio.gather(first, return_exceptions=True)
        (tmp_path / "hold").unlink()
        async with served.worker() as two:
            await two.ask(ASK, AGAIN)
            assert served.bought() == ["milk"]
            told = json.loads(given(upstream, 2))
            assert (told["ok"], told["error_code"]) == (False, "execution_failed")
            assert "nobody knows how it ended" in told["message"]
            await two.ask(ASK, ADA)
            assert served.bought() == ["milk", "milk"]


async def test_without_content_a_repeat_learns_that_it_was_done(tmp_path: Path) -> None:
    """Rules R3, R5: if no content is stored, a repeat buys nothing, and the earlier result is not known."""
    async with site(tmp_path, BUY, ANSWER, BUY, ANSWER, content="none") as (served, upstream):
        async with served.worker() as one, served.worker() as two:
            await one.ask(ASK, ADA)
            await two.ask(ASK, AGAIN)
        assert served.bought() == ["milk"]
        told = json.loads(given(upstream, 3))
        assert told["ok"] is True
        assert "its result was not kept" in told["message"]


async def test_pages_of_a_large_result_are_read_at_any_worker(tmp_path: Path) -> None:
    """Rule R3: another worker accepts the handle of a large result, for the same caller only."""
    book = called(("call_1", "shop__book", "{}"))
    async with (
        site(tmp_path, book, ANSWER) as (served, upstream),
        served.worker() as one,
        served.worker() as two,
    ):
        await one.ask(ASK, {"x-user": "ada"})
        await one.wrote()
        handle = re.search(r"res_[0-9a-f]{32}", given(upstream, 1))
        assert handle is not None
        read = called(("call_2", "core__read_result", f'{{"handle":"{handle[0]}","offset":2000}}'))
        upstream.scripts = (book, ANSWER, read, ANSWER, read, ANSWER)
        await two.ask(ASK, {"x-user": "ada"})
        assert "line 3" in given(upstream, 3)
        await two.ask(ASK, {"x-user": "bob"})
        assert "there is no such result" in given(upstream, 5)


MIXED = called(
    ("call_s", "core__get_current_time", '{"timezone":"UTC"}'),
    ("call_a", "mine", "{}"),
    ("call_c", "mine", "{}"),
)
REFUSAL = b'{"error":{"message":"No call_c","type":"invalid_request_error","param":null,"code":null}}'


@pytest.mark.accepts("chat-answers", why="the script has the upstream's error")
async def test_a_turn_waits_for_its_client_at_any_worker(tmp_path: Path) -> None:
    """Rule R4: another worker resumes a suspended turn, also after a kill, and for its caller only.

    A client that sends only some of its results gets the upstream's error, and can try again.
    """
    ask: dict[str, Any] = {**ASK, "tools": [CLIENT_TOOL]}
    ids = ("call_a", "call_c")
    calls = [{"id": i, "type": "function", "function": {"name": "mine", "arguments": "{}"}} for i in ids]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": i, "content": "7"} for i in ids]
    whole_return = {**ask, "messages": [*ASK["messages"], message, *results]}
    part = {**ask, "messages": [*ASK["messages"], message, results[0]]}
    refusal = whole(REFUSAL, status="400 Bad Request")
    async with site(tmp_path, MIXED, refusal, ANSWER, ANSWER) as (served, upstream):
        async with served.worker() as one:
            await one.ask(ask, {"x-user": "ada"})
            await one.wrote()
            await one.kill()
        async with served.worker() as two:
            refused = await two.ask(part, {"x-user": "ada"})
            assert (refused.status, refused.body) == (400, REFUSAL)
            await two.ask(whole_return, {"x-user": "bob"})
            await two.ask(whole_return, {"x-user": "ada"})
    sent = [json.loads(request.body)["messages"] for request in upstream.requests]
    assert [len(messages) for messages in sent[2:]] == [4, 5]
    assert [call["id"] for call in sent[3][1]["tool_calls"]] == ["call_s", "call_a", "call_c"]
    assert sorted(one["tool_call_id"] for one in sent[3][2:]) == ["call_a", "call_c", "call_s"]
