"""The rows of the record, and the ports through which tools reach the outside.

Times are seconds since the epoch (UTC).  Nothing here knows a database.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, Protocol

from proxy.errors import ToolErrorCode
from proxy.values import value_class

__all__ = [
    "RESULTS_KEPT_S",
    "ClientKey",
    "HiddenTurns",
    "InvocationLog",
    "InvocationStatus",
    "KeptResult",
    "KeptResults",
    "KeptWire",
    "KeySet",
    "Limiter",
    "MessageRecord",
    "Meter",
    "NativeCall",
    "ResponseRecord",
    "RunRecord",
    "RunStatus",
    "SuspendedTurn",
    "TokenVault",
    "ToolEffect",
    "ToolInvocationRecord",
    "TurnRecord",
    "operation_id",
]

RunStatus = Literal["running", "completed", "suspended", "failed", "cancelled", "interrupted"]
InvocationStatus = Literal["started", "success", "error", "cancelled", "interrupted"]

RESULTS_KEPT_S: Final = 3600.0
"""Seconds for which a result that was too large to be shown can be read in pages."""


class ToolEffect(StrEnum):
    """The kinds of effect that a tool can have."""

    READ_ONLY = "read_only"
    STATE_CHANGE = "state_change"
    EXTERNAL_SIDE_EFFECT = "external_side_effect"


@value_class
class RunRecord:
    """All that one client request caused.

    ``caller`` is who asked: a client key's id, or ``"open"``; with the end user where one is
    named.  ``finish_reason`` is what the client was told.  ``withheld`` maps a tool that was not
    offered to the rule that withheld it.  ``trace`` is how much of server tools the client was shown.
    ``shape`` is a digest of the prompt without the conversation: model, tools, parameters; two runs
    with one shape asked in the same way.  Both are empty where nothing is known of them.  ``cost`` is
    in billionths of the currency of the prices, ``None`` where the model has no price.  ``spent`` is the
    setting whose budget the run has used up.  ``unreported`` turns ended without a word of the upstream
    on what they used; the counts of tokens are those of the others.  ``left_out`` are fields of the client's
    request that an upstream of another dialect was not sent, and what it said that the client's dialect has
    no form for (``answer.citations``).

    A run of an agent has the name of the ``agent``, and the id of the run that called it as ``parent_run``;
    ``parent_call`` is the id of the execution of its tool there.  All three are empty for any other run.

    ``memory`` says which hidden turns were put back into the request, and why others were not: ``put_back``
    is a list of ``run``, ``kind``, ``bytes`` and ``loosely``, and ``counts`` has a number for each outcome of
    :mod:`proxy.relay.memory.outcomes`.  It is ``None`` if the request sent nothing back that turns could be
    behind.  ``continues`` is the id of the newest run whose hidden turns were put back, empty for none.

    ``takes_over`` is the id of the run whose background response this run has taken over, because its process
    had died or was stopped; empty for any other run.
    """

    id: str
    request_id: str
    caller: str
    wire: str
    model: str
    upstream: str
    stream: bool
    status: RunStatus
    started_at: float
    ended_at: float | None = None
    error_code: str | None = None
    finish_reason: str | None = None
    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    offered: tuple[str, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)
    trace: str = ""
    shape: str = ""
    cost: int | None = None
    spent: str | None = None
    unreported: int = 0
    left_out: tuple[str, ...] = ()
    agent: str = ""
    parent_run: str = ""
    parent_call: str = ""
    memory: Mapping[str, Any] | None = None
    continues: str = ""
    takes_over: str = ""


@value_class
class TurnRecord:
    """One upstream model response.

    ``number`` counts from 1 within its run; ``cost`` is as the run's.  The counts of tokens are ``None``
    where the upstream did not report them.  ``withheld`` maps tools that the
    run offers and this turn was not shown to the rule that withheld them.  ``first_at`` is when the first
    piece of its answer came, ``None`` where none did.
    """

    run_id: str
    number: int
    upstream_id: str
    finish_reason: str | None
    started_at: float
    ended_at: float
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    total_tokens: int | None = 0
    tool_calls: int = 0
    error_code: str | None = None
    cost: int | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)
    first_at: float | None = None


@value_class
class MessageRecord:
    """One message of a run's hidden or final conversation, in the Chat wire's terms (rule R2).

    ``content`` is text, ``content_json`` any other content as JSON text, ``tool_calls`` and
    ``function_call`` JSON text as sent.  This is content, not record: it is kept only as
    ``store.content`` allows (rule R3).
    """

    run_id: str
    turn: int
    seq: int
    role: str
    content: str | None = None
    content_json: str | None = None
    tool_calls: str | None = None
    function_call: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


@value_class
class ToolInvocationRecord:
    """One execution, redacted: allowlisted output fields, arguments less their private fields."""

    id: str
    run_id: str
    turn: int
    seq: int
    call_id: str
    tool: str
    provider: str
    spec_digest: str
    effect: ToolEffect
    decision: str
    status: InvocationStatus
    started_at: float
    error_code: ToolErrorCode | None = None
    arguments_redacted: Any = None
    result_redacted: Any = None
    result_bytes: int = 0
    ended_at: float | None = None

    @property
    def operation_id(self) -> str:
        """The place of the call in its run, as log lines name it."""
        return operation_id(self.run_id, self.turn, self.seq)


def operation_id(run_id: str, turn: int, seq: int) -> str:
    """The place of a call in its run: run, turn, number of the call in it."""
    return f"{run_id}.{turn}.{seq}"


@value_class
class NativeCall:
    """A call as the upstream sent it, beside the row of its execution.

    ``payload`` is the JSON of the wire's own call object, fields that nobody here knows included.
    This is content (rule R3), for people who look into a run; nothing is decided by it.
    """

    invocation_id: str
    run_id: str
    payload: str


@value_class
class SuspendedTurn:
    """A hidden part of a conversation, held until the client comes back.

    ``key`` is a digest over the caller, the visible conversation and the exact set of the
    client's call ids.  ``payload`` is the wire's own JSON; only the wire that wrote it reads it.
    An ``ephemeral`` one is never written down: its client asked that nothing be stored.
    """

    key: str
    run_id: str
    caller: str
    wire: str
    payload: bytes
    created_at: float
    ephemeral: bool = False


@value_class
class HiddenTurns:
    """The hidden turns behind one answer, to be put back when the client sends that answer again.

    ``key`` is a digest over caller, model, tools, the visible conversation and the answer.
    ``variant`` is a digest of ``payload``: one key with two variants says that the same visible
    conversation came about in two ways, and then neither is put back (rule R4).
    """

    key: str
    variant: str
    run_id: str
    caller: str
    wire: str
    payload: bytes
    created_at: float


@value_class
class ResponseRecord:
    """A response of the Responses wire that server tools took part in: only we know it whole.

    ``id`` is the id the client was given.  ``response`` and ``input_items`` are the JSON of the
    Response resource and of the list of its input items; ``continuation`` is the wire's own JSON
    of what the next request has to go on with.  All three are content (rule R3).
    """

    id: str
    run_id: str
    caller: str
    response: bytes
    input_items: bytes
    continuation: bytes
    created_at: float


@value_class
class KeptResult:
    """A result too large to be shown at once, whole, for ``caller`` to read by its ``handle``.

    This is content (rule R3).  ``untrusted`` says that it is a stranger's text.
    """

    handle: str
    run_id: str
    caller: str
    content: str
    untrusted: bool
    created_at: float


@value_class
class KeptWire:
    """The bytes of a run on both sides of the wire, as :mod:`proxy.server.taping.tape` writes them.

    This is content (rule R3).  ``size`` counts the bytes of bodies that are kept, and ``cut`` says that there
    were more.
    """

    run_id: str
    caller: str
    size: int
    cut: bool
    payload: bytes
    created_at: float


class InvocationLog(Protocol):
    """Where the runner puts one row per execution."""

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Write the row of an execution that is about to start.

        With ``durable`` the call returns only when the row is committed (rule R1) and raises
        :class:`~proxy.errors.StoreUnavailable` where it cannot be; otherwise the row is queued.
        """
        ...

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Queue the final state of an opened execution.  Never waits, never raises."""
        ...

    def put_native_call(self, record: NativeCall) -> None:
        """Keep a call as it came, as far as content may be kept at all.  Never waits, never raises."""
        ...


class KeptResults(Protocol):
    """Where results are kept that any process may be asked for."""

    def put_result(self, record: KeptResult) -> None:
        """Queue a result, as far as content is kept at all; else memory has it.  Never waits."""
        ...

    async def find_result(self, handle: str, caller: str) -> KeptResult | None:
        """The caller's own result of that handle, for :data:`RESULTS_KEPT_S`.

        Raises :class:`~proxy.errors.StoreError` where the record cannot be read.
        """
        ...


class Limiter(Protocol):
    """How many tool calls a caller may make."""

    async def hit(self, kind: Literal["tool_calls"], caller: str) -> float | None:
        """Count one; ``None`` if within the limit, else the seconds until one is free again.

        Raises :class:`~proxy.errors.ToolFailure` where it cannot be counted and must be.
        """
        ...


class Meter(Limiter, Protocol):
    """Counts the use of one request's caller."""

    @property
    def counts_usage(self) -> bool:
        """Whether tokens or cost are limited, so that usage has to be known."""
        ...

    @property
    def counts_cost(self) -> bool:
        """Whether cost is limited, so that each model needs a price."""
        ...

    def spend(self, tokens: int, cost: int) -> None:
        """Count what was used; ``cost`` in billionths.  Never waits, never raises."""
        ...


class TokenVault(Protocol):
    """Where tokens of connections outlive a process and are shared by all, sealed."""

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """A block that one process at a time is in for each name; raises StoreUnavailable."""
        ...

    async def load(self, name: str) -> bytes | None:
        """What any process saved last under a name; raises :class:`~proxy.errors.StoreError`."""
        ...

    async def save(self, name: str, tokens: bytes) -> None:
        """Keep tokens in place of the earlier ones, committed on return; raises StoreUnavailable."""
        ...

    async def forget(self, name: str) -> None:
        """Delete what is kept under a name, committed on return; raises StoreUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A client key that was made: what is known of it, and what it may do.

    ``digest`` is the keyed hash of its secret under the hash key that ``hashed_by`` names; the
    secret itself is nowhere.  ``verify_key`` checks the tokens that it mints (Ed25519, 32 bytes);
    ``None`` where it may mint none.  ``grants`` are the words of ``[keys.NAME]`` but the secret.
    """

    id: str
    name: str
    digest: bytes
    hashed_by: str
    grants: Mapping[str, Any]
    created_at: float
    verify_key: bytes | None = None
    expires_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class KeySet:
    """All client keys of a store at one moment, the oldest first, revoked ones too.

    ``version`` grows with every change.  ``hash_keys`` are those that the store has, by their names;
    a key whose hash key is missing cannot be checked.  ``ever_made`` stays true when the keys, or
    all of the store, are gone; keys that were declared count too.
    """

    version: int
    keys: tuple[ClientKey, ...]
    hash_keys: Mapping[str, bytes]
    ever_made: bool
