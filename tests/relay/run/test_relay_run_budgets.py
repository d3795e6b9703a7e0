"""The budgets of one run: what counts against them, what agents get of them, and what ends a run."""

from collections.abc import Sequence
from typing import Any

import pytest

from proxy.base.events import (
    FinishReason,
    ToolCall,
    ToolCallFinished,
    ToolResult,
    TurnEvent,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
)
from proxy.relay.base import RunSettings
from proxy.relay.nested import Purse
from proxy.relay.routing.prices import Price
from proxy.relay.run.run import AgentUse, CallModel, Finish, Run, RunTools, failed_result

PRICE = Price(2_000_000, 1_000_000, 2_000_000, 3_000_000)
"""Each token costs 2 billionths if the model reads it, 1 if it was cached, and 3 if the model writes it."""
ONE, TWO, THREE = (ToolCall(str(n + 1), "core__x", "{}", n) for n in range(3))


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def a_run(settings: RunSettings | None = None, clock: Clock | None = None, **options: Any) -> Run:
    """Return a run in which every call is a call of a server tool."""
    return Run(settings or RunSettings(), is_hidden=lambda name: True, clock=clock or Clock(), **options)


def an_agents_purse(**left: Any) -> Purse:
    """Return the purse of an agent; each budget is large unless given."""
    budgets: dict[str, Any] = {"turns": 100, "calls": 100, "tokens": None, "cost": None}
    return Purse(**{**budgets, "seconds_left": lambda: 100.0, **left})


def turn(run: Run, *calls: ToolCall, usage: Usage | None = None) -> Any:
    """Let the model answer one turn; return the command that follows."""
    events: list[TurnEvent] = [TurnStarted("chatcmpl-1", "m-1")]
    events += [ToolCallFinished(call.index, call) for call in calls]
    events += [UsageReported(usage)] if usage else []
    run.observe([*events, TurnFinished(FinishReason.TOOL_CALLS if calls else FinishReason.STOP)])
    return run.turn_ended()


def exhausted(words: str, *calls: ToolCall) -> RunTools:
    """Return the command if no call runs because of a spent budget, which ``words`` names."""
    return RunTools(
        (), tuple(failed_result(call.call_id, "budget_exhausted", f"Not run: {words}.") for call in calls)
    )


# ---------------------------------------------------------------- at the beginning


def test_a_run_begins_with_nothing_used() -> None:
    """Every count is zero; a cost is unknown without a price, and zero with one."""
    for price, cost in ((None, None), (PRICE, 0)):
        run = a_run(price=price)
        assert run.start() == CallModel(1, last=False)
        assert (run.turns_hidden, run.calls_run, run.spent, run.silent_turns) == (0, 0, "", set())
        assert (run.input_tokens, run.output_tokens, run.total_tokens, run.spent_tokens) == (0, 0, 0, 0)
        assert (run.cost, run.spent_cost) == (cost, 0)
        assert run.agents == AgentUse(0, 0, 0, 0)


def test_a_turn_knows_the_response_that_it_is_read_from() -> None:
    """The run takes the id and the model of a turn from the upstream's response."""
    run = a_run()
    run.start()
    turn(run)
    assert (run.turn.upstream_id, run.turn.upstream_model) == ("chatcmpl-1", "m-1")


def test_a_run_needs_no_approval_unless_told_otherwise() -> None:
    """Without a policy that asks for approvals, calls run at once."""
    run = a_run()
    run.start()
    assert turn(run, ONE) == RunTools((ONE,))


# ---------------------------------------------------------------- tokens and cost


def test_tokens_and_cost_add_up_over_turns() -> None:
    """Limits count each token of a turn, even if the reported total is too small; cost follows the price."""
    run = a_run(price=PRICE)
    run.start()
    turn(run, ONE, usage=Usage(10, 5, 15, cached_tokens=4))
    run.count_usage()  # A turn counts once.
    run.tools_ran()
    turn(run, usage=Usage(20, 7, 0))
    assert (run.input_tokens, run.output_tokens, run.total_tokens, run.spent_tokens) == (30, 12, 15, 42)
    first, second = 6 * 2 + 4 * 1 + 5 * 3, 20 * 2 + 7 * 3
    assert (run.cost, run.spent_cost, run.turn.cost) == (first + second, first + second, second)


@pytest.mark.parametrize(("price", "turn_cost"), [(PRICE, 35), (None, 0)], ids=["priced", "free"])
def test_calls_cost_what_their_tools_cost(price: Price | None, turn_cost: int) -> None:
    """What calls cost is added to the cost of the turns, and counts as spent; free calls change nothing."""
    run = a_run(RunSettings(max_cost=turn_cost + 50), price=price)
    run.start()
    turn(run, ONE, usage=Usage(10, 5, 15))
    run.paid(0)
    assert run.cost == (35 if price else None)
    run.paid(20)
    run.paid(30)
    assert (run.cost, run.spent_cost) == (turn_cost + 50, turn_cost + 50)
    run.tools_ran()
    assert run.spent == "tools.max_cost"


def test_an_estimate_counts_for_limits_alone() -> None:
    """An estimate of usage counts against limits, but is not added to the reported numbers."""
    run = a_run(price=PRICE)
    run.start()
    turn(run)
    for _ in range(2):
        run.estimate_usage(lambda: Usage(10, 2, 12))
    assert (run.spent_tokens, run.spent_cost) == (12, 26)
    assert (run.input_tokens, run.output_tokens, run.total_tokens, run.cost) == (0, 0, 0, 0)


def test_estimates_add_up_over_turns() -> None:
    """The run estimates the usage of each turn that reported none, and adds it up."""
    run = a_run(price=PRICE)
    run.start()
    for _ in range(2):
        turn(run, ONE)
        run.estimate_usage(lambda: Usage(10, 2, 12))
        run.tools_ran()
    assert (run.spent_tokens, run.spent_cost, run.turns_hidden) == (24, 52, 2)


def test_an_estimate_without_a_price_costs_nothing() -> None:
    """Without a price, an estimate counts tokens, and the cost stays unknown."""
    run = a_run()
    run.start()
    turn(run)
    run.estimate_usage(lambda: Usage(10, 2, 12))
    assert (run.spent_tokens, run.spent_cost, run.cost) == (12, 0, None)


def test_nothing_is_estimated_for_a_turn_that_reported_its_usage() -> None:
    """The run ignores an estimate if the turn reported its usage."""
    run = a_run()
    run.start()
    turn(run, usage=Usage(3, 1, 4))
    run.estimate_usage(lambda: Usage(1000, 1000, 2000))
    assert run.spent_tokens == 4


# ---------------------------------------------------------------- what ends a run


def spent_by(settings: RunSettings, *, price: Price | None = None, **of_agents: int) -> tuple[Any, Run]:
    """Return the command for one call in a turn of 15 tokens, after agents used so much, and the run."""
    run = a_run(settings, price=price)
    run.start()
    for name, used in of_agents.items():
        setattr(run.agents, name, used)
    return turn(run, ONE, usage=Usage(10, 5, 15)), run


RUNS = RunTools((ONE,))


@pytest.mark.parametrize(
    ("settings", "of_agents", "words", "setting"),
    [
        (RunSettings(max_turns=4), {"turns": 2}, "", ""),
        (RunSettings(max_turns=4), {"turns": 3}, "no more than 4 turns in one request", "tools.max_turns"),
        (RunSettings(max_turns=1), {}, "no more than 1 turns in one request", "tools.max_turns"),
        (RunSettings(max_calls=4), {"calls": 3}, "", ""),
        (
            RunSettings(max_calls=4),
            {"calls": 4},
            "no more than 4 tool calls in one request",
            "tools.max_calls",
        ),
        (
            RunSettings(max_calls=0, calls_setting="of the request"),
            {},
            "no more than 0 tool calls in one request",
            "of the request",
        ),
        (RunSettings(max_tokens=20), {"tokens": 4}, "", ""),
        (
            RunSettings(max_tokens=20),
            {"tokens": 5},
            "no more than 20 tokens in one request",
            "tools.max_tokens",
        ),
        (
            RunSettings(max_tokens=15, budgets="agents.x"),
            {},
            "no more than 15 tokens in one request",
            "agents.x.max_tokens",
        ),
        (RunSettings(max_cost=40), {"cost": 4}, "", ""),
        (
            RunSettings(max_cost=40),
            {"cost": 5},
            "the cost that one request may have is reached",
            "tools.max_cost",
        ),
        (RunSettings(max_cost=36), {}, "", ""),
        (RunSettings(max_cost=35), {}, "the cost that one request may have is reached", "tools.max_cost"),
    ],
)
def test_agents_and_the_run_share_each_budget(
    settings: RunSettings, of_agents: dict[str, int], words: str, setting: str
) -> None:
    """Rule T7: a budget is spent exactly when its limit is reached, and the run names the setting."""
    command, run = spent_by(settings, price=PRICE, **of_agents)
    assert command == (exhausted(words, ONE) if words else RUNS)
    assert run.spent == setting
    assert run.calls_run == (0 if words else 1)
    assert run.tools_ran() == CallModel(2, last=bool(words))


def test_a_cost_without_a_price_is_the_agents_alone() -> None:
    """Without a price, only the cost of agents counts against the run's limit."""
    assert spent_by(RunSettings(max_cost=5), cost=4)[0] == RUNS
    assert spent_by(RunSettings(max_cost=5), cost=5)[1].spent == "tools.max_cost"


@pytest.mark.parametrize(
    ("purse", "setting"), [(None, "tools.request_timeout_s"), (an_agents_purse(), "tools.timeout_s")]
)
def test_time_that_is_up_names_its_setting(purse: Purse | None, setting: str) -> None:
    """Rule T7: when time is up, the run names the setting, which is another one for an agent."""
    clock = Clock()
    run = a_run(RunSettings(request_timeout_s=2.5), clock, purse=purse)
    run.start()
    clock.now += 2.5
    assert run.seconds_left == 0
    assert turn(run, ONE) == exhausted("no more than 2.5 seconds in one request", ONE)
    assert run.spent == setting


def test_the_first_spent_budget_is_the_one_that_is_named() -> None:
    """If two budgets are spent one after the other, the run names the first."""
    clock = Clock()
    run = a_run(RunSettings(max_calls=1, request_timeout_s=30), clock)
    run.start()
    command = turn(run, ONE, TWO, THREE)
    assert command == RunTools(
        (ONE,), exhausted("no more than 1 tool calls in one request", TWO, THREE).refused
    )
    clock.now += 60
    assert run.tools_ran() == CallModel(2, last=True)
    assert run.spent == "tools.max_calls"


def test_time_that_tools_used_up_is_named() -> None:
    """If tools used up the time, the run names that setting, even if every call ran."""
    clock = Clock()
    run = a_run(RunSettings(request_timeout_s=30), clock)
    run.start()
    turn(run, ONE)
    clock.now += 30
    assert run.tools_ran() == CallModel(2, last=True)
    assert run.spent == "tools.request_timeout_s"


def test_a_call_that_finds_a_budget_spent_later_gets_the_same_kind_of_result() -> None:
    """Rule T7: a call that is refused only when it would start gets the code ``budget_exhausted``, too."""
    result = a_run().budget_failure(ONE)
    assert result == failed_result("1", "budget_exhausted", "Not run: a budget of this request is spent.")


def test_turns_whose_answer_was_cut_off_keep_their_reason() -> None:
    """Rule W7: a turn that the upstream cut off ends with ``length``, and no budget counts as spent."""
    run = a_run()
    run.start()
    run.observe([ToolCallFinished(0, ONE), TurnFinished(FinishReason.LENGTH)])
    assert run.turn_ended() == Finish(FinishReason.LENGTH)
    assert run.spent == ""


# ---------------------------------------------------------------- what agents get


def test_agents_get_what_is_left_of_each_budget() -> None:
    """Agents get the rest of each budget, less one turn, which is reserved for the run's own answer."""
    clock = Clock()
    settings = RunSettings(max_turns=9, max_calls=20, max_tokens=100, max_cost=1000, request_timeout_s=60)
    run = a_run(settings, clock, price=PRICE)
    run.start()
    turn(run, ONE, TWO, usage=Usage(10, 5, 15))
    run.agents = AgentUse(turns=2, calls=3, tokens=5, cost=7)
    purse = run.purse()
    clock.now += 20
    assert purse.seconds_left() == 40
    assert taken(purse.take_turn) == 9 - 1 - 2 - 1
    assert taken(purse.take_call) == 20 - 2 - 3
    purse.spend(100 - 15 - 5 - 1, 1000 - 35 - 7 - 1)
    assert purse.spent == ""
    purse.spend(0, 1)
    assert purse.spent == "tools.max_cost"
    purse.spend(1, 0)
    assert purse.spent == "tools.max_tokens"


def taken(take: Any) -> int:
    """Return how often something can be taken; at most 50 times."""
    return next((count for count in range(50) if not take()), 50)


def test_without_limits_agents_have_none_either() -> None:
    """If the run has no limits of tokens and cost, its agents have none either."""
    run = a_run()
    run.start()
    purse = run.purse()
    purse.spend(10**12, 10**12)
    assert purse.spent == ""


def test_a_cost_limit_without_a_price_is_for_agents_alone() -> None:
    """Without a price, agents get the whole limit of cost, because the run's own cost is unknown."""
    run = a_run(RunSettings(max_cost=10))
    run.start()
    turn(run, ONE, usage=Usage(10, 5, 15))
    purse = run.purse()
    purse.spend(0, 9)
    assert purse.spent == ""
    purse.spend(0, 1)
    assert purse.spent == "tools.max_cost"


def test_what_agents_used_counts_against_the_run() -> None:
    """The run adds up what each group of its agents used."""
    run = a_run()
    run.start()
    for used in (1, 2):
        purse = run.purse()
        for _ in range(used):
            purse.take_turn()
            purse.take_call()
            purse.take_call()
        purse.spend(10 * used, 100 * used)
        run.settle(purse)
    assert run.agents == AgentUse(turns=3, calls=6, tokens=30, cost=300)


# ---------------------------------------------------------------- a run that is an agent's


def test_an_agent_spends_from_its_callers_budgets() -> None:
    """An agent's turns, calls, tokens and cost count against its caller's budgets; no price means no cost."""
    purse = an_agents_purse(turns=5, calls=5)
    run = a_run(price=PRICE, purse=purse)
    run.start()
    turn(run, ONE, TWO, usage=Usage(10, 5, 15))
    assert (purse.used_turns, purse.used_calls, purse.used_tokens, purse.used_cost) == (1, 2, 15, 35)
    other = a_run(purse=purse)
    turn(other, usage=Usage(1, 1, 2))
    assert (purse.used_tokens, purse.used_cost) == (17, 35)


def test_an_agent_whose_caller_has_no_calls_left_is_told_so() -> None:
    """Rule T7: the run refuses an agent's call beyond its caller's budget, and names the caller's setting."""
    run = a_run(purse=an_agents_purse(calls=1))
    run.start()
    command = turn(run, ONE, TWO)
    refused = exhausted("no more than 32 tool calls in one request", TWO).refused
    assert command == RunTools((ONE,), refused)
    assert run.spent == "tools.max_calls"


@pytest.mark.parametrize(
    ("left", "setting"),
    [
        ({"tokens": 15}, "tools.max_tokens"),
        ({"cost": 35}, "tools.max_cost"),
        ({"seconds_left": lambda: 0.0}, "tools.request_timeout_s"),
    ],
)
def test_an_agent_stops_when_its_callers_budget_is_spent(left: dict[str, Any], setting: str) -> None:
    """Rule T7: if a shared budget is spent, the message names no number, as others used some of it."""
    run = a_run(price=PRICE, purse=an_agents_purse(**left))
    run.start()
    command = turn(run, ONE, usage=Usage(10, 5, 15))
    assert command == exhausted("a budget of the request that called this agent is used up", ONE)
    assert run.spent == setting


@pytest.mark.parametrize(
    ("settings", "turns", "lasts"),
    [
        (RunSettings(max_turns=3, budgets="agents.x"), 100, [False, False, True]),
        (RunSettings(max_turns=2), 100, [False, True]),
        (RunSettings(max_turns=9), 1, [False, True]),
        (RunSettings(max_turns=9), 2, [False, False, True]),
        (RunSettings(max_turns=9), 0, [True]),
        (RunSettings(max_turns=1), 100, [True]),
    ],
)
def test_an_agents_last_turn_is_for_its_report(
    settings: RunSettings, turns: int, lasts: Sequence[bool]
) -> None:
    """An agent's last turn has no tools; it comes when its own turns or those of its caller run out."""
    run = a_run(settings, purse=an_agents_purse(turns=turns))
    commands = [run.start()]
    while not commands[-1].last:  # type: ignore[union-attr]
        assert turn(run, ONE) == RUNS
        commands.append(run.tools_ran())
    assert commands == [CallModel(number + 1, last) for number, last in enumerate(lasts)]


@pytest.mark.parametrize(
    ("settings", "turns", "continues", "setting"),
    [
        (RunSettings(max_turns=1, budgets="agents.x"), 100, False, ""),
        (RunSettings(max_turns=1, budgets="agents.x"), 100, True, "agents.x.max_turns"),
        (RunSettings(max_turns=9), 0, False, "tools.max_turns"),
        (RunSettings(max_turns=9), 0, True, "tools.max_turns"),
        (RunSettings(max_turns=9), 9, True, ""),
    ],
)
def test_an_agent_that_begins_with_its_report_says_which_budget_it_lacks(
    settings: RunSettings, turns: int, continues: bool, setting: str
) -> None:
    """If an agent's first turn is its last, it names the spent budget, unless it only ever had one turn."""
    run = a_run(settings, purse=an_agents_purse(turns=turns), had_turns_before=continues)
    run.start()
    assert run.spent == setting


def test_a_result_of_no_known_call_has_an_empty_one() -> None:
    """A result with an unknown call id belongs to an empty call that has only the id."""
    run = a_run()
    run.start()
    turn(run, ONE, TWO)
    assert run.call_of(ToolResult("2", True, "")) == TWO
    assert run.call_of(ToolResult("9", True, "")) == ToolCall("9", "", "{}", 0)
