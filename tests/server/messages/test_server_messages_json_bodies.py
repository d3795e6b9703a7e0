"""Large JSON bodies: the proxy counts their values, and parses one at a time for each caller in a thread."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from client_keys import ALICE, BOB, OK, bearer, keyed
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running
from waiting import PATIENCE_S, until

from proxy.base.errors import RequestError
from proxy.json import size
from proxy.json.size import count_values, is_large
from proxy.json.splice import load_strict
from proxy.server.messages import json_bodies
from proxy.server.messages.json_bodies import JsonBodies

SMALL = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LARGE = {**SMALL, "logit_bias": {str(token): 1 for token in range(60_000)}}


def no_parser(raw: bytes) -> dict[str, Any]:
    raise AssertionError("parsed")


@pytest.mark.parametrize("piece", ["[]", "{}", '""', "1", '{"a":1}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
async def test_a_body_of_too_many_values_is_not_parsed(
    piece: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule E1: a body with too many values gets a 400 that names the setting, and is not parsed."""
    async with keyed(server={"max_json_values": 2000}) as (proxy, upstream):
        body = f'{{"model":"m","input":"x","messages":[],"x":[{",".join([piece] * 2000)}]}}'
        monkeypatch.setattr(json_bodies, "load_strict", no_parser)
        answer = await ask_raw(proxy, body.encode(), path)
        assert (answer.status, answer.error["code"]) == (400, "too_many_entries")
        assert "server.max_json_values" in answer.error["message"]
        assert upstream.requests == []


async def ask_raw(proxy: Proxy, body: bytes, path: str, key: str = ALICE) -> Any:
    """Send one request with a body of exactly these bytes."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        conversation.writer.write(head.encode() + body)
        return await conversation.answer()


def test_the_limit_is_met_exactly() -> None:
    """A body may have as many values as the setting says, and not one more; commas in a text do not count."""
    bodies = JsonBodies(1000)
    assert bodies.load_now(b'{"t":"' + b"a,[{" * 5000 + b'","x":[' + b"1," * 996 + b"1]}") is not None
    with pytest.raises(RequestError):
        bodies.load_now(b'{"t":"' + b"a,[{" * 5000 + b'","x":[' + b"1," * 997 + b"1]}")


def test_the_values_of_a_body_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long body with few values is counted once before it is parsed."""
    counted: list[int] = []

    def count(data: bytes, limit: int) -> int:
        counted.append(len(data))
        return count_values(data, limit)

    monkeypatch.setattr(size, "count_values", count)
    monkeypatch.setattr(json_bodies, "count_values", count)
    raw = orjson.dumps({"content": "word " * 100_000})
    assert JsonBodies(400_000).load_now(raw) is not None
    assert counted == [len(raw)]


def test_what_is_large() -> None:
    """A body is large if it has many values; one long text makes it large only if it is very long."""
    assert not is_large(orjson.dumps({"content": "word " * 100_000}))
    assert not is_large(orjson.dumps({"x": [0] * 5000}))
    assert is_large(orjson.dumps(LARGE))
    assert is_large(orjson.dumps({"content": "word " * 300_000}))


class Held:
    """A parser that waits in its thread, and records which bodies and threads wait."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[int] = []
        self.threads: set[int] = set()

    def __call__(self, raw: bytes) -> dict[str, Any]:
        if len(raw) > 10_000:
            self.begun.append(len(raw))
            self.threads.add(threading.get_ident())
            assert self.go_on.wait(PATIENCE_S)
        return load_strict(raw)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Make the parser of large bodies wait until the test lets it go on."""
    parser = Held()
    monkeypatch.setattr(json_bodies, "load_strict", parser)
    yield parser
    parser.go_on.set()


async def test_the_loop_serves_others_while_a_large_body_is_parsed(held: Held) -> None:
    """While a thread parses a large body, the proxy serves the same caller's small body and health checks."""
    async with keyed(allow=()) as (proxy, _):
        first = asyncio.create_task(proxy.ask(LARGE, bearer(ALICE)))
        await until(lambda: bool(held.begun))
        assert threading.get_ident() not in held.threads
        assert (await proxy.ask(SMALL, bearer(ALICE))).status == 200
        assert (await proxy.get("/healthz")).status == 200
        held.go_on.set()
        assert (await first).status == 200


async def test_one_large_body_of_a_caller_at_a_time(held: Held) -> None:
    """A caller's large bodies are parsed one after the other; another caller's does not wait for them."""
    async with keyed(allow=()) as (proxy, upstream):
        asked = [asyncio.create_task(proxy.ask(LARGE, bearer(ALICE))) for _ in range(10)]
        await until(lambda: bool(held.begun))
        other = asyncio.create_task(proxy.ask({**LARGE, "model": "other"}, bearer(BOB)))
        await until(lambda: len(held.begun) > 1)
        assert len(held.begun) == 2
        assert len(set(held.begun)) == 2
        held.go_on.set()
        for answer in await asyncio.gather(*asked, other):
            assert answer.status == 200
        assert len(upstream.requests) == 11


async def test_made_up_credentials_are_no_further_callers(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With forwarded keys, large bodies from one address are parsed one after the other, whatever their keys
    are, and a small body does not wait."""
    asked_for = []
    load = JsonBodies.load

    async def noted(self: JsonBodies, raw: bytes, *names: str) -> dict[str, Any]:
        asked_for.append(names[0])
        return await load(self, raw, *names)

    monkeypatch.setattr(JsonBodies, "load", noted)
    async with RawUpstream(OK) as upstream:
        config = make_config(upstream.url, allow=(), auth={"mode": "forward"})
        async with running(config) as proxy:
            asked = [asyncio.create_task(proxy.ask(LARGE, bearer(f"sk-made-up-{n}"))) for n in range(5)]
            await until(lambda: bool(held.begun) and len(set(asked_for)) == 5)
            assert (await proxy.ask(SMALL, bearer("sk-real"))).status == 200
            assert len(held.begun) == 1
            held.go_on.set()
            for answer in await asyncio.gather(*asked):
                assert answer.status == 200
            assert len(upstream.requests) == 6


async def test_who_leaves_does_not_let_the_next_one_in_beside_it(held: Held) -> None:
    """The thread of a cancelled request goes on, so the caller's next large body waits until it is done."""
    bodies = JsonBodies(400_000)
    raw = orjson.dumps(LARGE)
    first = asyncio.create_task(bodies.load(raw, "me"))
    await until(lambda: len(held.begun) == 1)
    second = asyncio.create_task(bodies.load(raw, "me"))
    first.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(held.begun) == 1
    held.go_on.set()
    assert await second == LARGE
    with pytest.raises(asyncio.CancelledError):
        await first
    assert bodies._turns == {}
