"""A turn of plain text, read without a frame for each event, or for its reply.

Most answers are text alone. Nothing of such a turn is held back or rewritten, so its bytes leave as they
came, and only its text, its finish reason and its usage are noted. An event in any other form ends this
reading: then a turn reader reads the turn from its beginning, and goes on with it.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import orjson

from proxy.base.events import FinishReason, TurnEvent, TurnFinished, TurnStarted, Usage, UsageReported
from proxy.wires.stream.sse import DONE
from proxy.wires.stream.template import MOST_TEMPLATE_BYTES, Template

_BEGIN: Final = b"data: "
_END: Final = b"\n\n"
_BETWEEN: Final = _END + _BEGIN
_MOST_READ: Final = 16
"""So many events are read one by one. If more come that no template fits, the turn's reader does better."""
_MOST_BYTES: Final = 256 * 1024
"""The longest turn, in bytes, that is kept for a reader: it takes some 1.5 ms to read so much at once."""
PLAIN_ENDS: Final = (FinishReason.STOP, FinishReason.LENGTH)
"""After any other reason the run or the writer has something to do."""
_SHALLOW: Final = 200
"""With so many brackets a chunk may be nested as deeply as readers refuse."""
_ESCAPED: Final = b"\\u00"
_LETTER: Final = re.compile(rb"\\u00[4-7]")
"""A letter of ASCII, or ``_``, that is written as an escape: the name of a member may hide behind it."""


class PlainTurn:
    """The plain text of one turn, as far as its stream has come. Each dialect has a subclass.

    ``id`` and ``model`` are those of the upstream's response, ``finish`` its end, and ``ended`` says that its
    end mark came. ``whole`` says that this is all of the turn, and that the client gets it as it came.
    ``reply`` is the turn if it came as one object, and empty for a stream.
    """

    __slots__ = (
        *("_example", "_kept", "_left", "_size", "_template", "_texts"),
        *("ended", "finish", "id", "model", "reply", "usage", "whole"),
    )

    _CALL: ClassVar[bytes] = b"_call"
    """A part of each name that makes something a call, in small letters."""

    def __init__(self) -> None:
        self.id = self.model = ""
        self.finish: TurnFinished | None = None
        self.usage: Usage | None = None
        self.ended = self.whole = False
        self.reply = b""
        self._texts: list[str | bytes] = []
        """Texts, and whole events of whose texts nobody has asked yet."""
        self._kept: list[bytes] = []
        self._size = 0
        self._left = _MOST_READ
        self._example: tuple[bytes, dict[str, Any]] | None = None
        self._template: Template | None = None

    def _note(self, payload: dict[str, Any]) -> bool:
        """Note what an event says; return whether it has the usual form of an event of a plain text.

        Nothing but its text, its finish reason, its usage, and the id and model of its response may matter to
        a turn reader or a writer of the dialect. A dialect whose streams are not read so says no.
        """
        return False

    def _free_names(self, raw: bytes, payload: dict[str, Any]) -> tuple[Sequence[str], Sequence[str]] | None:
        """Return the members of a text event that may differ from event to event, as a turn reader does."""
        return None

    def _note_reply(self, payload: dict[str, Any]) -> bool:
        """Note what a whole reply says; return as :meth:`_note` does. A dialect that cannot says no."""
        return False

    def take_reply(self, body: bytes) -> bool:
        """Take a turn that came as one object; return whether it is plain, so that it may leave unchanged.

        If it is not, nothing more can be taken.
        """
        if _is_unusual(body, self._CALL):
            return False
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError:
            return False
        if type(payload) is not dict or not self._note_reply(payload) or self.finish is None:
            return False
        self.reply, self.ended = body, True
        return True

    def take(self, chunk: bytes) -> bool:
        """Take a chunk of the stream; return whether all of it is plain, so that it may leave unchanged.

        If it is not, nothing of it was taken, and nothing more can be.
        """
        template = self._template
        if template is not None and template.take(chunk):
            return True
        return self._read(chunk)

    def _read(self, chunk: bytes) -> bool:
        """Read the events of a chunk one by one, unless a template of an earlier one fits them."""
        self._merge()
        if self.ended or self._size > _MOST_BYTES:
            return False
        if self._example is not None:
            self._make_template(*self._example)
        if (template := self._template) is not None and template.take(chunk):
            return True
        if (
            not chunk.startswith(_BEGIN)
            or chunk[-2:] != _END
            or len(chunk) > MOST_TEMPLATE_BYTES
            or _is_unusual(chunk, self._CALL)
        ):
            return False
        for data in chunk[len(_BEGIN) : -len(_END)].split(_BETWEEN):
            if not self._read_event(data):
                return False
        self._keep(chunk)
        return True

    def _read_event(self, data: bytes) -> bool:
        self._left -= 1
        # A line break would end the event's line, though JSON may have one between its members.
        if self.ended or self._left < 0 or data.find(b"\n") >= 0:
            return False
        if data == DONE:
            # What follows belongs to no turn, so no template may take it.
            self.ended, self._example, self._template = True, None, None
            return True
        try:
            payload = orjson.loads(data)
        except orjson.JSONDecodeError:
            return False
        if type(payload) is not dict:
            return False
        texts, usage = len(self._texts), self.usage
        if not self._note(payload):
            return False
        if len(self._texts) > texts and self.finish is None and self.usage is usage:
            self._example = data, payload
        return True

    def _make_template(self, data: bytes, payload: dict[str, Any]) -> None:
        """Make a template of a text event, for those that come next."""
        self._example = None
        raw = _BEGIN + data + _END
        if (names := self._free_names(raw, payload)) is not None:
            self._template = Template.of(raw, *names)

    def _merge(self) -> None:
        """Note what the template found, as one event with all its text."""
        template = self._template
        if template is not None and template.found:
            raw = template.merge()
            self._texts.append(raw)
            self._keep(raw)

    def _keep(self, raw: bytes) -> None:
        self._kept.append(raw)
        self._size += len(raw)

    def taken(self) -> bytes:
        """Return events that mean the same as all that were taken."""
        self._merge()
        return b"".join(self._kept)

    @property
    def text(self) -> str:
        """The text so far."""
        self._merge()
        found, self._texts = self._texts, []
        for each in found:
            if isinstance(each, str):
                self._texts.append(each)
            else:
                self._note(orjson.loads(each[len(_BEGIN) : -len(_END)]))
        return "".join(map(str, self._texts))

    def events(self) -> list[TurnEvent]:
        """Return what the turn means beside its text."""
        found: list[TurnEvent] = [TurnStarted(self.id, self.model)] if self.id else []
        if self.usage is not None:
            found.append(UsageReported(self.usage))
        if self.finish is not None:
            found.append(self.finish)
        return found


def _is_unusual(chunk: bytes, call: bytes) -> bool:
    """Return whether a chunk may hold a call, other line ends than LF, or JSON that is nested deeply."""
    # For bytes, ``in`` takes several times as long as ``find``.
    folded = chunk.lower()
    if folded.find(call) >= 0 or chunk.find(b"\r") >= 0:
        return True
    if folded.find(_ESCAPED) >= 0 and _LETTER.search(folded):
        return True
    return len(chunk) > 2 * _SHALLOW and chunk.count(b"{") + chunk.count(b"[") > _SHALLOW
