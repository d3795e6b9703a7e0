"""Signs the ids of the parts that show calls of the provider's tools: items and blocks.

The id of such a part names its call on record. It is signed for its caller, so the record is asked only about
ids that the proxy made, for whom it made them; any other id names nothing. Clients keep ids: OpenAI's have at
most 64 characters, those of Anthropic's are ``^srvtoolu_[a-zA-Z0-9_]+$`` (the types of anthropic 2.14.0).
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from proxy.base.chance import replayable

_NONCE: Final = 16
_MAC: Final = 32
"""Hexadecimal digits of what distinguishes a call, and of the signature."""


class PartIds:
    """Makes and recognizes the ids of the parts that one caller is shown.

    The first of the ``keys`` signs, all of them verify; each has 32 bytes. ``made`` are the ids of one answer
    in their order.
    """

    def __init__(self, keys: Sequence[bytes], caller: str) -> None:
        self._keys = keys
        self._caller = caller
        self.made: list[str] = []

    def make(self, mark: str) -> str:
        """Return a new id that begins with this mark of the proxy's own."""

        def signed() -> str:
            begun = mark + secrets.token_hex(_NONCE // 2)
            return begun + self._mac(self._keys[0], begun)

        part_id = replayable("part_id", signed)
        self.made.append(part_id)
        return part_id

    def verified(self, ids: Iterable[str]) -> list[str]:
        """Return those of some ids that were made for this caller."""
        return [one for one in ids if self._is_signed(one)]

    def _is_signed(self, part_id: str) -> bool:
        begun, mac = part_id[:-_MAC], part_id[-_MAC:].encode("utf-8", "surrogatepass")
        if len(begun) <= _NONCE:
            return False
        return any(hmac.compare_digest(mac, self._mac(key, begun).encode()) for key in self._keys)

    def _mac(self, key: bytes, begun: str) -> str:
        mac = hashlib.blake2b(key=key, digest_size=_MAC // 2, person=b"hosted part")
        for word in (self._caller, begun):
            part = word.encode("utf-8", "surrogatepass")
            mac.update(b"%d:%b" % (len(part), part))
        return mac.hexdigest()
