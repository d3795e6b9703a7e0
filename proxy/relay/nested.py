"""Runs inside of runs: what the run of an agent gets from the run that called it, and reports to it."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from proxy.base.events import FinishReason, InnerCall, ToolCall, ToolProgress, ToolResult
from proxy.records.approvals import Approval
from proxy.records.rows import RunStatus
from proxy.relay.base import RunSettings
from proxy.tools.agents.agent import Agent
from proxy.tools.contract.provider import CallContext
from proxy.tools.running.ledger import RunLedger


class Purse:
    """What the agents that one turn of a run called may use together: the rest of the run's budgets.

    ``turns`` and ``calls`` are the turns and calls that are left. ``tokens`` and ``cost`` (in billionths)
    are what is left of them, ``None`` for no limit. ``seconds_left`` returns the rest of the run's time.
    The ``used_…`` attributes count what the agents took. All of this happens on one event loop, so no two
    agents take the same turn.
    """

    __slots__ = (
        "_calls",
        "_cost",
        "_tokens",
        "_turns",
        "seconds_left",
        "used_calls",
        "used_cost",
        "used_tokens",
        "used_turns",
    )

    def __init__(
        self,
        *,
        turns: int,
        calls: int,
        tokens: int | None,
        cost: int | None,
        seconds_left: Callable[[], float],
    ) -> None:
        self._turns = turns
        self._calls = calls
        self._tokens = tokens
        self._cost = cost
        self.seconds_left = seconds_left
        self.used_turns = self.used_calls = self.used_tokens = self.used_cost = 0

    @classmethod
    def of(cls, settings: RunSettings, clock: Callable[[], float]) -> "Purse":
        """Return what agents may use before the first turn of a run; one turn is reserved for the run's own
        answer."""
        until = clock() + settings.request_timeout_s
        return cls(
            turns=settings.max_turns - 1,
            calls=settings.max_calls,
            tokens=settings.max_tokens or None,
            cost=settings.max_cost or None,
            seconds_left=lambda: until - clock(),
        )

    def take_turn(self) -> bool:
        """Take one turn; return whether there was one."""
        if self.used_turns >= self._turns:
            return False
        self.used_turns += 1
        return True

    def give_turn_back(self) -> None:
        """Return a turn that was taken but not used."""
        self.used_turns -= 1

    def take_call(self) -> bool:
        """Take one tool call; return whether there was one."""
        if self.used_calls >= self._calls:
            return False
        self.used_calls += 1
        return True

    def spend(self, tokens: int, cost: int) -> None:
        """Count what a turn has used."""
        self.used_tokens += tokens
        self.used_cost += cost

    @property
    def spent(self) -> str:
        """The setting whose budget the run and its agents have used up together; empty if none is used
        up."""
        if self._tokens is not None and self.used_tokens >= self._tokens:
            return "tools.max_tokens"
        if self._cost is not None and self.used_cost >= self._cost:
            return "tools.max_cost"
        return "tools.request_timeout_s" if self.seconds_left() <= 0 else ""


class AgentUsed(Struct, frozen=True):
    """What an agent has used of its own budgets; ``cost`` is in billionths."""

    turns: int = 0
    calls: int = 0
    tokens: int = 0
    cost: int = 0
    seconds: float = 0.0

    def __add__(self, other: "AgentUsed") -> "AgentUsed":
        return AgentUsed(
            self.turns + other.turns,
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.seconds + other.seconds,
        )


class RunEnd(Struct, frozen=True):
    """The outcome of a run.

    ``text`` is what the model wrote in its last turn, complete or not; ``finish_reason`` is the upstream's.
    ``spent`` is the setting whose budget was used up, empty for none. ``untrusted`` has the
    sources of the untrusted results that the model has read. ``last`` says that the last turn had no tools,
    because no other turn was left. ``used`` is what the run has used of its budgets. ``asked`` are the
    approvals that its last turn waits for.
    """

    status: RunStatus
    error_code: str | None
    text: str
    finish_reason: FinishReason | None
    spent: str
    untrusted: str
    last: bool
    used: AgentUsed = AgentUsed()
    asked: Sequence[Approval] = ()


class RunWatch:
    """Observes an agent's run, and reports its calls as progress of the tool.

    ``stopped`` is the setting that stopped the agent, empty if nothing did.
    """

    def __init__(self, context: CallContext) -> None:
        self._tell = context.on_progress
        self._started: set[str] = set()
        self._done = 0
        self.end: RunEnd | None = None
        self.stopped = ""

    def call_started(self, call: ToolCall, arguments: Any) -> None:
        """Report a call, so that the client sees it like the calls of its own request."""
        self._started.add(call.call_id)
        if self._tell is not None:
            self._tell(ToolProgress(self._done, inner=InnerCall(call, arguments)))

    def call_finished(self, call: ToolCall, result: ToolResult) -> None:
        """Report the outcome of a call. A refused call was never reported as started, so report that
        first."""
        if call.call_id not in self._started:
            self.call_started(call, result.arguments_redacted)
        self._done += 1
        if self._tell is not None:
            self._tell(ToolProgress(self._done, inner=InnerCall(call, result.arguments_redacted, result)))

    def ended(self, end: RunEnd) -> None:
        """Keep the outcome of the run."""
        self.end = end


class AgentAsking(Struct, frozen=True):
    """How an agent's run takes part in approvals.

    ``can_ask`` says that the client of the calling run can be asked about the agent's calls. ``asked_in``
    are the runs of that conversation that have asked. With ``continues`` the agent continues from a held
    turn. Without ``keeps`` that client asked to store nothing.
    """

    can_ask: bool = False
    continues: bool = False
    keeps: bool = True
    asked_in: Sequence[str] = ()


class Nested(Struct, frozen=True):
    """Links an agent's run to the call that it serves.

    ``agent`` is its definition. ``parent_run`` is the id of the run that called it, and ``parent_call`` the
    id of the execution of its tool. ``settings`` are its own budgets. It takes what it uses from ``purse``.
    Its effects are in ``ledger``, together with those of the calling run. ``asking`` says how it takes part
    in approvals.
    """

    agent: Agent
    parent_run: str
    parent_call: str
    settings: RunSettings
    purse: Purse
    ledger: RunLedger
    watch: RunWatch
    asking: AgentAsking = field(default_factory=AgentAsking)
