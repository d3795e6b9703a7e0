"""Encrypts content before it is written, so that the file, a copy or the disk alone reveals no conversations.

AES-256-GCM with a random nonce for each value. A value is bound to its place (table, column and the row's
key), so nobody can move it to another place. Each sealed row names the key that sealed it. A row without a
key name is older than the key.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

import orjson

from proxy.base.errors import ConfigError, StoreError
from proxy.records.approvals import Approval, ApprovalStatus
from proxy.records.grants import Grant
from proxy.records.rows import (
    HiddenTurns,
    KeptResult,
    KeptWire,
    MessageRecord,
    NativeCall,
    ResponseRecord,
    SuspendedTurn,
    ToolEffect,
    ToolInvocationRecord,
)
from proxy.store import rows

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_SETTING: Final = "store.seal_key"
_REDACTED: Final = ("arguments_redacted", "result_redacted")
_HEX_KEY: Final = re.compile(r"[0-9A-Fa-f]{64}\Z")

_R = TypeVar("_R")


class ContentTable(rows.Table[_R]):
    """A table whose rows are content (rule R3), with its key, the first of its columns, and what is sealed.

    Every such table has a column ``sealed_by`` besides ``columns``, and all except that of calls have
    ``created_at``. ``row_noun`` is what messages to operators call a row. Other arguments are those of
    :class:`~proxy.store.rows.Table`.
    """

    def __init__(
        self,
        name: str,
        record: Callable[..., _R],
        columns: Sequence[str],
        key: Sequence[str],
        sealed: Sequence[str],
        row_noun: str,
        **conversions: Any,
    ) -> None:
        super().__init__(name, record, columns, **conversions)
        if tuple(columns[: len(key)]) != tuple(key):
            raise ValueError(f"the columns of {name} do not begin with its key")
        self.key: Final = key
        self.sealed: Final = sealed
        self.places: Final = [
            (orjson.dumps([name, column])[:-1] + b",", columns.index(column)) for column in sealed
        ]
        """The beginning of the place of each sealed column, with its position in a row."""
        self._row_noun = row_noun

    def counted(self, number: int) -> str:
        """Return a number of rows of this table, in words for the operator."""
        return f"{number} {self._row_noun}" + ("" if number == 1 else "s")


MESSAGES: Final = ContentTable(
    "messages",
    MessageRecord,
    (
        "run_id", "turn", "seq", "role", "content", "content_json", "tool_calls", "function_call",
        "tool_call_id", "name",
    ),
    ("run_id", "turn", "seq"),
    ("content", "content_json", "tool_calls", "function_call"),
    "message",
)  # fmt: skip
SUSPENDED: Final = ContentTable(
    "suspended_turns",
    SuspendedTurn,
    ("key", "run_id", "caller", "wire", "payload", "created_at"),
    ("key",),
    ("payload",),
    "suspended turn",
    names=("caller",),
)


class _Hidden(ContentTable[HiddenTurns]):
    """Hidden turns, whose columns ``asked`` and ``alone`` are further keys of the same, or ``NULL``."""

    def __init__(self) -> None:
        columns = ("key", "variant", "run_id", "caller", "wire", "payload", "created_at")
        key, sealed = ("key", "variant"), ("payload",)
        super().__init__("hidden_turns", HiddenTurns, columns, key, sealed, "hidden turn", names=("caller",))
        self.columns = (*columns, "asked", "alone")

    def row(self, record: HiddenTurns, asked: str | None = None, alone: str | None = None) -> rows.Row:
        """Return the values of the columns."""
        return (*super().row(record), asked, alone)

    def records(self, row: rows.Row) -> list[HiddenTurns]:
        """Read hidden turns from the values of the columns, once for each of their keys."""
        return [HiddenTurns(key, *row[1:7]) for key in (row[0], *row[7:]) if key is not None]


HIDDEN: Final = _Hidden()
RESPONSES: Final = ContentTable(
    "responses",
    ResponseRecord,
    ("id", "caller", "run_id", "response", "input_items", "continuation", "created_at"),
    ("id", "caller"),
    ("response", "input_items", "continuation"),
    "response",
)
RESULTS: Final = ContentTable(
    "kept_results",
    KeptResult,
    ("handle", "run_id", "caller", "untrusted", "content", "created_at"),
    ("handle",),
    ("content",),
    "large result",
    write={"untrusted": int},
    read={"untrusted": bool},
)
CLAIMS: Final = ContentTable(
    "effect_claims", tuple, ("invocation_id", "result"), ("invocation_id",), ("result",), "effect result"
)
NATIVE_CALLS: Final = ContentTable(
    "native_calls",
    NativeCall,
    ("invocation_id", "run_id", "payload"),
    ("invocation_id",),
    ("payload",),
    "call as it came",
)
CALLS: Final = ContentTable(
    "tool_invocations",
    ToolInvocationRecord,
    (
        "id", "run_id", "turn", "seq", "call_id", "tool", "provider", "spec_digest", "effect",
        "decision", "status", "error_code", "arguments_redacted", "result_redacted", "result_bytes",
        "started_at", "ended_at", "cost",
    ),
    ("id",),
    ("arguments_redacted", "result_redacted"),
    "tool call",
    names=("tool",),
    write={"effect": attrgetter("value"), **dict.fromkeys(_REDACTED, rows.write_json)},
    read={"effect": ToolEffect, **dict.fromkeys(_REDACTED, rows.read_json)},
    short=True,
)  # fmt: skip
APPROVALS: Final = ContentTable(
    "approvals",
    Approval,
    (
        "id", "run_id", "turn", "seq", "call_id", "caller", "client_key", "tool", "effect", "spec_digest",
        "arguments_digest", "arguments", "arguments_shown", "rule", "created_at", "expires_at", "status",
        "decided_by", "decided_via", "decided_at", "words", "edited", "invocation_id",
    ),
    ("id",),
    ("arguments", "arguments_shown", "words", "edited"),
    "approval",
    fields={"client_key": "key", "words": "reason"},
    names=("caller", "client_key", "decided_by"),
    write={"call_id": itemgetter(slice(rows.MAX_NAME)), "arguments_shown": rows.write_json, "status": str},
    read={"arguments_shown": rows.read_json, "status": ApprovalStatus},
)  # fmt: skip
GRANTS: Final = ContentTable(
    "approval_grants",
    Grant,
    (
        "id", "approval_id", "run_id", "caller", "tool", "spec_digest", "rule", "bounds", "scope",
        "created_at", "expires_at", "made_by", "made_via", "revoked_at", "revoked_by", "uses", "used_at",
    ),
    ("id",),
    ("bounds",),
    "grant",
    names=("caller", "made_by"),
)  # fmt: skip
WIRE_BYTES: Final = ContentTable(
    "wire_bytes",
    KeptWire,
    ("run_id", "caller", "size", "cut", "payload", "created_at"),
    ("run_id",),
    ("payload",),
    "run as it went over the wire",
    names=("caller",),
    write={"cut": int},
    read={"cut": bool},
)
BACKGROUND: Final = ContentTable(
    "background_runs",
    tuple,
    (
        "id", "caller", "run_id", "asked_at", "attempt", "deaths", "state", "cancelled", "request",
        "created_at",
    ),
    ("id",),
    ("request",),
    "background response",
)  # fmt: skip
CONTENT: Final[tuple[ContentTable[Any], ...]] = (
    MESSAGES, SUSPENDED, HIDDEN, RESPONSES, RESULTS, NATIVE_CALLS, APPROVALS, BACKGROUND, WIRE_BYTES, GRANTS,
)  # fmt: skip
"""Tables whose rows are deleted when they are too old, or when room is needed."""

RECORD: Final[tuple[ContentTable[Any], ...]] = (CLAIMS, CALLS)
"""Tables whose rows are record, although some of their columns are sealed. Even without the sealed values, a
claim still prevents an effect, and a call is still known to have been made."""

SEALED: Final = (*CONTENT, *RECORD)
"""Every table with sealed columns."""


def parse_seal_key(text: str, setting: str = _SETTING) -> bytes:
    """Decode the 32 bytes of a key from base64 (either alphabet) or hexadecimal digits.

    Raises :class:`~proxy.base.errors.ConfigError` for ``setting``; the message does not quote the text.
    """
    key = b""
    if _HEX_KEY.match(text):
        key = bytes.fromhex(text)
    else:
        standard = text.translate(str.maketrans("-_", "+/")).rstrip("=")
        with contextlib.suppress(binascii.Error, ValueError):
            key = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    if len(key) != _KEY_BYTES:
        raise ConfigError(
            setting,
            "it does not hold 32 bytes in base64 or hexadecimal",
            "Make a key with: openssl rand -base64 32",
        )
    return key


class Seal:
    """One key, which seals the content columns of rows and opens them again.

    ``id`` names the key and reveals nothing about it. If the key is configured, ``hash_key`` hashes the
    secrets of client keys.
    """

    def __init__(self, key: bytes) -> None:
        # Imported here: it takes 8 MiB in each process, and many records are not sealed.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != _KEY_BYTES:
            raise ValueError("a seal key has 32 bytes")
        self.id: Final = _derived(key, b"toolrelay seal key id").hex()[:16]
        self.hash_key: Final = _derived(key, b"toolrelay client keys")
        self._cipher = AESGCM(_derived(key, b"toolrelay content"))

    def __repr__(self) -> str:
        return f"Seal({self.id!r})"

    def close(self, table: ContentTable[Any], row: rows.Row) -> rows.Row:
        """Return the row of ``table.columns`` with its content sealed; text stays text."""
        return self._each(table, row, self._close)

    def open(self, table: ContentTable[Any], row: rows.Row) -> rows.Row:
        """Return the row as it was passed to :meth:`close`.

        Raises :class:`StoreError` if this key did not seal it, or sealed it for another place.
        """
        return self._each(table, row, self._open)

    def _each(self, table: ContentTable[Any], row: rows.Row, change: Callable[[Any, bytes], Any]) -> rows.Row:
        values, key = list(row), b""
        for opening, position in table.places:
            if (value := row[position]) is not None:
                key = key or orjson.dumps(row[: len(table.key)])[1:]
                values[position] = change(value, opening + key)
        return tuple(values)

    def _close(self, value: str | bytes, place: bytes) -> str | bytes:
        nonce = os.urandom(_NONCE_BYTES)
        if isinstance(value, str):
            return base64.b64encode(nonce + self._cipher.encrypt(nonce, value.encode(), place)).decode()
        return nonce + self._cipher.encrypt(nonce, value, place)

    def _open(self, value: str | bytes, place: bytes) -> str | bytes:
        from cryptography.exceptions import InvalidTag

        try:
            sealed = base64.b64decode(value, validate=True) if isinstance(value, str) else value
            if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
                raise ValueError
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
            return plain.decode() if isinstance(value, str) else plain
        except (InvalidTag, ValueError):
            raise StoreError(
                "sealed content of the record does not open: it was changed, or moved from another row"
            ) from None


class SealRing:
    """The key that seals, if there is one, and the keys that only open what they sealed before."""

    def __init__(self, current: Seal | None, old: Sequence[Seal] = (), *, awaits: bool = False) -> None:
        """If ``awaits``, the key that seals is not known yet, and :meth:`close` raises until
        :meth:`seal_with`."""
        self._current = current
        self._awaits = awaits and current is None
        self._opens = {seal.id: seal for seal in (*old, *([current] if current is not None else []))}

    @property
    def current(self) -> Seal | None:
        """The key that seals now."""
        return self._current

    @property
    def id(self) -> str | None:
        """The name of the key that seals now."""
        return self._current.id if self._current is not None else None

    @property
    def seals(self) -> bool:
        """Whether :meth:`close` seals, even if the key is not known yet."""
        return self._awaits or self._current is not None

    @property
    def awaits(self) -> bool:
        """Whether the key that will seal is not known yet."""
        return self._awaits

    def open_with(self, seal: Seal) -> None:
        """Use this key too to open what it has sealed."""
        self._opens[seal.id] = seal

    def seal_with(self, seal: Seal) -> None:
        """Seal with this key from now on."""
        self._current, self._awaits = seal, False
        self.open_with(seal)

    @property
    def keys(self) -> tuple[Seal, ...]:
        """All keys of the ring."""
        return tuple(self._opens.values())

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of all keys of the ring, sorted."""
        return tuple(sorted(self._opens))

    def opens(self, sealed_by: str) -> bool:
        """Return whether the ring has the key with that name."""
        return sealed_by in self._opens

    def close(self, table: ContentTable[Any], row: rows.Row) -> rows.Row:
        """Seal a row of ``table.columns`` for writing, and append its ``sealed_by``."""
        if self._current is None:
            if self._awaits:
                raise RuntimeError("content was written before the record was open")
            return (*row, None)
        return (*self._current.close(table, row), self._current.id)

    def open(self, table: ContentTable[Any], row: rows.Row, sealed_by: str | None) -> rows.Row:
        """Return the row as it was passed to :meth:`close`.

        Raises :class:`StoreError` if the ring does not have its key, or the key does not open
        it.
        """
        if sealed_by is None:
            return row
        seal = self._opens.get(sealed_by)
        if seal is None:
            raise StoreError(
                f"content of the record is sealed with the key {sealed_by}, which is not configured; "
                "name it in store.old_seal_keys"
            )
        return seal.open(table, row)


def _derived(key: bytes, purpose: bytes) -> bytes:
    # One HMAC-SHA-256 block per purpose: the key is uniformly random, so HKDF's extract step is not needed.
    return hmac.new(key, purpose, hashlib.sha256).digest()
