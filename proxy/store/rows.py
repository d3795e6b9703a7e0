"""Conversion of records to rows of the SQL schema, and back. No I/O.

Data from clients, models and tools is adapted first: a database would refuse a row with invalid Unicode or
with numbers past 64 bits.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any, Final, Self

import orjson

from proxy.base.errors import StoreError
from proxy.records.effects import EffectResult
from proxy.records.rows import (
    HiddenTurns,
    KeptResult,
    MessageRecord,
    NativeCall,
    ResponseRecord,
    RunRecord,
    SuspendedTurn,
    ToolEffect,
    ToolInvocationRecord,
    TurnRecord,
)
from proxy.store.base import RunFilter

__all__ = [
    "CLAIM_COLUMNS",
    "HAS_ERROR",
    "HIDDEN_COLUMNS",
    "INVOCATION_COLUMNS",
    "MAX_LISTED",
    "MAX_NAME",
    "MESSAGE_COLUMNS",
    "NATIVE_COLUMNS",
    "RESPONSE_COLUMNS",
    "RESULT_COLUMNS",
    "RUN_COLUMNS",
    "SUSPENDED_COLUMNS",
    "TURN_COLUMNS",
    "Insert",
    "Row",
    "Upsert",
    "clean_name",
    "clean_text",
    "effect_value",
    "fitting",
    "hidden_row",
    "invocation_row",
    "is_text",
    "message_row",
    "native_row",
    "read_effect",
    "read_hidden",
    "read_invocation",
    "read_json",
    "read_message",
    "read_native",
    "read_response",
    "read_result",
    "read_run",
    "read_suspended",
    "read_turn",
    "response_row",
    "result_row",
    "run_row",
    "runs_query",
    "suspended_row",
    "turn_row",
    "upsert",
    "write_json",
]

Row = tuple[Any, ...]

MAX_LISTED: Final = 1000

MAX_NAME: Final = 200
"""The most characters of a name of a caller, model or tool in the record; some indexes cannot hold more."""

HAS_ERROR: Final = "(error_code IS NOT NULL OR status IN ('failed', 'interrupted'))"

RUN_COLUMNS: Final = (
    "id", "request_id", "caller", "wire", "model", "upstream", "stream", "status", "started_at", "ended_at",
    "error_code", "finish_reason", "turns", "tool_calls", "input_tokens", "output_tokens", "total_tokens",
    "offered", "withheld", "trace", "prompt_hash", "cost", "spent", "unreported", "left_out", "agent",
    "parent_run", "parent_call", "memory", "continues", "takes_over", "agent_version",
)  # fmt: skip
TURN_COLUMNS: Final = (
    "run_id", "number", "upstream_id", "finish_reason", "started_at", "ended_at", "input_tokens",
    "output_tokens", "total_tokens", "tool_calls", "error_code", "cost", "withheld", "unreported",
    "first_at",
)  # fmt: skip
MESSAGE_COLUMNS: Final = (
    "run_id", "turn", "seq", "role", "content", "content_json", "tool_calls", "function_call",
    "tool_call_id", "name",
)  # fmt: skip
INVOCATION_COLUMNS: Final = (
    "id", "run_id", "turn", "seq", "call_id", "tool", "provider", "spec_digest", "effect",
    "decision", "status", "error_code", "arguments_redacted", "result_redacted", "result_bytes",
    "started_at", "ended_at",
)  # fmt: skip
NATIVE_COLUMNS: Final = ("invocation_id", "run_id", "payload")
SUSPENDED_COLUMNS: Final = ("key", "run_id", "caller", "wire", "payload", "created_at")
HIDDEN_COLUMNS: Final = ("key", "variant", *SUSPENDED_COLUMNS[1:], "asked", "alone")
RESPONSE_COLUMNS: Final = ("id", "caller", "run_id", "response", "input_items", "continuation", "created_at")
RESULT_COLUMNS: Final = ("handle", "run_id", "caller", "untrusted", "content", "created_at")
CLAIM_COLUMNS: Final = ("invocation_id", "result")

_INT64 = 2**63 - 1


class Insert(str):
    """A statement that inserts one row: ``opening``, the row's placeholders in ``row``, and the ``rest``."""

    __slots__ = ("_parts",)

    _parts: tuple[str, str, str]

    def __new__(cls, opening: str, row: str, rest: str) -> Self:
        statement = super().__new__(cls, opening + row + rest)
        statement._parts = (opening, row, rest)
        return statement

    def of_many(self, number: int) -> str:
        """Return the statement for ``number`` rows, whose values are passed one after the other (SQLite)."""
        opening, row, rest = self._parts
        return opening + ", ".join([row] * number) + rest

    def of_rows_from(self, source: str) -> str:
        """Return the statement for the rows of a table function; PostgreSQL refuses two with the same key."""
        opening, _, rest = self._parts
        return f"{opening.removesuffix('VALUES ')}SELECT * FROM {source}{rest}"


class Upsert(Insert):
    """A statement that inserts a row, or updates the changeable columns of the row with the same key.

    ``key_of`` returns the key that a row of values has in ``table``.
    """

    __slots__ = ("key_of", "table")

    key_of: Callable[[Row], Hashable]
    table: str


def upsert(table: str, columns: Sequence[str], key: Sequence[str], fixed: Sequence[str] = ()) -> Upsert:
    """Build the statement that inserts a row, or updates the row with the same key.

    The update leaves out the ``fixed`` columns, which never change: naming a column rewrites its indexes.
    """
    rest = [column for column in columns if column not in key and column not in fixed]
    statement = Upsert(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ",
        f"({', '.join('?' * len(columns))})",
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET "
        + ", ".join(f"{column} = excluded.{column}" for column in rest),
    )
    statement.key_of = itemgetter(*map(columns.index, key))
    statement.table = table
    return statement


def is_text(value: str) -> bool:
    """Return whether a database accepts the text: it has no lone surrogates."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def clean_text(value: str) -> str:
    """Replace lone surrogates, which no database accepts, with U+FFFD."""
    if value.isascii() or is_text(value):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_name(value: str) -> str:
    """Clean a text by which rows are found, and cut it to :data:`MAX_NAME` characters."""
    return value[:MAX_NAME] if value.isascii() else clean_text(value)[:MAX_NAME]


def run_row(record: RunRecord) -> Row:
    """Return the values of :data:`RUN_COLUMNS`."""
    return _short_fitting(
        record.id,
        record.request_id,
        clean_name(record.caller),
        record.wire,
        clean_name(record.model),
        record.upstream,
        int(record.stream),
        record.status,
        record.started_at,
        record.ended_at,
        record.error_code,
        record.finish_reason,
        record.turns,
        record.tool_calls,
        record.input_tokens,
        record.output_tokens,
        record.total_tokens,
        write_json(record.offered),
        write_json(dict(record.withheld)) if record.withheld else "{}",
        record.trace,
        record.prompt_hash,
        record.cost,
        record.spent,
        record.unreported,
        write_json(record.left_out) if record.left_out else "[]",
        record.agent,
        record.parent_run,
        record.parent_call,
        None if record.memory is None else write_json(record.memory),
        record.continues,
        record.takes_over,
        record.agent_version,
    )


def turn_row(record: TurnRecord) -> Row:
    """Return the values of :data:`TURN_COLUMNS`."""
    return _short_fitting(
        record.run_id,
        record.number,
        record.upstream_id,
        record.finish_reason,
        record.started_at,
        record.ended_at,
        record.input_tokens or 0,
        record.output_tokens or 0,
        record.total_tokens or 0,
        record.tool_calls,
        record.error_code,
        record.cost,
        write_json(dict(record.withheld)) if record.withheld else "{}",
        int(record.total_tokens is None),
        record.first_at,
    )


def message_row(record: MessageRecord) -> Row:
    """Return the values of :data:`MESSAGE_COLUMNS`."""
    return fitting(
        record.run_id,
        record.turn,
        record.seq,
        record.role,
        record.content,
        record.content_json,
        record.tool_calls,
        record.function_call,
        record.tool_call_id,
        record.name,
    )


def invocation_row(record: ToolInvocationRecord) -> Row:
    """Return the values of :data:`INVOCATION_COLUMNS`."""
    return _short_fitting(
        record.id,
        record.run_id,
        record.turn,
        record.seq,
        record.call_id,
        clean_name(record.tool),
        record.provider,
        record.spec_digest,
        record.effect.value,
        record.decision,
        record.status,
        record.error_code,
        None if record.arguments_redacted is None else write_json(record.arguments_redacted),
        None if record.result_redacted is None else write_json(record.result_redacted),
        record.result_bytes,
        record.started_at,
        record.ended_at,
    )


def native_row(record: NativeCall) -> Row:
    """Return the values of :data:`NATIVE_COLUMNS`."""
    return fitting(record.invocation_id, record.run_id, record.payload)


def suspended_row(record: SuspendedTurn) -> Row:
    """Return the values of :data:`SUSPENDED_COLUMNS`."""
    return fitting(
        record.key, record.run_id, clean_name(record.caller), record.wire, record.payload, record.created_at
    )


def hidden_row(record: HiddenTurns, asked: str | None = None, alone: str | None = None) -> Row:
    """Return the values of :data:`HIDDEN_COLUMNS`; ``asked`` and ``alone`` are further keys of the same."""
    return fitting(
        record.key, record.variant, record.run_id, clean_name(record.caller), record.wire, record.payload,
        record.created_at, asked, alone,
    )  # fmt: skip


def response_row(record: ResponseRecord) -> Row:
    """Return the values of :data:`RESPONSE_COLUMNS`."""
    return fitting(
        record.id,
        record.caller,
        record.run_id,
        record.response,
        record.input_items,
        record.continuation,
        record.created_at,
    )


def result_row(record: KeptResult) -> Row:
    """Return the values of :data:`RESULT_COLUMNS`."""
    return fitting(
        record.handle,
        record.run_id,
        record.caller,
        int(record.untrusted),
        record.content,
        record.created_at,
    )


def effect_value(result: EffectResult) -> bytes:
    """Encode the result of an effect, as the model got it, as JSON."""
    fields = (result.content, result.safe_message, result.truncated, result.redacted, result.untrusted)
    return write_json(list(fields)).encode()


def read_run(row: Row) -> RunRecord:
    """Read a run from the values of :data:`RUN_COLUMNS`."""
    values = dict(zip(RUN_COLUMNS, row, strict=True))
    values["stream"] = bool(values["stream"])
    values["offered"] = tuple(read_json(values["offered"]))
    values["withheld"] = read_json(values["withheld"])
    values["left_out"] = tuple(read_json(values["left_out"]))
    values["memory"] = None if values["memory"] is None else read_json(values["memory"])
    return RunRecord(**values)


def read_turn(row: Row) -> TurnRecord:
    """Read a turn from the values of :data:`TURN_COLUMNS`."""
    values = dict(zip(TURN_COLUMNS, row, strict=True))
    if values.pop("unreported"):
        values |= dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"))
    return TurnRecord(**values | {"withheld": read_json(values["withheld"])})


def read_message(row: Row) -> MessageRecord:
    """Read a message from the values of :data:`MESSAGE_COLUMNS`."""
    return MessageRecord(**dict(zip(MESSAGE_COLUMNS, row, strict=True)))


def read_invocation(row: Row) -> ToolInvocationRecord:
    """Read an invocation from the values of :data:`INVOCATION_COLUMNS`."""
    values = dict(zip(INVOCATION_COLUMNS, row, strict=True))
    values["effect"] = ToolEffect(values["effect"])
    for column in ("arguments_redacted", "result_redacted"):
        if values[column] is not None:
            values[column] = read_json(values[column])
    return ToolInvocationRecord(**values)


def read_native(row: Row) -> NativeCall:
    """Read a call, as the upstream sent it, from the values of :data:`NATIVE_COLUMNS`."""
    return NativeCall(**dict(zip(NATIVE_COLUMNS, row, strict=True)))


def read_suspended(row: Row) -> SuspendedTurn:
    """Read a suspended turn from the values of :data:`SUSPENDED_COLUMNS`."""
    return SuspendedTurn(**dict(zip(SUSPENDED_COLUMNS, row, strict=True)))


def read_hidden(row: Row) -> list[HiddenTurns]:
    """Read hidden turns from the values of :data:`HIDDEN_COLUMNS`, once for each of their keys."""
    return [HiddenTurns(key, *row[1:7]) for key in (row[0], *row[7:]) if key is not None]


def read_response(row: Row) -> ResponseRecord:
    """Read a response from the values of :data:`RESPONSE_COLUMNS`."""
    return ResponseRecord(**dict(zip(RESPONSE_COLUMNS, row, strict=True)))


def read_result(row: Row) -> KeptResult:
    """Read a kept result from the values of :data:`RESULT_COLUMNS`."""
    values = dict(zip(RESULT_COLUMNS, row, strict=True))
    return KeptResult(**values | {"untrusted": bool(values["untrusted"])})


def read_effect(value: bytes) -> EffectResult:
    """Read a value that :func:`effect_value` wrote."""
    return EffectResult(*read_json(value))


def runs_query(wanted: RunFilter) -> tuple[str, Row]:
    """Build the statement for :meth:`~proxy.store.base.Store.list_runs` and its parameters.

    Each filter has an index that yields its runs in order, so a page costs the same for any number of runs.
    """
    source, at, id_ = "runs", "started_at", "id"
    clauses: list[str] = []
    values: list[Any] = []
    if wanted.tool is not None:
        source, at, id_ = "run_tools t JOIN runs ON runs.id = t.run_id", "t.started_at", "t.run_id"
        clauses.append("t.tool = ?")
        values.append(clean_name(wanted.tool))
    # The runs of a key include those of its end users, whose names are the key, a slash and more.
    whose = "caller" if "/" in (wanted.caller or "") else "caller_key"
    for column, value in (("status", wanted.status), ("model", wanted.model), (whose, wanted.caller)):
        if value is not None:
            clauses.append(f"{column} = ?")
            values.append(clean_name(value))
    if wanted.since is not None:
        clauses.append(f"{at} >= ?")
        values.append(wanted.since)
    if wanted.until is not None:
        clauses.append(f"{at} < ?")
        values.append(wanted.until)
    if wanted.id_prefix is not None:
        clauses.append(f"{id_} >= ? AND {id_} < ?")
        values += [clean_text(wanted.id_prefix), clean_text(wanted.id_prefix) + "\U0010ffff"]
    if not wanted.agents:
        clauses.append("parent_run = ''")
    if wanted.parent is not None:
        # The index on runs of agents is partial; the condition lets the database use it.
        clauses.append("parent_run = ? AND parent_run <> ''")
        values.append(clean_text(wanted.parent))
    if wanted.errors_only:
        clauses.append(HAS_ERROR)
    if wanted.before is not None:
        # If there is no run with that id, the comparison is with no row, and the list is empty.
        clauses.append(f"({at}, {id_}) < (SELECT b.started_at, b.id FROM runs b WHERE b.id = ?)")
        values.append(clean_text(wanted.before))
    where = f"WHERE {' AND '.join(clauses)} " if clauses else ""
    values.append(max(0, min(wanted.limit, MAX_LISTED)))
    columns = ", ".join(f"runs.{column}" for column in RUN_COLUMNS)
    return (
        f"SELECT {columns} FROM {source} {where}ORDER BY {at} DESC, {id_} DESC LIMIT ?",
        tuple(values),
    )


def fitting(*row: Any) -> Row:
    """Adapt the values to what a database accepts; nearly every row needs no change."""
    for value in row:
        kind = type(value)
        if (kind is str and not value.isascii()) or (kind is int and not -_INT64 <= value <= _INT64):
            return tuple(map(_fit, row))
    return row


def _short_fitting(*row: Any) -> Row:
    """Do the same for rows of short texts, which one call can check."""
    # What this encodes, a database accepts: no lone surrogates, and no number beyond 53 bits.
    try:
        orjson.dumps(row, option=orjson.OPT_STRICT_INTEGER)
    except TypeError:
        return tuple(map(_fit, row))
    return row


def _fit(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    # Token counts come from the upstream, and JSON has no largest number.
    return max(-_INT64, min(value, _INT64)) if isinstance(value, int) else value


def write_json(value: Any) -> str:
    """Encode a redacted value as JSON text, with the type's name for a value that JSON cannot express."""
    try:
        return orjson.dumps(value).decode("utf-8")
    except TypeError:
        pass  # Lone surrogates, huge numbers and keys that are not text: the slower encoder accepts them.
    try:
        return json.dumps(value, default=lambda other: f"<{type(other).__name__}>", skipkeys=True)
    except (ValueError, RecursionError):
        return '"<not serialisable>"'


def read_json(text: str | bytes) -> Any:
    """Parse the text of a JSON column; raises :class:`~proxy.base.errors.StoreError` if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise StoreError("a JSON column of the record does not hold JSON") from error
