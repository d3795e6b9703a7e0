"""The state machine of a run: which command it returns for each event, written as traces.

A trace is a list of steps. A ``CallModel``, ``AskApproval``, ``RunTools``, ``Suspend`` or ``Finish`` is the
command that the run must return there. A :class:`Turn` is what the model then answers, a set holds the
indices of approved calls, ``RAN`` says that the tools have run, and a number lets that many seconds pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from proxy.base.errors import ToolErrorCode
from proxy.base.events import (
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolResult,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
    aborted,
    finished,
)
from proxy.records.result_for_model import Hole, ResultForModel, UnfilledHole
from proxy.relay.base import RunSettings
from proxy.relay.run.run import AskApproval, CallModel, Command, Finish, Run, RunTools, Suspend, failed_result
from proxy.wires.openai.parallel_tool_use import expand, is_wrapper

RAN = object()
CLIENTS = frozenset({"theirs", "also_theirs"})


@dataclass(frozen=True)
class Turn:
    """The events of one turn, and whether its stream had an end mark."""

    events: Sequence[TurnEvent]
    ended: bool = True


class FakeClock:
    """A clock whose time passes only when a trace says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def a(call_id: str, name: str = "core__x", arguments: str = "{}", index: int = 0) -> ToolCall:
    """Return a call; all names but those in ``CLIENTS`` are server tools."""
    return ToolCall(call_id, name, arguments, index)


def said(
    *calls: ToolCall,
    reason: FinishReason | str | None = None,
    text: str = "",
    used: int = 0,
    ended: bool = True,
) -> Turn:
    """Return a complete turn; its reason is ``tool_calls`` or ``stop`` unless given."""
    events: list[TurnEvent] = [TurnStarted("chatcmpl-1", "m")]
    events += [TextDelta(text)] if text else []
    events += [ToolCallFinished(c.index, c) for c in calls]
    events += [UsageReported(Usage(used - 1, 1, used))] if used else []
    return Turn([*events, finished(reason or ("tool_calls" if calls else "stop"))], ended)


def trace(*steps: object, settings: RunSettings | None = None) -> Run:
    """Play a trace and check each of its commands; return the run, so that a test can look at its state."""
    clock = FakeClock()
    run = Run(
        settings or RunSettings(),
        is_hidden=lambda name: name not in CLIENTS,
        needs_approval=lambda call, turn: call.name.startswith("ask__"),
        clock=clock,
    )
    answer: Command | None = run.start()
    for position, step in enumerate(steps):
        match step:
            case CallModel() | AskApproval() | RunTools() | Suspend() | Finish():
                assert answer == step, f"step {position}"
                answer = None
            case Turn(events=events, ended=ended):
                assert answer is None, f"step {position}: {answer} was not looked at"
                run.observe(events)
                if ended:
                    run.saw_end_mark()
                answer = run.turn_ended()
            case frozenset():
                assert answer is None, f"step {position}: {answer} was not looked at"
                answer = run.decided(step)
            case int() | float():
                clock.seconds += step
            case _ if step is RAN:
                assert answer is None, f"step {position}: {answer} was not looked at"
                answer = run.tools_ran()
            case _:
                raise AssertionError(step)
    assert answer is None, f"the trace ends before {answer}"
    return run


def spent(call_id: str, what: str) -> ToolResult:
    """Return the result of a call that a spent budget refuses."""
    return failed_result(call_id, "budget_exhausted", f"Not run: no more than {what} in one request.")


ONE, TWO, THREE = a("1"), a("2", index=1), a("3", index=2)
MINE, OTHER = a("m", "theirs", index=1), a("o", "also_theirs", index=2)
BROKEN = {
    "message": "The upstream's response ended before it was finished.",
    "type": "upstream_error",
    "code": "upstream_broken",
}


# ---------------------------------------------------------------- approvals


def test_no_call_of_a_turn_runs_before_the_approval_is_decided() -> None:
    """If one call of a turn needs an approval, all its calls wait for the answer and then run together."""
    asked, other = a("1", "ask__buy"), a("2", index=1)
    trace(
        *(CallModel(1), said(asked, other), AskApproval((asked,))),
        *(frozenset({0}), RunTools((asked, other), approved=frozenset({0}))),
        *(RAN, CallModel(2), said(text="bought"), Finish()),
    )


def test_a_call_that_is_not_approved_goes_on_to_be_refused() -> None:
    """A call without its approval still goes to the tool runner, where the policy refuses it."""
    asked = a("1", "ask__buy")
    trace(
        *(CallModel(1), said(asked), AskApproval((asked,)), frozenset(), RunTools((asked,))),
        *(RAN, CallModel(2), said(text="not bought"), Finish()),
    )


def test_nobody_is_asked_about_a_call_that_does_not_run_anyway() -> None:
    """If a budget is spent, the run refuses a call without asking anybody for its approval."""
    asked = a("1", "ask__buy")
    none_left = spent("1", "0 tool calls")
    trace(
        *(CallModel(1), said(asked), RunTools((), (none_left,)), RAN, CallModel(2, last=True)),
        *(said(text="sorry"), Finish()),
        settings=RunSettings(max_calls=0),
    )


def test_undecided_calls_wait_and_refused_ones_do_not_run() -> None:
    """Approved calls run, refused calls get a result, and the client is told which calls still wait."""
    asking = [a(str(index), "ask__x", index=index) for index in range(4)]
    run = Run(
        RunSettings(), is_hidden=lambda name: True, needs_approval=lambda call, turn: True, clock=FakeClock()
    )
    run.start()
    run.observe(
        [*(ToolCallFinished(call.index, call) for call in asking), TurnFinished(FinishReason.TOOL_CALLS)]
    )
    assert run.turn_ended() == AskApproval(tuple(asking))
    no = failed_result("3", "rate_limited", "No.")
    command = run.decided(frozenset({0}), frozenset({1}), [no])
    assert command == RunTools((asking[0], asking[2]), (no,), frozenset({0}), (asking[1],))
    run.let_wait([asking[0]])
    assert run.tools_ran() == Suspend((), (asking[1], asking[0]))


def test_an_approval_that_nobody_asked_for_is_a_fault() -> None:
    """A run raises an error if it gets a decision about an approval that it did not ask for."""
    run = trace(CallModel(1), said(text="hello"), Finish())
    with pytest.raises(RuntimeError, match="no approval"):
        run.decided(frozenset({0}))


# ---------------------------------------------------------------- turns without server calls


def test_an_answer_ends_the_run() -> None:
    """A turn without calls ends the run with the upstream's own finish reason."""
    run = trace(CallModel(1), said(text="hello"), Finish())
    assert not run.turn.calls
    assert run.turn.upstream_id == "chatcmpl-1"
    assert run.turn.reason == "stop"
    assert run.turns_hidden == 0


def test_pieces_decide_nothing() -> None:
    """Reasoning and an unfinished call do not count as calls: the turn ends the run like an answer."""
    run = trace(
        CallModel(1),
        Turn(
            [
                ReasoningDelta("hm"),
                ToolCallStarted(0, "m", "theirs"),
                ToolCallDelta(0, "{}"),
                TurnFinished(FinishReason.STOP),
            ]
        ),
        Finish(),
    )
    assert not run.turn.calls


def test_client_calls_alone_are_the_upstreams_own_stream() -> None:
    """Rule W2: a turn that calls only client tools ends the run, and the upstream's stream stays as it is."""
    run = trace(CallModel(1), said(MINE, OTHER), Finish())
    assert run.client_calls == (MINE, OTHER)
    assert run.hidden_calls == ()


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
def test_a_cut_off_turn_runs_nothing(reason: FinishReason) -> None:
    """Rule W7: the run does not run calls of a turn that was cut off or stopped by a filter."""
    trace(CallModel(1), said(ONE, reason=reason), Finish(reason))


@pytest.mark.parametrize("word", ["abort", "error", "cancelled", "malformed_function_call", "a new one"])
def test_an_aborted_turn_runs_nothing(word: str) -> None:
    """Rule W7: calls run only after reasons that say so; any other word makes the run fail."""
    trace(CallModel(1), said(ONE, reason=word), Finish(error=aborted(word), in_stream=True))


def test_a_stream_that_merely_ends_is_a_failure() -> None:
    """Even without server calls, a stream without finish reason and end mark ends in an error."""
    trace(CallModel(1), Turn([TextDelta("a")], ended=False), Finish(error=BROKEN))


def test_an_end_mark_is_an_end_without_a_finish_reason() -> None:
    """A call runs if an end mark follows it, even without a finish reason."""
    trace(CallModel(1), Turn([ToolCallFinished(0, ONE)]), RunTools((ONE,)))


def test_a_server_call_without_an_end_is_not_run() -> None:
    """Rule W7: without finish reason and end mark the turn was cut off, and its calls do not run."""
    trace(CallModel(1), Turn([ToolCallFinished(0, ONE)], ended=False), Finish(error=BROKEN))


def test_a_later_turn_without_an_end_is_a_failure() -> None:
    """If a later turn is cut off, the run ends in an error, so that the answer does not look complete."""
    trace(
        CallModel(1),
        said(ONE),
        RunTools((ONE,)),
        RAN,
        CallModel(2),
        Turn([TextDelta("a")], ended=False),
        Finish(error=BROKEN),
    )


def test_an_error_of_the_upstreams_own_is_in_its_stream() -> None:
    """An error inside the stream reaches a client whose stream passes through."""
    error = {"message": "overloaded", "code": "x"}
    trace(CallModel(1), Turn([TurnFailed(error)]), Finish(error=error, in_stream=True))


def test_an_error_inside_a_call_runs_nothing() -> None:
    """If the upstream reports an error after a server call, the call does not run and the client is told."""
    error = {"message": "overloaded"}
    failed = Turn([ToolCallFinished(0, ONE), TurnFailed(error)])
    trace(CallModel(1), failed, Finish(error=error, in_stream=True))


def test_an_error_in_a_later_turn_ends_the_run() -> None:
    """An upstream's error in a later turn ends the run with this error."""
    error = {"message": "overloaded"}
    trace(
        CallModel(1),
        said(ONE),
        RunTools((ONE,)),
        RAN,
        CallModel(2),
        Turn([TurnFailed(error)]),
        Finish(error=error, in_stream=True),
    )


# ---------------------------------------------------------------- turns with server calls


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "function_call"])
def test_server_calls_run_whatever_the_reason(reason: str) -> None:
    """Server calls run even if the upstream finishes its turn with ``stop``, as some providers do."""
    run = trace(
        CallModel(1),
        said(ONE, TWO, reason=reason),
        RunTools((ONE, TWO)),
        RAN,
        CallModel(2),
        said(text="done"),
        Finish(),
    )
    assert run.calls_run == 2
    assert run.turns_hidden == 1
    assert run.turn.number == 2


def test_each_turn_begins_with_nothing_of_the_one_before() -> None:
    """A new turn starts without the calls, reason, end mark and usage of the turn before it."""
    run = trace(CallModel(1), said(ONE, text="wait"), RunTools((ONE,)), RAN, CallModel(2))
    turn = run.turn
    assert (turn.calls, turn.reason, turn.ended, turn.usage) == ([], None, False, None)


def test_a_later_turn_that_calls_the_client_suspends() -> None:
    """After a hidden turn the run itself hands calls of client tools to the client, and suspends."""
    trace(CallModel(1), said(ONE), RunTools((ONE,)), RAN, CallModel(2), said(MINE), Suspend((MINE,)))


def test_a_mixed_turn_runs_the_servers_and_suspends() -> None:
    """In a mixed turn the server calls run; then the client gets its own calls, in their order."""
    run = trace(CallModel(1), said(ONE, MINE, OTHER), RunTools((ONE,)), RAN, Suspend((MINE, OTHER)))
    assert run.turns_hidden == 1


def test_reason_tool_calls_without_calls_becomes_stop() -> None:
    """After a hidden turn, ``tool_calls`` without calls becomes ``stop``; in a first turn nothing changes."""
    start = (CallModel(1), said(ONE), RunTools((ONE,)), RAN, CallModel(2))
    trace(*start, said(reason="tool_calls"), Finish(FinishReason.STOP))
    trace(*start, said(reason="function_call"), Finish(FinishReason.STOP))
    trace(CallModel(1), said(reason="tool_calls"), Finish())


def test_a_later_answer_keeps_the_upstreams_reason() -> None:
    """After a hidden turn, the run ends with the finish reason ``length`` if the upstream reports it."""
    start = (CallModel(1), said(ONE), RunTools((ONE,)), RAN, CallModel(2))
    trace(*start, said(reason="length"), Finish(FinishReason.LENGTH))
    trace(*start, said(), Finish())


# ---------------------------------------------------------------- budgets


def test_the_last_turn_is_asked_without_tools() -> None:
    """Rule T7: once all turns are used, calls are refused and the model is asked once more, without tools."""
    run = trace(
        CallModel(1),
        said(ONE),
        RunTools((ONE,)),
        RAN,
        CallModel(2),
        said(TWO),
        RunTools((), (spent("2", "2 turns"),)),
        RAN,
        CallModel(3, last=True),
        said(text="enough"),
        Finish(),
        settings=RunSettings(max_turns=2),
    )
    assert run.calls_run == 1


def test_calls_on_the_last_turn_are_dropped_with_a_note() -> None:
    """Rule T7: if the model calls a tool in its last turn, the call is dropped and the user gets a note."""
    note = "[The tool budget of this request is spent; further tool calls were not run.]"
    trace(
        CallModel(1),
        said(ONE),
        RunTools((), (spent("1", "1 turns"),)),
        RAN,
        CallModel(2, last=True),
        said(TWO),
        Finish(FinishReason.STOP, note=note),
        settings=RunSettings(max_turns=1),
    )


def test_a_mixed_last_turn_answers_every_server_call() -> None:
    """Rule T7: in the last turn, server calls get a refusal as their result and the client gets its calls."""
    run = trace(
        CallModel(1),
        said(ONE, TWO),
        RunTools((ONE,), (spent("2", "1 tool calls"),)),
        RAN,
        CallModel(2, last=True),
        said(THREE, MINE),
        RunTools((), (spent("3", "1 tool calls"),)),
        RAN,
        Suspend((MINE,)),
        settings=RunSettings(max_calls=1),
    )
    assert run.calls_run == 1


def test_a_client_call_on_the_last_turn_is_handed_over() -> None:
    """A client gets its call even in the last turn, because it uses none of the server's budgets."""
    trace(
        CallModel(1),
        said(ONE),
        RunTools((), (spent("1", "1 turns"),)),
        RAN,
        CallModel(2, last=True),
        said(MINE),
        Suspend((MINE,)),
        settings=RunSettings(max_turns=1),
    )


def test_the_calls_of_a_run_are_counted_over_its_turns() -> None:
    """Rule T7: the calls of all turns share one budget; calls beyond it get a refusal."""
    trace(
        CallModel(1),
        said(ONE),
        RunTools((ONE,)),
        RAN,
        CallModel(2),
        said(ONE, TWO, THREE),
        RunTools((ONE, TWO), (spent("3", "3 tool calls"),)),
        RAN,
        CallModel(3, last=True),
        settings=RunSettings(max_calls=3),
    )


def test_all_calls_within_the_budget_leave_tools_on() -> None:
    """Using up all calls does not end the tools yet; only a refused call does."""
    trace(
        CallModel(1),
        said(ONE, TWO),
        RunTools((ONE, TWO)),
        RAN,
        CallModel(2),
        settings=RunSettings(max_calls=2),
    )


def test_time_spent_by_the_model_refuses_its_calls() -> None:
    """Rule T7: the time of a run counts from its start, and calls after its end are refused."""
    trace(
        CallModel(1),
        30,
        said(ONE),
        RunTools((), (spent("1", "30 seconds"),)),
        RAN,
        CallModel(2, last=True),
        settings=RunSettings(request_timeout_s=30),
    )


def test_time_spent_by_tools_asks_for_the_last_word() -> None:
    """Rule T7: when the tools have used up the time, the model gets their results and a last turn."""
    trace(
        CallModel(1),
        29,
        said(ONE),
        RunTools((ONE,)),
        1,
        RAN,
        CallModel(2, last=True),
        settings=RunSettings(request_timeout_s=30),
    )


def test_seconds_left_never_go_below_zero() -> None:
    """The time that is left for tools is zero, never negative, after the time is up."""
    run = trace(CallModel(1), 29, settings=RunSettings(request_timeout_s=30))
    assert run.seconds_left == 1
    run = trace(CallModel(1), 31, settings=RunSettings(request_timeout_s=30))
    assert run.seconds_left == 0


def test_tokens_are_added_up_over_turns() -> None:
    """Rule T7: the tokens of all turns count against the budget of the run."""
    run = trace(
        CallModel(1),
        said(ONE, used=60),
        RunTools((ONE,)),
        RAN,
        CallModel(2),
        said(TWO, used=40),
        RunTools((), (spent("2", "100 tokens"),)),
        RAN,
        CallModel(3, last=True),
        settings=RunSettings(max_tokens=100),
    )
    assert (run.input_tokens, run.output_tokens, run.total_tokens) == (98, 2, 100)


def test_no_token_bound_is_no_bound() -> None:
    """Without ``max_tokens`` the number of tokens is not limited."""
    trace(CallModel(1), said(ONE, used=10**9), RunTools((ONE,)), RAN, CallModel(2))


def test_the_last_usage_report_of_a_turn_counts() -> None:
    """Only the last usage report of a turn counts, because providers repeat cumulative numbers."""
    run = trace(
        CallModel(1),
        Turn([UsageReported(Usage(5, 1, 6)), UsageReported(Usage(5, 4, 9)), TurnFinished(FinishReason.STOP)]),
        Finish(),
    )
    assert (run.input_tokens, run.output_tokens, run.total_tokens) == (5, 4, 9)


def test_usage_counts_when_a_turn_fails() -> None:
    """Usage that a turn reports before its error counts."""
    run = trace(
        CallModel(1),
        Turn([UsageReported(Usage(5, 1, 6)), TurnFailed({"message": "x"})]),
        Finish(error={"message": "x"}, in_stream=True),
    )
    assert run.total_tokens == 6


# ---------------------------------------------------------------- wrapper calls


def wrapping(*uses: str, name: str = "multi_tool_use.parallel", index: int = 0) -> ToolCall:
    """Return the wrapper call that OpenAI models sometimes invent."""
    return a("w", name, f'{{"tool_uses":[{",".join(uses)}]}}', index)


def use(name: str, parameters: str = "{}") -> str:
    """Return one call inside a wrapper, as JSON."""
    return f'{{"recipient_name":"{name}","parameters":{parameters}}}'


@pytest.mark.parametrize("name", ["parallel", "multi_tool_use.parallel", "multi_tool_use__parallel"])
def test_a_wrapper_runs_what_is_inside(name: str) -> None:
    """The calls inside a wrapper run, each with an id and an index of its own."""
    wrapper = wrapping(use("functions.core__x", '{"q":1}'), use("core__y"), name=name, index=2)
    parts = (a("w.0", "core__x", '{"q":1}', 3000), a("w.1", "core__y", "{}", 3001))
    run = trace(CallModel(1), said(wrapper), RunTools(parts), RAN, CallModel(2))
    assert run.calls_run == 2


def test_a_wrapper_has_one_answer() -> None:
    """The model gets one result for a wrapper call, with the output of each call inside in their order."""
    run = trace(
        CallModel(1),
        said(wrapping(use("core__x"), use("core__y")), TWO),
        RunTools((a("w.0", "core__x", "{}", 1000), a("w.1", "core__y", "{}", 1001), TWO)),
    )
    results = [ToolResult("2", True, "two"), ToolResult("w.1", True, "y"), ToolResult("w.0", False, "x")]
    wrapper, plain = run.answers(results, {})
    assert (wrapper.call.call_id, plain.call, plain.text) == ("w", TWO, "two")
    assert wrapper.text == (
        '[{"recipient_name":"functions.core__x","output":"x"},'
        '{"recipient_name":"functions.core__y","output":"y"}]'
    )


def test_a_client_function_inside_a_wrapper_is_refused() -> None:
    """The run refuses a client's function inside a wrapper, because the client never sees the wrapper."""
    message = "This function runs on the client. Call it by itself, not inside a wrapper."
    run = trace(
        CallModel(1),
        said(wrapping(use("functions.theirs"), use("core__x"))),
        RunTools((a("w.1", "core__x", "{}", 1001),), (failed_result("w.0", "invalid_arguments", message),)),
        RAN,
        CallModel(2),
    )
    assert run.calls_run == 1


def test_wrappers_of_client_functions_come_to_an_end() -> None:
    """Rule T7: a wrapper whose calls are all refused still uses up a turn, so that the run ends."""
    wrapper = wrapping(use("functions.theirs"))
    message = "This function runs on the client. Call it by itself, not inside a wrapper."
    refused = RunTools((), (failed_result("w.0", "invalid_arguments", message),))
    trace(
        CallModel(1),
        said(wrapper),
        refused,
        RAN,
        CallModel(2),
        said(wrapper),
        refused,
        RAN,
        CallModel(3, last=True),
        settings=RunSettings(max_turns=2),
    )


def test_an_ordinary_call_is_no_wrapper_whatever_its_arguments() -> None:
    """Only the name makes a call a wrapper: another tool may have an argument ``tool_uses``."""
    call = a("1", "core__x", '{"tool_uses":[{"recipient_name":"core__y"}]}')
    trace(CallModel(1), said(call), RunTools((call,)))


def test_a_finish_reason_is_an_end_without_an_end_mark() -> None:
    """A call runs if its turn has a finish reason, even if no end mark follows."""
    trace(CallModel(1), said(ONE, ended=False), RunTools((ONE,)))


def test_calls_inside_a_wrapper_count_against_the_budget() -> None:
    """Rule T7: each call inside a wrapper counts against the budget of calls."""
    trace(
        CallModel(1),
        said(wrapping(use("core__x"), use("core__x"))),
        RunTools((a("w.0", "core__x", "{}", 1000),), (spent("w.1", "1 tool calls"),)),
        RAN,
        CallModel(2, last=True),
        settings=RunSettings(max_calls=1),
    )


NOT_WRAPPERS = {
    "prose": "call them",
    "list": "[]",
    "string": '"tool_uses"',
    "no uses": "{}",
    "uses no list": '{"tool_uses":{"recipient_name":"core__x"}}',
    "no use": '{"tool_uses":[]}',
    "use no object": '{"tool_uses":["core__x"]}',
    "no name": '{"tool_uses":[{"parameters":{}}]}',
    "name no text": '{"tool_uses":[{"recipient_name":7}]}',
    "one odd of two": '{"tool_uses":[{"recipient_name":"core__x"},{}]}',
    "too many": '{{"tool_uses":[{}]}}'.format(",".join(['{"recipient_name":"core__x"}'] * 65)),
}


@pytest.mark.parametrize("arguments", NOT_WRAPPERS.values(), ids=NOT_WRAPPERS)
def test_a_wrapper_of_another_shape_is_an_unknown_tool(arguments: str) -> None:
    """The run passes a malformed wrapper on unchanged, as a call of an unknown tool."""
    call = a("w", "parallel", arguments)
    run = trace(CallModel(1), said(call), RunTools((call,)))
    assert run.answers([ToolResult("w", False, "unknown")], {}) == [
        ResultForModel(call, ((None, "unknown"),))
    ]


def test_wrappers_hold_up_to_64_calls() -> None:
    """A wrapper can hold 64 calls; missing parameters become ``{}``, others stay as they are."""
    whole = a("w", "parallel", '{{"tool_uses":[{}]}}'.format(",".join(['{"recipient_name":"x"}'] * 64)))
    assert len(expand(whole)) == 64
    assert {part.arguments for part in expand(whole)} == {"{}"}
    assert expand(wrapping(use("x", "[1]")))[0].arguments == "[1]"
    assert not is_wrapper("core__parallel")


def test_a_wrapper_waits_for_the_calls_inside_it() -> None:
    """A call inside a wrapper that waits leaves a hole, and the wrapper has no text before it is filled."""
    parts = (a("w.0", "core__x", "{}", 1000), a("w.1", "core__y", "{}", 1001))
    run = trace(CallModel(1), said(wrapping(use("core__x"), use("core__y"))), RunTools(parts))
    results = [ToolResult("w.0", True, "x"), ToolResult("w.1", False, "the agent waits")]
    (answer,) = run.answers(results, {"w.1": Hole("appr_1")})
    assert answer.waits_for == ("appr_1",)
    with pytest.raises(UnfilledHole, match="w waits for appr_1"):
        _ = answer.text
    assert answer.filled({"appr_1": "y"}).text == (
        '[{"recipient_name":"functions.core__x","output":"x"},'
        '{"recipient_name":"functions.core__y","output":"y"}]'
    )


def test_answers_keep_the_order_of_the_calls() -> None:
    """Each hidden call gets one answer, in the order of the calls; client calls get none."""
    run = trace(CallModel(1), said(ONE, MINE, THREE), RunTools((ONE, THREE)))
    results = [ToolResult("3", True, "three"), ToolResult("1", True, "one")]
    assert [(answer.call, answer.text, answer.images) for answer in run.answers(results, {})] == [
        (ONE, "one", ()),
        (THREE, "three", ()),
    ]


@pytest.mark.parametrize("code", ["budget_exhausted", "invalid_arguments"])
def test_a_refusal_is_readable_for_the_model(code: ToolErrorCode) -> None:
    """Rule T3: a refusal has exactly three fields, with the same code and message as the result."""
    result = failed_result("1", code, "Not run.")
    assert result.content == f'{{"ok":false,"error_code":"{code}","message":"Not run."}}'
    assert (result.ok, result.error_code, result.safe_message) == (False, code, "Not run.")
