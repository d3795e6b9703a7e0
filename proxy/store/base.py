"""What a store remembers.  Policy never knows which one it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from proxy.records import (
    HiddenTurns,
    InvocationLog,
    MessageRecord,
    ResponseRecord,
    RunRecord,
    RunStatus,
    SuspendedTurn,
    ToolInvocationRecord,
    TurnRecord,
)

__all__ = ["PurgeFilter", "RunDetail", "RunFilter", "Store", "UsageFilter", "UsageKey", "UsageRow"]

UsageKey = Literal["key", "model", "tool", "day"]
"""What usage can be told apart by: the caller, the model, the tool, the day (UTC)."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list: newest first, ``limit`` at most, older than ``before`` (a run id) if given.

    ``since`` and ``until`` bound when they started; ``until`` itself is outside.
    """

    limit: int = 50
    before: str | None = None
    status: RunStatus | None = None
    model: str | None = None
    tool: str | None = None
    caller: str | None = None
    since: float | None = None
    until: float | None = None
    errors_only: bool = False


@dataclass(frozen=True, slots=True)
class PurgeFilter:
    """Which runs to delete: the one of exactly this id, or those that started before a time, or all."""

    run_id: str | None = None
    before: float | None = None


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which runs to count, by when they started, and what to tell apart; ``until`` itself is outside."""

    by: tuple[UsageKey, ...] = ()
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What the runs of one group used.

    ``group`` has a value for each of the filter's ``by``, in its order; a day is a whole number of
    days since the epoch.  Without tools in it, ``errors`` counts runs and the tokens are those of
    all turns.  With tools, ``tool_calls``, ``errors`` and ``tool_seconds`` are those of that tool,
    and there are no tokens: nobody can say which tool a model's words were for.
    """

    group: tuple[str | int, ...]
    runs: int
    tool_calls: int
    errors: int
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    tool_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunDetail:
    """One run with everything that hangs on it, each in order."""

    run: RunRecord
    turns: Sequence[TurnRecord]
    messages: Sequence[MessageRecord]
    invocations: Sequence[ToolInvocationRecord]


class Store(InvocationLog, Protocol):
    """Runs, turns, messages, invocations, suspended turns and responses.

    The plain (not ``async``) methods queue a write and return at once, whatever the disk does:
    no stream waits for a store, and none of them raises.  A write that is lost is counted and
    logged.  Reads see every write queued before them.
    """

    @property
    def sealed(self) -> bool:
        """Whether no content is written as it is: it is sealed first, or not written at all.

        Where it is not, private arguments have to be masked before they get here (rule R3).
        """
        ...

    async def start(self) -> None:
        """Open, migrate, and mark rows of dead owners ``interrupted`` where the store allows it."""
        ...

    async def aclose(self) -> None:
        """Write what is queued and close."""
        ...

    def put_run(self, record: RunRecord) -> None:
        """Insert the run, or replace the row with the same id."""
        ...

    def put_turn(self, record: TurnRecord) -> None: ...

    def put_messages(self, records: Sequence[MessageRecord]) -> None:
        """Keep messages, as far as ``store.content`` allows content of tool turns at all."""
        ...

    def put_suspended(self, record: SuspendedTurn) -> None: ...

    async def find_suspended(self, key: str) -> SuspendedTurn | None:
        """The newest held turn of that key; reading does not consume it."""
        ...

    def put_hidden(self, record: HiddenTurns) -> None:
        """Keep hidden turns beside those of the same key that came about in another way."""
        ...

    async def find_hidden(self, key: str) -> Sequence[HiddenTurns]:
        """The hidden turns of that key, two variants at the most: more says nothing more."""
        ...

    def put_response(self, record: ResponseRecord) -> None:
        """Keep a response, in place of the caller's earlier one with its id."""
        ...

    async def find_response(self, response_id: str, caller: str) -> ResponseRecord | None:
        """The response of that id, if it is the caller's own; the same ``None`` for all others."""
        ...

    async def delete_response(self, response_id: str, caller: str) -> bool:
        """Forget a response of the caller's for good; whether there was one.

        Raises :class:`~proxy.errors.StoreUnavailable` where that cannot be said.
        """
        ...

    async def list_runs(self, wanted: RunFilter) -> Sequence[RunRecord]: ...

    async def get_run(self, run_id: str) -> RunDetail | None:
        """One run by its id, or by a prefix of it that fits exactly one."""
        ...

    async def usage(self, wanted: UsageFilter) -> Sequence[UsageRow]:
        """What was used, a row for each group, sorted by group."""
        ...

    async def purge(self, wanted: PurgeFilter) -> int:
        """Delete one batch of runs with everything that hangs on them; how many.

        Nothing is left to delete once that is 0.  A run that is still going on stays, and so does
        one with a tool call that is.  Raises :class:`~proxy.errors.StoreUnavailable` where the
        deletion is not known to be committed.
        """
        ...

    async def healthy(self) -> bool:
        """Whether a durable write would succeed now, as far as can be told without one."""
        ...
