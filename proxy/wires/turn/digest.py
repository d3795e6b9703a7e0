"""Digests of conversations: the same words in the same order, whoever sends them."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

__all__ = [
    "PrefixDigests",
    "canonical_arguments",
    "conversation_digest",
    "people_named",
    "sent_arguments",
]

_MANY_DIGITS = re.compile(r"[0-9.]{16}|[eE][+-]?[0-9]{3}")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_PEOPLE = ("user", "safety_identifier")


class PrefixDigests:
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
        self._state: hashlib.blake2b | None = None
        self._digests: list[bytes] = []

    def upto(self, end: int | None) -> bytes:
        """A digest of the first ``end`` messages, of all for ``None``."""
        digests = self._digests
        if (state := self._state) is None:  # Of most conversations no digest is asked for.
            state = self._state = hashlib.blake2b(digest_size=32)
            digests.append(state.digest())
        wanted = len(self._messages) if end is None else min(end, len(self._messages))
        if wanted >= len(digests):
            visible = self._visible
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


def people_named(payload: Mapping[str, Any]) -> str:
    """Whom a body says that it is for, in one form; empty where it names nobody.

    Both fields are the same on every wire.  Source: OpenAI's API reference, ``user`` and
    ``safety_identifier``.
    """
    if payload.keys().isdisjoint(_PEOPLE):
        return ""
    named = [payload.get(field) or None for field in _PEOPLE]
    return orjson.dumps(named, option=orjson.OPT_SORT_KEYS).decode() if any(named) else ""


def canonical_arguments(arguments: Any) -> Any:
    """Arguments of a call as every library writes them: some parse them and write them anew.

    As they are where that would lose a difference: no JSON, a key that stands twice, a number that no
    double holds.
    """
    try:
        written = orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, TypeError):
        return arguments
    # Digits in a text ("page123", the number of an order) are no number.
    if _MANY_DIGITS.search(arguments) and _MANY_DIGITS.search(_TEXT.sub('""', arguments)):
        return arguments
    # A key that is dropped takes two quotes along; a quote may be written as an escape.
    quotes = arguments.count('"') + arguments.count("\\u0022")
    return written if written.count('"') == quotes else arguments


def sent_arguments(arguments: Any) -> Any:
    """Arguments as an upstream gets them back (rule W8): what is no JSON object is ``{}``."""
    written = canonical_arguments(arguments)
    try:
        return written if isinstance(orjson.loads(written), dict) else "{}"
    except (orjson.JSONDecodeError, TypeError):
        return "{}"
