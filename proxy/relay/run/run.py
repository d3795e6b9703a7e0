"""The ledger of one client request: what happened, and what happens next.  No I/O, no wire.

The loop is data.  The orchestrator feeds a :class:`Run` the events of each turn and carries out the
command it answers with::

    CallModel ──turn_ended──▶ RunTools ──tools_ran──▶ CallModel …
        │ │                     ▲  └─────────────────▶ Suspend   (the client has to act)
        │ └──▶ AskApproval ──decided
        └────────────────────────────────────────────▶ Finish

Budgets end a run in an answer: when one is spent, the calls that wait are answered with
``budget_exhausted`` and the model is asked one last time, without tools (rule T7).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.events import (
    ResultImage,
    ToolCall,
    ToolCallFinished,
    ToolResult,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
)
from proxy.relay.base import RunSettings
from proxy.relay.nested import Purse
from proxy.relay.routing.prices import Price
from proxy.relay.run.parallel_tool_use import expand, is_wrapper, join_results
from proxy.values import value_class

__all__ = [
    "UNRUN",
    "AgentUse",
    "AskApproval",
    "CallModel",
    "Command",
    "Finish",
    "Run",
    "RunTools",
    "Suspend",
    "failure",
]

UNRUN = frozenset({"length", "content_filter"})
"""Why a turn ended whose calls do not run: they may be cut short."""
_BUDGET_NOTE = "[The tool budget of this request is spent; further tool calls were not run.]"


@value_class
class CallModel:
    """Ask the model.  ``number`` counts turns from 1; on the ``last`` one it must not call tools."""

    number: int
    last: bool = False


@value_class
class AskApproval:
    """Ask whether ``calls`` may run; no call of the turn runs before :meth:`Run.decided` has the answer."""

    calls: tuple[ToolCall, ...]


@value_class
class RunTools:
    """Run ``calls``; the ``refused`` ones have their results already.

    ``approved`` are the indices of those calls that were asked for and approved.  ``waiting`` are the calls
    that do not run now, since somebody has still to decide about them.
    """

    calls: tuple[ToolCall, ...]
    refused: tuple[ToolResult, ...] = ()
    approved: frozenset[int] = frozenset()
    waiting: tuple[ToolCall, ...] = ()


@value_class
class Suspend:
    """Hand ``calls`` to the client; what is hidden waits until it returns.

    ``waiting`` are calls of ours that somebody has to decide about; the client may have none of its own then.
    """

    calls: tuple[ToolCall, ...]
    waiting: tuple[ToolCall, ...] = ()


@value_class
class Finish:
    """The run is over.

    ``reason`` is the finish reason to tell, ``None`` for the upstream's own.  ``error`` is the
    error to end the stream with; ``shown`` says that the client has it already.  ``answered`` says
    that the client has its whole response.  ``note`` is a word of the proxy's own to the user.
    """

    reason: str | None = None
    error: Mapping[str, Any] | None = None
    shown: bool = False
    answered: bool = False
    note: str = ""


Command = CallModel | AskApproval | RunTools | Suspend | Finish


def failure(call_id: str, code: Any, message: str) -> ToolResult:
    """A result that says why a call was not run (rule T3)."""
    content = orjson.dumps({"ok": False, "error_code": code, "message": message}).decode()
    return ToolResult(call_id, False, content, code, message)


@dataclass(slots=True)
class _Turn:
    """What has been seen of the turn that runs."""

    number: int
    last: bool
    upstream_id: str = ""
    upstream_model: str = ""
    reason: str | None = None
    ended: bool = False
    usage: Usage | None = None
    cost: int | None = None
    counted: bool = False
    error: Mapping[str, Any] | None = None
    calls: list[ToolCall] = field(default_factory=list)
    parted: tuple[tuple[ToolCall, ...], tuple[ToolCall, ...]] | None = None
    subcalls: dict[str, tuple[ToolCall, ...]] = field(default_factory=dict)
    undecided: RunTools | None = None
    waiting: tuple[ToolCall, ...] = ()


@dataclass(slots=True)
class AgentUse:
    """What the agents that a run called have used of its budgets."""

    turns: int = 0
    calls: int = 0
    tokens: int = 0
    cost: int = 0


def _never(call: ToolCall, turn: int) -> bool:
    return False


class Run:
    """One request's turns, calls and budgets.

    ``is_hidden`` tells a call that the client must not see from one of its own; ``needs_approval`` says of
    a call of such a turn whether somebody must approve it before it runs; ``clock`` gives
    monotonic seconds; ``price`` is the model's, ``None`` where it has none: then ``cost`` (in
    billionths) is ``None``, too.  ``spent_tokens`` and ``spent_cost`` count against limits, and hold
    estimates of what was not reported.  ``spent`` is the setting whose budget is used up, empty while
    all hold; ``silent_turns`` are those whose use the upstream did not report.  With ``continues_pauses`` a
    turn that pauses is gone on with, also where nothing of ours ran.

    An agent's run has a ``purse``, from which it takes what it uses of the budgets of the run that called
    it; one turn was taken before it begins, for its report.  With ``goes_on`` it has had turns before.  What
    agents used of this run's budgets is in ``agents``, by :meth:`settle`.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        is_hidden: Callable[[str], bool],
        needs_approval: Callable[[ToolCall, int], bool] = _never,
        clock: Callable[[], float],
        price: Price | None = None,
        continues_pauses: bool = False,
        purse: Purse | None = None,
        goes_on: bool = False,
    ) -> None:
        self._settings = settings
        self._goes_on = goes_on
        self._purse = purse
        self.agents = AgentUse()
        self._continues_pauses = continues_pauses
        self._price = price
        self._is_hidden = is_hidden
        self._needs_approval = needs_approval
        self._clock = clock
        self._deadline = clock() + settings.request_timeout_s
        self.turn = _Turn(0, False)
        self.turns_hidden = 0
        self.calls_run = 0
        self.input_tokens = self.output_tokens = self.total_tokens = self.spent_tokens = 0
        self.cost = None if price is None else 0
        self.spent_cost = 0
        self._refused_any = False
        self.spent = ""
        self.silent_turns: set[int] = set()

    @property
    def seconds_left(self) -> float:
        left = self._deadline - self._clock()
        return left if left > 0 else 0.0

    @property
    def hidden_calls(self) -> tuple[ToolCall, ...]:
        """This turn's calls that the client must not see."""
        return (self.turn.parted or self._part())[0]

    @property
    def client_calls(self) -> tuple[ToolCall, ...]:
        return (self.turn.parted or self._part())[1]

    def _part(self) -> tuple[tuple[ToolCall, ...], tuple[ToolCall, ...]]:
        """This turn's calls, ours and the client's; whose a call is does not change within a turn."""
        hidden: list[ToolCall] = []
        theirs: list[ToolCall] = []
        for call in self.turn.calls:
            (hidden if self._is_hidden(call.name) else theirs).append(call)
        self.turn.parted = parted = (tuple(hidden), tuple(theirs))
        return parted

    def start(self) -> Command:
        due = self._report_is_due()
        if due == "tools.max_turns" or self._goes_on:
            self.spent = due  # An agent that has one turn by its own settings has all of them.
        self.turn.number, self.turn.last = 1, bool(due)
        return CallModel(1, self.turn.last)

    def purse(self) -> Purse:
        """What agents that this turn calls may use; one turn is left for this run's own answer."""
        settings, agents = self._settings, self.agents
        own_cost = (self.cost or 0) + agents.cost
        return Purse(
            turns=settings.max_turns - self.turn.number - agents.turns - 1,
            calls=settings.max_calls - self.calls_run - agents.calls,
            tokens=settings.max_tokens - self.total_tokens - agents.tokens if settings.max_tokens else None,
            cost=settings.max_cost - own_cost if settings.max_cost else None,
            seconds_left=lambda: self.seconds_left,
        )

    def settle(self, purse: Purse) -> None:
        """Count what agents took from a purse of :meth:`purse`; once, when all of them have ended."""
        agents = self.agents
        agents.turns += purse.used_turns
        agents.calls += purse.used_calls
        agents.tokens += purse.used_tokens
        agents.cost += purse.used_cost

    def observe(self, events: Sequence[TurnEvent]) -> None:
        """Take in what a frame says."""
        turn = self.turn
        for event in events:
            match event:
                case TurnStarted(id=upstream_id, model=upstream_model):
                    turn.upstream_id = upstream_id
                    turn.upstream_model = upstream_model
                case ToolCallFinished(call=call):
                    turn.calls.append(call)
                    turn.parted = None
                case TurnFinished(reason=reason):
                    turn.reason = reason
                case UsageReported(usage=usage):
                    turn.usage = usage
                case TurnFailed(error=error):
                    turn.error = error
                case _:
                    continue

    def saw_end_mark(self) -> None:
        self.turn.ended = True

    def turn_ended(self) -> Command:
        """The turn's response is over, properly by its HTTP framing: what now?"""
        turn = self.turn
        self.count_usage()
        hidden, theirs = turn.parted or self._part()
        paused = self._continues_pauses and turn.reason == "pause"
        composed = bool(hidden) or self.turns_hidden > 0 or paused
        if turn.error is not None:
            return Finish(error=turn.error, shown=not composed)
        if turn.reason is None and not turn.ended:
            return self._truncated()
        if turn.reason in UNRUN:
            # A call that was cut off, or that a filter stopped, is not the model's word (rule W7).
            return Finish(turn.reason)
        if hidden and (theirs or not turn.last):
            # On the last turn every budget is spent: nothing runs, but the client's return needs
            # an answer to each call of the turn.
            return self._run_tools(hidden)
        if theirs and composed:
            return Suspend(theirs)
        if composed and turn.reason == "pause" and not turn.last:
            # The model is to go on from what it has said; the client knows nothing of the turns before.
            return RunTools(())
        if paused:
            # Every budget is spent, and no other dialect has a word for it.
            return Finish("length")
        if hidden:
            return Finish("stop", note=_BUDGET_NOTE)
        if composed and turn.reason in ("tool_calls", "function_call"):
            return Finish("stop")
        return Finish()

    def _truncated(self) -> Finish:
        message = "The upstream's response ended before it was finished."
        return Finish(
            error={"message": message, "type": "upstream_error", "code": "upstream_broken"}, shown=False
        )

    def _run_tools(self, calls: tuple[ToolCall, ...]) -> RunTools | AskApproval:
        """Which calls run, and which are refused because a budget is spent."""
        wanted: list[ToolCall] = []
        refused: list[ToolResult] = []
        setting, spent = self._spent()
        for call in calls:
            parts = self._parts(call)
            for part in parts:
                if not self._is_hidden(part.name):
                    message = "This function runs on the client. Call it by itself, not inside a wrapper."
                    refused.append(failure(part.call_id, "invalid_arguments", message))
                elif spent or (no_call := self._no_call(len(wanted))):
                    words = f"no more than {self._settings.max_calls} tool calls in one request"
                    refused.append(failure(part.call_id, "budget_exhausted", f"Not run: {spent or words}."))
                    self._refused_any = True
                    self.spent = self.spent or setting or no_call
                else:
                    wanted.append(part)
        self.calls_run += len(wanted)
        command = RunTools(tuple(wanted), tuple(refused))
        asking = tuple(call for call in wanted if self._needs_approval(call, self.turn.number))
        if not asking:
            return command
        self.turn.undecided = command
        return AskApproval(asking)

    def decided(
        self,
        approved: frozenset[int],
        waiting: frozenset[int] = frozenset(),
        refused: Sequence[ToolResult] = (),
    ) -> RunTools:
        """The answer to :class:`AskApproval`: the indices of the calls that may run, and of those that wait.

        ``refused`` are results of calls that would not run in any case.  The others run into the refusal of
        the policy that asked.  Raises RuntimeError if nothing was asked.
        """
        command, self.turn.undecided = self.turn.undecided, None
        if command is None:
            raise RuntimeError("no approval was asked for in this turn")
        self.turn.waiting = tuple(call for call in command.calls if call.index in waiting)
        over = {result.call_id for result in refused}
        calls = [call for call in command.calls if call.index not in waiting and call.call_id not in over]
        return RunTools(tuple(calls), (*command.refused, *refused), approved, self.turn.waiting)

    def hold(self, calls: Sequence[ToolCall]) -> None:
        """These calls wait, too: somebody has to decide about what they called themselves."""
        self.turn.waiting += tuple(calls)

    def budget_failure(self, call: ToolCall) -> ToolResult:
        """Why a call of the last turn is not run."""
        return failure(call.call_id, "budget_exhausted", "Not run: a budget of this request is spent.")

    def _parts(self, call: ToolCall) -> tuple[ToolCall, ...]:
        """The calls inside a wrapper call; any other call is its own only part."""
        if not is_wrapper(call.name):
            return (call,)
        parts = expand(call)
        if parts:
            self.turn.subcalls[call.call_id] = parts
        return parts or (call,)

    def _spent(self) -> tuple[str, str]:
        """The setting whose budget is used up, and the budget in words; both empty while all hold."""
        settings = self._settings
        agents, budgets = self.agents, settings.budgets
        if self.turn.number + agents.turns >= settings.max_turns:
            return f"{budgets}.max_turns", f"no more than {settings.max_turns} turns in one request"
        if self.seconds_left <= 0:
            words = f"no more than {settings.request_timeout_s:g} seconds in one request"
            return f"{budgets}.{'timeout_s' if self._purse else 'request_timeout_s'}", words
        if settings.max_tokens and self.total_tokens + agents.tokens >= settings.max_tokens:
            return f"{budgets}.max_tokens", f"no more than {settings.max_tokens} tokens in one request"
        if settings.max_cost and (self.cost or 0) + agents.cost >= settings.max_cost:
            return f"{budgets}.max_cost", "the cost that one request may have is reached"
        if self._purse is not None and (shared := self._purse.spent):
            return shared, "a budget of the request that called this agent is used up"
        return "", ""

    def _no_call(self, wanted: int) -> str:
        """The setting that allows no further call beside ``wanted`` ones; empty where one more is taken."""
        settings = self._settings
        if self.calls_run + self.agents.calls + wanted >= settings.max_calls:
            return settings.calls_setting
        return "tools.max_calls" if self._purse is not None and not self._purse.take_call() else ""

    def _report_is_due(self) -> str:
        """For an agent's run the setting that makes its next turn the last; else one more turn is taken.

        An agent's last turn, with its report, is one of the turns that it may have.
        """
        if self._purse is None:
            return ""
        if self.turn.number + 1 >= self._settings.max_turns:
            return f"{self._settings.budgets}.max_turns"
        return "" if self._purse.take_turn() else "tools.max_turns"

    def tools_ran(self) -> Command:
        """All of the turn's hidden calls have results: what now?"""
        self.turns_hidden += 1
        if (theirs := self.client_calls) or self.turn.waiting:
            return Suspend(theirs, self.turn.waiting)
        # Time may have run out while the tools ran; the model still gets its last word.
        self.spent = self.spent or self._spent()[0] or self._report_is_due()
        return self._next_turn(last=self._refused_any or bool(self.spent))

    def answers(self, results: Sequence[ToolResult]) -> list[tuple[ToolCall, str, tuple[ResultImage, ...]]]:
        """What goes back to the model: each of the turn's hidden calls with its one result's text and
        images."""
        by_id = {result.call_id: result for result in results}
        found = []
        for call in self.hidden_calls:
            parts = self.turn.subcalls.get(call.call_id)
            if parts:
                inside = [(part, by_id[part.call_id]) for part in parts]
                images = tuple(image for _, result in inside for image in result.images)
                found.append((call, join_results(inside), images))
            else:
                found.append((call, by_id[call.call_id].content, by_id[call.call_id].images))
        return found

    def call_of(self, result: ToolResult) -> ToolCall:
        """The call of this turn that a result answers, inside of a wrapper call too."""
        inside = [part for parts in self.turn.subcalls.values() for part in parts]
        calls = (call for call in (*inside, *self.turn.calls) if call.call_id == result.call_id)
        return next(calls, ToolCall(result.call_id, "", "{}", 0))

    def _next_turn(self, *, last: bool) -> CallModel:
        self.turn = _Turn(self.turn.number + 1, last)
        return CallModel(self.turn.number, last)

    def count_usage(self) -> None:
        """Add what the turn that runs has reported, once; also of one that failed, for it has cost, too."""
        turn = self.turn
        if turn.usage is None or turn.counted:
            return
        turn.counted = True
        self.input_tokens += turn.usage.input_tokens
        self.output_tokens += turn.usage.output_tokens
        self.total_tokens += turn.usage.total_tokens
        self.spent_tokens += turn.usage.all_tokens
        if self._price is not None:
            turn.cost = self._price.cost(turn.usage)
            self.cost = (self.cost or 0) + turn.cost
            self.spent_cost += turn.cost
        if self._purse is not None:
            self._purse.spend(turn.usage.total_tokens, turn.cost or 0)

    def estimate_usage(self, least: Callable[[], Usage]) -> None:
        """Count what a turn that is over took at least, if it reported nothing: for limits alone."""
        if self.turn.counted:
            return
        usage = least()
        self.turn.counted = True
        self.spent_tokens += usage.all_tokens
        if self._price is not None:
            self.spent_cost += self._price.cost(usage)
