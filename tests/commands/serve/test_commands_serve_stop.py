"""At a signal, a serving process finishes its open work and marks what it has to cut."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_script import DONE, call, content, finish, payloads_of, role, stream, text_of
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import HANG, KEEP, LAST_CHUNK, RawUpstream, Step, chunk, head
from responses_script import function_call, message, turn
from responses_script import stream as response_stream
from running_proxy import Conversation

ACT = "effect__act"
BEGUN = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
CALLED = stream(role(), call("c", ACT, "{}"), finish("tool_calls"))
RESPONSE = turn(message("Hello."))
HALF = RESPONSE.index(b"event: response.output_text.delta")
WIRES: dict[str, tuple[str, dict[str, Any], bytes, bytes]] = {
    "chat": (
        "/v1/chat/completions",
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]},
        role() + content("Hel"),
        content("lo.") + finish() + DONE,
    ),
    "responses": (
        "/v1/responses",
        {"model": "m", "stream": True, "input": "hi"},
        RESPONSE[:HALF],
        RESPONSE[HALF:] + DONE,
    ),
}
both_wires = pytest.mark.parametrize("wire", sorted(WIRES))
with_tools_or_not = pytest.mark.parametrize("allow", [(), ("core__*",)], ids=["none offered", "offered"])


@asynccontextmanager
async def before(
    folder: Path, *scripts: Sequence[Step], allow: tuple[str, ...] = (), **server: Any
) -> AsyncIterator[tuple[ProxyProcess, RawUpstream]]:
    """Run a serving process in front of a scripted upstream."""
    async with RawUpstream(*scripts) as upstream:
        write_config(folder, upstream.url, allow=allow, **server)
        async with serving(folder) as proxy:
            yield proxy, upstream


async def part_of(conversation: Conversation, end: bytes) -> bytes:
    """Read a streamed response until it ends in the given bytes."""
    answer = await conversation.head()
    assert answer.status == 200
    got = b""
    async for piece in conversation.pieces(answer):
        got += piece
        if got.endswith(end):
            return got
    raise AssertionError(f"ended before {end!r}: {got!r}")


@both_wires
@with_tools_or_not
async def test_a_stream_runs_to_its_end_while_others_are_refused(
    tmp_path: Path, wire: str, allow: tuple[str, ...]
) -> None:
    """After SIGTERM, new requests get 503 and the open stream ends whole; then the process ends."""
    path, ask, first, rest = WIRES[wire]
    going = asyncio.Event()
    script: list[Step] = [BEGUN, chunk(first), going, chunk(rest), LAST_CHUNK, KEEP]
    async with before(tmp_path, script, allow=allow) as (proxy, upstream), proxy.connect() as idle:
        idle.writer.write(proxy.request(method="GET", path="/readyz"))
        assert (await idle.answer()).status == 200
        async with proxy.sent(ask, path=path) as conversation:
            answer = await conversation.head()
            pieces = conversation.pieces(answer)
            answer.body = await anext(pieces)
            proxy.signal()
            await proxy.says("stopping: open streams have 25 s")
            await proxy.leaves()

            ready = await proxy.ask(method="GET", path="/readyz")
            assert (ready.status, ready.json) == (503, {"status": "draining"})
            refused = await proxy.ask(ask, path=path)
            idle.writer.write(proxy.request(ask, path=path))
            for one in (refused, await idle.answer()):
                assert (one.status, one.error["code"]) == (503, "draining")
                assert one.header("retry-after") == "1"
                assert one.header("connection") == "close"
            assert await idle.reader.read() == b""
            alive = await proxy.ask(method="GET", path="/healthz")
            assert (alive.status, alive.header("connection")) == (200, "close")

            going.set()
            async for piece in pieces:
                answer.body += piece
        assert answer.body == first + rest
        assert answer.clean
        assert await proxy.ended() == 0
        assert len(upstream.requests) == 1


@both_wires
@with_tools_or_not
async def test_what_does_not_end_in_time_is_cut_and_says_so(
    tmp_path: Path, wire: str, allow: tuple[str, ...]
) -> None:
    """After ``drain_s``, an open stream gets an error event and one end mark, and its framing is complete."""
    path, ask, first, _ = WIRES[wire]
    script: list[Step] = [BEGUN, chunk(first), HANG]
    async with before(tmp_path, script, allow=allow, drain_s=0.2) as (proxy, upstream):
        async with proxy.sent(ask, path=path) as conversation:
            answer = await conversation.head()
            pieces = conversation.pieces(answer)
            answer.body = await anext(pieces)
            proxy.signal()
            async for piece in pieces:
                answer.body += piece
        assert answer.clean
        assert answer.body.startswith(first)
        marked = answer.body[len(first) :]
        assert marked.count(b'"code":"draining"') >= 1
        assert marked.endswith(b"\n\n" + DONE)
        assert marked.count(DONE) == 1
        assert await proxy.ended() == 0
        await upstream.all_closed()
        if allow:
            assert proxy.rows("SELECT status, error_code FROM runs") == [("failed", "draining")]


@both_wires
@with_tools_or_not
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_what_has_not_begun_is_cut_with_a_status(
    tmp_path: Path, wire: str, allow: tuple[str, ...], streaming: bool
) -> None:
    """After ``drain_s``, a request whose answer has not begun gets 503 with the code ``draining``."""
    path, ask, _, _ = WIRES[wire]
    async with before(tmp_path, [HANG], allow=allow, drain_s=0.2) as (proxy, upstream):
        async with proxy.sent({**ask, "stream": streaming}, path=path) as conversation:
            await upstream.asked(1)
            proxy.signal()
            answer = await conversation.answer()
        assert (answer.status, answer.error["code"]) == (503, "draining")
        assert await proxy.ended() == 0


@both_wires
async def test_an_effect_under_way_is_finished_and_recorded(tmp_path: Path, wire: str) -> None:
    """During the drain, a tool with a side effect runs to its end, and the run goes on to its answer."""
    path, ask, _, _ = WIRES[wire]
    turns = {
        "chat": [CALLED, stream(role(), content("Done."), finish())],
        "responses": [response_stream(function_call("c", ACT)), response_stream(message("Done."))],
    }[wire]
    async with before(tmp_path, *turns, allow=("effect__*",)) as (proxy, _):
        async with proxy.sent(ask, path=path) as conversation:
            await proxy.appears("started")
            proxy.signal()
            await proxy.says("stopping")
            (tmp_path / "go").touch()
            answer = await conversation.answer()
        assert answer.clean
        assert b"Done." in answer.body
        assert await proxy.ended() == 0
        assert proxy.rows("SELECT tool, status FROM tool_invocations") == [(ACT, "success")]
        assert proxy.rows("SELECT status FROM runs") == [("completed",)]


async def test_an_effect_outlives_a_client_that_leaves_in_the_drain(tmp_path: Path) -> None:
    """Rule E4: if the client leaves during the drain, the proxy still waits for the running side effect."""
    path, ask, _, _ = WIRES["chat"]
    async with before(tmp_path, CALLED, allow=("effect__*",)) as (proxy, _):
        async with proxy.sent(ask, path=path) as conversation:
            await proxy.appears("started")
            proxy.signal()
            await proxy.says("stopping")
            conversation.leave()
        await proxy.says('"status":499')
        (tmp_path / "go").touch()
        assert await proxy.ended() == 0
        assert proxy.rows("SELECT tool, status FROM tool_invocations") == [(ACT, "success")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_now(tmp_path: Path, number: signal.Signals) -> None:
    """After a second signal, the process ends at once: it marks open streams with an error, and the record
    calls running tools interrupted."""
    path, ask, first, _ = WIRES["chat"]
    scripts: list[Sequence[Step]] = [CALLED, [BEGUN, chunk(first), HANG]]
    async with before(tmp_path, *scripts, allow=("effect__*",), drain_s=600) as (proxy, _):
        async with proxy.sent(ask, path=path) as acting:
            await proxy.appears("started")
            async with proxy.sent(ask, path=path) as talking:
                assert await part_of(talking, b"\n\n") == first
                proxy.signal(number)
                await proxy.says("stopping")
                proxy.signal(number)
                rest = await talking.reader.read()
                assert b'"code":"draining"' in rest
                assert rest.endswith(DONE + b"\r\n0\r\n\r\n")
            assert b'"code":"draining"' in (await acting.answer()).body
        assert await proxy.ended() == 0
        assert proxy.rows("SELECT status FROM tool_invocations") == [("interrupted",)]


async def test_notice_is_given_before_anything_is_refused(tmp_path: Path) -> None:
    """During ``notice_s``, only ``/readyz`` fails and requests are served, until a second signal."""
    path, ask, _, _ = WIRES["chat"]
    answer = stream(role(), content("Hello."), finish())
    async with before(tmp_path, answer, notice_s=600) as (proxy, _):
        proxy.signal()
        await proxy.says("stopping")
        await proxy.leaves()
        served = await proxy.ask(ask, path=path)
        assert served.status == 200
        assert text_of(payloads_of(served.body)) == "Hello."
        proxy.signal()
        assert await proxy.ended() == 0
