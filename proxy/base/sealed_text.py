"""Encrypted texts that clients carry for the proxy. Only the proxy can read or make them.

The cipher is AES-256-GCM with a random nonce for each text. A text is bound to its place: to what it is,
and for whom.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from typing import Final

from proxy.base.chance import replayable

_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class TextSeal:
    """Encrypts texts of one purpose, and decrypts those that come back.

    ``keys`` are 32 bytes each. The first one encrypts; all of them decrypt, so that a key can be replaced.
    ``purpose`` has at most 16 bytes. A text that is encrypted for one purpose cannot be decrypted for
    another.
    """

    def __init__(self, keys: Sequence[bytes], purpose: bytes, version: bytes = b"\x01") -> None:
        """``version`` is the first byte of an encrypted text, and identifies its format."""
        self._keys = keys
        self._purpose = purpose
        self._version = version

    def close(self, text: bytes, place: bytes) -> str:
        """Return the encrypted text in base64; no two results are equal, even for the same text.

        A run that is replayed gets the same result again for the same text and place.
        """
        digest = hashlib.blake2b(place + b"\0" + text, digest_size=16).hexdigest()
        return replayable(f"sealed {digest}", lambda: self._close(text, place))

    def _close(self, text: bytes, place: bytes) -> str:
        # Imported here because it takes 8 MiB of each process, and many processes never seal a text.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._derived(self._keys[0])).encrypt(nonce, text, place)
        return base64.b64encode(self._version + nonce + sealed).decode()

    def open(self, sealed: str, place: bytes) -> bytes | None:
        """Return the text that :meth:`close` got; ``None`` if it was changed, or encrypted with another key
        or for another place."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            whole = base64.b64decode(sealed, validate=True)
        except (binascii.Error, ValueError):
            return None
        if whole[:1] != self._version or len(whole) < 1 + _NONCE_BYTES + _TAG_BYTES:
            return None
        nonce, text = whole[1 : 1 + _NONCE_BYTES], whole[1 + _NONCE_BYTES :]
        for key in self._keys:
            try:
                return AESGCM(self._derived(key)).decrypt(nonce, text, place)
            except InvalidTag:
                continue
        return None

    def _derived(self, key: bytes) -> bytes:
        return hashlib.blake2b(key=key, digest_size=32, person=self._purpose).digest()
