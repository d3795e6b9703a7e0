"""A stream that the proxy composes or holds back is never silent for long; others get nothing added.

The upstream waits until the client has a keep-alive, so that no test depends on the speed of a machine.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from front_proxies import nginx
from looping import ECHO
from pair_kits import PAIRS, SPEAKERS, Call, Turn
from pair_runs import ANSWER, CALLS, QUESTION, scripts
from raw_upstream import HANG, KEEP, LAST_CHUNK, RawUpstream, Step, chunk, head
from running_proxy import Proxy, make_config, running
from waiting import PATIENCE_S, until

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


def growing_call(upstream: str, gate: asyncio.Event) -> list[list[Step]]:
    """Return the turns of a model that pauses within the arguments of a server call."""
    events = SPEAKERS[upstream].events(CALLS)
    at = next(place for place, event in enumerate(events) if ECHO.encode() in event) + 1
    return [waiting(upstream, events[:at], gate, events[at:]), *scripts(upstream, ANSWER)]


def thinking_turn(upstream: str, gate: asyncio.Event) -> list[list[Step]]:
    """Return the turns of a model that pauses behind the head of its second turn."""
    return [*scripts(upstream, CALLS), waiting(upstream, [], gate, SPEAKERS[upstream].events(ANSWER))]


def held_json(upstream: str, gate: asyncio.Event) -> list[list[Step]]:
    """Return the turn of a model that pauses within a JSON answer."""
    events = SPEAKERS[upstream].events(Turn('{"a": "some text"}'))
    return [waiting(upstream, events[:-3], gate, events[-3:])]


def held_call(upstream: str, gate: asyncio.Event) -> list[list[Step]]:
    """Return the turn of a model that pauses within the arguments of a client's own call."""
    events = SPEAKERS[upstream].events(Turn("", (Call("call_a", "mine", {"a": "some words"}),)))
    at = next(place for place, event in enumerate(events) if b"mine" in event) + 2
    return [waiting(upstream, events[:at], gate, events[at:])]


@asynccontextmanager
async def proxied(upstream: str, turns: Sequence[list[Step]]) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy with a short ``keepalive_s`` before an upstream of one dialect."""
    async with RawUpstream(*turns) as server:
        table = {"base_url": server.url, "wires": (upstream,), "retries": 0}
        config = make_config(table, modules=("probe_tools",), tools={"keepalive_s": 0.05})
        async with running(config) as proxy:
            yield proxy, server


async def heard(
    client: str,
    upstream: str,
    gate: asyncio.Event,
    turns: Sequence[list[Step]],
    tools: Sequence[str] = (),
    **more: Any,
) -> None:
    """Ask, open the gate when the client has two keep-alives, and read to the end of the answer."""
    speaker = SPEAKERS[client]
    body = {**speaker.ask([QUESTION], tools=tools), **more}
    async with (
        asyncio.timeout(PATIENCE_S),
        proxied(upstream, turns) as (proxy, _),
        proxy.connect() as talk,
    ):
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
    gate = asyncio.Event()
    await heard(client, upstream, gate, growing_call(upstream, gate))


@each_pair
async def test_a_later_turn_thinks(client: str, upstream: str) -> None:
    """While a later turn is silent behind its head, the client gets keep-alives."""
    gate = asyncio.Event()
    await heard(client, upstream, gate, thinking_turn(upstream, gate))


@pytest.mark.parametrize("upstream", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("client", JSON_OUTPUT)
async def test_json_is_held(client: str, upstream: str) -> None:
    """While an answer that must be JSON is held back, the client has the head and gets keep-alives."""
    gate = asyncio.Event()
    await heard(client, upstream, gate, held_json(upstream, gate), **JSON_OUTPUT[client])


@pytest.mark.parametrize("upstream", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("client", ["anthropic", "ollama"])
async def test_a_call_of_the_clients_is_held(client: str, upstream: str) -> None:
    """While a client's own call is held because its dialect needs it whole, the client gets keep-alives."""
    if client == upstream:
        pytest.skip("the call passes as it comes")
    gate = asyncio.Event()
    await heard(client, upstream, gate, held_call(upstream, gate), tools=["mine"])


async def test_nginx_does_not_give_up(tmp_path: Path) -> None:
    """An nginx with a read time-out waits for each silent stream until another nginx, which waits for a
    server that says nothing, has given up.

    nginx answers 504 where it has no head of the response yet, and cuts the stream where it has one.
    """
    settings = "proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 3s;"
    gate = asyncio.Event()
    own: dict[str, Any] = {"tools": ["mine"]}
    cases: list[tuple[str, str, list[list[Step]], dict[str, Any], dict[str, Any]]] = [
        *[(name, "chat", growing_call("chat", gate), {}, {}) for name in SPEAKERS],
        *[(name, "chat", thinking_turn("chat", gate), {}, {}) for name in SPEAKERS],
        *[(name, "chat", held_json("chat", gate), {}, more) for name, more in JSON_OUTPUT.items()],
        *[(name, "chat", held_call("chat", gate), own, {}) for name in ("anthropic", "ollama")],
    ]
    async with AsyncExitStack() as stack:
        fronts, servers = [], []
        for _, upstream, turns, _, _ in cases:
            proxy, server = await stack.enter_async_context(proxied(upstream, turns))
            servers.append(server)
            fronts.append(await stack.enter_async_context(nginx(tmp_path, proxy.port, settings)))
        silent = await stack.enter_async_context(RawUpstream([HANG]))
        control = await stack.enter_async_context(nginx(tmp_path, silent.port, settings))
        async with asyncio.TaskGroup() as group:
            asked = []
            for (client, _, _, offer, more), front in zip(cases, fronts, strict=True):
                body = {**SPEAKERS[client].ask([QUESTION], **offer), **more}
                asked.append(group.create_task(front.ask(body, path=SPEAKERS[client].path)))
            await until(lambda: all(server.requests for server in servers))
            assert (await control.ask(method="GET", path="/v1/models")).status == 504
            gate.set()
    for (client, _, _, offer, _), task in zip(cases, asked, strict=True):
        answer = task.result()
        assert (answer.status, answer.clean) == (200, True), (client, answer)
        said = SPEAKERS[client].read_stream(answer.body, ())
        assert not said.error
        assert [call.name for call in said.calls] == offer.get("tools", [])


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
