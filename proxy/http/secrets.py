"""Removes secrets from upstreams' answers, even if they are cut or escaped."""

from collections.abc import Awaitable, Callable, Sequence

from proxy.http.secret_spellings import SecretSpellings

Sink = Callable[[bytes], Awaitable[None] | None]
"""Takes a piece of a body at once; a piece is never empty.

If it returns an awaitable, the caller awaits it before the next piece, and does not read the upstream
meanwhile. ``None`` means that it can take more.
"""


_SELDOM = b"QZXJKVWYUGHFBPLRMNTSEDACIOqzjx+/wvkybgpfhumdlcrsnitaoe9876543210"
"""The characters of keys, sorted by how seldom they occur in the events of a stream."""


class Secrets:
    """Secrets as bytes, none of them empty, that no answer of an upstream may contain.

    ``beginning`` is their common beginning: a piece without it contains none of them, so one search is
    enough. It is empty if they have none. ``sign`` is a byte that all of them contain and that text seldom
    has; ``in`` finds it at a fifth of the cost. If they share no byte, it is b"", which every piece
    contains.
    """

    __slots__ = ("_shapes", "_spellings", "beginning", "sign")

    def __init__(self, shapes: Sequence[bytes]) -> None:
        """``shapes`` has at least one element."""
        first, last = min(shapes), max(shapes)
        pairs = enumerate(zip(first, last, strict=False))
        self.beginning = first[: next((at for at, (a, b) in pairs if a != b), len(first))]
        shared = set(first).intersection(*shapes)
        self.sign: int | bytes = next((byte for byte in _SELDOM if byte in shared), b"")
        self._shapes = sorted(shapes, key=len, reverse=True)
        self._spellings = SecretSpellings(self._shapes)

    def blanked(self, data: bytes) -> bytes:
        """Replace each secret that is complete in the data by as many asterisks.

        A character may be written as its JSON escape.
        """
        for shape in self._shapes:
            data = data.replace(shape, b"*" * len(shape))
        return self._spellings.replaced(data, _asterisks)

    def begun(self, data: bytes) -> int:
        """Return how many of the last bytes of a piece may begin a secret that ends in the next one."""
        return self._spellings.begun(data)


def _asterisks(secret: bytes) -> bytes:
    return b"*" * len(secret)


class SecretFilter:
    """Removes secrets from a body that comes in pieces, even if the network cut through one."""

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.held = b""
        """The end of what came, as long as it may begin a secret. It has no line break."""

    def feed(self, data: bytes) -> bytes:
        """Take a piece, and return the part of the body that is known to contain no secrets."""
        # Complete secrets come first, because the end of one may be the beginning of another.
        data = self.secrets.blanked(self.held + data)
        size = self.secrets.begun(data)
        self.held = data[len(data) - size :]
        return data[: len(data) - size]

    def finish(self) -> bytes:
        """Return what was held: the body is over, so it is no secret."""
        held, self.held = self.held, b""
        return held


class SecretFilterSink:
    """A :data:`Sink` that removes secrets before it passes pieces to another one."""

    def __init__(self, secrets: Secrets, push: Sink) -> None:
        self._filter = SecretFilter(secrets)
        self._push = push

    def __call__(self, data: bytes) -> Awaitable[None] | None:
        """Take a piece, as a :data:`Sink` does."""
        data = self._filter.feed(data)
        return self._push(data) if data else None

    def finish(self) -> Awaitable[None] | None:
        """Pass on what was held: the body is over, so it is no secret."""
        held = self._filter.finish()
        return self._push(held) if held else None
