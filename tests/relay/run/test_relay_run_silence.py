"""A stream that the proxy composes or holds back is never silent for long; others get nothing added.

The upstream waits until the client has a keep-alive, so that no test depends on the speed of a machine.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from looping import ECHO
from pair_kits import PAIRS, SPEAKERS, Call, Turn
from pair_runs import ANSWER, CALLS, QUESTION, scripts
from raw_upstream import KEEP, LAST_CHUNK, RawUpstream, Step, chunk, head
from running_proxy import make_config, running
from waiting import PATIENCE_S

from proxy.relay.run.keepalive import SilenceTimer

SIGNS = {
    "chat": b": keep-alive   ",
    "responses": b": keep-alive   ",
    "anthropic": b"event: ping\n",
    "ollama": b'"content":""},"done":false}\n',
}
"""A text in the keep-alive of each dialect."""
SCHEMA = {"type": "object", "properties": {}}
JSON_OUTPUT: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}
each_pair = pytest.mark.parametrize(("client", "upstream"), PAIRS, ids=[f"{c}-{u}" for c, u in PAIRS])


def waiting(
    upstream: str, before: Sequence[bytes], gate: asyncio.Event, after: Sequence[bytes]
) -> list[Step]:
    """Return the steps of a stream that waits for ``gate`` between two parts."""
    opening = head(f"Content-Type: {SPEAKERS[upstream].content_type}", "Transfer-Encoding: chunked")
    return [opening, *map(chunk, before), gate, *map(chunk, after), LAST_CHUNK, KEEP]


async def heard(
    client: str,
    upstream: str,
    gate: asyncio.Event,
    *turns: list[Step],
    tools: Sequence[str] = (),
    **more: Any,
) -> None:
    """Ask, open the gate when the client has two keep-alives, and read to the end of the answer."""
    speaker = SPEAKERS[client]
    body = {**speaker.ask([QUESTION], tools=tools), **more}
    async with RawUpstream(*turns) as server:
        table = {"base_url": server.url, "wires": (upstream,), "retries": 0}
        config = make_config(table, modules=("probe_tools",), tools={"keepalive_s": 0.05})
        async with running(config) as proxy, proxy.connect() as talk, asyncio.timeout(PATIENCE_S):
            talk.writer.write(proxy.request(json.dumps(body).encode(), {}, path=speaker.path))
            got = b""
            while not got.endswith(b"0\r\n\r\n"):
                got += await talk.reader.read(65536)
                if got.count(SIGNS[client]) >= 2:
                    gate.set()
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b'"error":{' not in got
    assert b'"error":"' not in got


@each_pair
async def test_a_server_call_grows(client: str, upstream: str) -> None:
    """While the arguments of a server call arrive, the client gets keep-alives."""
    if upstream == "ollama":
        pytest.skip("an Ollama server sends a call as a whole")
    events, gate = SPEAKERS[upstream].events(CALLS), asyncio.Event()
    at = next(place for place, event in enumerate(events) if ECHO.encode() in event) + 1
    script = waiting(upstream, events[:at], gate, events[at:])
    await heard(client, upstream, gate, script, *scripts(upstream, ANSWER))


@each_pair
async def test_a_later_turn_thinks(client: str, upstream: str) -> None:
    """While a later turn is silent behind its head, the client gets keep-alives."""
    gate = asyncio.Event()
    later = waiting(upstream, [], gate, SPEAKERS[upstream].events(ANSWER))
    await heard(client, upstream, gate, *scripts(upstream, CALLS), later)


@pytest.mark.parametrize("upstream", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("client", JSON_OUTPUT)
async def test_json_is_held(client: str, upstream: str) -> None:
    """While an answer that must be JSON is held back, the client has the head and gets keep-alives."""
    events, gate = SPEAKERS[upstream].events(Turn('{"a": "some text"}')), asyncio.Event()
    script = waiting(upstream, events[:-3], gate, events[-3:])
    await heard(client, upstream, gate, script, **JSON_OUTPUT[client])


@pytest.mark.parametrize("upstream", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("client", ["anthropic", "ollama"])
async def test_a_call_of_the_clients_is_held(client: str, upstream: str) -> None:
    """While a client's own call is held because its dialect needs it whole, the client gets keep-alives."""
    if client == upstream:
        pytest.skip("the call passes as it comes")
    events = SPEAKERS[upstream].events(Turn("", (Call("call_a", "mine", {"a": "some words"}),)))
    gate = asyncio.Event()
    at = next(place for place, event in enumerate(events) if b"mine" in event) + 2
    script = waiting(upstream, events[:at], gate, events[at:])
    await heard(client, upstream, gate, script, tools=["mine"])


@pytest.mark.parametrize("name", SPEAKERS)
async def test_a_passed_stream_has_no_timer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that passes as it comes starts no timer, also if tools are offered."""
    started: list[float] = []
    monkeypatch.setattr(SilenceTimer, "start", lambda self, after_s, on_silence: started.append(after_s))
    async with RawUpstream(*scripts(name, ANSWER)) as server:
        table = {"base_url": server.url, "wires": (name,), "retries": 0}
        async with running(make_config(table, modules=("probe_tools",))) as proxy:
            answer = await proxy.ask(SPEAKERS[name].ask([QUESTION]), path=SPEAKERS[name].path)
    assert answer.clean
    assert started == []


async def test_the_timer_waits_after_each_piece() -> None:
    """The timer calls only after two half intervals without a piece, and not at all once it is stopped."""
    timer, called = SilenceTimer(), asyncio.Event()
    timer.start(0.01, called.set)
    await asyncio.wait_for(called.wait(), PATIENCE_S)
    assert timer.quiet > 1
    timer.stop()
    assert not timer.runs
