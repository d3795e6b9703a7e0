"""Filters for response bodies: they remove secrets, and decode a content coding.

Both work on pieces as they arrive, and hold back only what they cannot decide yet.
"""

import json
import zlib
from collections.abc import Iterable, Iterator

from proxy.base.errors import UpstreamBroken
from proxy.http.secret_spellings import SecretSpellings

REDACTED = b"[redacted]"
"""The replacement for a secret."""

_SHORTEST_SECRET = 5
"""Characters. Shorter "keys" are placeholders ("x", "none") that would garble any text."""

_PIECE_BYTES = 64 * 1024
"""At most so many decoded bytes are held at a time."""

_FREE_BYTES = 8 * 1024 * 1024
_MAX_RATIO = 250
"""After ``_FREE_BYTES`` decoded bytes, one compressed byte may stand for so many on average.

Event streams repeat their keys and compress well, some 5 to 60 times. Deflate's own maximum, which only a
bomb comes near, is 1032.
"""


def shapes_of_secrets(secrets: Iterable[str]) -> tuple[bytes, ...]:
    """Return the byte forms that a secret may have in a body: unchanged, and escaped in JSON."""
    shapes: set[bytes] = set()
    for secret in secrets:
        if len(secret) < _SHORTEST_SECRET:
            continue
        escaped = json.dumps(secret)[1:-1]
        shapes.update(form.encode() for form in (secret, escaped, escaped.replace("/", "\\/")))
    return tuple(sorted(shapes, key=len, reverse=True))


class Scrubber:
    """Replaces secrets in a stream of bytes, even if one is cut between two pieces."""

    def __init__(self, shapes: tuple[bytes, ...]) -> None:
        """``shapes`` come from :func:`shapes_of_secrets`."""
        self._shapes = shapes
        self._spellings = SecretSpellings(shapes) if shapes else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that can go out now; hold back an end that may be the beginning of a secret."""
        data = self._held + data
        for shape in self._shapes:
            data = data.replace(shape, REDACTED)
        keep = 0
        if self._spellings is not None:
            data = self._spellings.replaced(data, lambda _: REDACTED)
            keep = self._spellings.begun(data)
        cut = len(data) - keep
        self._held = data[cut:]
        return data[:cut]

    def finish(self) -> bytes:
        """Return what was held back, because nothing can follow it."""
        held, self._held = self._held, b""
        return held


class Inflater:
    """Decodes gzip or deflate in a stream, in bounded steps.

    A compressed body can stand for a thousand times its size. So it is decoded one piece at a time, and
    refused if it grows like a bomb.
    """

    CODINGS = frozenset({"gzip", "x-gzip", "deflate"})

    def __init__(self, coding: str) -> None:
        """``coding`` is one of :attr:`CODINGS`, and the only content coding of the body."""
        self._gzip = coding != "deflate"
        self._decoder: zlib._Decompress | None = None
        self._taken = 0
        self._given = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield decoded pieces of at most 64 KiB, none empty.

        Raises :class:`~proxy.base.errors.UpstreamBroken` if the data is malformed, or a bomb.
        """
        self._taken += len(data)
        while data:
            piece, data = self._step(data)
            while piece:
                self._given += len(piece)
                if self._given > _FREE_BYTES and self._given > self._taken * _MAX_RATIO:
                    raise UpstreamBroken("the compressed response body is too large once it is decompressed")
                yield piece
                # After a full piece the decoder may hold more output although no input is left.
                piece, data = self._step(data) if len(piece) == _PIECE_BYTES else (b"", data)

    def _step(self, data: bytes) -> tuple[bytes, bytes]:
        """Return at most one piece, and the input that is still to be fed."""
        if self._decoder is None:
            self._decoder = zlib.decompressobj(31 if self._gzip else _deflate_window(data))
        decoder = self._decoder
        if decoder.eof:
            # gzip members may follow each other (RFC 1952, section 2.2); deflate has one.
            if not data or not self._gzip:
                return b"", b""
            self._decoder = decoder = zlib.decompressobj(31)
        try:
            piece = decoder.decompress(data, _PIECE_BYTES)
        except zlib.error as exc:
            raise UpstreamBroken("the compressed response body is malformed") from exc
        return piece, decoder.unused_data if decoder.eof else decoder.unconsumed_tail

    def finish(self) -> None:
        """Raise :class:`~proxy.base.errors.UpstreamBroken` if the coded data has no end."""
        if self._taken and (self._decoder is None or not self._decoder.eof):
            raise UpstreamBroken("the compressed response body is incomplete")


def _deflate_window(data: bytes) -> int:
    """Return zlib's number for the format: "deflate" means zlib (RFC 9110, section 8.4.1.2), some send it
    bare."""
    # The low four bits of a zlib header are always 8.
    return 15 if data[0] & 0x0F == 8 else -15
