"""Conversion of records to rows of the SQL schema, and back. No I/O.

Data from clients, models and tools is adapted first: a database would refuse a row with invalid Unicode or
with numbers past 64 bits.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, Final, Generic, Self, TypeVar

import orjson
from msgspec.structs import astuple

from proxy.base.errors import StoreError
from proxy.records.effects import EffectResult
from proxy.records.rows import RunRecord, TurnRecord
from proxy.store.base import RunFilter

Row = tuple[Any, ...]
_R = TypeVar("_R")

MAX_LISTED: Final = 1000

MAX_NAME: Final = 200
"""The most characters of a name of a caller, model or tool in the record; some indexes cannot hold more."""

HAS_ERROR: Final = "(error_code IS NOT NULL OR status IN ('failed', 'interrupted'))"

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


def insert(table: str, columns: Sequence[str], rest: str = "") -> Insert:
    """Build the statement that inserts a row; ``rest`` follows the row's values."""
    return Insert(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ", f"({', '.join('?' * len(columns))})", rest
    )


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


class Table(Generic[_R]):
    """A table of the record, whose rows are made of records of one type, and read as such again.

    A column has the name of the record's field, unless ``fields`` gives another. The ``names`` are columns by
    which rows are found: see :func:`clean_name`. ``write`` and ``read`` convert values of further columns,
    except ``None``. If rows are ``short``, one call checks a whole row.
    """

    def __init__(
        self,
        name: str,
        record: Callable[..., _R],
        columns: Sequence[str],
        *,
        fields: Mapping[str, str] = MappingProxyType({}),
        names: Sequence[str] = (),
        write: Mapping[str, Callable[[Any], Any]] = MappingProxyType({}),
        read: Mapping[str, Callable[[Any], Any]] = MappingProxyType({}),
        short: bool = False,
    ) -> None:
        self.name: Final = name
        self.columns = columns
        self._record = record
        self._fields = [fields.get(column, column) for column in columns]
        in_order = getattr(record, "__struct_fields__", ()) == tuple(self._fields)
        # For all fields of a Struct in their order, this takes a quarter of the time.
        self._values: Callable[[Any], Row] = astuple if in_order else attrgetter(*self._fields)
        written = {**dict.fromkeys(names, clean_name), **write}
        self._write = [(columns.index(column), change) for column, change in written.items()]
        self._read = [(fields.get(column, column), change) for column, change in read.items()]
        self._fitting = _short_fitting if short else fitting

    def row(self, record: _R) -> Row:
        """Return the values of the columns."""
        values = list(self._values(record))
        for place, change in self._write:
            if values[place] is not None:
                values[place] = change(values[place])
        return self._fitting(*values)

    def record(self, row: Row) -> _R:
        """Read a record from the values of the columns."""
        values = dict(zip(self._fields, row, strict=True))
        for name, change in self._read:
            if values[name] is not None:
                values[name] = change(values[name])
        return self._record(**values)


class _Turns(Table[TurnRecord]):
    """The turns. If the upstream reported no tokens, their counts are 0 and the last column is 1."""

    def __init__(self) -> None:
        super().__init__(
            "turns",
            TurnRecord,
            _TURN_COLUMNS,
            write={"withheld": _write_mapping},
            read={"withheld": read_json},
            short=True,
        )
        self.columns = (*_TURN_COLUMNS, "unreported")

    def row(self, record: TurnRecord) -> Row:
        """Return the values of the columns."""
        row = super().row(record)
        return (row[0] or 0, row[1] or 0, row[2] or 0, *row[3:], int(record.total_tokens is None))

    def record(self, row: Row) -> TurnRecord:
        """Read a turn from the values of the columns."""
        *values, unreported = row
        return super().record((*([None] * 3 if unreported else values[:3]), *values[3:]))


def effect_value(result: EffectResult) -> bytes:
    """Encode the result of an effect, as the model got it, as JSON."""
    fields = (result.content, result.safe_message, result.truncated, result.redacted, result.untrusted)
    return write_json(list(fields)).encode()


def read_effect(value: bytes) -> EffectResult:
    """Read a value that :func:`effect_value` wrote."""
    return EffectResult(*read_json(value))


def _write_list(value: Sequence[Any]) -> str:
    return write_json(value) if value else "[]"


def _write_mapping(value: Mapping[str, Any]) -> str:
    return write_json(dict(value)) if value else "{}"


def _read_list(text: str) -> tuple[Any, ...]:
    return tuple(read_json(text))


def runs_query(wanted: RunFilter, also: str = "", fits: Row = ()) -> tuple[str, Row]:
    """Build the statement for :meth:`~proxy.store.base.Store.list_runs` and its parameters. ``also`` is a
    further condition, with the parameters ``fits``.

    Each filter has an index that yields its runs in order, so a page costs the same for any number of runs.
    """
    source, time_column, id_ = "runs", "started_at", "id"
    clauses: list[str] = []
    values: list[Any] = []
    if wanted.tool is not None:
        source, time_column, id_ = "run_tools t JOIN runs ON runs.id = t.run_id", "t.started_at", "t.run_id"
        clauses.append("t.tool = ?")
        values.append(clean_name(wanted.tool))
    # The runs of a key include those of its end users, whose names are the key, a slash and more.
    whose = "caller" if "/" in (wanted.caller or "") else "caller_key"
    for column, value in (("status", wanted.status), ("model", wanted.model), (whose, wanted.caller)):
        if value is not None:
            clauses.append(f"{column} = ?")
            values.append(clean_name(value))
    if wanted.since is not None:
        clauses.append(f"{time_column} >= ?")
        values.append(wanted.since)
    if wanted.until is not None:
        clauses.append(f"{time_column} < ?")
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
        clauses.append(f"({time_column}, {id_}) < (SELECT b.started_at, b.id FROM runs b WHERE b.id = ?)")
        values.append(clean_text(wanted.before))
    if also:
        clauses.append(also)
        values += fits
    where = f"WHERE {' AND '.join(clauses)} " if clauses else ""
    values.append(max(0, min(wanted.limit, MAX_LISTED)))
    columns = ", ".join(f"runs.{column}" for column in RUNS.columns)
    return (
        f"SELECT {columns} FROM {source} {where}ORDER BY {time_column} DESC, {id_} DESC LIMIT ?",
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


RUNS: Final = Table(
    "runs",
    RunRecord,
    (
        "id", "request_id", "caller", "wire", "model", "upstream", "stream", "status", "started_at",
        "ended_at", "error_code", "finish_reason", "turns", "tool_calls", "input_tokens", "output_tokens",
        "total_tokens", "offered", "withheld", "trace", "prompt_hash", "cost", "spent", "unreported",
        "left_out", "agent", "parent_run", "parent_call", "memory", "continues", "takes_over",
        "agent_version",
    ),
    names=("caller", "model"),
    write={
        "stream": int,
        "offered": write_json,
        "withheld": _write_mapping,
        "left_out": _write_list,
        "memory": write_json,
    },
    read={
        "stream": bool,
        "offered": _read_list,
        "withheld": read_json,
        "left_out": _read_list,
        "memory": read_json,
    },
    short=True,
)  # fmt: skip
_TURN_COLUMNS: Final = (
    "input_tokens", "output_tokens", "total_tokens", "run_id", "number", "upstream_id", "finish_reason",
    "started_at", "ended_at", "tool_calls", "error_code", "cost", "withheld", "first_at",
)  # fmt: skip
TURNS: Final = _Turns()
