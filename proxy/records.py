"""What is remembered of a run, and the two ports through which the tools reach outside.

Times are seconds since the epoch (UTC).  Nothing here knows a database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from proxy.errors import ToolErrorCode

__all__ = [
    "HiddenTurns",
    "InvocationLog",
    "InvocationStatus",
    "Limiter",
    "MessageRecord",
    "ResponseRecord",
    "RunRecord",
    "RunStatus",
    "SuspendedTurn",
    "ToolEffect",
    "ToolInvocationRecord",
    "TurnRecord",
]

RunStatus = Literal["running", "completed", "suspended", "failed", "cancelled", "interrupted"]
InvocationStatus = Literal["started", "success", "error", "cancelled", "interrupted"]


class ToolEffect(StrEnum):
    """What running a tool can change."""

    READ_ONLY = "read_only"
    STATE_CHANGE = "state_change"
    EXTERNAL_SIDE_EFFECT = "external_side_effect"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All that one client request caused.

    ``caller`` is who asked: a client key's id, or ``"open"``; with the end user where one is
    named.  ``finish_reason`` is what the client was told.  ``withheld`` maps a tool that was not
    offered to the rule that withheld it.  ``trace`` is how much of server tools the client was shown.
    ``shape`` is a digest of the prompt without the conversation: model, tools, parameters; two runs
    with one shape asked in the same way.  Both are empty where nothing is known of them.
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


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One upstream model response.  ``number`` counts from 1 within its run."""

    run_id: str
    number: int
    upstream_id: str
    finish_reason: str | None
    started_at: float
    ended_at: float
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    tool_calls: int = 0
    error_code: str | None = None


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


class Limiter(Protocol):
    """How much a caller may do."""

    async def hit(self, kind: Literal["requests", "tool_calls"], caller: str) -> float | None:
        """Count one; ``None`` if within the limit, else the seconds until one is free again."""
        ...
