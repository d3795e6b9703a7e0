"""The proxy stores a turn that waits for its client before the client knows of it, or reports an error."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chat_script import payloads_of, reply, text_of
from looping import ANSWER, ASK, CLIENT_TOOL, TIME, called, looping, messages_of
from process_tree import kill_tree
from prometheus_client.parser import text_string_to_metric_families
from proxy_process import serving, write_config
from raw_upstream import RawUpstream
from responses_check import events_of
from responses_script import function, function_call
from responses_script import reply as response_reply
from responses_script import stream as response_stream
from running_proxy import Proxy
from waiting import LATE_S, PATIENCE_S, until

from proxy.base.errors import NotOnRecord, StoreUnavailable
from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.store.sql.writing.writes import Write
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.store import SqliteStore

UTC = '{"timezone":"UTC"}'
MIXED = called(("call_s", TIME, UTC), ("call_c", "mine", "{}"))
MIXED_ASK: dict[str, Any] = {**ASK, "tools": [CLIENT_TOOL]}
CALL = {"id": "call_c", "type": "function", "function": {"name": "mine", "arguments": "{}"}}
RETURN: dict[str, Any] = {
    **MIXED_ASK,
    "messages": [
        *ASK["messages"],
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_c", "content": "7"},
    ],
}
RESPONSES_ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "hi", "tools": [function("mine")]}
RESPONSES_MIXED = (function_call("call_s", TIME, UTC), function_call("call_c", "mine"))
NOT_KEPT = "could not store the turn"


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Lock the record, so that nobody else can write until the lock is released."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=LATE_S)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield holder


@asynccontextmanager
async def one_worker(tmp_path: Path, *scripts: Any, **config: Any) -> AsyncIterator[tuple[Proxy, Path]]:
    """A proxy whose record no other process uses."""
    path = tmp_path / "r.db"
    async with looping(*scripts, store={"url": f"sqlite:///{path}"}, **config) as (proxy, _):
        yield proxy, path


async def test_a_kill_after_the_call_loses_no_turn(tmp_path: Path) -> None:
    """Rule R4: a client that has its call can go on after ``kill -9`` of the proxy, even if the record was
    locked for longer than an answer waits."""
    more = '[store]\nurl = "sqlite:///r.db"\n'
    async with RawUpstream(MIXED, ANSWER) as upstream:
        write_config(tmp_path, upstream.url, allow=("core__*",), more=more)
        async with serving(tmp_path) as first:
            with locked(tmp_path / "r.db") as holder:
                async with first.sent(MIXED_ASK) as client:
                    answer = asyncio.create_task(client.answer())
                    await asyncio.sleep(1.5)
                    assert not answer.done()
                    holder.execute("ROLLBACK")
                    whole = await answer
            kill_tree(first.process.pid)
        last = payloads_of(whole.body)[-1]
        assert last["choices"][0]["finish_reason"] == "tool_calls"
        async with serving(tmp_path) as second:
            assert text_of(payloads_of((await second.ask(RETURN)).body)) == "It is noon."
    assert [m["role"] for m in messages_of(upstream.requests[1])] == ["user", "assistant", "tool", "tool"]


async def test_the_stream_is_kept_alive_meanwhile(tmp_path: Path) -> None:
    """The client gets keep-alive comments while the turn that waits for it is being committed."""
    async with one_worker(tmp_path, MIXED, tools={"keepalive_s": 0.02}) as (proxy, path):
        with locked(path) as holder:
            async with proxy.sent(MIXED_ASK) as client:
                head = await client.head()
                seen = b""
                async for piece in client.pieces(head):
                    seen += piece
                    if seen.count(b": keep-alive") >= 5:
                        break
                assert b'finish_reason":"tool_calls' not in seen
                holder.execute("ROLLBACK")
                async for piece in client.pieces(head):
                    seen += piece
    assert payloads_of(seen)[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def late(proxy: Proxy) -> float:
    """The number in ``/metrics`` of turns that could not be held."""
    answer = await proxy.get("/metrics")
    return sum(
        sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
        if sample.name == "toolrelay_record_late_total" and sample.labels["what"] == "suspended"
    )


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_turn_that_cannot_be_held_is_said_on_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """If the proxy cannot store the turn, a client of Chat gets an error that its SDK raises."""
    monkeypatch.setattr("proxy.relay.memory.commit_waiter.SUSPEND_WAIT_S", 0.3)
    turn = MIXED if streaming else reply(None, ("call_s", TIME, UTC), ("call_c", "mine", "{}"))
    async with one_worker(tmp_path, turn) as (proxy, path):
        with locked(path) as holder:
            answer = await proxy.ask({**MIXED_ASK, "stream": streaming})
            assert answer.clean
            if streaming:
                assert answer.status == 200
                error = payloads_of(answer.body)[-1]["error"]
                assert answer.body.endswith(b"data: [DONE]\n\n")
                assert b'finish_reason":"tool_calls' not in answer.body
            else:
                assert answer.status == 503
                error = answer.error
            assert (error["code"], error["type"]) == ("store_unavailable", "server_error")
            assert NOT_KEPT in error["message"]
            assert await late(proxy) == 1
            holder.execute("ROLLBACK")
        (run,) = await proxy.runs()
        assert (run.status, run.error_code) == ("failed", "store_unavailable")


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_turn_that_cannot_be_held_is_said_on_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """If the proxy cannot store the turn, a client of Responses gets an error, too."""
    monkeypatch.setattr("proxy.relay.memory.commit_waiter.SUSPEND_WAIT_S", 0.3)
    made = response_stream if streaming else response_reply
    async with one_worker(tmp_path, made(*RESPONSES_MIXED)) as (proxy, path):
        with locked(path) as holder:
            answer = await proxy.ask({**RESPONSES_ASK, "stream": streaming}, path="/v1/responses")
            holder.execute("ROLLBACK")
        assert answer.clean
        if streaming:
            kinds = [payload["type"] for payload in events_of(answer.body)]
            assert kinds[-2:] == ["error", "response.failed"]
            assert "response.completed" not in kinds
        else:
            assert (answer.status, answer.error["code"]) == (503, "store_unavailable")


async def test_a_lost_turn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store's queue has no room for the turn, the client gets the error at once."""
    monkeypatch.setattr("proxy.relay.memory.commit_waiter.SUSPEND_WAIT_S", LATE_S)
    async with one_worker(tmp_path, MIXED) as (proxy, path):
        store = proxy.services.store
        assert isinstance(store, SqliteStore)
        await until(lambda: store.waiting == 0)
        store._writer._max_writes = 0
        with locked(path) as holder:
            async with asyncio.timeout(PATIENCE_S):
                answer = await proxy.ask(MIXED_ASK)
            assert payloads_of(answer.body)[-1]["error"]["code"] == "store_unavailable"
            assert store.lost > 0
            holder.execute("ROLLBACK")
        store._writer._max_writes = 1000


async def test_a_lost_row_that_nobody_needs_fails_no_turn() -> None:
    """A turn is held although a row that only people read was lost meanwhile, and not if its own was lost."""
    store = MemoryStore()
    await store.start()
    waiter = CommitWaiter(store)

    async def hold(*, loses: bool) -> bool:
        store._writer.drop_as_lost([Write("a", (), needed=loses)], "a test")
        return True

    await waiter.wait_before_suspend(partial(hold, loses=False))
    assert (store.lost, store.lost_needed) == (1, 0)
    with pytest.raises(NotOnRecord):
        await waiter.wait_before_suspend(partial(hold, loses=True))
    assert (store.lost, store.lost_needed) == (2, 1)
    await store.aclose()


async def test_a_record_that_comes_back_in_time_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn is held even if the proxy could not read the record at first."""
    async with one_worker(tmp_path, MIXED, ANSWER) as (proxy, _):
        store = proxy.services.store
        find, asked = store.find_suspended, 0

        async def away_at_first(key: str) -> Any:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise StoreUnavailable("away")
            return await find(key)

        monkeypatch.setattr(store, "find_suspended", away_at_first)
        answer = await proxy.ask(MIXED_ASK)
        assert payloads_of(answer.body)[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert text_of(payloads_of((await proxy.ask(RETURN)).body)) == "It is noon."
    assert asked >= 3
