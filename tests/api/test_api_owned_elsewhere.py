"""A client that continues its response at once, at another process with the same store."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from client_keys import ALICE, BOB, bearer, declared, key_config
from raw_upstream import RawUpstream, chunked, event, whole
from responses_script import message, reply, stream
from running_proxy import Proxy, running
from store_postgres import need_postgres, new_schema
from waiting import LATE_S, until

ASK: dict[str, Any] = {"model": "m", "input": "hi"}
RESPONSES = "/v1/responses"
KINDS = {
    "stream": stream(message("hello")),
    "reply": reply(message("hello")),
    "cut": chunked(
        event('{"type":"response.created","response":{"id":"resp_1"}}'),
        b'data: {"type":"response.com',
        b'pleted","response":{"id":"resp_1"}}\n\n',
    ),
    "pieces": chunked(b'{"id":"res', b'p_1","output":[{}', b"]}", content_type="application/json"),
}


@asynccontextmanager
async def two(upstream: RawUpstream, url: str, *workers: int) -> AsyncIterator[list[Proxy]]:
    """Two proxies with one store; ``workers`` are the workers that each is configured to have."""
    first, second = workers or (2, 2)
    async with (
        running(key_config(upstream.url, allow=(), store={"url": url}, server={"workers": first})) as one,
        running(key_config(upstream.url, allow=(), store={"url": url}, server={"workers": second})) as other,
    ):
        yield [one, other]


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Lock the database against all other writers until the test releases it."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=LATE_S)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield holder


async def _goes_on_at_once(url: str, kind: str) -> None:
    async with RawUpstream(KINDS[kind]) as upstream, two(upstream, url) as (one, other):
        for turn in range(20):
            ask = {**ASK, "stream": kind in ("stream", "cut"), "metadata": {"turn": str(turn)}}
            assert (await one.ask(ask, bearer(ALICE), path=RESPONSES)).status == 200
            again = {**ask, "previous_response_id": "resp_1"}
            assert (await other.ask(again, bearer(ALICE), path=RESPONSES)).status == 200
            assert (
                await other.ask(None, bearer(ALICE), method="GET", path=f"{RESPONSES}/resp_1")
            ).status == 200
        assert (await other.ask(again, bearer(BOB), path=RESPONSES)).status == 404


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_client_goes_on_at_another_worker_at_once(tmp_path: Path, kind: str) -> None:
    """Once a client has its response, another worker on the same file accepts the id from that client."""
    await _goes_on_at_once(f"sqlite:///{tmp_path}/r.db", kind)


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_client_goes_on_at_another_machine_at_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a client has its response, another process on the same PostgreSQL database accepts the id."""
    need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with new_schema() as url:
        await _goes_on_at_once(url, kind)


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_the_end_waits_for_the_note(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy holds back the end of a response until the store has recorded who owns it."""
    monkeypatch.setattr("proxy.relay.memory.commit_waiter.END_WAIT_S", LATE_S)
    monkeypatch.setattr("proxy.relay.memory.commit_waiter._PAUSES_S", ())
    path = tmp_path / "r.db"
    streams = kind in ("stream", "cut")
    async with RawUpstream(KINDS[kind]) as upstream, two(upstream, f"sqlite:///{path}") as (one, other):
        with locked(path) as holder:
            async with one.sent({**ASK, "stream": streams}, bearer(ALICE), path=RESPONSES) as client:
                answer = asyncio.create_task(client.answer())
                await until(lambda: one.services.store.waiting > 0)
                await asyncio.sleep(0.1)
                assert not answer.done()
                holder.execute("ROLLBACK")
                whole = await answer
                found = await other.ask(
                    {**ASK, "previous_response_id": "resp_1"}, bearer(ALICE), path=RESPONSES
                )
    assert (whole.status, whole.clean, found.status) == (200, True, 200)
    assert b"resp_1" in whole.body


async def test_the_stream_itself_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store is locked, the proxy holds back the last event of a stream but none before it."""
    monkeypatch.setattr("proxy.relay.memory.commit_waiter.END_WAIT_S", LATE_S)
    path = tmp_path / "r.db"
    pieces = (
        event('{"type":"response.created","response":{"id":"resp_1"}}'),
        event('{"type":"response.output_text.delta","delta":"lo"}'),
        event('{"type":"response.completed","response":{"id":"resp_1"}}'),
    )
    begun, *rest = chunked(*pieces)
    # The pauses separate the events: the proxy sends in one piece what it reads at once.
    script = [begun, *[step for piece in rest for step in (piece, 0.1)]]
    async with RawUpstream(script) as upstream, two(upstream, f"sqlite:///{path}") as (one, _):
        with locked(path) as holder:
            async with one.sent({**ASK, "stream": True}, bearer(ALICE), path=RESPONSES) as client:
                seen = b""
                head = await client.head()
                async for piece in client.pieces(head):
                    seen += piece
                    if b'"lo"' in seen:
                        break
                assert b"response.completed" not in seen
                holder.execute("ROLLBACK")
                async for piece in client.pieces(head):
                    seen += piece
    assert seen.count(b'"type":"response.completed"') == 1


@pytest.mark.parametrize("ask", ["goes on", "asks for it"])
async def test_a_miss_is_looked_at_again(tmp_path: Path, ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process finds no owner, it looks again: another process may be writing it at that moment."""
    path = tmp_path / "r.db"
    monkeypatch.setattr("proxy.relay.memory.commit_waiter._PAUSES_S", (0.05,) * 400)
    # The first proxy is configured as the only worker, so it holds nothing back.
    async with (
        RawUpstream(KINDS["reply"]) as upstream,
        two(upstream, f"sqlite:///{path}", 1, 2) as (
            one,
            other,
        ),
    ):
        looked: list[bool] = []
        owns = other.services.store.is_response_owner

        async def counted(response_id: str, caller: str) -> bool:
            looked.append(await owns(response_id, caller))
            return looked[-1]

        monkeypatch.setattr(other.services.store, "is_response_owner", counted)
        with locked(path) as holder:
            assert (await one.ask(ASK, bearer(ALICE), path=RESPONSES)).status == 200
            if ask == "goes on":
                found = other.ask({**ASK, "previous_response_id": "resp_1"}, bearer(ALICE), path=RESPONSES)
            else:
                found = other.ask(None, bearer(ALICE), method="GET", path=f"{RESPONSES}/resp_1")
            answer = asyncio.create_task(found)
            await until(lambda: bool(looked))
            holder.execute("ROLLBACK")
            assert (await answer).status == 200
    assert looked[0] is False
    assert looked[-1] is True


async def test_a_note_that_comes_too_late_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store stays locked, the answer goes out after a short wait and is counted as late."""
    monkeypatch.setattr("proxy.relay.memory.commit_waiter.END_WAIT_S", 0.05)
    path = tmp_path / "r.db"
    async with RawUpstream(KINDS["reply"]) as upstream, two(upstream, f"sqlite:///{path}") as (one, _):
        late: list[str] = []
        hooks = one.services.instruments.hooks
        monkeypatch.setattr(hooks, "_late", [late.append])
        with locked(path) as holder:
            answer = await one.ask(ASK, bearer(ALICE), path=RESPONSES)
            assert (answer.status, answer.clean) == (200, True)
            assert late == ["owner"]
            holder.execute("ROLLBACK")


async def test_a_conversation_is_known_elsewhere_at_once(tmp_path: Path) -> None:
    """Another worker knows at once that a conversation belongs to the client that created it."""
    made = whole(b'{"id":"conv_1","object":"conversation"}')
    keys = {"alice": declared(ALICE, endpoints=("/conversations*",))}
    config: dict[str, Any] = {"allow": (), "keys": keys, "server": {"workers": 2}}
    config["store"] = {"url": f"sqlite:///{tmp_path}/r.db"}
    async with (
        RawUpstream(made) as upstream,
        running(key_config(upstream.url, **config)) as one,
        running(key_config(upstream.url, **config)) as other,
    ):
        for _ in range(10):
            answer = await one.ask({}, bearer(ALICE), path="/v1/conversations")
            assert answer.status == 200
            found = await other.services.store.find_threads(["conv_1"], "config:alice")
            assert found == {"conv_1": ""}
