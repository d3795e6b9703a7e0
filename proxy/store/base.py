"""The protocol of a store. Other packages use it without knowing which database is behind it."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct

from proxy.records.background import BackgroundLog
from proxy.records.effects import EffectLog
from proxy.records.requests import RequestRecord
from proxy.records.rows import (
    ClientKey,
    HiddenTurns,
    InvocationLog,
    InvocationStatus,
    KeptResults,
    KeptWire,
    KeySet,
    MessageRecord,
    NativeCall,
    PinStore,
    ResponseRecord,
    RunRecord,
    RunStatus,
    SuspendedTurn,
    TokenVault,
    ToolInvocationRecord,
    TurnRecord,
)
from proxy.records.words import Words

MAX_CALLED: Final = 10_000
"""The most tool calls that :meth:`Store.called_tools` returns for one list of runs."""

MAX_MARKS_READ: Final = 100

LOOK_UP_S: Final = 1.0
"""The most seconds that the database may take for one look-up of a request before it counts as dead."""

UsageKey = Literal["key", "caller", "model", "tool", "day"]
"""What usage can be grouped by: key, caller (each end user of a key), model, tool, day (UTC)."""


class RunFilter(Struct, frozen=True):
    """Which runs to list: the newest ``limit``, or those before the run id ``before``, the newest first.

    ``since`` and ``until`` limit the start time; ``since`` is included, ``until`` is not. ``caller`` is
    either a key, which includes all its end users, or one end user (``KEY/PERSON``). ``id_prefix`` is what
    the run id begins with. If ``agents`` is false, runs of agents are left out. With ``parent``, a run id,
    only runs of agents that this run called are listed.

    ``words`` are texts of which each run should have one of each member. Runs of which an index knows that
    they have not are left out; the others may have them, and the caller compares.
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
    id_prefix: str | None = None
    agents: bool = True
    parent: str | None = None
    words: Words = ()


class RequestFilter(Struct, frozen=True):
    """Which requests without a run to list: the newest ``limit``, or those before the row id ``before``, the
    newest first.

    ``since`` and ``until`` limit the start time; ``since`` is included, ``until`` is not. ``caller`` is as in
    :class:`RunFilter`, and empty for requests of nobody. ``status`` is the HTTP status.
    """

    limit: int = 50
    before: str | None = None
    status: int | None = None
    model: str | None = None
    caller: str | None = None
    since: float | None = None
    until: float | None = None
    errors_only: bool = False


class PurgeFilter(Struct, frozen=True):
    """Which runs to delete: all, those that started before a time, or the run with exactly this id and the
    runs of its agents."""

    run_id: str | None = None
    before: float | None = None


class UsageFilter(Struct, frozen=True):
    """Which runs to count, by their start time, and how to group them; ``until`` itself is not included."""

    by: tuple[UsageKey, ...] = ()
    since: float | None = None
    until: float | None = None


class UsageRow(Struct, frozen=True):
    """The usage of one group of runs and requests.

    ``group`` has one value for each entry of the filter's ``by``, in the same order; a day is the number of
    days since the epoch. If the runs are not grouped by tool, ``errors`` counts runs, and the tokens are the
    sums over all turns.

    If they are, ``tool_calls``, ``errors`` and ``tool_seconds`` are those of the tool's calls. ``tool_p50_s``
    and ``tool_p95_s`` are the seconds within which 50 % and 95 % of its successful calls ended; ``None`` if
    none succeeded. There are then no token counts, because a model's tokens cannot be attributed to a tool.

    ``cost`` is the sum over runs whose model had a price, in billionths of the currency; ``None`` if none
    had. ``unreported`` is the number of turns and of requests without a run whose tokens the upstream did not
    report; the sums lack them.

    ``requests`` is the number of client requests: those that began a run, and those that have none (see
    :class:`~proxy.records.requests.RequestRecord`). Errors, tokens and cost include both kinds.
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
    requests: int = 0


class RunDetail(Struct, frozen=True):
    """One run with all rows that belong to it, each sequence in order.

    ``children`` are the runs of its agents and programs, ``inner_calls`` the calls of its programs.
    ``continued_by`` are the first runs that continue it.
    ``taken_over_by`` is the id of the run that took over its background response, or empty.
    """

    run: RunRecord
    turns: Sequence[TurnRecord]
    messages: Sequence[MessageRecord]
    invocations: Sequence[ToolInvocationRecord]
    native_calls: Sequence[NativeCall] = ()
    children: Sequence[RunRecord] = ()
    continued_by: Sequence[RunRecord] = ()
    taken_over_by: str = ""
    inner_calls: Sequence[ToolInvocationRecord] = ()


class CalledTool(Struct, frozen=True):
    """One tool call of a run, as a list of runs shows it."""

    tool: str
    status: InvocationStatus
    error_code: str | None = None


class KeySource(Protocol):
    """The client keys, for authentication; all processes that have the store open share them."""

    @property
    def keys_change_counter(self) -> int:
        """A number that changes after this process was notified that any process changed the keys.

        Reading it never waits, because every request reads it. A notification can get lost, so callers must
        also call :meth:`keys_version` from time to time.
        """

    def now(self) -> float:
        """Return the time in seconds since the epoch, by the clock that all processes of the store share.

        With PostgreSQL that is the database's, since the clocks of several machines differ. What one process
        writes and another one compares has its times from here. It never waits.
        """

    async def keys_version(self) -> int:
        """Return the ``version`` that :meth:`read_keys` would return now; raises StoreError."""

    async def read_keys(self) -> KeySet:
        """Return all keys; raises :class:`~proxy.base.errors.StoreError`."""

    async def hash_key(self) -> tuple[str, bytes]:
        """Return the name and the 32 bytes of the key that hashes new secrets; it is created once and kept.

        Raises :class:`~proxy.base.errors.StoreError`.
        """


class Store(
    InvocationLog,
    EffectLog,
    BackgroundLog,
    KeptResults,
    KeySource,
    PinStore,
    Protocol,
):
    """The record: runs, turns, messages, invocations, effects, held turns, responses, results, client keys.

    The plain (not ``async``) methods queue a write and return at once, however slow the disk is. So no stream
    waits for a store. They never raise; a lost write is counted and logged. Reads see every write queued
    before them.

    A look-up ends in time, with an error if the database does not answer: callers need no deadline.
    """

    @property
    def sealed(self) -> bool:
        """Whether content never reaches the disk in plain text: the store seals it, or does not write it.

        If false, callers must mask private arguments before they pass them to the store (rule R3).
        """

    @property
    def waiting(self) -> int:
        """The number of writes that are queued or being committed."""

    @property
    def lost(self) -> int:
        """The number of writes that were lost since the record was opened."""

    @property
    def lost_needed(self) -> int:
        """The number of lost writes that a client's next request needs."""

    @property
    def crowded(self) -> bool:
        """Whether the record is alive and cannot keep up, so that runs should wait before they go on."""

    async def wait_for_room(self, within_s: float) -> None:
        """Wait until the record has room for the writes of a run, at most ``within_s`` seconds.

        Ends at once when the record fails or stands still. Never raises.
        """

    @property
    def vault(self) -> TokenVault | None:
        """The vault that keeps tokens of connections sealed; ``None`` if the store cannot seal."""

    async def start(self) -> None:
        """Open and migrate the record; mark rows of dead owners ``interrupted`` if the options allow it."""

    async def aclose(self) -> None:
        """Write all queued writes and close the record."""

    def put_run(self, record: RunRecord) -> None:
        """Insert the run, or replace the row with the same id.

        The columns by which runs are found, except the status, keep the values of the first row: model,
        caller, time.
        """

    def put_turn(self, record: TurnRecord) -> None: ...

    def put_messages(self, records: Sequence[MessageRecord]) -> None:
        """Store messages, if ``store.content`` allows the content of tool turns."""

    def put_suspended(self, record: SuspendedTurn) -> None: ...

    async def find_suspended(self, key: str) -> SuspendedTurn | None:
        """Return the newest held turn with that key; reading does not consume it."""

    async def find_all_suspended(self, keys: Sequence[str], caller: str = "") -> Mapping[str, SuspendedTurn]:
        """Return the held turns of several keys with one query; keys without one are left out.

        ``caller`` is whoever asks: look-ups that wait take turns by caller.
        """

    def put_hidden(self, *records: HiddenTurns) -> None:
        """Store hidden turns of one caller, all or none of them; other variants of the same keys stay."""

    async def find_hidden(
        self, keys: Sequence[str], caller: str = "", *, loosely: bool = False
    ) -> Mapping[str, Sequence[HiddenTurns]]:
        """Return at most two variants of each key's hidden turns: two already make the key ambiguous.

        One query answers for all keys. ``caller`` is whoever asks: look-ups that wait take turns by caller.
        Of the same stored under three keys, the second and the third key are found only ``loosely``.
        """

    def put_response(self, record: ResponseRecord) -> None:
        """Store a response and replace the caller's earlier one with the same id."""

    async def find_response(self, response_id: str, caller: str) -> ResponseRecord | None:
        """Return the response with that id, or ``None`` if it does not exist or belongs to another caller."""

    async def delete_response(self, response_id: str, caller: str) -> bool:
        """Delete a response of the caller permanently; return whether there was one.

        Raises :class:`~proxy.base.errors.StoreUnavailable` if the store does not know whether the deletion
        succeeded.
        """

    async def list_runs(self, wanted: RunFilter) -> Sequence[RunRecord]: ...

    async def add_requests(
        self, records: Iterable[RequestRecord], settled: Callable[[bool], None] | None = None
    ) -> None:
        """Queue rows of requests without a run; another thread reads and encodes them.

        ``settled`` is called once with whether the rows were committed, possibly before this method returns.
        """

    async def list_requests(self, wanted: RequestFilter) -> Sequence[RequestRecord]:
        """Return requests that have no run, the newest first; raises the errors of :meth:`list_runs`."""

    async def get_run(self, run_id: str) -> RunDetail | None:
        """Return one run by its id or by a unique prefix of it; ``None`` if there is none."""

    async def called_tools(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[CalledTool]]:
        """Return the tool calls of some runs in order, at most :data:`MAX_CALLED` in total; runs without
        calls are left out."""

    def read_messages(
        self, run_ids: Sequence[str], roles: Sequence[str], most_bytes: int
    ) -> AsyncIterator[Mapping[str, Sequence[MessageRecord]]]:
        """Yield the kept messages of some runs in order, of these roles only and without those that take
        more than ``most_bytes``; runs without any are left out.

        Each part has whole runs, of 8 MiB together at most; of a larger run the rest is left out. Raises
        StoreError.
        """

    async def usage(self, wanted: UsageFilter) -> Sequence[UsageRow]:
        """Return the usage, one row for each group, sorted by group."""

    async def purge(self, wanted: PurgeFilter) -> int:
        """Delete one batch of runs with all rows that belong to them; return how many runs.

        0 means that nothing is left to delete. A run that is still running stays, and so does a run with a
        tool call that is still running. Raises :class:`~proxy.base.errors.StoreUnavailable` if it is unknown
        whether the deletion was committed.
        """

    async def scrub(self) -> str:
        """Remove deleted data from the store's own files; return what remains there and why, else ``""``.

        Never raises. It does not reach copies of these files.
        """

    async def wait_until_visible(self, within_s: float) -> bool:
        """Wait until other processes can see what a client's next request needs of the writes queued before
        this call; return whether they can.

        Never raises. A write that is not visible in time may follow later or be lost.
        """

    async def healthy(self) -> bool:
        """Return whether a durable write would probably succeed now."""

    async def put_key(self, key: ClientKey) -> None:
        """Store a new key durably.

        Raises :class:`~proxy.base.errors.StoreUnavailable`, also if a key with this name exists that is not
        revoked.
        """

    async def note_keys(self) -> None:
        """Record that the configuration declares keys, as if one had been created here.

        Never raises: a failed write is logged.
        """

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key durably; return whether there was one to revoke. Raises StoreError."""

    async def mark_once(self, name: str, until: float) -> bool:
        """Set a mark that lasts until ``until`` (epoch seconds); return whether this call set it.

        If several callers in any processes try at the same time, exactly one succeeds. Raises StoreError.
        """

    async def marks(self, prefix: str) -> Mapping[str, float]:
        """Return the end times of at most 100 unexpired marks with this prefix. Raises StoreError."""

    async def is_marked(self, name: str) -> bool:
        """Return whether a mark with this name exists and is not over; raises StoreError."""

    def put_response_owner(
        self, response_id: str, caller: str, settled: Callable[[bool], None] | None = None
    ) -> None:
        """Record which caller owns a response that only the upstream keeps. The write is queued.

        ``settled`` is called once with whether the row was committed, possibly before this method returns.
        """

    async def is_response_owner(self, response_id: str, caller: str) -> bool:
        """Return whether the record says that the caller owns this response; raises
        :class:`~proxy.base.errors.StoreError`."""

    def put_threads(
        self,
        ids: Sequence[str],
        caller: str,
        untrusted: str,
        settled: Callable[[bool], None] | None = None,
    ) -> None:
        """Record threads of a caller; ``untrusted`` has the sources of the untrusted results in them.

        It is empty if there are none. The write is queued. A thread keeps the sources that it had.
        ``settled`` is called once with whether the rows were committed, possibly before this method returns.
        """

    async def find_threads(self, ids: Sequence[str], caller: str) -> Mapping[str, str]:
        """Return what is recorded about these threads of the caller, by id; unknown threads are left out.

        The value has the sources of the thread's untrusted results, or is empty. Raises
        :class:`~proxy.base.errors.StoreError`.
        """

    def put_wire(self, record: KeptWire) -> None:
        """Store the bytes of a run, unless ``store.content`` is ``none`` or the store does not seal content.

        The write is queued.
        """

    async def find_wire(self, run_id: str) -> KeptWire | None:
        """Return the bytes of the run with exactly this id, for ``store.keep_days``; raises StoreError."""

    async def wire_size(self, run_id: str) -> int | None:
        """Return how many bytes are kept of a run, without reading them, or ``None``; raises StoreError."""

    async def read_diagnoses(self) -> Mapping[str, str]:
        """Return the newest 1,000 findings, the newest first; raises StoreError."""

    async def put_diagnosis(self, upstream: str, diagnosis: str) -> None:
        """Store the findings about an upstream, replacing earlier ones, committed on return; raises
        StoreError."""
