"""What a store remembers.  Policy never knows which one it has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from proxy.background_records import BackgroundLog
from proxy.effect_records import EffectLog
from proxy.records import (
    ClientKey,
    HiddenTurns,
    InvocationLog,
    InvocationStatus,
    KeptResults,
    KeptWire,
    KeySet,
    MessageRecord,
    NativeCall,
    ResponseRecord,
    RunRecord,
    RunStatus,
    SuspendedTurn,
    TokenVault,
    ToolInvocationRecord,
    TurnRecord,
)

__all__ = [
    "LOOK_UP_S",
    "MAX_CALLED",
    "MAX_MARKS_READ",
    "CalledTool",
    "DiagnosisStore",
    "KeySource",
    "KeyStore",
    "PinStore",
    "PurgeFilter",
    "RunDetail",
    "RunFilter",
    "Store",
    "ThreadLog",
    "UsageFilter",
    "UsageKey",
    "UsageRow",
    "WireLog",
]

MAX_CALLED: Final = 10_000
"""Calls that one look at a list of runs reads."""

MAX_MARKS_READ: Final = 100

LOOK_UP_S: Final = 1.0
"""The longest that a request waits for what it looks up in the record."""

UsageKey = Literal["key", "caller", "model", "tool", "day"]
"""What usage can be told apart by: the key, the caller (each end user of a key), the model, the tool, the
day (UTC)."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list: newest first, ``limit`` at most, older than ``before`` (a run id) if given.

    ``since`` and ``until`` bound when they started; ``until`` itself is outside.  ``caller`` is a key,
    with all its end users, or one of these (``KEY/PERSON``).  ``begins`` is what their ids begin with.
    Without ``agents`` runs of agents are left out; ``parent`` is the id of the run that called them.
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
    begins: str | None = None
    agents: bool = True
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class PurgeFilter:
    """Which runs to delete: those that started before a time, or all; or the one of exactly this id, and
    those of its agents."""

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
    ``tool_p50_s`` and ``tool_p95_s`` the seconds within which half and 95 % of its calls succeeded,
    ``None`` where none did, and there are no tokens: nobody can say which tool a model's words were for.
    ``cost`` is that of the runs whose model had a price, in billionths; ``None`` where none had.
    ``unreported`` turns ended without a word of the upstream on their tokens, which are not in the sums.
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
    cost: int | None = None
    tool_p50_s: float | None = None
    tool_p95_s: float | None = None
    unreported: int = 0


@dataclass(frozen=True, slots=True)
class RunDetail:
    """One run with everything that hangs on it, each in order.

    ``children`` are the runs of its agents, ``continued_by`` the first runs that go on from it.
    ``taken_over_by`` is the id of the run that took over its background response, empty for none.
    """

    run: RunRecord
    turns: Sequence[TurnRecord]
    messages: Sequence[MessageRecord]
    invocations: Sequence[ToolInvocationRecord]
    native_calls: Sequence[NativeCall] = ()
    children: Sequence[RunRecord] = ()
    continued_by: Sequence[RunRecord] = ()
    taken_over_by: str = ""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """One call of a run, as a list of runs shows it."""

    tool: str
    status: InvocationStatus
    error_code: str | None = None


class KeySource(Protocol):
    """Client keys as they are checked, shared by every process that has the store open."""

    @property
    def keys_told(self) -> int:
        """Another number once this process has been told that keys changed, wherever they did.

        Never waits: it is asked for every request.  Being told may fail, so that ``keys_version``
        has to be asked now and then.
        """
        ...

    async def keys_version(self) -> int:
        """The ``version`` that :meth:`read_keys` would give now; raises StoreError."""
        ...

    async def read_keys(self) -> KeySet:
        """All keys; raises :class:`~proxy.errors.StoreError`."""
        ...

    async def hash_key(self) -> tuple[str, bytes]:
        """The name and the 32 bytes of the key that new secrets are hashed with; made once, then kept.

        Raises :class:`~proxy.errors.StoreError`.
        """
        ...


class KeyStore(KeySource, Protocol):
    """Client keys as they are made and revoked, and whose the responses are that come of them."""

    async def put_key(self, key: ClientKey) -> None:
        """Keep a new key, durably.

        Raises :class:`~proxy.errors.StoreUnavailable`, also where a key of that name is not revoked.
        """
        ...

    async def note_keys(self) -> None:
        """Remember that there are keys which the configuration declares, as if one had been made here.

        Never raises: what cannot be written is logged.
        """
        ...

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key, durably; whether there was one to revoke.  Raises StoreError."""
        ...

    async def mark_once(self, name: str, until: float) -> bool:
        """Leave a mark that lasts until then (epoch seconds); whether this call is the one that left it.

        Of several callers at once, in any process, one is.  Raises StoreError.
        """
        ...

    async def marks(self, prefix: str) -> Mapping[str, float]:
        """Marks that begin so and last still, with their ends; a hundred at most.  Raises StoreError."""
        ...

    async def is_marked(self, name: str) -> bool:
        """Whether there is a mark of that name that lasts still; raises StoreError."""
        ...

    def put_owner(self, response_id: str, caller: str, settled: Callable[[bool], None] | None = None) -> None:
        """Note whose a response is that only the upstream keeps.  Queued, as any write.

        ``settled`` is called once with whether it was committed, maybe before this returns.
        """
        ...

    async def owns_response(self, response_id: str, caller: str) -> bool:
        """Whether that was noted; raises :class:`~proxy.errors.StoreError`."""
        ...


class ThreadLog(Protocol):
    """What is known of the threads that upstreams keep for callers: conversations, responses, items."""

    def put_threads(
        self,
        ids: Sequence[str],
        caller: str,
        untrusted: str,
        settled: Callable[[bool], None] | None = None,
    ) -> None:
        """Note threads of a caller, with the tool whose untrusted result is in them; empty for none.

        Queued, as any write.  What is noted as untrusted stays so.  ``settled`` is called once with whether
        it was committed, maybe before this returns.
        """
        ...

    async def find_threads(self, ids: Sequence[str], caller: str) -> Mapping[str, str]:
        """What was noted of some of the caller's threads, by their ids; unknown ones are left out.

        Raises :class:`~proxy.errors.StoreError`.
        """
        ...


class PinStore(Protocol):
    """Where the definitions of MCP tools are kept that an operator has allowed, each as JSON by its id."""

    async def read_pins(self) -> Mapping[str, str]:
        """All of them, sorted by id; raises StoreError."""
        ...

    async def put_pins(self, pins: Mapping[str, str]) -> None:
        """Keep pins in place of earlier ones of the same ids, committed on return; raises StoreError."""
        ...

    async def delete_pin(self, pin_id: str) -> bool:
        """Forget one, committed on return; whether there was one.  Raises StoreError."""
        ...


class WireLog(Protocol):
    """Where the bytes of runs are kept, on both sides of the wire."""

    def put_wire(self, record: KeptWire) -> None:
        """Keep the bytes of a run, unless ``store.content`` is ``none`` or they would not be sealed.

        Queued, as any write.
        """
        ...

    async def find_wire(self, run_id: str) -> KeptWire | None:
        """The bytes of the run of exactly this id, for ``store.keep_days``; raises StoreError."""
        ...

    async def wire_size(self, run_id: str) -> int | None:
        """How many bytes are kept of a run, ``None`` for none, without reading them; raises StoreError."""
        ...


class DiagnosisStore(Protocol):
    """Where it is kept what ``toolrelay doctor`` found of each upstream last, as JSON by its name."""

    async def read_diagnoses(self) -> Mapping[str, str]:
        """The newest 1,000, the newest first; raises StoreError."""
        ...

    async def put_diagnosis(self, upstream: str, diagnosis: str) -> None:
        """Keep one in place of the upstream's earlier one, committed on return; raises StoreError."""
        ...


class Store(
    InvocationLog,
    EffectLog,
    BackgroundLog,
    KeptResults,
    KeyStore,
    PinStore,
    DiagnosisStore,
    ThreadLog,
    WireLog,
    Protocol,
):
    """Runs, turns, messages, invocations, effects, suspended turns, responses, large results, client keys.

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

    @property
    def waiting(self) -> int:
        """How many writes wait to be committed, or are being committed."""
        ...

    @property
    def lost(self) -> int:
        """How many writes never reached the record since it was opened."""
        ...

    @property
    def vault(self) -> TokenVault | None:
        """Where tokens of connections are kept sealed; ``None`` where nothing can be."""
        ...

    async def start(self) -> None:
        """Open, migrate, and mark rows of dead owners ``interrupted`` where the store allows it."""
        ...

    async def aclose(self) -> None:
        """Write what is queued and close."""
        ...

    def put_run(self, record: RunRecord) -> None:
        """Insert the run, or replace the row with the same id.

        What a run is found by besides its status (model, caller, time) is as in its first row.
        """
        ...

    def put_turn(self, record: TurnRecord) -> None: ...

    def put_messages(self, records: Sequence[MessageRecord]) -> None:
        """Keep messages, as far as ``store.content`` allows content of tool turns at all."""
        ...

    def put_suspended(self, record: SuspendedTurn) -> None: ...

    async def find_suspended(self, key: str) -> SuspendedTurn | None:
        """The newest held turn of that key; reading does not consume it."""
        ...

    async def find_all_suspended(self, keys: Sequence[str]) -> Mapping[str, SuspendedTurn]:
        """The same for some keys, with one look at the database; those that hold nothing are left out."""
        ...

    def put_hidden(self, record: HiddenTurns) -> None:
        """Keep hidden turns beside those of the same key that came about in another way."""
        ...

    async def find_hidden(self, keys: Sequence[str]) -> Mapping[str, Sequence[HiddenTurns]]:
        """The hidden turns of each key, two variants at the most: more says nothing more.

        One look at the database answers for all keys.
        """
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

    async def called_tools(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[CalledTool]]:
        """The calls of some runs in their order, :data:`MAX_CALLED` of all of them at most; runs without
        calls are left out."""
        ...

    async def usage(self, wanted: UsageFilter) -> Sequence[UsageRow]:
        """The usage, one row for each group, sorted by group."""
        ...

    async def purge(self, wanted: PurgeFilter) -> int:
        """Delete one batch of runs with everything that hangs on them; how many.

        Nothing is left to delete once that is 0.  A run that is still going on stays, and so does
        one with a tool call that is.  Raises :class:`~proxy.errors.StoreUnavailable` where the
        deletion is not known to be committed.
        """
        ...

    async def scrub(self) -> str:
        """Have what was deleted leave the store's own files too; empty, or what is left there and why.

        Never raises.  Copies of these files are not reached.
        """
        ...

    async def settle(self, within_s: float) -> bool:
        """Wait until all that was queued before is where other processes find it; whether it is.

        Never raises: what is not there in time may be later, or be lost.
        """
        ...

    async def healthy(self) -> bool:
        """Whether a durable write would succeed now, as far as can be told without one."""
        ...
