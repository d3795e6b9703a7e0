"""The state machine of one client request: what has happened, and which command is next. No I/O, no wire.

The loop is data. The orchestrator feeds a :class:`Run` the events of each turn and carries out the command
that it returns::

    CallModel ──turn_ended──▶ RunTools ──tools_ran──▶ CallModel …
        │ │                     ▲  └─────────────────▶ Suspend   (the client has to act)
        │ └──▶ AskApproval ──decided
        └────────────────────────────────────────────▶ Finish

A spent budget still ends a run in an answer. The calls that are left get the result ``budget_exhausted``,
and the model is asked one last time, without tools (rule T7).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from proxy.base.events import (
    FinishReason,
    ToolCall,
    ToolCallFinished,
    ToolResult,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
    aborted,
)
from proxy.records.result_for_model import Hole, ResultForModel, failure_text
from proxy.relay.base import RunSettings
from proxy.relay.nested import Purse
from proxy.relay.routing.prices import Price
from proxy.wires.openai.parallel_tool_use import expand, is_wrapper

_BUDGET_NOTE = "[The tool budget of this request is spent; further tool calls were not run.]"


class CallModel(Struct, frozen=True):
    """Ask the model. ``number`` counts turns from 1; in the ``last`` turn the model must not call tools."""

    number: int
    last: bool = False


class AskApproval(Struct, frozen=True):
    """Ask whether ``calls`` may run; no call of the turn runs before :meth:`Run.decided` gets the answer."""

    calls: tuple[ToolCall, ...]


class RunTools(Struct, frozen=True):
    """Run ``calls``; ``refused`` are the results of calls that do not run.

    ``approved`` are the indices of calls that needed an approval and got it. ``waiting`` are calls that do
    not run now, because their approval is undecided.
    """

    calls: tuple[ToolCall, ...]
    refused: tuple[ToolResult, ...] = ()
    approved: frozenset[int] = frozenset()
    waiting: tuple[ToolCall, ...] = ()


class Suspend(Struct, frozen=True):
    """Hand ``calls`` to the client; what is hidden waits until it returns.

    ``waiting`` are server calls whose approval is undecided; ``calls`` may be empty then.
    """

    calls: tuple[ToolCall, ...]
    waiting: tuple[ToolCall, ...] = ()


class Finish(Struct, frozen=True):
    """The run is over.

    ``reason`` is the finish reason for the client, ``None`` for the upstream's own. ``error`` is the error
    that ends the stream. ``in_stream`` says that the upstream's own stream shows it, so that a client whose
    stream is not composed has it already. ``answered`` says that the client has its whole response.
    ``note`` is a short text from the proxy to the user.
    """

    reason: FinishReason | None = None
    error: Mapping[str, Any] | None = None
    in_stream: bool = False
    answered: bool = False
    note: str = ""


Command = CallModel | AskApproval | RunTools | Suspend | Finish


def failed_result(call_id: str, code: Any, message: str) -> ToolResult:
    """Build a result that says why a call was not run (rule T3)."""
    return ToolResult(call_id, False, failure_text(code, message), code, message)


class _Turn(Struct):
    """What is known about the current turn."""

    number: int
    last: bool
    upstream_id: str = ""
    upstream_model: str = ""
    reason: FinishReason | None = None
    word: str = ""
    ended: bool = False
    usage: Usage | None = None
    cost: int | None = None
    counted: bool = False
    error: Mapping[str, Any] | None = None
    calls: list[ToolCall] = []
    parted: tuple[tuple[ToolCall, ...], tuple[ToolCall, ...]] | None = None
    subcalls: dict[str, tuple[ToolCall, ...]] = {}
    undecided: RunTools | None = None
    waiting: tuple[ToolCall, ...] = ()


class AgentUse(Struct):
    """What the agents that a run called have used of its budgets."""

    turns: int = 0
    calls: int = 0
    tokens: int = 0
    cost: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """All four in this order, as another process needs them to go on with the run."""
        return self.turns, self.calls, self.tokens, self.cost


def _never(call: ToolCall, turn: int) -> bool:
    return False


class Run:
    """The turns, calls and budgets of one request.

    ``is_hidden`` says whether the client must not see a call of this name. ``needs_approval`` says whether a
    server call of that turn needs an approval before it runs. ``clock`` returns monotonic seconds.
    ``price`` is the model's price; without one, ``cost`` (in billionths) is ``None`` until a tool call costs
    something. ``spent_tokens`` and
    ``spent_cost`` count against limits, and include estimates of what was not reported. ``spent`` is the
    setting whose budget is used up, empty if none is. ``silent_turns`` are the turns whose usage the
    upstream did not report. ``uses`` counts calls of the provider's tools, by name, that server tools run.
    With ``continues_pauses`` the run continues a paused turn, even if no server
    tool ran.

    An agent's run has a ``purse``: what it uses also counts against the budgets of the run that called it.
    One turn, for its report, is taken from the purse before the run begins. ``had_turns_before`` says that
    the agent had turns before. ``agents`` counts what agents used of this run's budgets; :meth:`settle` adds
    to it.
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
        had_turns_before: bool = False,
    ) -> None:
        self._settings = settings
        self._had_turns_before = had_turns_before
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
        self.spent = ""
        self.silent_turns: set[int] = set()
        self.uses: dict[str, int] = {}

    @property
    def seconds_left(self) -> float:
        left = self._deadline - self._clock()
        return left if left > 0 else 0.0

    @property
    def hidden_calls(self) -> tuple[ToolCall, ...]:
        """The calls of this turn that the client must not see."""
        return (self.turn.parted or self._part())[0]

    @property
    def client_calls(self) -> tuple[ToolCall, ...]:
        return (self.turn.parted or self._part())[1]

    def _part(self) -> tuple[tuple[ToolCall, ...], tuple[ToolCall, ...]]:
        """Divide this turn's calls into hidden calls and the client's; the division is fixed for the turn."""
        hidden: list[ToolCall] = []
        theirs: list[ToolCall] = []
        for call in self.turn.calls:
            (hidden if self._is_hidden(call.name) else theirs).append(call)
        self.turn.parted = parted = (tuple(hidden), tuple(theirs))
        return parted

    def start(self) -> Command:
        due = self._report_is_due()
        if due == "tools.max_turns" or self._had_turns_before:
            self.spent = due  # If the agent's own settings allow one turn, it has had all of them.
        self.turn.number, self.turn.last = 1, bool(due)
        return CallModel(1, self.turn.last)

    def purse(self) -> Purse:
        """Return what the agents that this turn calls may use; one turn is left for this run's own answer."""
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
        """Count what agents used of a result of :meth:`purse`; call it once, after all of them have ended."""
        agents = self.agents
        agents.turns += purse.used_turns
        agents.calls += purse.used_calls
        agents.tokens += purse.used_tokens
        agents.cost += purse.used_cost

    def observe(self, events: Sequence[TurnEvent]) -> None:
        """Take note of the events of a frame."""
        turn = self.turn
        for event in events:
            match event:
                case TurnStarted(id=upstream_id, model=upstream_model):
                    turn.upstream_id = upstream_id
                    turn.upstream_model = upstream_model
                case ToolCallFinished(call=call):
                    turn.calls.append(call)
                    turn.parted = None
                case TurnFinished(reason=reason, word=word):
                    turn.reason, turn.word = reason, word or str(reason)
                    if reason is FinishReason.ERROR:
                        turn.error = turn.error or aborted(word)
                case UsageReported(usage=usage):
                    turn.usage = usage
                case TurnFailed(error=error):
                    turn.error = error
                case _:
                    continue

    def saw_end_mark(self) -> None:
        self.turn.ended = True

    def turn_ended(self) -> Command:
        """Return the next command after the turn's response ended, properly by its HTTP framing."""
        turn = self.turn
        if turn.usage is not None:
            self.count_usage()
        hidden, theirs = turn.parted or self._part()
        paused = self._continues_pauses and turn.reason is FinishReason.PAUSE
        composed = bool(hidden) or self.turns_hidden > 0 or paused
        if turn.error is not None:
            return Finish(error=turn.error, in_stream=True)
        if turn.reason is None and not turn.ended:
            return self._truncated()
        if turn.reason is not None and not turn.reason.is_complete:
            # The model did not mean a call that was cut off or that a filter stopped (rule W7).
            return Finish(turn.reason)
        if hidden and (theirs or not turn.last):
            # On the last turn a budget is spent, so nothing runs. But when the client returns, each call of
            # the turn needs an answer.
            return self._run_tools(hidden)
        if theirs and composed:
            return Suspend(theirs)
        if composed and turn.reason is FinishReason.PAUSE and not turn.last:
            # The proxy continues the paused turn, because the client does not know the turns before.
            return RunTools(())
        if paused:
            # A budget is spent, and other dialects have no finish reason for a pause.
            return Finish(FinishReason.LENGTH)
        if hidden:
            return Finish(FinishReason.STOP, note=_BUDGET_NOTE)
        if composed and turn.reason is FinishReason.TOOL_CALLS:
            return Finish(FinishReason.STOP)
        return Finish()

    def _truncated(self) -> Finish:
        message = "The upstream's response ended before it was finished."
        return Finish(error={"message": message, "type": "upstream_error", "code": "upstream_broken"})

    def _run_tools(self, calls: tuple[ToolCall, ...]) -> RunTools | AskApproval:
        """Decide which calls run, and which are refused because a budget is spent."""
        wanted: list[ToolCall] = []
        refused: list[ToolResult] = []
        setting, spent = self._spent()
        for call in calls:
            parts = self._parts(call)
            for part in parts:
                if not self._is_hidden(part.name):
                    message = "This function runs on the client. Call it by itself, not inside a wrapper."
                    refused.append(failed_result(part.call_id, "invalid_arguments", message))
                elif spent or (no_call := self._no_call(len(wanted))):
                    words = f"no more than {self._settings.max_calls} tool calls in one request"
                    refused.append(
                        failed_result(part.call_id, "budget_exhausted", f"Not run: {spent or words}.")
                    )
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
        """Return the command that follows :class:`AskApproval`.

        ``approved`` and ``waiting`` are the indices of calls that may run, and of calls whose approval is
        undecided. ``refused`` are results of calls that would not run in any case. The policy that asked
        refuses all others. Raises RuntimeError if nothing was asked.
        """
        command, self.turn.undecided = self.turn.undecided, None
        if command is None:
            raise RuntimeError("no approval was asked for in this turn")
        self.turn.waiting = tuple(call for call in command.calls if call.index in waiting)
        over = {result.call_id for result in refused}
        calls = [call for call in command.calls if call.index not in waiting and call.call_id not in over]
        return RunTools(tuple(calls), (*command.refused, *refused), approved, self.turn.waiting)

    def let_wait(self, calls: Sequence[ToolCall]) -> None:
        """Let these calls wait, too: calls that they made themselves wait for approvals."""
        self.turn.waiting += tuple(calls)

    def budget_failure(self, call: ToolCall) -> ToolResult:
        """Build the result of a call that does not run because a budget is spent."""
        return failed_result(call.call_id, "budget_exhausted", "Not run: a budget of this request is spent.")

    def _parts(self, call: ToolCall) -> tuple[ToolCall, ...]:
        """Return the calls inside a wrapper call; any other call is its own only part."""
        if not is_wrapper(call.name):
            return (call,)
        parts = expand(call)
        if parts:
            self.turn.subcalls[call.call_id] = parts
        return parts or (call,)

    def _spent(self) -> tuple[str, str]:
        """Return the setting whose budget is used up, and the budget in words; both are empty if none is."""
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
        """Return the setting that forbids a call beside ``wanted`` others; else take one from the purse."""
        settings = self._settings
        if self.calls_run + self.agents.calls + wanted >= settings.max_calls:
            return settings.calls_setting
        return "tools.max_calls" if self._purse is not None and not self._purse.take_call() else ""

    def _report_is_due(self) -> str:
        """Return the setting that makes the next turn of an agent's run its last, or take one more turn.

        The result is empty if the next turn is not the last. An agent's last turn, with its report, counts
        as one of its turns.
        """
        if self._purse is None:
            return ""
        if self.turn.number + 1 >= self._settings.max_turns:
            return f"{self._settings.budgets}.max_turns"
        return "" if self._purse.take_turn() else "tools.max_turns"

    def tools_ran(self) -> Command:
        """Return the next command once each hidden call of the turn has a result or waits."""
        self.turns_hidden += 1
        if (theirs := self.client_calls) or self.turn.waiting:
            return Suspend(theirs, self.turn.waiting)
        # Time may have run out while the tools ran; the model still gets one last turn.
        self.spent = self.spent or self._spent()[0] or self._report_is_due()
        return self._next_turn(last=bool(self.spent))

    def answers(self, results: Sequence[ToolResult], holes: Mapping[str, Hole]) -> list[ResultForModel]:
        """Return the one result of each hidden call of the turn; ``holes`` are of calls that wait, by id."""
        by_id = {result.call_id: result for result in results if result.call_id not in holes}
        answers = []
        for call in self.hidden_calls:
            inside = self.turn.subcalls.get(call.call_id)
            if not inside and call.call_id not in holes:
                result = by_id[call.call_id]
                answers.append(ResultForModel(call, ((None, result.content),), result.images))
                continue
            made = [(part.name if inside else None, part.call_id) for part in inside or (call,)]
            parts = tuple((name, holes.get(id_) or by_id[id_].content) for name, id_ in made)
            images = (image for _, id_ in made if id_ in by_id for image in by_id[id_].images)
            answers.append(ResultForModel(call, parts, tuple(images)))
        return answers

    def call_of(self, result: ToolResult) -> ToolCall:
        """Return the call of this turn that a result answers; it may be inside a wrapper call."""
        inside = [part for parts in self.turn.subcalls.values() for part in parts]
        calls = (call for call in (*inside, *self.turn.calls) if call.call_id == result.call_id)
        return next(calls, ToolCall(result.call_id, "", "{}", 0))

    def _next_turn(self, *, last: bool) -> CallModel:
        self.turn = _Turn(self.turn.number + 1, last)
        return CallModel(self.turn.number, last)

    def count_usage(self) -> None:
        """Add the usage that the current turn reported, once. A failed turn counts, too, because it has a
        cost."""
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

    def paid(self, cost: int) -> None:
        """Count what a tool call cost, in billionths."""
        if cost:
            self.cost = (self.cost or 0) + cost
            self.spent_cost += cost
            if self._purse is not None:
                self._purse.spend(0, cost)

    def estimate_usage(self, least: Callable[[], Usage]) -> None:
        """Count, for limits alone, the least that a finished turn can have used, if it reported nothing."""
        if self.turn.counted:
            return
        usage = least()
        self.turn.counted = True
        self.spent_tokens += usage.all_tokens
        if self._price is not None:
            self.spent_cost += self._price.cost(usage)
