"""Signs the items that show a server call, so that the proxy recognizes them when they come back.

A client sends back what it saw as an ``mcp_call`` item. Anyone can write such an item, so only a signed one
becomes a call and its result for the model. The signature is in the item's ``id``: client libraries drop
unknown fields, but keep the id.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from proxy.base.chance import replayable
from proxy.wires.responses.items import SERVER_LABEL, is_shown_call

_NONCE_BYTES = 8
_MAC_BYTES = 16
_BEGINNING = f"mcp_{SERVER_LABEL}"
_ID_LENGTH = len(_BEGINNING) + 2 * (_NONCE_BYTES + _MAC_BYTES)
"""61 characters; providers accept ids of 64."""


class ItemSigner:
    """Signs and verifies the items shown to one caller.

    ``key`` are 32 bytes that all processes with the same record share, also after a restart.
    """

    def __init__(self, key: bytes, caller: str) -> None:
        self._key = key
        self._caller = caller

    def item_id(
        self, name: str, arguments: str, *, output: str | None, error: str | None, label: str = SERVER_LABEL
    ) -> str:
        """Return the id of an item that shows a call and its outcome; ``label`` names its server."""

        def made() -> str:
            nonce = secrets.token_hex(_NONCE_BYTES)
            return f"{_BEGINNING}{nonce}{self._mac(nonce, *_server(label), name, arguments, output, error)}"

        return replayable("shown_item_id", made)

    def verify(self, item: Mapping[str, Any]) -> bool:
        """Return whether this caller was shown this item with exactly this content."""
        item_id = item.get("id")
        label = item.get("server_label")
        if not is_shown_call(item) or not isinstance(label, str):
            return False
        if not isinstance(item_id, str) or len(item_id) != _ID_LENGTH:
            return False
        shown = [item.get(field) for field in ("name", "arguments", "output", "error")]
        if not all(word is None or isinstance(word, str) for word in shown):
            return False
        nonce = item_id[len(_BEGINNING) : len(_BEGINNING) + 2 * _NONCE_BYTES]
        expected = f"{_BEGINNING}{nonce}{self._mac(nonce, *_server(label), *shown)}"
        return hmac.compare_digest(_bytes(item_id), _bytes(expected))

    def _mac(self, nonce: str, *shown: str | None) -> str:
        """Return a keyed hash of caller and content. Each part follows its length, so that none can shift."""
        mac = hashlib.blake2b(key=self._key, digest_size=_MAC_BYTES, person=b"shown mcp_call")
        for word in (self._caller, nonce, *shown):
            part = b"" if word is None else _bytes(word)
            mac.update(b"%d:%b" % (-1 if word is None else len(part), part))
        return mac.hexdigest()


def _server(label: str) -> tuple[str, ...]:
    """Return what is signed of a server: its label, if the client gave it one."""
    return () if label == SERVER_LABEL else (label,)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
