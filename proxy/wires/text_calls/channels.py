"""Splits the text of a model that writes everything into channels: harmony of gpt-oss.

A message of the text is ``<|start|>assistant<|channel|>NAME<|message|>…<|end|>``; its first mark and its end
may be missing. Source: OpenAI's "Harmony response format". What the channel ``analysis`` holds is a thought,
a message with a recipient is a call, and everything else is for the user. The result does not depend on how
the text was cut.
"""

import re
from typing import Final

from msgspec import Struct

from proxy.base.events import ReasoningDelta, TextDelta

_STARTS: Final = ("<|start|>", "<|channel|>")
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>", *_STARTS)
_END: Final = re.compile("|".join(map(re.escape, _ENDS)))
_BODY: Final = "<|message|>"
_HEADER: Final = re.compile(r"(?:<\|(?:start|channel|constrain)\|>[^<]*+)+")
_ROLE: Final = re.compile(r"<\|start\|>\s*([A-Za-z0-9_.-]*)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*([a-z]*)")
_RECIPIENT: Final = re.compile(r"\bto=([A-Za-z0-9_.:-]{1,140})")
_MOST_OPENING: Final = 256
"""The most characters of a header, with the mark behind it."""
_PARAGRAPH: Final = "\n\n"


class ChannelCall(Struct, frozen=True):
    """A message to a tool: the ``recipient`` as written, the ``body``, and the whole text of the message."""

    recipient: str
    body: str
    raw: str


Piece = TextDelta | ReasoningDelta | ChannelCall


class Channels:
    """Splits the text of one turn.

    ``found``: whether the text consists of channels; ``None`` until that is known. If it does not, nothing of
    it is returned. ``notes`` report what was left out.
    """

    def __init__(self, most: int) -> None:
        """Take ``most``, the largest number of characters in one call."""
        self._most = most
        self._held = ""
        self._header = ""
        self._kind: type[TextDelta] | type[ReasoningDelta] | type[ChannelCall] | None = None
        self._over = False
        self._last_character: dict[type, str] = {}
        self._begun: set[type] = set()
        self.applies: bool | None = None
        self.notes: list[str] = []

    def feed(self, text: str) -> list[Piece]:
        """Take the next piece of the text, and return what is certain by then."""
        self._held += text
        pieces: list[Piece] = []
        if self.applies is None:
            self._begin()
        while self.applies and not self._over and self._step(pieces):
            pass
        if self._over:
            self._held = ""
        return pieces

    def close(self, *, cut: bool) -> list[Piece]:
        """End the text, and return the rest. ``cut`` means that a length limit stopped it."""
        pieces: list[Piece] = []
        if self._kind is ChannelCall and cut:
            self.notes.append("a call that the bound of the answer cut off is left out")
        elif self._kind is ChannelCall:
            # Servers do not return the token that ends a call: it stops the model.
            self._call(self._held, "", pieces)
        elif self._kind is not None:
            self._say(self._kind, self._held, pieces)
        self._held, self._kind = "", None
        return pieces

    @property
    def pending(self) -> bool:
        """Whether the text so far is undecided."""
        return self.applies is None and bool(self._held)

    def _begin(self) -> None:
        """Decide whether the text begins with a header."""
        text = self._held.lstrip()
        if not any(text.startswith(mark) or mark.startswith(text) for mark in _STARTS):
            self.applies = False
        elif (end := text.find(_BODY, 0, _MOST_OPENING)) >= 0:
            self.applies = _HEADER.fullmatch(text, 0, end) is not None and _role_of(text[:end]) == ""
        elif len(text) >= _MOST_OPENING:
            self.applies = False
        if self.applies:
            self._held = text

    def _step(self, pieces: list[Piece]) -> bool:
        """Read one part of a message; return whether there may be more to read."""
        if self._kind is None:
            return self._open(pieces)
        match = _END.search(self._held)
        if self._kind is ChannelCall:
            size = match.start() if match is not None else len(self._held)
            if size > self._most:
                self._say(TextDelta, self._header + _BODY, pieces)
                self._kind = TextDelta
                return True
            if match is None:
                return False
            self._call(self._held[: match.start()], match[0], pieces)
        else:
            end = match.start() if match is not None else len(self._held) - _partial(self._held)
            self._say(self._kind, self._held[:end], pieces)
            if match is None:
                self._held = self._held[end:]
                return False
        self._kind = None
        self._held = self._held[match.start() if match[0] in _STARTS else match.end() :]
        return True

    def _open(self, pieces: list[Piece]) -> bool:
        """Read the header of a message."""
        text = self._held.lstrip()
        if any(mark.startswith(text) for mark in _ENDS if mark != text or text in _STARTS):
            return False
        if (match := _END.match(text)) is not None and match[0] not in _STARTS:
            self._held = text[match.end() :]
            return True
        end = text.find(_BODY, 0, _MOST_OPENING) if text.startswith(_STARTS) else 0
        if end < 0 and len(text) < _MOST_OPENING:
            return False
        header = text[: max(end, 0)]
        if _HEADER.fullmatch(header) is None:
            # Not a header: a model's words between two messages.
            self._kind = TextDelta
            if text.startswith(_STARTS):
                size = len(next(mark for mark in _STARTS if text.startswith(mark)))
                self._say(TextDelta, text[:size], pieces)
                text = text[size:]
            self._held = text
            return True
        self._held = text[end + len(_BODY) :]
        if _role_of(header):
            self.notes.append("a message that is not the model's own is left out")
            self._over = True
            return False
        self._header = header
        channel = _CHANNEL.search(header)
        if _RECIPIENT.search(header) is not None:
            self._kind = ChannelCall
        else:
            self._kind = ReasoningDelta if channel is not None and channel[1] == "analysis" else TextDelta
        self._begun.discard(self._kind)
        return True

    def _say(self, kind: type, text: str, pieces: list[Piece]) -> None:
        """Add text of a message; messages of one kind become paragraphs."""
        if not text:
            return
        before = self._last_character.get(kind, "")
        if kind not in self._begun and before and not before.isspace() and not text[0].isspace():
            text = _PARAGRAPH + text
        self._begun.add(kind)
        self._last_character[kind] = text[-1]
        pieces.append(ReasoningDelta(text) if kind is ReasoningDelta else TextDelta(text))

    def _call(self, body: str, end: str, pieces: list[Piece]) -> None:
        recipient = _RECIPIENT.search(self._header)
        mark = "" if end in _STARTS else end
        raw = f"{self._header}{_BODY}{body}{mark}"
        pieces.append(ChannelCall(recipient[1] if recipient is not None else "", body, raw))


def _role_of(header: str) -> str:
    """Return the role that a header names; empty for the model's own messages."""
    role = _ROLE.match(header)
    return "" if role is None or role[1] in ("", "assistant") else role[1]


def _partial(text: str) -> int:
    """Return how many characters at the end may begin a mark."""
    at = text.rfind("<")
    tail = text[at:] if at >= 0 else ""
    return len(tail) if tail and any(mark.startswith(tail) for mark in _ENDS) else 0
