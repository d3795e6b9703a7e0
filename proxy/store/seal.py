"""Content sealed before it is written: whoever has the file, a copy or a disk has no conversation.

AES-256-GCM with a random nonce for each value.  What is sealed is bound to its place (table,
column and the row's key), so that one value cannot be put in the place of another.  Each sealed
row says which key sealed it; a row that names none was written before there was one.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.errors import ConfigError, StoreError
from proxy.store import rows

__all__ = [
    "CONTENT",
    "HIDDEN",
    "MESSAGES",
    "RESPONSES",
    "SUSPENDED",
    "ContentTable",
    "Seal",
    "parse_seal_key",
]

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_SETTING: Final = "store.seal_key"
_HEX_KEY: Final = re.compile(r"[0-9A-Fa-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class ContentTable:
    """A table whose rows are content (rule R3): what finds a row, and what of it is sealed.

    ``columns`` are those of its record.  Every such table has ``created_at`` and ``sealed_by``.
    """

    name: str
    columns: Sequence[str]
    key: Sequence[str]
    sealed: Sequence[str]


MESSAGES: Final = ContentTable(
    "messages",
    rows.MESSAGE_COLUMNS,
    ("run_id", "turn", "seq"),
    ("content", "content_json", "tool_calls", "function_call"),
)
SUSPENDED: Final = ContentTable("suspended_turns", rows.SUSPENDED_COLUMNS, ("key",), ("payload",))
HIDDEN: Final = ContentTable("hidden_turns", rows.HIDDEN_COLUMNS, ("key", "variant"), ("payload",))
RESPONSES: Final = ContentTable(
    "responses", rows.RESPONSE_COLUMNS, ("id", "caller"), ("response", "input_items", "continuation")
)
CONTENT: Final = (MESSAGES, SUSPENDED, HIDDEN, RESPONSES)


def parse_seal_key(text: str) -> bytes:
    """The 32 bytes that ``text`` writes in base64 (either alphabet) or in hexadecimal digits.

    Raises :class:`~proxy.errors.ConfigError`, which repeats nothing of the text.
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
            _SETTING,
            "it does not hold 32 bytes in base64 or hexadecimal",
            "Make a key with: openssl rand -base64 32",
        )
    return key


class Seal:
    """Seals the content columns of rows under one key, and opens them again.

    ``id`` names the key and tells nothing of it.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise ValueError("a seal key has 32 bytes")
        self.id: Final = _derived(key, b"toolrelay seal key id").hex()[:16]
        self._cipher = AESGCM(_derived(key, b"toolrelay content"))

    def __repr__(self) -> str:
        return f"Seal({self.id!r})"

    def close(self, table: ContentTable, row: rows.Row) -> rows.Row:
        """The row of ``table.columns`` with its content sealed; text stays text."""
        return self._each(table, row, self._close)

    def open(self, table: ContentTable, row: rows.Row) -> rows.Row:
        """The row as :meth:`close` was given it.

        Raises :class:`~proxy.errors.StoreError` where this key did not seal it, or not for this place.
        """
        return self._each(table, row, self._open)

    def _each(self, table: ContentTable, row: rows.Row, change: Callable[[Any, bytes], Any]) -> rows.Row:
        values = dict(zip(table.columns, row, strict=True))
        for column in table.sealed:
            value = values[column]
            if value is not None:
                place = orjson.dumps([table.name, column, *(values[name] for name in table.key)])
                values[column] = change(value, place)
        return tuple(values.values())

    def _close(self, value: str | bytes, place: bytes) -> str | bytes:
        nonce = os.urandom(_NONCE_BYTES)
        if isinstance(value, str):
            return base64.b64encode(nonce + self._cipher.encrypt(nonce, value.encode(), place)).decode()
        return nonce + self._cipher.encrypt(nonce, value, place)

    def _open(self, value: str | bytes, place: bytes) -> str | bytes:
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


def _derived(key: bytes, purpose: bytes) -> bytes:
    # One block of HMAC-SHA-256 per purpose: the key is uniform, so nothing has to be extracted first.
    return hmac.new(key, purpose, hashlib.sha256).digest()
