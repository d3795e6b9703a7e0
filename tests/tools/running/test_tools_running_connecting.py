"""The runner gets credentials before it opens a row: what it does while it waits and without any."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace
from request_keys import keyed
from runner_kit import MakeCall, MakeRunner, MemoryLog, StillTime, failure
from waiting import LATE_S, PATIENCE_S

from proxy.base.errors import StoreUnavailable, ToolFailure
from proxy.store.sqlite.memory import MemoryStore
from proxy.tools import HttpClient, HttpFailure, Redaction, tool
from proxy.tools.access.policy import Policy
from proxy.tools.running.invocation import Invocation
from proxy.tools.running.ledger import RunContext, RunLedger, ServedRequest

OPTIONS: dict[str, Any] = {
    "redaction": Redaction(output=("*",)),
    "connection": "mail",
    "hosts": ("mail.example.com",),
}
GONE = HttpFailure('the connection "mail" cannot be used now; its owner has to look at it')


class Broker:
    """A fake broker whose credentials the test delays or refuses."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: BaseException | None = None
        self.ready = asyncio.Event()
        self.ready.set()
        self.waiting = asyncio.Event()
        self.cancelled = 0
        self.events: list[str] = []

    async def prepare(self, connection: str) -> None:
        """Wait until the test sets ``ready``, and then raise the error if there is one."""
        self.asked.append(connection)
        self.waiting.set()
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.events.append("ready")
        if self.error is not None:
            raise self.error


class Mail:
    """Two tools of one connection and one without; ``ran`` records what they did."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str] = []

        @tool(**{**OPTIONS, "effect": "read_only", **options})
        async def read(http: HttpClient, box: str = "in") -> str:
            """Read."""
            self.ran.append(box)
            return box

        @tool(effect="external_side_effect", **OPTIONS)
        async def send(http: HttpClient, to: str = "ada") -> str:
            """Send."""
            self.ran.append(to)
            return to

        @tool(effect="read_only", redaction=Redaction())
        async def plain() -> str:
            """Be plain."""
            return "plain"

        self.tools = [read, send, plain]


@pytest.fixture
def broker() -> Broker:
    """A broker whose credentials are ready."""
    return Broker()


@pytest.mark.parametrize("name", ["read", "send"])
async def test_credentials_come_before_the_row(
    make_runner: MakeRunner,
    log: MemoryLog,
    context: RunContext,
    call: MakeCall,
    broker: Broker,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rules R1, T6: the runner validates arguments, gets credentials, opens the row, and runs the tool."""
    mail = Mail()
    runner = await make_runner(mail.tools, credentials=broker)
    write = log.open_invocation

    async def opening(record: Any, *, durable: bool) -> None:
        broker.events.append(f"opened {mail.ran}")
        await write(record, durable=durable)

    monkeypatch.setattr(log, "open_invocation", opening)
    assert (await runner.run(call(name), context)).ok
    assert broker.events == ["ready", "opened []"]
    assert mail.ran != []
    await runner.run(call(name, '{"nothing":1}', 1), context)
    await runner.run(call("plain", "{}", 2), context)
    assert broker.asked == ["mail"], "neither for bad arguments nor for a tool that names no connection"


@pytest.mark.parametrize("name", ["read", "send"])
async def test_without_credentials_nothing_runs(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall, broker: Broker, name: str
) -> None:
    """Rule R1: without credentials the call fails, its row says "refused", and the call may run later."""
    mail = Mail()
    started: list[Any] = []
    runner = await make_runner(mail.tools, credentials=broker)
    broker.error = GONE
    result = await runner.run(call(name), context, on_start=lambda one, _: started.append(one))
    assert failure(result)["error_code"] == "execution_failed"
    assert "cannot be used now" in result.safe_message
    assert (mail.ran, started) == ([], [])
    assert [durable for _, durable in log.opened] == [False]
    (row,) = log.closed
    assert (row.status, row.error_code, row.decision) == (
        "error",
        "execution_failed",
        "refused: credentials.mail",
    )
    broker.error = None
    assert (await runner.run(call(name, "{}", 1), context)).ok
    assert len(mail.ran) == 1


@pytest.mark.parametrize("name", ["read", "send"])
@pytest.mark.parametrize("budget_s", [None, 0.01])
async def test_the_wait_for_credentials_is_bounded(
    still_time: StillTime,
    make_runner: MakeRunner,
    context: RunContext,
    call: MakeCall,
    broker: Broker,
    name: str,
    budget_s: float | None,
) -> None:
    """Rule T7: the wait for credentials ends with the tool's or the run's time, as a timeout."""
    mail = Mail()
    seconds = LATE_S if budget_s else 0.01
    runner = await make_runner(mail.tools, credentials=broker, default_timeout_s=seconds)
    broker.ready.clear()
    result = await asyncio.wait_for(runner.run(call(name), context, budget_s=budget_s), PATIENCE_S)
    assert failure(result)["error_code"] == "timeout"
    assert "the call was not made" in result.safe_message
    assert (mail.ran, broker.cancelled) == ([], 1)


async def test_waiting_for_credentials_is_the_tools_time(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule T7: the wait for credentials counts against the tool's time, which never becomes negative."""
    mail = Mail(timeout_s=4)
    runner = await make_runner(mail.tools)
    catalog = runner._registry.current
    spec = catalog.get("t__read")
    assert spec is not None
    began = time.monotonic()
    one = Invocation("inv", call("read"), context, Policy(), None, catalog, spec, 0.0, began, connected_s=3.0)
    assert runner._executor.left_s(one, spec) == 1.0
    one.connected_s = 5.0
    assert runner._executor.left_s(one, spec) == 0.0
    one.connected_s, one.deadline = 0.0, began - 1.0
    assert runner._executor.left_s(one, spec) == 0.0


@pytest.mark.parametrize("name", ["read", "send"])
async def test_who_goes_waits_for_no_credentials(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall, broker: Broker, name: str
) -> None:
    """Rule E4: if the client leaves during the wait for credentials, the wait ends without a row."""
    mail = Mail()
    runner = await make_runner(mail.tools, credentials=broker)
    broker.ready.clear()
    task = asyncio.create_task(runner.run(call(name), context))
    await broker.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await runner.drain() == 0
    assert (mail.ran, log.opened, log.closed, broker.cancelled) == ([], [], [], 1)


async def test_an_effect_that_never_began_is_the_next_ones(
    make_runner: MakeRunner, context: RunContext, call: MakeCall, broker: Broker
) -> None:
    """Rule R5: if a call is cancelled before its effect began, an equal waiting call causes the effect."""
    mail = Mail()
    runner = await make_runner(mail.tools, credentials=broker)
    broker.ready.clear()
    first = asyncio.create_task(runner.run(call("send"), context))
    await broker.waiting.wait()
    again = replace(context, run_id="run_2", ledger=context.ledger.for_repeat())
    second = asyncio.create_task(runner.run(call("send"), again))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    broker.ready.set()
    assert (await second).ok
    assert mail.ran == ["ada"]


async def test_a_kept_result_needs_the_connection_too(
    make_runner: MakeRunner, context: RunContext, call: MakeCall, broker: Broker
) -> None:
    """Without credentials a cached result is not served; with credentials it is served again."""
    mail = Mail(cache_ttl_s=60)
    runner = await make_runner(mail.tools, credentials=broker)
    assert (await runner.run(call("read"), context)).ok
    broker.error = GONE
    assert failure(await runner.run(call("read", "{}", 1), context))["error_code"] == "execution_failed"
    broker.error = None
    assert (await runner.run(call("read", "{}", 2), context)).ok
    assert mail.ran == ["in"]


async def test_a_repeat_needs_no_credentials(
    make_runner: MakeRunner, context: RunContext, call: MakeCall, broker: Broker
) -> None:
    """Rule R5: a repeated effect gets the first result even if the credentials are gone."""
    mail = Mail()
    runner = await make_runner(mail.tools, credentials=broker)
    first = await runner.run(call("send"), context)
    broker.error = GONE
    second = await runner.run(call("send", "{}", 1), context.at_turn(2))
    assert (second.ok, second.content) == (True, first.content)
    assert mail.ran == ["ada"]


@pytest.mark.parametrize("lost", [False, True])
async def test_what_an_earlier_try_did_is_not_denied(
    make_runner: MakeRunner,
    log: MemoryLog,
    call: MakeCall,
    broker: Broker,
    lost: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule R5: a repeated request gets the result of the first one's effect, even without credentials."""
    store = MemoryStore()
    await store.start()
    monkeypatch.setattr(log, "close_invocation", store.close_invocation)
    mail = Mail()
    one, two = [await make_runner(mail.tools, credentials=broker, effects=store) for _ in range(2)]
    asked = ServedRequest(keyed("digest"), False, 100.0)

    def context(run_id: str, request: ServedRequest) -> RunContext:
        return RunContext(run_id, 1, "open", ledger=RunLedger(request=request))

    first = await one.run(call("send"), context("run_1", asked))
    broker.error = GONE
    again = replace(asked, is_repeat=True, asked_at=101.0)
    if lost:

        async def nobody_knows(claim: Any) -> None:
            raise StoreUnavailable("locked")

        store.find_effect = nobody_knows  # type: ignore[method-assign]
    second = await two.run(call("send"), context("run_2", again))
    other = await two.run(call("send", '{"to":"bob"}'), context("run_3", again))
    fresh = await two.run(call("send"), context("run_4", replace(asked, asked_at=102.0)))
    if lost:
        assert "could not be put on record" in second.safe_message
    else:
        assert (second.ok, second.content) == (True, first.content)
        assert "cannot be used now" in other.safe_message
        assert "cannot be used now" in fresh.safe_message, "another request, which has done nothing yet"
    assert mail.ran == ["ada"]


@pytest.mark.parametrize("error", [RuntimeError("s3cret"), ToolFailure("no", code="rate_limited")])
@pytest.mark.parametrize("name", ["read", "send"])
async def test_whatever_the_broker_raises(
    make_runner: MakeRunner,
    log: MemoryLog,
    context: RunContext,
    call: MakeCall,
    broker: Broker,
    name: str,
    error: Exception,
) -> None:
    """Rules T1, T3: any error of the broker becomes a failed result; an unexpected one is not quoted."""
    mail = Mail()
    runner = await make_runner(mail.tools, credentials=broker)
    broker.error = error
    result = await runner.run(call(name), context)
    expected = "rate_limited" if isinstance(error, ToolFailure) else "execution_failed"
    assert failure(result)["error_code"] == expected
    assert "s3cret" not in repr((result, log.closed))
    broker.error = None
    assert (await runner.run(call(name, "{}", 1), context)).ok
    assert len(mail.ran) == 1
