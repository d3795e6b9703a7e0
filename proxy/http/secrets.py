"""Secrets in what upstreams answer: found however they are cut or escaped, and blanked out."""

from collections.abc import Awaitable, Callable, Sequence

from proxy.http.secret_spellings import SecretSpellings

__all__ = ["Secrets", "Sink", "UncutSecrets", "WholeSecrets"]

Sink = Callable[[bytes], Awaitable[None] | None]
"""Takes a piece of a body at once, never an empty one.

What it returns is waited for before the next piece, and the upstream is not read meanwhile; ``None``:
it can take more.
"""


_SELDOM = b"QZXJKVWYUGHFBPLRMNTSEDACIOqzjx+/wvkybgpfhumdlcrsnitaoe9876543210"
"""What keys are made of, by how seldom it stands in the events of a stream."""


class Secrets:
    """What no answer of an upstream may hold, in bytes, none of them empty.

    Where ``beginning`` does not stand, none of them does, so that a piece is searched once; it is empty
    where two of them have nothing in common.  The same is true of ``sign``, a byte that text seldom has:
    ``in`` finds it at a fifth of the price.  It is b"", which is in everything, where they share none.
    """

    __slots__ = ("_shapes", "_spellings", "beginning", "sign")

    def __init__(self, shapes: Sequence[bytes]) -> None:
        """``shapes`` are one at least."""
        first, last = min(shapes), max(shapes)
        pairs = enumerate(zip(first, last, strict=False))
        self.beginning = first[: next((at for at, (a, b) in pairs if a != b), len(first))]
        shared = set(first).intersection(*shapes)
        self.sign: int | bytes = next((byte for byte in _SELDOM if byte in shared), b"")
        self._shapes = sorted(shapes, key=len, reverse=True)
        self._spellings = SecretSpellings(self._shapes)

    def blanked(self, data: bytes) -> bytes:
        """The data with asterisks for what stands whole in it, as long as it was.

        A character that is escaped as JSON may do is that character.
        """
        for shape in self._shapes:
            data = data.replace(shape, b"*" * len(shape))
        return self._spellings.replaced(data, _asterisks)

    def begun(self, data: bytes) -> int:
        """How many of the last bytes of a piece may be the beginning of what stands in the next one too."""
        return self._spellings.begun(data)


def _asterisks(found: bytes) -> bytes:
    return b"*" * len(found)


class UncutSecrets:
    """Takes secrets out of a body that comes in pieces, wherever the network cut it."""

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.held = b""
        """The end of what came, while it may be the beginning of a secret.  It has no line break."""

    def feed(self, data: bytes) -> bytes:
        """What of the body is known to be without secrets, once this piece is here."""
        # First: the end of a whole one may be the beginning of another.
        data = self.secrets.blanked(self.held + data)
        size = self.secrets.begun(data)
        self.held = data[len(data) - size :]
        return data[: len(data) - size]

    def finish(self) -> bytes:
        """Nothing comes any more: what was held is no secret."""
        held, self.held = self.held, b""
        return held


class WholeSecrets:
    """The same as a :data:`Sink`, before another one."""

    def __init__(self, secrets: Secrets, push: Sink) -> None:
        self._uncut = UncutSecrets(secrets)
        self._push = push

    def __call__(self, data: bytes) -> Awaitable[None] | None:
        """Take a piece, as a :data:`Sink` does."""
        data = self._uncut.feed(data)
        return self._push(data) if data else None

    def finish(self) -> Awaitable[None] | None:
        """Nothing comes any more: what was held is no secret."""
        held = self._uncut.finish()
        return self._push(held) if held else None
