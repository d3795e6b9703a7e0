"""Digests of conversations: the same words in the same order, whoever sends them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

__all__ = ["Beginnings", "conversation_digest"]


class Beginnings:
    """Digests over the beginnings of one conversation; each of its messages is taken in once.

    ``visible`` gives what makes a message the same message, ``None`` for one that does not count.
    """

    __slots__ = ("_digests", "_messages", "_state", "_visible")

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        visible: Callable[[Mapping[str, Any]], Sequence[Any] | None],
    ) -> None:
        self._messages = messages
        self._visible = visible
        self._state = hashlib.blake2b(digest_size=32)
        self._digests = [self._state.digest()]

    def upto(self, end: int | None) -> bytes:
        """A digest of the first ``end`` messages, of all for ``None``."""
        digests = self._digests
        wanted = len(self._messages) if end is None else min(end, len(self._messages))
        if wanted >= len(digests):
            state, visible = self._state, self._visible
            for message in self._messages[len(digests) - 1 : wanted]:
                if (seen := visible(message)) is not None:
                    part = orjson.dumps(seen, option=orjson.OPT_SORT_KEYS)
                    state.update(len(part).to_bytes(8, "big") + part)
                digests.append(state.digest())
        return digests[wanted]


def conversation_digest(words: Sequence[str], beginning: bytes) -> str:
    """A digest of some words and of a conversation's beginning, in hexadecimal.

    Every part stands behind its length, so that no two lists of parts read alike.
    """
    parts = [word.encode("utf-8", "surrogatepass") for word in words]
    parts.append(beginning)
    behind_lengths = b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "big"), part)])
    return hashlib.blake2b(behind_lengths, digest_size=24).hexdigest()
