"""What a run does while the record is alive and cannot keep up with the writes of all runs."""

import asyncio

import pytest
from chat_script import payloads_of, text_of
from looping import ANSWER, ASK, ECHO, called, looping
from running_proxy import Proxy
from waiting import LATE_S, until

from proxy.store.sql.store import SqlStore
from proxy.store.sql.writing.back_pressure import BackPressure

READ = called(("call_r", ECHO, '{"text":"hello"}'))
NO_TOOLS = [("x-toolrelay-tools", "none")]


@pytest.fixture(autouse=True)
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the writer delay all writes until after the test."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._LINGER_S", LATE_S)


def _pressure(proxy: Proxy) -> BackPressure:
    store = proxy.services.store
    assert isinstance(store, SqlStore)
    store._writer.pressure._stalls_after_s = LATE_S
    return store._writer.pressure


async def test_each_step_of_a_run_waits_for_room() -> None:
    """A run waits before its first turn, its call, its second turn and its end; a passed request does not."""
    async with looping(READ, ANSWER, ANSWER) as (proxy, upstream):
        pressure = _pressure(proxy)
        pressure.begin(None)
        asked = asyncio.ensure_future(proxy.ask(ASK))
        for requests in (0, 1, 1, 2):
            await until(lambda: len(pressure._waiting) == 1)
            assert len(upstream.requests) == requests
            assert pressure._next()
        answer = await asked
        assert text_of(payloads_of(answer.body)) == "It is noon."
        passed = await proxy.ask(ASK, NO_TOOLS)
        assert text_of(payloads_of(passed.body)) == "It is noon."
        pressure.end()


async def test_a_client_of_a_stream_that_waits_is_kept_alive() -> None:
    """While a run waits for room after its head, its client gets comments; before it, nothing."""
    async with looping(READ, ANSWER, tools={"keepalive_s": 0.05}) as (proxy, _):
        pressure = _pressure(proxy)
        pressure.begin(None)
        asked = asyncio.ensure_future(proxy.ask(ASK))
        await until(lambda: len(pressure._waiting) == 1)
        assert pressure._next()
        await until(lambda: len(pressure._waiting) == 1)
        await asyncio.sleep(0.3)
        pressure.end()
        answer = await asked
        assert (answer.status, answer.clean) == (200, True)
        assert answer.body.count(b": ") >= 1
        assert text_of(payloads_of(answer.body)) == "It is noon."


async def test_a_client_that_leaves_while_its_run_waits_leaves_the_line() -> None:
    """A run whose client has gone ends at once, on record as cancelled."""
    async with looping(READ, ANSWER) as (proxy, _):
        pressure = _pressure(proxy)
        pressure.begin(None)
        asked = asyncio.ensure_future(proxy.ask(ASK))
        await until(lambda: len(pressure._waiting) == 1)
        asked.cancel()
        await until(lambda: all(turn.done() for turn in pressure._waiting))
        [found] = await proxy.runs()
        assert (found.status, found.error_code) == ("cancelled", "client_gone")
