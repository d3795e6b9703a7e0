"""Put originals back in place of placeholders, in what a client gets: streams of any dialect, and whole
answers.

A dialect says in which members of its events a text comes piece by piece
(:class:`~proxy.wires.dialect.TextPiece`). An event whose piece ends with what may become a placeholder waits,
and all that follow it, until the next piece of the same text decides. All other texts of an event are
complete. An event without a placeholder keeps its bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.hooks.placeholders import Placeholders
from proxy.wires.dialect import Dialect, Event, TextPiece

_MOST_HELD: Final = 256 * 1024
_MOST_EVENTS: Final = 256
_DEEP: Final = 200
"""Fewer brackets cannot be nested too deeply: orjson writes 254 levels."""

_Channel = tuple[Any, ...]
_Piece = tuple[dict[str, Any], str, str]


class _Held(Struct):
    """An event that has not been sent: as it came, and its payload as it is now. ``pieces`` are the places of
    its pieces, each with the text that it came with."""

    raw: bytes
    data: bytes
    payload: dict[str, Any]
    pieces: list[_Piece]
    changed: bool = False

    @property
    def is_same(self) -> bool:
        """Whether it may go out as it came."""
        return not self.changed and all(holder[key] == given for holder, key, given in self.pieces)


class _Tail(Struct, frozen=True):
    """The end of a piece that may become a placeholder, and the place in its event to put it back."""

    text: str
    holder: dict[str, Any]
    key: str


class Restorer:
    """Restores one answer. ``json_answer`` says that the text of the answer itself is JSON."""

    def __init__(self, dialect: Dialect, originals: Placeholders, *, json_answer: bool = False) -> None:
        self._dialect = dialect
        self._originals = originals
        self._json_answer = json_answer
        self._parser = dialect.framing.parser()
        self._held: list[_Held] = []
        self._bytes = 0
        self._tails: dict[_Channel, _Tail] = {}

    def whole(self, body: bytes) -> bytes:
        """Return a whole answer, or an error, with its originals; the same bytes if it is no JSON object."""
        payload = _object(body)
        if payload is None or not self._restore(payload, ()):
            return body
        return orjson.dumps(payload)

    def feed(self, data: bytes) -> bytes:
        """Return what of a stream may be sent now: whole events."""
        if not self._originals and self._parser.at_boundary:
            return data  # There may be some from the next turn on; each turn begins with an event.
        out: list[bytes] = []
        for event in self._parser.feed(data):
            self._take(event, out)
        return b"".join(out)

    def close(self) -> bytes:
        """Return the rest of a stream. It may be called in the middle of one, too."""
        out: list[bytes] = []
        self._settle(out)
        if (last := self._parser.close()) is not None:
            self._take(last, out)
            self._settle(out)
        return b"".join(out)

    def _take(self, event: Event, out: list[bytes]) -> None:
        payload = _object(event.data) if event.data else None
        if payload is None:
            # A comment says only that the stream goes on; any other event keeps its place.
            if event.data or event.is_end_mark:
                self._settle(out)
            out.append(event.raw)
            return
        held = _Held(event.raw, event.data, payload, [])
        for holder, key, channel, piece in self._pieces(payload):
            held.pieces.append((holder, key, holder[key]))
            self._piece(holder, key, channel, in_json=piece.in_json or self._json_answer)
        held.changed = self._restore(payload, held.pieces)
        self._held.append(held)
        self._bytes += len(held.raw)
        if not self._tails:
            self._send(out)
        elif self._bytes > _MOST_HELD or len(self._held) > _MOST_EVENTS:
            self._settle(out)

    def _piece(self, holder: dict[str, Any], key: str, channel: _Channel, *, in_json: bool) -> None:
        """Restore a piece of a text, joined with what was held back of the piece before it."""
        before = self._tails.pop(channel, None)
        text = holder[key] if before is None else before.text + holder[key]
        holder[key], rest = self._originals.split(text, in_json=in_json)
        if rest:
            self._tails[channel] = _Tail(rest, holder, key)

    def _settle(self, out: list[bytes]) -> None:
        """Send everything: what is held back becomes no placeholder."""
        for tail in self._tails.values():
            tail.holder[tail.key] += tail.text
        self._tails.clear()
        self._send(out)

    def _send(self, out: list[bytes]) -> None:
        out += [self._written(event) for event in self._held]
        self._held.clear()
        self._bytes = 0

    @staticmethod
    def _written(event: _Held) -> bytes:
        if event.is_same:
            return event.raw
        data = orjson.dumps(event.payload)
        head, found, tail = event.raw.partition(event.data)
        if found:
            return head + data + tail
        # Data in several lines does not stand in the event as it is read.
        others = [line for line in event.raw.splitlines() if line and not line.startswith(b"data")]
        return b"\n".join((*others, b"data: " + data, b"", b""))

    def _pieces(self, payload: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, _Channel, TextPiece]]:
        kind = payload.get("type")
        for piece in self._dialect.pieces:
            if piece.types and kind not in piece.types:
                continue
            place = tuple(_plain(payload.get(name)) for name in piece.place)
            for holder, where in _holders(payload, piece.path[:-1]):
                if isinstance(holder.get(piece.path[-1]), str):
                    yield holder, piece.path[-1], (piece.path, kind, *place, *where), piece

    def _restore(self, value: Any, pieces: Sequence[_Piece]) -> bool:
        """Restore all complete texts in a value, in place, except its pieces; return whether any changed."""
        entries: Iterator[tuple[Any, Any]]
        entries = iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))
        changed = False
        for key, inner in [*entries]:
            if isinstance(inner, dict | list):
                changed |= self._restore(inner, pieces)
            elif isinstance(inner, str) and inner and not _is_piece(value, key, pieces):
                is_json = key in self._dialect.turns.json_texts or self._json_answer
                restored = self._originals.restored(inner, in_json=is_json)
                if restored != inner:
                    value[key], changed = restored, True
        return changed


def _is_piece(holder: Any, key: Any, pieces: Sequence[_Piece]) -> bool:
    return any(one is holder and name == key for one, name, _ in pieces)


def _object(data: bytes) -> dict[str, Any] | None:
    """Return the object that data is; ``None`` if it is none, or is too deep to be written again."""
    try:
        payload = orjson.loads(data)
        if data.count(b"[") + data.count(b"{") > _DEEP:
            orjson.dumps(payload)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    return payload if isinstance(payload, dict) else None


def _holders(value: Any, path: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Yield the objects at a path, in which ``*`` is each element of a list, with the elements' indices."""
    if not path:
        if isinstance(value, dict):
            yield value, ()
    elif path[0] != "*":
        if isinstance(value, Mapping) and path[0] in value:
            yield from _holders(value[path[0]], path[1:])
    elif isinstance(value, list):
        for place, element in enumerate(value):
            index = element.get("index", place) if isinstance(element, dict) else place
            for holder, where in _holders(element, path[1:]):
                yield holder, (_plain(index), *where)


def _plain(place: Any) -> Any:
    """Return what tells texts apart; an object or a list, which no upstream should send, tells nothing."""
    return None if isinstance(place, dict | list) else place
