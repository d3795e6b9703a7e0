"""The runner: rules T1 to T4, T7, R1 and R5, and the faults of tools."""

import asyncio
import datetime
import json
import time
import uuid
from dataclasses import replace
from typing import Annotated, Any, Literal

import pytest
import structlog
from argument_texts import argument_texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from pydantic import BaseModel, Field, field_validator
from runner_kit import MakeCall, MakeRunner, MemoryLog, StillTime, echo, failure
from waiting import PATIENCE_S

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolCall
from proxy.records.rows import ToolEffect
from proxy.tools import CallContext, Redaction, tool
from proxy.tools.access.policy import Policy
from proxy.tools.running.ledger import RunContext, RunLedger

READ: dict[str, Any] = {"effect": "read_only", "redaction": Redaction(output=("*",))}
EFFECT: dict[str, Any] = {"effect": "state_change", "redaction": Redaction(output=("*",))}


async def test_the_record_goes_by_the_machines_clock(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """The times in a row come from the system clock, even if the tools' clock stands still."""
    runner = await make_runner([echo])
    before = time.time()
    assert (await runner.run(call("echo", '{"text":"a"}'), context)).ok
    await runner.refuse(call("echo", "{}", 1), context, ToolFailure("no", code="budget_exhausted"), "denied")
    made, refused = log.closed
    assert made.ended_at is not None
    assert before <= made.started_at <= made.ended_at <= refused.started_at <= time.time() + 1


class Counter:
    """A tool with an effect that counts its executions."""

    def __init__(self, **options: Any) -> None:
        self.times = 0

        @tool(name="count", **{**EFFECT, **options})
        async def count(by: int = 1, note: str = "") -> dict[str, int]:
            """Count up."""
            self.times += 1
            return {"times": self.times}

        self.tool = count


async def test_success_is_json_for_the_model_and_redacted_for_the_record(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule T4: the model gets the full result; the row has allowlisted fields and masked arguments."""

    @tool(effect="read_only", redaction=Redaction(output=("shown",), private_arguments=("pin",)))
    async def look(pin: str, name: str) -> dict[str, str]:
        """Look."""
        return {"shown": name, "hidden": pin}

    runner = await make_runner([look])
    result = await runner.run(call("look", '{"pin":"4711-secret","name":"Ada"}'), context)
    assert json.loads(result.content) == {"shown": "Ada", "hidden": "4711-secret"}
    assert result.redacted == {"shown": "Ada"}
    assert result.arguments_redacted == {"pin": "[private]", "name": "Ada"}
    (row,) = log.closed
    assert (row.status, row.result_redacted, row.arguments_redacted) == (
        "success",
        {"shown": "Ada"},
        {"pin": "[private]", "name": "Ada"},
    )
    assert row.result_bytes == len(result.content)
    assert "4711-secret" not in repr(log.opened) + repr(log.closed)
    assert row.id == log.opened[0][0].id
    assert (row.run_id, row.turn, row.seq, row.tool, row.provider) == ("run_1", 1, 0, "t__look", "t")


async def test_text_result_stays_text(make_runner: MakeRunner, context: RunContext, call: MakeCall) -> None:
    """A result of type ``str`` reaches the model unchanged, without quotes."""

    @tool(**READ)
    async def speak() -> str:
        """Speak."""
        return "plain ünïcode"

    result = await (await make_runner([speak])).run(call("speak"), context)
    assert (result.ok, result.content) == (True, "plain ünïcode")


@pytest.mark.parametrize("name", ["t__nothing", "t__echo\u200b", "T__ECHO", " t__echo", "echo", "", "\ud800"])
async def test_unknown_tool(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall, name: str
) -> None:
    """Rule T3: a name that is not exactly a tool's name is unknown; its row has it in ASCII."""
    runner = await make_runner([echo])
    result = await runner.run(replace(call("x", '{"text":"a"}'), name=name), context)
    assert failure(result)["error_code"] == "unknown_tool"
    assert (log.closed[0].status, log.closed[0].decision) == ("error", "unknown tool")
    assert log.closed[0].tool.isascii()


async def test_denied_by_default(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule T2: a call of a tool that the policy does not allow is refused, and its row names the rule."""
    runner = await make_runner([echo], policy=Policy())
    result = await runner.run(call("echo", '{"text":"a"}'), context)
    assert failure(result)["error_code"] == "policy_denied"
    assert log.closed[0].decision == 'denied: policy.allow lacks "t__echo"'
    assert log.closed[0].status == "error"


async def test_callers_policy_narrows(make_runner: MakeRunner, context: RunContext, call: MakeCall) -> None:
    """Rule T2: the policy given with a call can deny tools, but never allow more."""
    runner = await make_runner([echo], policy=Policy(allow=("t__other",)))
    result = await runner.run(call("echo", '{"text":"a"}'), context, policy=Policy(allow=("*",)))
    assert failure(result)["error_code"] == "policy_denied"
    runner = await make_runner([echo])
    result = await runner.run(call("echo", '{"text":"a"}', 1), context, policy=Policy(allow=()))
    assert failure(result)["error_code"] == "policy_denied"


async def test_needs_approval(make_runner: MakeRunner, context: RunContext, call: MakeCall) -> None:
    """Rule T2: a call that needs an approval and has none is refused with approval_required."""
    counter = Counter()
    runner = await make_runner([counter.tool], policy=Policy(allow=("*",), approve_effects=("state_change",)))
    result = await runner.run(call("count"), context)
    assert failure(result)["error_code"] == "approval_required"
    assert counter.times == 0


async def test_rate_limited(make_runner: MakeRunner, context: RunContext, call: MakeCall) -> None:
    """Rule T3: a caller over its limit of tool calls gets rate_limited, with the time to wait."""
    hits = []

    class Full:
        async def hit(self, kind: str, caller: str) -> float:
            hits.append((kind, caller))
            return 12.0

    runner = await make_runner([echo], limiter=Full())
    result = await runner.run(call("echo", '{"text":"a"}'), context)
    assert failure(result)["error_code"] == "rate_limited"
    assert "12 s" in result.safe_message
    assert hits == [("tool_calls", "open")]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"text":', "invalid_json"),
        ("call it, please", "invalid_json"),
        ('{"text":"a","text":"b"}', "invalid_json"),
        ('{"text":NaN}', "invalid_json"),
        ('{"text":1e999}', "invalid_json"),
        ('{"text":"\\ud800"}', "invalid_json"),
        ('{"text":"\ud800"}', "invalid_json"),
        ('{"text":"a","\\ud800":1}', "invalid_json"),
        ("[" * 5000, "invalid_json"),
        ("[" * 4000 + "]" * 4000, "invalid_json"),
        ('{"text":' + "[" * 80 + "]" * 80 + "}", "invalid_json"),
        ("9" * 5000, "invalid_json"),
        ("[]", "invalid_arguments"),
        ('"text"', "invalid_arguments"),
        ("", "invalid_arguments"),
        ("null", "invalid_arguments"),
        ("{}", "invalid_arguments"),
        ('{"text":1}', "invalid_arguments"),
        ('{"text":{"text":"a"}}', "invalid_arguments"),
        ('{"text":"a","more":1}', "invalid_arguments"),
        ('{"text":"' + "a" * 9000 + '"}', "invalid_arguments"),
    ],
)
async def test_bad_arguments_do_not_run(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall, arguments: str, code: str
) -> None:
    """Rule T3: arguments that are not strict JSON or do not fit the schema never reach the tool."""
    runs = []

    @tool(**READ)
    async def echo(text: str) -> str:
        """Say it again."""
        runs.append(text)
        return text

    result = await (await make_runner([echo])).run(call("echo", arguments), context)
    assert failure(result)["error_code"] == code
    assert runs == []
    assert (log.closed[0].status, log.closed[0].error_code) == ("error", code)
    assert log.closed[0].arguments_redacted is None


async def test_effect_is_on_record_before_it_starts(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule R1: the row of a tool with an effect is committed before the effect and closed after it."""
    seen = []

    @tool(**EFFECT)
    async def act() -> str:
        """Act."""
        seen.append([(row.status, durable) for row, durable in log.opened] + list(log.closed))
        return "done"

    await (await make_runner([act])).run(call("act"), context)
    assert seen == [[("started", True)]]
    assert [row.status for row in log.closed] == ["success"]


async def test_no_record_no_effect(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule R1: if the row cannot be written, a tool with an effect does not run; a later call may run."""
    counter = Counter()
    runner = await make_runner([counter.tool, echo])
    log.broken = True
    result = await runner.run(call("count"), context)
    assert failure(result)["error_code"] == "execution_failed"
    assert counter.times == 0
    assert (await runner.run(call("echo", '{"text":"a"}', 1), context)).ok, "read-only tools go on"
    (row,) = log.closed
    assert row.decision.endswith("; not made, the record could not be written"), "it is told of later"
    log.broken = False
    assert (await runner.run(call("count", "{}", 2), context)).ok
    assert counter.times == 1


async def test_identical_effect_runs_once(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule R5: an identical call within the run gets the first one's result under its own id."""
    counter = Counter()
    runner = await make_runner([counter.tool])
    first = await runner.run(call("count", '{"by":2,"note":"a"}'), context)
    second = await runner.run(call("count", ' {"note":"\\u0061", "by":2}', 1), context.at_turn(2))
    assert counter.times == 1
    assert (second.call_id, second.content, second.ok) == ("call_1", first.content, True)
    other = await runner.run(call("count", '{"by":3}', 2), context.at_turn(2))
    assert (counter.times, other.ok) == (2, True)
    assert [row.decision.split(" ")[0] for row in log.closed] == ["allowed:", "repeat", "allowed:"]


async def test_identical_effect_in_another_run_runs(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule R5: an identical effect in another run is executed again."""
    counter = Counter()
    runner = await make_runner([counter.tool])
    await runner.run(call("count"), context)
    await runner.run(call("count"), structs.replace(context, run_id="run_2", ledger=RunLedger()))
    assert counter.times == 2


async def test_failed_effect_is_not_tried_again(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule R5: the outcome of a failed effect is unknown, so an identical call gets the same failure."""
    times = 0

    @tool(**EFFECT)
    async def act() -> str:
        """Act."""
        nonlocal times
        times += 1
        raise OSError("reset")

    runner = await make_runner([act])
    results = [await runner.run(call("act", "{}", seq), context) for seq in range(2)]
    assert [failure(one)["error_code"] for one in results] == ["execution_failed"] * 2
    assert times == 1


async def test_repeatable_effect_runs_again(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule R5: a tool that is declared repeatable runs for each identical call."""
    counter = Counter(repeatable=True)
    runner = await make_runner([counter.tool])
    for seq in range(3):
        await runner.run(call("count", "{}", seq), context)
    assert counter.times == 3


async def test_one_place_runs_once(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule R5: a call at the same run, turn and index runs once; other arguments there are refused."""
    counter = Counter(repeatable=True)
    runner = await make_runner([counter.tool])
    first, second = await asyncio.gather(
        runner.run(call("count"), context), runner.run(call("count"), context)
    )
    assert first.content == second.content
    third = await runner.run(call("count", '{"by":2}'), context)
    assert failure(third)["error_code"] == "execution_failed"
    assert counter.times == 1
    assert len(log.closed) == 1


async def test_concurrent_identical_effects_run_once(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule R5: concurrent identical calls of a run cause one effect."""
    counter = Counter()
    runner = await make_runner([counter.tool])
    results = await asyncio.gather(*(runner.run(call("count", "{}", seq), context) for seq in range(10)))
    assert counter.times == 1
    assert {one.content for one in results} == {'{"times":1}'}


async def test_ledger_is_bounded(make_runner: MakeRunner, call: MakeCall) -> None:
    """Rule T7: calls beyond the maximum of the run's ledger get budget_exhausted."""
    runner = await make_runner([echo])
    context = RunContext("run_1", 1, "open", ledger=RunLedger(max_calls=2))
    results = [await runner.run(call("echo", '{"text":"a"}', seq), context) for seq in range(3)]
    assert [one.ok for one in results] == [True, True, False]
    assert failure(results[2])["error_code"] == "budget_exhausted"


async def test_time_out(make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall) -> None:
    """Rule T7: a tool is cancelled at its timeout; the model learns that an effect may have happened."""
    ended = []

    @tool(timeout_s=0.01, **READ)
    async def slow() -> None:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    @tool(timeout_s=0.01, **EFFECT)
    async def slow_effect() -> None:
        """Wait."""
        await asyncio.Event().wait()

    runner = await make_runner([slow, slow_effect])
    result = await runner.run(call("slow"), context)
    assert failure(result)["error_code"] == "timeout"
    assert ended == ["slow"]
    result = await runner.run(call("slow_effect", "{}", 1), context)
    assert "may have taken effect" in failure(result)["message"]
    assert [row.error_code for row in log.closed] == ["timeout", "timeout"]


async def test_a_tools_own_time_wins(
    still_time: StillTime, make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule T7: a tool's own timeout replaces the configured one, shorter or longer; the remaining time of
    the run limits both."""
    ended = asyncio.Event()

    @tool(timeout_s=0.01, **READ)
    async def hasty() -> None:
        """Wait."""
        await asyncio.Event().wait()

    @tool(timeout_s=1000, **READ)
    async def slow() -> str:
        """Wait until the clock has gone past the configured time."""
        await ended.wait()
        return "done"

    runner = await make_runner([hasty], default_timeout_s=1000)
    assert failure(await runner.run(call("hasty"), context))["error_code"] == "timeout"
    runner = await make_runner([slow], default_timeout_s=0.01)
    asyncio.get_running_loop().call_later(0.05, ended.set)
    assert (await runner.run(call("slow", "{}", 1), context)).content == "done"
    ended.clear()
    result = await runner.run(call("slow", "{}", 2), context, budget_s=0.01)
    assert failure(result)["error_code"] == "timeout"
    result = await runner.run(call("slow", "{}", 3), context, budget_s=0)
    assert failure(result)["error_code"] == "budget_exhausted"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("s3cret"),
        SystemExit(3),
        KeyboardInterrupt("s3cret"),
        BaseException("s3cret"),
        asyncio.CancelledError("s3cret"),
        StopIteration("s3cret"),
        GeneratorExit("s3cret"),
        RecursionError("s3cret"),
        MemoryError("s3cret"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_whatever_a_tool_raises(
    make_runner: MakeRunner,
    log: MemoryLog,
    context: RunContext,
    call: MakeCall,
    error: BaseException,
    threaded: bool,
) -> None:
    """Rule T3: any exception of a tool is execution_failed, its message is not shown, and the run goes on."""

    @tool(name="bad", **READ)
    async def bad() -> None:
        """Fail."""
        raise error

    @tool(name="bad", **READ)
    def bad_thread() -> None:
        """Fail."""
        raise error

    runner = await make_runner([bad_thread if threaded else bad, echo])
    with structlog.testing.capture_logs() as lines:
        result = await runner.run(call("bad"), context)
    assert failure(result)["error_code"] == "execution_failed"
    assert "s3cret" not in result.content + repr(log.closed) + repr(lines)
    assert (await runner.run(call("echo", '{"text":"a"}', 1), context)).ok


async def test_tool_failure_speaks_to_the_model(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """The model gets the message and the code of a ToolFailure, with private arguments masked."""

    @tool(effect="read_only", redaction=Redaction(private_arguments=("login.pin",)))
    async def enter(login: dict[str, str], name: str) -> None:
        """Enter."""
        raise ToolFailure(f"{name} has no account with {login['pin']}", code="rate_limited")

    class Login(BaseModel):
        """A login."""

        pin: str

    @tool(name="enter2", effect="read_only", redaction=Redaction(private_arguments=("login.pin",)))
    async def enter_model(login: Login, name: str) -> None:
        """Enter."""
        raise ToolFailure(f"{name} has no account with {login.pin}", code="rate_limited")

    runner = await make_runner([enter, enter_model])
    for seq, name in enumerate(("enter", "enter2")):
        result = await runner.run(call(name, '{"login":{"pin":"9876"},"name":"Ada"}', seq), context)
        assert failure(result) == {
            "ok": False,
            "error_code": "rate_limited",
            "message": "Ada has no account with [private]",
        }


def _cycle() -> list[Any]:
    """A list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


class Foreign:
    """An object that JSON cannot express."""


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (float("nan"), "execution_failed"),
        ({"a": [1.0, float("inf")]}, "execution_failed"),
        (_cycle(), "execution_failed"),
        ({"a": Foreign()}, "execution_failed"),
        (b"\xff\xfe", "execution_failed"),
        ([0] * 3_000_000, "result_too_large"),
        ({"a": "x" * 3_000_000}, "result_too_large"),
        ([["x"] * 1000] * 2000, "result_too_large"),
    ],
    ids=["nan", "inf", "cycle", "foreign", "bytes", "list", "text-in-object", "shared"],
)
async def test_output_that_is_no_json(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall, value: object, code: str
) -> None:
    """Rule T3: an output that JSON cannot express, or that is too large, is a failure with its own row."""

    @tool(**READ)
    async def give() -> Any:
        """Give."""
        return value

    result = await (await make_runner([give])).run(call("give"), context)
    assert failure(result)["error_code"] == code
    assert log.closed[0].error_code == code


async def test_output_with_odd_text_and_numbers(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Lone surrogates and integers beyond 64 bits are written so that they can be sent as UTF-8."""

    @tool(**READ)
    async def give(kind: str) -> Any:
        """Give."""
        return {"json": {"a": "x\ud800", "n": 2**70}, "text": "x\ud800"}[kind]

    runner = await make_runner([give])
    result = await runner.run(call("give", '{"kind":"json"}'), context)
    assert json.loads(result.content.encode()) == {"a": "x\ud800", "n": 2**70}
    result = await runner.run(call("give", '{"kind":"text"}', 1), context)
    assert result.content == "x?"


async def test_large_result_is_cut(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule T7: a result over its limit keeps its head and tail with a note between, within the limit."""

    @tool(**READ)
    async def tell(kind: str) -> Any:
        """Tell."""
        return {"text": "BEGIN" + "ä" * 50_000_000 + "END", "json": ["ö" * 50_000, "END"], "small": "x"}[kind]

    runner = await make_runner([tell], policy=Policy(allow=("*",), max_result_bytes=1000))
    for seq, (kind, head, tail) in enumerate((("text", "BEGIN", "END"), ("json", '["ö', 'END"]'))):
        result = await runner.run(call("tell", json.dumps({"kind": kind}), seq), context)
        assert result.ok
        assert result.truncated
        assert 900 < len(result.content.encode()) <= 1000
        assert result.content.startswith(head)
        assert result.content.endswith(tail)
        assert "left out" in result.content
    assert log.closed[0].result_bytes == 100_000_008
    assert not (await runner.run(call("tell", '{"kind":"small"}', 5), context)).truncated


async def test_tool_can_tighten_the_result_bound(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule T7: a tool's own result limit holds if it is smaller than the policy's."""

    @tool(max_result_bytes=200, **READ)
    async def tell() -> str:
        """Tell."""
        return "x" * 1000

    result = await (await make_runner([tell])).run(call("tell"), context)
    assert len(result.content) <= 200


async def test_cancelled_caller_stops_a_read_only_tool(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule E4: if the client leaves, a read-only tool is cancelled, and its row says so."""
    began, ended = asyncio.Event(), asyncio.Event()

    @tool(**READ)
    async def slow() -> None:
        """Wait."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    runner = await make_runner([slow])
    task = asyncio.create_task(runner.run(call("slow"), context))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    assert [(row.status, row.error_code) for row in log.closed] == [("cancelled", "cancelled")]


async def test_cancelled_caller_lets_an_effect_finish(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule E4: if the client leaves, an effect that has begun runs to its end, and ``drain`` waits for it."""
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool(**EFFECT)
    async def act() -> str:
        """Act."""
        began.set()
        await go_on.wait()
        return "done"

    runner = await make_runner([act])
    task = asyncio.create_task(runner.run(call("act"), context))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.closed == []
    go_on.set()
    assert await runner.drain() == 0
    assert [row.status for row in log.closed] == ["success"]


async def test_cancelled_before_it_started_means_no_effect(
    make_runner: MakeRunner,
    log: MemoryLog,
    context: RunContext,
    call: MakeCall,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule E4: if the client leaves while the row is being written, the effect does not happen."""
    opening, go_on = asyncio.Event(), asyncio.Event()
    write = log.open_invocation

    async def slow_open(record: Any, *, durable: bool) -> None:
        opening.set()
        await go_on.wait()
        await write(record, durable=durable)

    monkeypatch.setattr(log, "open_invocation", slow_open)
    counter = Counter()
    runner = await make_runner([counter.tool])
    task = asyncio.create_task(runner.run(call("count"), context))
    await opening.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await runner.drain()
    assert counter.times == 0
    assert [row.status for row in log.closed] == ["cancelled"]


async def test_run_many_reads_together_and_effects_in_order(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Read-only calls of a turn run concurrently, others in order; results come in the order of calls."""
    both = asyncio.Barrier(2)
    order: list[str] = []

    @tool(**READ)
    async def read(name: str) -> str:
        """Read."""
        await both.wait()
        order.append("read")
        return name

    @tool(**EFFECT)
    async def write(name: str) -> str:
        """Write."""
        order.append(name)
        return name

    runner = await make_runner([read, write])
    calls = [
        call(name, json.dumps({"name": f"{name}{seq}"}), seq)
        for seq, name in enumerate(("write", "read", "write", "read"))
    ]
    done: list[str] = []
    results = await runner.run_many(calls, context, on_done=lambda one, result: done.append(result.content))
    assert [one.content for one in results] == ["write0", "read1", "write2", "read3"]
    assert order == ["read", "read", "write0", "write2"]
    assert sorted(done) == sorted(one.content for one in results)
    assert done[2:] == ["write0", "write2"]


async def test_run_many_is_bounded_and_can_be_sequential(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """At most ``max_parallel`` read-only calls run at once, and only one with ``parallel=False``."""
    now = most = 0

    @tool(**READ)
    async def read(n: int) -> int:
        """Read."""
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        return n

    runner = await make_runner([read], max_parallel=4)
    calls = [call("read", json.dumps({"n": seq}), seq) for seq in range(64)]
    results = await runner.run_many(calls, context)
    assert most == 4
    assert [one.content for one in results] == [str(seq) for seq in range(64)]
    most = 0
    await runner.run_many(calls[:8], context.at_turn(2), parallel=False)
    assert most == 1


async def test_run_many_shares_one_budget(
    still_time: StillTime, make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule T7: calls that come after the run's time is used up get budget_exhausted."""

    @tool(**EFFECT)
    async def slow(n: int) -> None:
        """Wait."""
        await asyncio.Event().wait()

    runner = await make_runner([slow])
    calls = [call("slow", json.dumps({"n": seq}), seq) for seq in range(3)]

    def spent(*_: Any) -> None:
        still_time.now += 0.02

    results = await runner.run_many(calls, context, budget_s=0.02, on_done=spent)
    assert [failure(one)["error_code"] for one in results] == [
        "timeout",
        "budget_exhausted",
        "budget_exhausted",
    ]


async def test_cancelling_run_many_starts_nothing_more(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule E4: effects that have not begun when the client leaves are never started."""
    began, go_on = asyncio.Event(), asyncio.Event()
    order: list[int] = []

    @tool(**EFFECT)
    async def act(n: int) -> None:
        """Act."""
        order.append(n)
        began.set()
        await go_on.wait()

    runner = await make_runner([act])
    calls = [call("act", json.dumps({"n": seq}), seq) for seq in range(3)]
    task = asyncio.create_task(runner.run_many(calls, context))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await runner.drain()
    assert order == [0]
    assert [row.status for row in log.closed] == ["success"]


async def test_fault_of_our_own_is_a_result(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule T1: an exception in the default of an argument is a failed call; the runner does not raise."""

    class Odd(BaseModel):
        """Arguments with a broken default."""

        n: Annotated[int, Field(default_factory=lambda: 1 // 0)]

    @tool(**READ)
    async def odd(arguments: Odd) -> None:
        """Break."""

    result = await (await make_runner([odd])).run(call("odd"), context)
    assert failure(result)["error_code"] == "execution_failed"


async def test_call_context_names_the_call(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule T6: a tool with a ``CallContext`` parameter gets the ids of the run, the call and the caller."""

    @tool(**READ)
    async def who(about: CallContext) -> dict[str, str]:
        """Tell who calls."""
        return {"run": about.run_id, "id": about.invocation_id, "caller": about.caller, "call": about.call_id}

    result = await (await make_runner([who], ids=lambda: "inv_7")).run(call("who"), context)
    assert json.loads(result.content) == {"run": "run_1", "id": "inv_7", "caller": "open", "call": "call_0"}
    assert log.closed[0].id == "inv_7"


async def test_log_lines(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule T4: the log lines of an invocation have its tool, redacted arguments, latency, size, error code
    and the same ids as its row."""

    @tool(effect="read_only", redaction=Redaction(private_arguments=("pin",)))
    async def look(pin: str, place: str = "Rome") -> str:
        """Look."""
        return "ok"

    runner = await make_runner([look])
    with structlog.testing.capture_logs() as lines:
        await runner.run(call("look", '{"pin":"s3cret","place":"Oslo"}'), context)
        await runner.run(call("look", '{"place":"s3cret"}', 1), context.at_turn(2))
    assert [line["event"] for line in lines] == [
        "tool_invocation_started",
        "tool_invocation_success",
        "tool_invocation_error",
    ]
    for line, row in zip(lines, [log.closed[0], *log.closed], strict=True):
        assert line["correlation_id"] == row.run_id == "run_1"
        assert line["operation_id"] == row.operation_id
        assert line["tool"] == row.tool == "t__look"
        assert line["tool_invocation_id"] == row.id
        assert line["arguments"] == row.arguments_redacted
    assert [row.operation_id for row in log.closed] == ["run_1.1.0", "run_1.2.1"]
    assert [line["log_level"] for line in lines] == ["debug", "info", "warning"]
    assert lines[1]["arguments"] == {"pin": "[private]", "place": "Oslo"}
    assert lines[2]["arguments"] is None, "they were not understood"
    assert lines[1]["result_bytes"] == 2
    assert lines[1]["latency_ms"] >= 0
    assert lines[2]["error_code"] == "invalid_arguments"
    assert "s3cret" not in repr(lines)


async def test_arguments_in_a_line_are_short(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule T4: a log line has only the beginning of long arguments; the row has at least as much."""

    @tool(**READ)
    async def take(value: Any) -> str:
        """Take."""
        return "ok"

    runner = await make_runner([take])
    values = ["x" * 7000, ["yes"] * 500, {f"k{n}": {"a": [n, n]} for n in range(60)}, {"k" * 600: "x" * 600}]
    for seq, value in enumerate(values):
        with structlog.testing.capture_logs() as lines:
            assert (await runner.run(call("take", json.dumps({"value": value}), seq), context)).ok
        shown = json.dumps(lines[-1]["arguments"])
        assert "[cut]" in shown
        assert len(shown) < 2500
        assert len(json.dumps(log.closed[-1].arguments_redacted)) >= len(shown)


async def test_arguments_can_be_kept_out_of_the_log(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """With ``log_arguments=False`` only the row has the redacted arguments, not the log."""
    runner = await make_runner([echo], log_arguments=False)
    with structlog.testing.capture_logs() as lines:
        await runner.run(call("echo", '{"text":"canary"}'), context)
    assert len(lines) == 2
    assert "canary" not in repr(lines)
    assert log.closed[0].arguments_redacted == {"text": "canary"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(argument_texts, min_size=1, max_size=4))
async def test_no_argument_string_breaks_the_runner(make_runner: MakeRunner, texts: list[str]) -> None:
    """Rules T3 and R5: with any argument strings the runner does not raise and runs no effect twice."""
    counter = Counter()
    runner = await make_runner([counter.tool])
    run = RunContext("run_1", 1, "open")
    calls = [ToolCall(f"call_{seq}", "t__count", text, seq) for seq, text in enumerate([*texts, *texts])]
    results = await runner.run_many(calls, run)
    for result in results:
        if not result.ok:
            failure(result)
            assert result.error_code in ("invalid_json", "invalid_arguments")
    first, again = results[: len(texts)], results[len(texts) :]
    assert [one.content for one in first] == [one.content for one in again]
    assert counter.times == len({one.content for one in results if one.ok})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    template=st.sampled_from(
        [
            '{{"text":{0},"{1}":1}}',
            '{{"{1}":{0}}}',
            '{{"text":[{0}]}}',
            '{{"text":{{"{1}":{0}}}}}',
            '{{"text":{0},"text":{0}}}',
            "{1}",
            '"{1}"',
            '["{1}"]',
            '{{"text":"{1}',
            '{{"text":"{1}","kind":"{1}"}}',
            '{{"text":"ok","open":{{"{1}":"{1}"}}}}',
            '{{"text":"ok","day":"{1}"}}',
            '{{"text":"{1}","day":"2026-01-01","uid":"{1}","open":{{}}}}',
        ]
    ),
    marker=st.text(alphabet="abcdefghijkmnpqrstuvwxyz", min_size=3, max_size=8).map(
        lambda text: f"Zq{text}9"
    ),
)
async def test_no_message_repeats_an_argument(
    make_runner: MakeRunner, log: MemoryLog, template: str, marker: str
) -> None:
    """Rule T3: messages about refused arguments quote neither their values nor their keys."""

    class Arguments(BaseModel):
        """Arguments of many kinds."""

        text: str = Field(max_length=2)
        kind: Literal["a", "b"] = "a"
        day: datetime.date | None = None
        uid: uuid.UUID | None = None
        open: dict[str, int] = {}

        @field_validator("text")
        @classmethod
        def careless(cls, value: str) -> str:
            raise ValueError(f"{value} is not good")

    @tool(**READ)
    async def take(arguments: Arguments) -> None:
        """Take."""

    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 2},
            "kind": {"enum": ["a", "b"]},
            "open": {"type": "object", "additionalProperties": {"type": "integer"}},
            "day": {"type": "string", "pattern": "^[0-9-]+$"},
        },
        "required": ["text"],
        "additionalProperties": False,
    }

    @tool(parameters=schema, **READ)
    async def take_verbatim(arguments: dict[str, Any]) -> None:
        """Take."""

    text = template.format(json.dumps(marker), marker)
    runner = await make_runner([take, take_verbatim])
    for seq, name in enumerate(("take", "take_verbatim")):
        result = await runner.run(ToolCall("c", f"t__{name}", text, seq), RunContext("run_1", 1, "open"))
        assert failure(result)["error_code"] in ("invalid_json", "invalid_arguments")
        assert marker not in result.content
        assert marker not in repr(log.closed[-1])


async def test_effects_are_what_the_records_say(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """A row has the effect of its tool, or read_only for an unknown tool."""
    runner = await make_runner([Counter().tool])
    await runner.run(call("count"), context)
    await runner.run(call("missing", "{}", 1), context)
    assert [row.effect for row in log.closed] == [ToolEffect.STATE_CHANGE, ToolEffect.READ_ONLY]
