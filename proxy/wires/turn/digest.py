"""Digests of conversations: equal if they have the same words in the same order."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from proxy.base.caches import declare_lru
from proxy.wires.past.clock import SystemRule, without_clock
from proxy.wires.past.evidence import Evidence, Place, Speaker, chained

_MANY_DIGITS = re.compile(r"[0-9.]{16}|[eE][+-]?[0-9]{3}")
_KINDS: Final = bytes.maketrans(b"123456789.E-", b"0000000000e+")
_SIGNS_OF_DIGITS: Final = (b"0" * 16, b"e000", b"e+000")
_PEOPLE = ("user", "safety_identifier")
_MOST_CHAINED: Final = 128
"""The largest number of messages before a question that are kept as evidence of its place."""
_MOST_TEXT: Final = 20_000
_PREFIX_BYTES: Final = 32
_OF_NOTHING: Final = hashlib.blake2b(digest_size=_PREFIX_BYTES).digest()
_MOST_BEGUN: Final = 500
"""The most characters of words whose digest is kept: a system prompt may be among them."""


class PrefixDigests:
    """Digests over the beginnings of one conversation. Each message is hashed once, and once more if it is
    evidence.

    ``visible`` returns the parts of a message that identify it, or ``None`` for a message that does not
    count. ``speaker`` returns who wrote it. ``said`` returns the text of a client's message, or ``None`` if
    the message holds more than text.
    """

    __slots__ = (
        *("_chain", "_digests", "_leading", "_messages", "_rule", "_said", "_speaker", "_state", "_visible"),
    )

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        visible: Callable[[Mapping[str, Any]], Sequence[Any] | None],
        speaker: Callable[[Mapping[str, Any]], Speaker],
        said: Callable[[Mapping[str, Any]], str | None],
    ) -> None:
        self._messages = messages
        self._visible = visible
        self._speaker = speaker
        self._said = said
        self._rule: SystemRule = "exact"
        self._state: hashlib.blake2b | None = None
        self._digests: list[bytes] = []
        self._leading: int | None = None
        self._chain: dict[int, str] = {}

    def digest(self, end: int | None, rule: SystemRule = "clock") -> bytes:
        """Return a digest of the first ``end`` messages, of all if it is ``None``; see :data:`SystemRule`."""
        digests = self._digests
        if end is not None and end < len(digests) and rule == self._rule:
            return digests[end]
        if (state := self._state) is None or rule != self._rule:
            # Created late, because most conversations need no digest.
            state = self._state = hashlib.blake2b(digest_size=_PREFIX_BYTES)
            self._rule = rule
            digests[:], self._chain = [_OF_NOTHING], {}
        wanted = len(self._messages) if end is None else min(end, len(self._messages))
        leading = 0 if rule == "exact" else self.leading
        visible, messages, dumps = self._visible, self._messages, orjson.dumps
        for at in range(len(digests) - 1, wanted):
            if at < leading:
                part = self._part(at, rule)
            else:  # The same without a call for each message.
                seen = visible(messages[at])
                part = None if seen is None else dumps(seen, option=orjson.OPT_SORT_KEYS)
            if part is None:
                digests.append(digests[-1])
            else:
                state.update(len(part).to_bytes(8, "big") + part)
                digests.append(state.digest())
        return digests[wanted]

    @property
    def leading(self) -> int:
        """The number of messages at the beginning that are instructions to the model."""
        if self._leading is None:
            end = 0
            for message in self._messages:
                if self._speaker(message) != "system":
                    break
                end += 1
            self._leading = end
        return self._leading

    def place(self, end: int | None, rule: SystemRule = "clock") -> Place | None:
        """Return where the answer to the first ``end`` messages stands; ``None`` if no question came
        before it."""
        end = len(self._messages) if end is None else min(end, len(self._messages))
        leading, speaker, messages = self.leading, self._speaker, self._messages
        first, is_asked = end, False
        while first > leading:
            message = messages[first - 1]
            who = speaker(message)
            if who == "user":
                is_asked = True
            elif who != "system" and self._visible(message) is not None:
                break
            first -= 1
        return (
            Place(self.digest(leading, rule), first, first - leading <= _MOST_CHAINED) if is_asked else None
        )

    def evidence(self, end: int | None, rule: SystemRule = "clock", beside: bytes = b"") -> Evidence | None:
        """Return evidence of the place of the answer that follows the first ``end`` messages.

        It distinguishes the answer from others with the same words. ``beside`` is the system prompt that the
        body has beside the messages. Return ``None`` if no question came before it.
        """
        place = self.place(end, rule)
        if place is None:
            return None
        end = len(self._messages) if end is None else min(end, len(self._messages))
        texts: list[str | None] = []
        question = ""
        first = place.first
        speaker, visible, dumps = self._speaker, self._visible, orjson.dumps
        for message in self._messages[first:end]:  # The first is behind those that lead.
            if speaker(message) == "user":
                texts.append(self._said(message))
            if (seen := visible(message)) is not None:
                question += _short(dumps(seen, option=orjson.OPT_SORT_KEYS))
        earliest = max(self.leading, first - _MOST_CHAINED)
        chained = [self._chained(at, rule) for at in range(earliest, first)] if earliest < first else ()
        chain = tuple(filter(None, chained))
        text = "" if None in texts else "\n".join(filter(None, texts))
        if len(text) > _MOST_TEXT:
            # Only the beginning and the end of a very long text are kept.
            text = f"{text[: _MOST_TEXT // 2]}\n\x00\n{text[-_MOST_TEXT // 2 :]}"
        return Evidence(place.system + beside, chain, _short(question.encode()), text)

    def _chained(self, at: int, rule: SystemRule) -> str:
        """Return a short digest of one message; ``""`` for a message that does not count."""
        known = self._chain.get(at)
        if known is None:
            part = self._part(at, rule)
            known = self._chain[at] = chained(_short(part)) if part is not None else ""
        return known

    def _part(self, at: int, rule: SystemRule) -> bytes | None:
        """Return the bytes that identify one message; ``None`` for a message that does not count."""
        seen = self._visible(self._messages[at])
        if rule != "exact" and at < self.leading:
            seen = without_clock(seen) if rule == "clock" else None
        if seen is None:
            return None
        return orjson.dumps(seen, option=orjson.OPT_SORT_KEYS)


def _short(part: bytes) -> str:
    return hashlib.blake2b(part, digest_size=12).hexdigest()


def conversation_digest(words: Sequence[str], beginning: bytes) -> str:
    """Return a hexadecimal digest of some words and of a conversation's beginning."""
    return conversation_digests(words, [(beginning,)])[0]


def conversation_digests(words: Sequence[str], each: Iterable[Sequence[bytes]]) -> list[str]:
    """Return a hexadecimal digest of some words and of further parts, for each list of such parts.

    The length of each part is hashed before the part, so that different lists of parts never look alike.
    """
    begun = _begun if sum(map(len, words)) <= _MOST_BEGUN else _begun.__wrapped__
    shared = begun(tuple(words))
    found = []
    for parts in each:
        state, hashed = shared.copy(), b""
        for part in parts:
            hashed += len(part).to_bytes(8, "big") + part
        state.update(hashed)
        found.append(state.hexdigest())
    return found


@lru_cache(512)
def _begun(words: tuple[str, ...]) -> hashlib.blake2b:
    """Return the state of a digest that begins with these words, to be copied.

    They are the same for all requests of one caller to one model.
    """
    state = hashlib.blake2b(digest_size=24)
    for part in map(encoded, words):
        state.update(len(part).to_bytes(8, "big") + part)
    return state


declare_lru("digest_beginnings", _begun, 5000)


def encoded(word: str) -> bytes:
    """Return a word as it is hashed; it may hold half surrogate pairs."""
    return word.encode("utf-8", "surrogatepass")


def user_key(payload: Mapping[str, Any]) -> str:
    """Return the people whom a body names, in one canonical form; ``""`` if it names none.

    Both fields are the same on every wire. Source: OpenAI's API reference, ``user`` and
    ``safety_identifier``.
    """
    if payload.keys().isdisjoint(_PEOPLE):
        return ""
    named = [payload.get(field) or None for field in _PEOPLE]
    return orjson.dumps(named, option=orjson.OPT_SORT_KEYS).decode() if any(named) else ""


def canonical_arguments(arguments: Any) -> Any:
    """Return a call's arguments in canonical form, because some libraries parse them and write them anew.

    Return them unchanged if the canonical form would lose a difference: text that is not JSON, a repeated
    key, or a number that a double cannot hold. Integers are exact, whatever their size.
    """
    try:
        written = orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, TypeError):
        return arguments
    if _has_long_number(arguments.encode()):
        try:
            exact = json.loads(arguments, parse_float=_double)
        except (ValueError, RecursionError):
            return arguments
        written = json.dumps(exact, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # Dropping a repeated key removes two quotes. A quote may also be written as an escape.
    quotes = arguments.count('"') + (arguments.count("\\u0022") if "\\" in arguments else 0)
    return written if written.count('"') == quotes else arguments


def _has_long_number(text: bytes) -> bool:
    """Return whether JSON may have a number that matches ``_MANY_DIGITS``.

    The pattern itself would take tens of milliseconds for a megabyte.
    """
    if not _has_many_digits(text):
        return False
    # Digits inside a string ("page123", an order number) are not a number.
    pieces = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    return _has_many_digits(b'"'.join(pieces[::2]))


def _has_many_digits(text: bytes) -> bool:
    kinds = text.translate(_KINDS)
    return any(sign in kinds for sign in _SIGNS_OF_DIGITS)


def _double(text: str) -> float:
    """Return a number that is no integer; raises ``ValueError`` for one that a double cannot hold."""
    if _MANY_DIGITS.search(text):
        raise ValueError(text)
    return float(text)


def sent_arguments(arguments: Any) -> Any:
    """Return arguments as an upstream gets them back (rule W8): ``{}`` if they are not a JSON object."""
    written = canonical_arguments(arguments)
    try:
        return written if isinstance(orjson.loads(written), dict) else "{}"
    except (orjson.JSONDecodeError, TypeError):
        return "{}"
