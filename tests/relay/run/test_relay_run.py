"""The loop as data: what a run commands for what it is told, read like the trace of a protocol.

A trace is a list.  A ``CallModel``, ``AskApproval``, ``RunTools``, ``Suspend`` or ``Finish`` is what the
run must command at that place; a :class:`Turn` is what the model then says, a set of indices which calls
are approved, ``RAN`` that the tools have run, a number lets that many seconds pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from proxy.errors import ToolErrorCode
from proxy.events import (
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
)
from proxy.relay.base import RunSettings
from proxy.relay.run.parallel_tool_use import expand, is_wrapper, join_results
from proxy.relay.run.run import AskApproval, CallModel, Command, Finish, Run, RunTools, Suspend, failed_result

RAN = object()
CLIENTS = frozenset({"theirs", "also_theirs"})


@dataclass(frozen=True)
class Turn:
    """One turn's events and whether its stream brought an end mark."""

    events: Sequence[TurnEvent]
    ended: bool = True


class FakeClock:
    """Seconds that pass when a trace says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def a(call_id: str, name: str = "core__x", arguments: str = "{}", index: int = 0) -> ToolCall:
    """A call; names that do not begin with ``theirs`` are the server's."""
    return ToolCall(call_id, name, arguments, index)


def said(
    *calls: ToolCall, reason: str | None = None, text: str = "", used: int = 0, ended: bool = True
) -> Turn:
    """A turn that ends properly; its reason is ``tool_calls`` or ``stop`` unless given."""
    events: list[TurnEvent] = [TurnStarted("chatcmpl-1", "m")]
    events += [TextDelta(text)] if text else []
    events += [ToolCallFinished(c.index, c) for c in calls]
    events += [UsageReported(Usage(used - 1, 1, used))] if used else []
    return Turn([*events, TurnFinished(reason or ("tool_calls" if calls else "stop"))], ended)


def trace(*steps: object, settings: RunSettings | None = None) -> Run:
    """Play a trace and check every command of it; the run, for a look at its ledger."""
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
    """The result of a call for which a budget had nothing left."""
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
    """One call needs an approval: the calls beside it wait for the answer, too, and all run together."""
    asked, other = a("1", "ask__buy"), a("2", index=1)
    trace(
        *(CallModel(1), said(asked, other), AskApproval((asked,))),
        *(frozenset({0}), RunTools((asked, other), approved=frozenset({0}))),
        *(RAN, CallModel(2), said(text="bought"), Finish()),
    )


def test_a_call_that_is_not_approved_goes_on_to_be_refused() -> None:
    """A call without an approval still has its place among the calls, where policy refuses it."""
    asked = a("1", "ask__buy")
    trace(
        *(CallModel(1), said(asked), AskApproval((asked,)), frozenset(), RunTools((asked,))),
        *(RAN, CallModel(2), said(text="not bought"), Finish()),
    )


def test_nobody_is_asked_about_a_call_that_does_not_run_anyway() -> None:
    """A spent budget refuses a call without asking anybody, and the client's own calls need no approval."""
    asked = a("1", "ask__buy")
    none_left = spent("1", "0 tool calls")
    trace(
        *(CallModel(1), said(asked), RunTools((), (none_left,)), RAN, CallModel(2, last=True)),
        *(said(text="sorry"), Finish()),
        settings=RunSettings(max_calls=0),
    )


def test_undecided_calls_wait_and_refused_ones_do_not_run() -> None:
    """The others run; once they have, the client is told what waits."""
    asking = [a(str(index), "ask__x", index=index) for index in range(4)]
    run = Run(
        RunSettings(), is_hidden=lambda name: True, needs_approval=lambda call, turn: True, clock=FakeClock()
    )
    run.start()
    run.observe([*(ToolCallFinished(call.index, call) for call in asking), TurnFinished("tool_calls")])
    assert run.turn_ended() == AskApproval(tuple(asking))
    no = failed_result("3", "rate_limited", "No.")
    command = run.decided(frozenset({0}), frozenset({1}), [no])
    assert command == RunTools((asking[0], asking[2]), (no,), frozenset({0}), (asking[1],))
    run.let_wait([asking[0]])
    assert run.tools_ran() == Suspend((), (asking[1], asking[0]))


def test_an_approval_that_nobody_asked_for_is_a_fault() -> None:
    """An answer to no question is refused: it would run calls of a turn that has none."""
    run = trace(CallModel(1), said(text="hello"), Finish())
    with pytest.raises(RuntimeError, match="no approval"):
        run.decided(frozenset({0}))


# ---------------------------------------------------------------- turns without server calls


def test_an_answer_ends_the_run() -> None:
    """A turn without calls is the answer, under the upstream's own reason."""
    run = trace(CallModel(1), said(text="hello"), Finish())
    assert not run.turn.calls
    assert run.turn.upstream_id == "chatcmpl-1"
    assert run.turn.reason == "stop"
    assert run.turns_hidden == 0


def test_pieces_decide_nothing() -> None:
    """Reasoning and deltas of a call that is never finished end a turn as an answer does."""
    run = trace(
        CallModel(1),
        Turn(
            [
                ReasoningDelta("hm"),
                ToolCallStarted(0, "m", "theirs"),
                ToolCallDelta(0, "{}"),
                TurnFinished("stop"),
            ]
        ),
        Finish(),
    )
    assert not run.turn.calls


def test_client_calls_alone_are_the_upstreams_own_stream() -> None:
    """Rule W2: a turn that calls only the client's tools is not the run's to end otherwise."""
    run = trace(CallModel(1), said(MINE, OTHER), Finish())
    assert run.client_calls == (MINE, OTHER)
    assert run.hidden_calls == ()


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_cut_off_turn_runs_nothing(reason: str) -> None:
    """Rule W7: calls of a turn that was cut off, or stopped by a filter, are not run."""
    trace(CallModel(1), said(ONE, reason=reason), Finish(reason))


def test_a_stream_that_merely_ends_is_a_failure() -> None:
    """Several clients would take it for a whole answer, also where no server tool was called."""
    trace(CallModel(1), Turn([TextDelta("a")], ended=False), Finish(error=BROKEN))


def test_an_end_mark_is_an_end_without_a_finish_reason() -> None:
    """A server call that was followed by an end mark is whole, whatever the reason."""
    trace(CallModel(1), Turn([ToolCallFinished(0, ONE)]), RunTools((ONE,)))


def test_a_server_call_without_an_end_is_not_run() -> None:
    """Rule W7: neither reason nor end mark means that the turn was cut off."""
    trace(CallModel(1), Turn([ToolCallFinished(0, ONE)], ended=False), Finish(error=BROKEN))


def test_a_later_turn_without_an_end_is_a_failure() -> None:
    """A composed stream never ends as if it were whole when its last turn was not."""
    trace(
        CallModel(1),
        said(ONE),
        RunTools((ONE,)),
        RAN,
        CallModel(2),
        Turn([TextDelta("a")], ended=False),
        Finish(error=BROKEN),
    )


def test_an_error_of_the_upstreams_own_is_shown_already() -> None:
    """An error inside a stream that passes through has reached the client with it."""
    error = {"message": "overloaded", "code": "x"}
    trace(CallModel(1), Turn([TurnFailed(error)]), Finish(error=error, shown=True))


def test_an_error_inside_a_call_runs_nothing() -> None:
    """An error after a server call has begun is told, and the call is not run."""
    error = {"message": "overloaded"}
    trace(CallModel(1), Turn([ToolCallFinished(0, ONE), TurnFailed(error)]), Finish(error=error))


def test_an_error_in_a_later_turn_is_not_shown_yet() -> None:
    """A composed stream holds the upstream's error back, so that the run has to tell it."""
    error = {"message": "overloaded"}
    trace(
        CallModel(1),
        said(ONE),
        RunTools((ONE,)),
        RAN,
        CallModel(2),
        Turn([TurnFailed(error)]),
        Finish(error=error),
    )


# ---------------------------------------------------------------- turns with server calls


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "function_call"])
def test_server_calls_run_whatever_the_reason(reason: str) -> None:
    """Providers finish with ``stop`` after calls; the loop goes on all the same."""
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
    """Calls, reason and end mark of a turn are its own."""
    run = trace(CallModel(1), said(ONE, text="wait"), RunTools((ONE,)), RAN, CallModel(2))
    turn = run.turn
    assert (turn.calls, turn.reason, turn.ended, turn.usage) == ([], None, False, None)


def test_a_later_turn_that_calls_the_client_suspends() -> None:
    """After a hidden turn even a turn of client calls alone is the run's to hand over."""
    trace(CallModel(1), said(ONE), RunTools((ONE,)), RAN, CallModel(2), said(MINE), Suspend((MINE,)))


def test_a_mixed_turn_runs_the_servers_and_suspends() -> None:
    """The server's calls of a mixed turn run, the client's are handed over in order."""
    run = trace(CallModel(1), said(ONE, MINE, OTHER), RunTools((ONE,)), RAN, Suspend((MINE, OTHER)))
    assert run.turns_hidden == 1


def test_reason_tool_calls_without_calls_becomes_stop() -> None:
    """A composed stream never says ``tool_calls`` without one."""
    start = (CallModel(1), said(ONE), RunTools((ONE,)), RAN, CallModel(2))
    trace(*start, said(reason="tool_calls"), Finish("stop"))
    trace(*start, said(reason="function_call"), Finish("stop"))
    trace(CallModel(1), said(reason="tool_calls"), Finish())


def test_a_later_answer_keeps_the_upstreams_reason() -> None:
    """A composed answer that was cut off says so."""
    start = (CallModel(1), said(ONE), RunTools((ONE,)), RAN, CallModel(2))
    trace(*start, said(reason="length"), Finish("length"))
    trace(*start, said(), Finish())


# ---------------------------------------------------------------- budgets


def test_the_last_turn_is_asked_without_tools() -> None:
    """Rule T7: when the turns are used up, calls are refused and the model gets a last word."""
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
    """Rule T7: a model that calls even then gets nothing, and the user a word about it."""
    note = "[The tool budget of this request is spent; further tool calls were not run.]"
    trace(
        CallModel(1),
        said(ONE),
        RunTools((), (spent("1", "1 turns"),)),
        RAN,
        CallModel(2, last=True),
        said(TWO),
        Finish("stop", note=note),
        settings=RunSettings(max_turns=1),
    )


def test_a_mixed_last_turn_answers_every_server_call() -> None:
    """Rule T7: on the last turn a client call is handed over, and the server's are answered unrun."""
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
    """What the client runs costs the server nothing."""
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
    """Rule T7: as many calls run as there are left; the others are told."""
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
    """The turn after the last allowed call may still try; only a refusal ends the tools."""
    trace(
        CallModel(1),
        said(ONE, TWO),
        RunTools((ONE, TWO)),
        RAN,
        CallModel(2),
        settings=RunSettings(max_calls=2),
    )


def test_time_spent_by_the_model_refuses_its_calls() -> None:
    """Rule T7: seconds are counted from the start of the run."""
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
    """Rule T7: when the tools used up the time, the model gets their results and no more tools."""
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
    """What is handed to the tools as their time is no negative number."""
    run = trace(CallModel(1), 29, settings=RunSettings(request_timeout_s=30))
    assert run.seconds_left == 1
    run = trace(CallModel(1), 31, settings=RunSettings(request_timeout_s=30))
    assert run.seconds_left == 0


def test_tokens_are_added_up_over_turns() -> None:
    """Rule T7: the tokens of all turns count against the run."""
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
    """Zero tokens means that tokens are not limited."""
    trace(CallModel(1), said(ONE, used=10**9), RunTools((ONE,)), RAN, CallModel(2))


def test_the_last_usage_report_of_a_turn_counts() -> None:
    """Providers repeat their usage, cumulative: the reports of one turn are not added."""
    run = trace(
        CallModel(1),
        Turn([UsageReported(Usage(5, 1, 6)), UsageReported(Usage(5, 4, 9)), TurnFinished("stop")]),
        Finish(),
    )
    assert (run.input_tokens, run.output_tokens, run.total_tokens) == (5, 4, 9)


def test_usage_counts_when_a_turn_fails() -> None:
    """What was used before an error was used."""
    run = trace(
        CallModel(1),
        Turn([UsageReported(Usage(5, 1, 6)), TurnFailed({"message": "x"})]),
        Finish(error={"message": "x"}, shown=True),
    )
    assert run.total_tokens == 6


# ---------------------------------------------------------------- wrapper calls


def wrapping(*uses: str, name: str = "multi_tool_use.parallel", index: int = 0) -> ToolCall:
    """The wrapper call that OpenAI models sometimes invent."""
    return a("w", name, f'{{"tool_uses":[{",".join(uses)}]}}', index)


def use(name: str, parameters: str = "{}") -> str:
    """One call inside a wrapper."""
    return f'{{"recipient_name":"{name}","parameters":{parameters}}}'


@pytest.mark.parametrize("name", ["parallel", "multi_tool_use.parallel", "multi_tool_use__parallel"])
def test_a_wrapper_runs_what_is_inside(name: str) -> None:
    """Each call inside has an id and a place of its own, and none of them the wrapper's."""
    wrapper = wrapping(use("functions.core__x", '{"q":1}'), use("core__y"), name=name, index=2)
    parts = (a("w.0", "core__x", '{"q":1}', 3000), a("w.1", "core__y", "{}", 3001))
    run = trace(CallModel(1), said(wrapper), RunTools(parts), RAN, CallModel(2))
    assert run.calls_run == 2


def test_a_wrapper_has_one_answer() -> None:
    """The model called one function and gets one result, which says what each call came to."""
    run = trace(
        CallModel(1),
        said(wrapping(use("core__x"), use("core__y")), TWO),
        RunTools((a("w.0", "core__x", "{}", 1000), a("w.1", "core__y", "{}", 1001), TWO)),
    )
    results = [ToolResult("2", True, "two"), ToolResult("w.1", True, "y"), ToolResult("w.0", False, "x")]
    (wrapper, content, _), (second, plain, _) = run.answers(results)
    assert (wrapper.call_id, second, plain) == ("w", TWO, "two")
    assert content == (
        '[{"recipient_name":"functions.core__x","output":"x"},'
        '{"recipient_name":"functions.core__y","output":"y"}]'
    )


def test_a_client_function_inside_a_wrapper_is_refused() -> None:
    """The client never sees a wrapper, so nothing of its own can be called in one."""
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
    """Rule T7: a wrapper that is refused for another reason than a budget still uses up its turn."""
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
    """Only the wrapper's own names open a call; a tool may have an argument of that name."""
    call = a("1", "core__x", '{"tool_uses":[{"recipient_name":"core__y"}]}')
    trace(CallModel(1), said(call), RunTools((call,)))


def test_a_finish_reason_is_an_end_without_an_end_mark() -> None:
    """A stream that named its reason is whole, also where no end mark follows."""
    trace(CallModel(1), said(ONE, ended=False), RunTools((ONE,)))


def test_calls_inside_a_wrapper_count_against_the_budget() -> None:
    """Rule T7: a wrapper is no way around the number of calls."""
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
    """A wrapper that cannot be opened goes to the runner as it is, which knows no such tool."""
    call = a("w", "parallel", arguments)
    run = trace(CallModel(1), said(call), RunTools((call,)))
    assert run.answers([ToolResult("w", False, "unknown")]) == [(call, "unknown", ())]


def test_wrappers_hold_up_to_64_calls() -> None:
    """Missing parameters are none; a call inside keeps its parameters as JSON."""
    whole = a("w", "parallel", '{{"tool_uses":[{}]}}'.format(",".join(['{"recipient_name":"x"}'] * 64)))
    assert len(expand(whole)) == 64
    assert {part.arguments for part in expand(whole)} == {"{}"}
    assert expand(wrapping(use("x", "[1]")))[0].arguments == "[1]"
    assert not is_wrapper("core__parallel")
    assert join_results([]) == "[]"


def test_answers_keep_the_order_of_the_calls() -> None:
    """Each hidden call is answered once, in the order called, and the client's not at all."""
    run = trace(CallModel(1), said(ONE, MINE, THREE), RunTools((ONE, THREE)))
    results = [ToolResult("3", True, "three"), ToolResult("1", True, "one")]
    assert run.answers(results) == [(ONE, "one", ()), (THREE, "three", ())]


@pytest.mark.parametrize("code", ["budget_exhausted", "invalid_arguments"])
def test_a_refusal_is_readable_for_the_model(code: ToolErrorCode) -> None:
    """Rule T3: a refusal has exactly the three fields, and says the same to the trace."""
    result = failed_result("1", code, "Not run.")
    assert result.content == f'{{"ok":false,"error_code":"{code}","message":"Not run."}}'
    assert (result.ok, result.error_code, result.safe_message) == (False, code, "Not run.")
