"""The rows of the record, and the interfaces of what stores them, counts calls and keeps tokens.

Times are seconds since the epoch (UTC). This module does not depend on a database.
"""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, field

from proxy.base.errors import ToolErrorCode
from proxy.records import RunStatus

__all__ = [
    "RESULTS_KEPT_S",
    "SOURCES_SEPARATOR",
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
    "PinStore",
    "ResponseRecord",
    "RunRecord",
    "RunStatus",
    "SuspendedTurn",
    "TokenVault",
    "ToolEffect",
    "ToolInvocationRecord",
    "TurnRecord",
    "join_sources",
    "operation_id",
    "recorded_call_id",
]

InvocationStatus = Literal["started", "success", "error", "cancelled", "interrupted"]

SOURCES_SEPARATOR: Final = ", "
"""Separates the names in a text of :func:`join_sources`."""

RESULTS_KEPT_S: Final = 3600.0
"""Seconds for which a result that was too large to be shown can be read in pages."""


_MAX_CALL_ID: Final = 128
_SHOWN_OF_CALL_ID: Final = 64


class ToolEffect(StrEnum):
    """The kinds of effect that a tool can have."""

    READ_ONLY = "read_only"
    STATE_CHANGE = "state_change"
    EXTERNAL_SIDE_EFFECT = "external_side_effect"


class RunRecord(Struct, frozen=True):
    """One client request with all that it caused.

    ``caller`` is the id of a client key, or ``"open"``, with the end user if one is named. ``finish_reason``
    is the one that the client got. ``withheld`` maps a tool that was not offered to the rule that withheld
    it. ``trace`` is how much of server tools the client was shown. ``prompt_hash`` is a digest of the prompt
    without the conversation: model, instructions, system messages and tools. Both are empty if they are
    unknown. ``cost`` is in billionths of the currency of the prices, ``None`` if neither the model nor a tool
    that it called has a price. ``spent`` is the setting whose budget the run has used up. ``unreported``
    counts the turns for which the upstream reported no usage; the token counts are those of the other turns.
    ``left_out`` names fields of the client's request that were not sent to an upstream of another dialect. It
    also names parts of the answer that the client's dialect has no form for (``answer.citations``).

    The run of an agent has the name of the ``agent``, and the id of the run that called it as
    ``parent_run``. ``parent_call`` is the id of the execution of the agent's tool there. ``agent_version``
    is a digest of the agent's definition. All four are empty for any other run.

    ``memory`` says which hidden turns were restored into the request, and why others were not. Its
    ``put_back`` is a list of ``run``, ``kind``, ``bytes`` and ``loosely``; its ``counts`` has a number for
    each outcome of :mod:`.outcomes`. It is ``None`` if the request sent nothing back that
    could have hidden turns behind it. ``continues`` is the id of the newest run whose hidden turns were
    restored, empty for none.

    ``takes_over`` is the id of the run whose background response this run has taken over, because its
    process had died or was stopped; empty for any other run.
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
    prompt_hash: str = ""
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
    agent_version: str = ""


class TurnRecord(Struct, frozen=True):
    """One model response of an upstream.

    ``number`` counts from 1 within its run; ``cost`` is as in the run. The token counts are ``None`` if the
    upstream did not report them. ``withheld`` maps tools that the run offers, but that this turn did not
    show, to the rule that withheld them. ``first_at`` is when the first piece of the answer arrived,
    ``None`` if none did.
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


class MessageRecord(Struct, frozen=True):
    """One message of a run's hidden or final conversation, in the Chat format (rule R2).

    ``content`` is text, and ``content_json`` any other content as JSON text. ``tool_calls`` and
    ``function_call`` are JSON text as sent. This is content, not record: it is kept only as
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


class ToolInvocationRecord(Struct, frozen=True):
    """One execution of a tool, redacted: allowlisted output fields, and arguments without private fields.

    ``cost`` is in billionths of the currency of the prices. It is ``None`` if the tool has no price, or if it
    was not called; 0 if the result was an earlier call's.
    """

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
    cost: int | None = None

    @property
    def operation_id(self) -> str:
        """The place of the call in its run, as log lines name it."""
        return operation_id(self.run_id, self.turn, self.seq)


def operation_id(run_id: str, turn: int, seq: int) -> str:
    """Return the place of a call in its run: run, turn, and number of the call in the turn."""
    return f"{run_id}.{turn}.{seq}"


class NativeCall(Struct, frozen=True):
    """A call as the upstream sent it, stored beside the row of its execution.

    ``payload`` is the JSON of the wire's own call object, including fields that the proxy does not know.
    This is content (rule R3), for people who inspect a run; no decision depends on it.
    """

    invocation_id: str
    run_id: str
    payload: str


class SuspendedTurn(Struct, frozen=True):
    """A hidden part of a conversation, kept until the client continues it.

    ``key`` is a digest of the caller, the visible conversation and the exact set of the client's call ids.
    ``payload`` is JSON in the wire's own format; only the wire that wrote it reads it. An ``ephemeral``
    turn is never written to the database, because its client asked to store nothing.
    """

    key: str
    run_id: str
    caller: str
    wire: str
    payload: bytes
    created_at: float
    ephemeral: bool = False


class HiddenTurns(Struct, frozen=True):
    """The hidden turns behind one answer, to be restored when the client sends that answer again.

    ``key`` is a digest of caller, model, tools, the visible conversation and the answer. ``variant`` is a
    digest of ``payload``. If one key has two variants, the same visible conversation arose in two ways, and
    neither is restored (rule R4).
    """

    key: str
    variant: str
    run_id: str
    caller: str
    wire: str
    payload: bytes
    created_at: float


class ResponseRecord(Struct, frozen=True):
    """A response of the Responses wire in which server tools took part: only the proxy has it whole.

    ``id`` is the id that the client got. ``response`` and ``input_items`` are the JSON of the Response
    resource and of the list of its input items. ``continuation`` is JSON in the wire's own format that the
    next request continues from. All three are content (rule R3).
    """

    id: str
    run_id: str
    caller: str
    response: bytes
    input_items: bytes
    continuation: bytes
    created_at: float


class KeptResult(Struct, frozen=True):
    """A whole result that was too large to be shown at once. ``caller`` can read it by its ``handle``.

    This is content (rule R3). ``untrusted`` says that it is text from an outside source.
    """

    handle: str
    run_id: str
    caller: str
    content: str
    untrusted: bool
    created_at: float


class KeptWire(Struct, frozen=True):
    """The bytes of a run on both sides of the proxy, as :mod:`proxy.api.taping.tape` writes them.

    This is content (rule R3). ``size`` counts the bytes of the stored bodies. ``cut`` says that there were
    more.
    """

    run_id: str
    caller: str
    size: int
    cut: bool
    payload: bytes
    created_at: float


class InvocationLog(Protocol):
    """Stores the rows of executions; the runner writes one for each execution."""

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Write the row of an execution that is about to start.

        With ``durable``, return only when the row is committed (rule R1), and raise
        :class:`~proxy.base.errors.StoreUnavailable` if it cannot be. Otherwise queue the row.
        """

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Queue the final state of an opened execution. Never wait, never raise."""

    def put_native_call(self, record: NativeCall) -> None:
        """Store a call as the upstream sent it, if the settings allow content to be kept. Never wait or
        raise."""


class KeptResults(Protocol):
    """Stores large results, which any process may be asked for."""

    def put_result(self, record: KeptResult) -> None:
        """Queue a result if content is kept at all, else hold it in memory. Never wait."""

    async def find_result(self, handle: str, caller: str) -> KeptResult | None:
        """Return the result of that handle if it is the caller's and younger than :data:`RESULTS_KEPT_S`.

        Raise :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """


class Limiter(Protocol):
    """Limits how many tool calls a caller may make."""

    async def hit(self, kind: Literal["tool_calls"], caller: str) -> float | None:
        """Count one call. Return ``None`` within the limit, else the seconds until one is free again.

        Raise :class:`~proxy.base.errors.ToolFailure` if the call cannot be counted but must be.
        """


class Meter(Limiter, Protocol):
    """Counts the use of one request's caller."""

    @property
    def counts_usage(self) -> bool:
        """Whether tokens or cost are limited, so that usage must be known."""

    @property
    def counts_cost(self) -> bool:
        """Whether cost is limited, so that each model needs a price."""

    def spend(self, tokens: int, cost: int) -> None:
        """Count the usage; ``cost`` is in billionths. Never wait, never raise."""


class PinStore(Protocol):
    """The definitions of MCP tools that an operator has allowed, each as JSON by its id."""

    async def read_pins(self) -> Mapping[str, str]:
        """Return all pins, sorted by id; raises StoreError."""

    async def put_pins(self, pins: Mapping[str, str]) -> None:
        """Store pins and replace those with the same ids; committed on return. Raises StoreError."""

    async def delete_pin(self, pin_id: str) -> bool:
        """Delete one pin, committed on return; return whether there was one. Raises StoreError."""


class TokenVault(Protocol):
    """Stores the tokens of connections, encrypted, beyond the life of a process and for all processes."""

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """Return a block that only one process at a time can enter for each name; raise StoreUnavailable."""

    async def load(self, name: str) -> bytes | None:
        """Return the last tokens that any process saved under a name; raise
        :class:`~proxy.base.errors.StoreError`."""

    async def save(self, name: str, tokens: bytes) -> None:
        """Replace the tokens under a name; committed on return. Raise StoreUnavailable."""

    async def forget(self, name: str) -> None:
        """Delete the tokens under a name; committed on return. Raise StoreUnavailable."""


class ClientKey(Struct, frozen=True):
    """A client key that was created, with what it may do.

    ``digest`` is the keyed hash of its secret, made with the hash key that ``hashed_by`` names. The secret
    itself is stored nowhere. ``verify_key`` checks the tokens that the key mints (Ed25519, 32 bytes);
    ``None`` if it may mint none. ``grants`` are the fields of ``[keys.NAME]`` except the secret.
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


class KeySet(Struct, frozen=True):
    """All client keys of a store at one moment, oldest first, including revoked ones.

    ``version`` grows with every change. ``hash_keys`` are the hash keys of the store by name; a client key
    whose hash key is missing cannot be checked. ``ever_made`` stays true even if the keys, or the whole
    store, are gone. Declared keys count too.
    """

    version: int
    keys: tuple[ClientKey, ...]
    hash_keys: Mapping[str, bytes]
    ever_made: bool


def recorded_call_id(call_id: str) -> str:
    """Return a call id as it is recorded and shown: printable ASCII of at most 128 characters.

    Other ids are cut and end with a digest, so that they stay different. The conversation itself always has
    the whole id, which may be long: LiteLLM puts Gemini's thought signatures into it
    (https://github.com/BerriAI/litellm/pull/16895).
    """
    if len(call_id) <= _MAX_CALL_ID and call_id.isascii() and call_id.isprintable():
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    start = "".join(c if c.isascii() and c.isprintable() else "?" for c in call_id[:_SHOWN_OF_CALL_ID])
    return f"{start}~{digest}"


def join_sources(*marks: str) -> str:
    """Return the sources of untrusted text of all ``marks``, as one text.

    It is empty (none), one source, or two sources: with two nothing depends on a third one. A source is the
    id of a tool, or ``mcp__SERVER__*`` for all tools of an MCP server. A text that is only the source of a
    server says that nothing else was read. Rows of older versions have the id of the first tool, also if
    several were read; so they are never equal to the source of a server.
    """
    named = dict.fromkeys(one for mark in marks if mark for one in mark.split(SOURCES_SEPARATOR))
    return SOURCES_SEPARATOR.join(list(named)[:2])
