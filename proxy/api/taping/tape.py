"""Record the tape of one run: each body on either side of the proxy, in its original pieces.

While bytes pass, each piece costs one entry of a list, which holds the same object that passes. All other
work is done after the run.
"""

import base64
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import orjson

from proxy.base.chance import Draws, Value
from proxy.http.headers import Headers
from proxy.http.rules import media_type
from proxy.http.secrets import Secrets, Sink
from proxy.relay.base import ClientStream
from proxy.server.messages.tee import WrappedStream

MAX_BYTES: Final = 4 << 20
"""The most bytes to keep of one run, both sides together. A client's request is kept up to the same size."""
_MAX_PIECES: Final = 20_000
_PART: Final = 64 << 10
"""Bytes of room that a tape takes at once, so that it rarely has to ask for more."""

Piece = tuple[float, bytes]
"""The time when a piece passed, in monotonic seconds, and its bytes."""


class Room:
    """The number of bytes that all tapes of a process hold together, and its limit."""

    __slots__ = ("held", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def take(self, size: int) -> bool:
        """Take ``size`` bytes if so many are free; return whether they were."""
        if self.held + size > self.most:
            return False
        self.held += size
        return True


class Leg:
    """One body.

    ``side`` is ``client`` or ``upstream``; ``upstream`` is the name of the upstream that was asked.
    ``error`` is the code and message if the upstream broke off or gave no answer.
    """

    __slots__ = ("content_type", "cut", "error", "name", "pieces", "side", "status", "turn", "upstream")

    def __init__(self, name: str, turn: int, status: int | None, content_type: str) -> None:
        self.name = name
        self.side = name.partition(".")[0]
        self.turn = turn
        self.status = status
        self.content_type = content_type
        self.pieces: list[Piece] = []
        self.cut = False
        self.error: tuple[str, str] | None = None
        self.upstream = ""

    @property
    def size(self) -> int:
        """The number of bytes that the tape holds of this body."""
        return sum(map(len, [data for _, data in self.pieces]))


class RunTape:
    """The recording of one run. :meth:`close` gives the bytes back to ``room``."""

    def __init__(
        self, run_id: str, room: Room, draws: Draws, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.run_id = run_id
        self.began = now()
        self.legs: dict[str, Leg] = {}
        self.draws = draws
        self.upstream = ""
        self.path = ""
        self.secrets: Secrets | None = None
        self._now = now
        self._room = room
        self._taken = 0
        self._left = 0
        """Bytes of room that the tape has taken and not used yet."""
        self._pieces = 0
        self._asked = 0
        self._turn = 1

    @property
    def cut(self) -> bool:
        """Whether the tape lacks some of the bytes that passed."""
        return any(leg.cut for leg in self.legs.values())

    def leg(self, name: str, turn: int, status: int | None, content_type: str) -> Leg:
        """Begin to record a body."""
        leg = self.legs[name] = Leg(name, turn, status, content_type)
        leg.upstream = self.upstream if leg.side == "upstream" else ""
        return leg

    def asked(self, upstream: str, path: str, body: object) -> int:
        """Record a request to an upstream, at a path below its base URL; return the request's number in the
        run."""
        self._asked += 1
        self.upstream, self.path = upstream, path
        leg = self.leg(f"upstream.{self._asked}.request", self._turn, None, "application/json")
        if isinstance(body, bytes):
            self.record(leg, body)
        return self._asked

    def answered(self, number: int, status: int, content_type: str) -> Leg:
        """Record the head of an answer. After a refusal, the next request belongs to the same turn."""
        leg = self.leg(f"upstream.{number}.response", self._turn, status, content_type)
        if status < 300:
            self._turn += 1
        return leg

    def failed(self, number: int, code: str, message: str) -> None:
        """Record that an upstream gave no answer."""
        self.leg(f"upstream.{number}.response", self._turn, None, "").error = (code, message)

    def record(self, leg: Leg, data: bytes) -> None:
        """Record a piece of a body: the object itself, as long as there is room."""
        self._left -= len(data)
        if self._left < 0:
            data = self.more(leg, data)
        leg.pieces.append((self._now(), data))

    def recording_sink(self, leg: Leg, sink: Sink) -> Sink:
        """Return a sink that records each piece of a body, then passes it to ``sink``; faster than
        :meth:`record`."""
        append, now = leg.pieces.append, self._now

        def record_and_send(data: bytes) -> Awaitable[None] | None:
            self._left -= len(data)
            append((now(), data if self._left >= 0 else self.more(leg, data)))
            return sink(data)

        return record_and_send

    def more(self, leg: Leg, data: bytes) -> bytes:
        """Take more room for a piece; return the part of the piece that fits."""
        need = max(_PART, -self._left)
        need = min(need, MAX_BYTES - self._taken)
        if need > 0 and self._room.take(need):
            self._taken += need
            self._left += need
        if self._left >= 0:
            return data
        kept = data[: max(0, len(data) + self._left)]
        self._left = 0
        leg.cut = True
        return kept

    def close(self) -> None:
        """Give the room back."""
        self._room.held -= self._taken
        self._taken = self._left = 0

    def encoded(self) -> bytes:
        """Return the tape in its stored form: a line of JSON, then the bytes, with equal pieces stored once.

        The JSON has columns instead of rows, so that all pieces are encoded with few calls.
        """
        self._blank()
        began, left = self.began, _MAX_PIECES
        held: list[tuple[Leg, Sequence[Piece]]] = []
        for leg in self.legs.values():
            pieces = _joined(leg.pieces, left)
            left -= len(pieces)
            held.append((leg, pieces))
        parts = dict.fromkeys([data for _, pieces in held for _, data in pieces])
        places = dict(zip(parts, range(len(parts)), strict=True))
        head = {
            "legs": [
                {
                    "name": leg.name,
                    "turn": leg.turn,
                    "status": leg.status,
                    "content_type": leg.content_type,
                    "cut": leg.cut,
                    "error": leg.error,
                    "upstream": leg.upstream,
                    # Whole microseconds since the run began, and the number of the part that passed at that
                    # time.
                    "at_us": [(at - began) * 1e6 // 1 for at, _ in pieces],
                    "parts": [places[data] for _, data in pieces],
                }
                for leg, pieces in held
            ],
            "sizes": list(map(len, parts)),
            "upstream": self.upstream,
            "path": self.path,
            "drawn": self.draws.taken if self.draws.whole else None,
        }
        return b"".join((orjson.dumps(head), b"\n", *parts))

    def _blank(self) -> None:
        """Blank out the proxy's secrets in responses, even if the network split them into several pieces."""
        if (secrets := self.secrets) is None:
            return
        for leg in self.legs.values():
            whole = b"".join(data for _, data in leg.pieces)
            clean = secrets.blanked(whole) if leg.name.endswith("response") else whole
            if clean == whole:
                continue
            at = 0
            for place, (when, data) in enumerate(leg.pieces):
                leg.pieces[place] = (when, clean[at : at + len(data)])
                at += len(data)


def _joined(pieces: Sequence[Piece], most: int) -> Sequence[Piece]:
    """Return the non-empty pieces; if there are more than ``most``, join the last of them into one."""
    pieces = [piece for piece in pieces if piece[1]]
    if len(pieces) <= max(1, most):
        return pieces
    head, rest = pieces[: max(0, most - 1)], pieces[max(0, most - 1) :]
    return [*head, (rest[0][0], b"".join(data for _, data in rest))]


class Taped:
    """A tape as it is read from the store.

    ``upstream`` is the upstream that was asked last, at ``path``. ``drawn`` are the ids and times that the
    run made (:mod:`proxy.base.chance`), or ``None`` if there were too many to record.
    """

    def __init__(
        self, legs: Sequence[Leg], upstream: str, path: str, drawn: Mapping[str, Sequence[Value]] | None
    ) -> None:
        self.legs = {leg.name: leg for leg in legs}
        self.upstream = upstream
        self.path = path
        self.drawn = drawn

    @property
    def cut(self) -> bool:
        """Whether the tape lacks some of the bytes that passed."""
        return any(leg.cut for leg in self.legs.values())

    def body(self, name: str) -> bytes:
        """Return a whole body, or empty bytes if there is none with this name."""
        leg = self.legs.get(name)
        return b"" if leg is None else b"".join(data for _, data in leg.pieces)

    def json(self) -> dict[str, Any]:
        """Return ``legs``, and ``chunks`` in the order of time, as the pages of the web UI get them."""
        legs: list[dict[str, Any]] = []
        chunks: list[dict[str, Any]] = []
        for leg in self.legs.values():
            asks, start = leg.name.endswith("request"), 0
            for at, data in leg.pieces:
                chunks.append(
                    {
                        "leg": leg.name,
                        "at_ms": round(at * 1000, 2),
                        "start": start,
                        "data": base64.b64encode(data).decode(),
                    }
                )
                start += len(data)
            legs.append(
                {
                    "id": leg.name,
                    "side": leg.side,
                    "direction": "in" if asks == (leg.side == "client") else "out",
                    "turn": leg.turn,
                    "status": leg.status,
                    "content_type": leg.content_type,
                    "bytes": start,
                    "truncated": leg.cut,
                    "error": leg.error[0] if leg.error else None,
                }
            )
        chunks.sort(key=lambda chunk: chunk["at_ms"])
        numbered = [{"seq": seq, **chunk} for seq, chunk in enumerate(chunks)]
        return {"legs": legs, "chunks": numbered, "truncated": self.cut}


def read_tape(payload: bytes) -> Taped:
    """Parse the output of :meth:`RunTape.encoded`; times are seconds since the run began."""
    head, _, data = payload.partition(b"\n")
    content = orjson.loads(head)
    ends = list(accumulate(content["sizes"], initial=0))
    parts = [data[start:end] for start, end in pairwise(ends)]
    legs = []
    for entry in content["legs"]:
        leg = Leg(entry["name"], entry["turn"], entry["status"], entry["content_type"])
        leg.cut, leg.upstream = entry["cut"], entry["upstream"]
        leg.error = None if entry["error"] is None else (entry["error"][0], entry["error"][1])
        times = [at_us / 1e6 for at_us in entry["at_us"]]
        leg.pieces = list(zip(times, [parts[number] for number in entry["parts"]], strict=True))
        legs.append(leg)
    return Taped(legs, content["upstream"], content["path"], content["drawn"])


class TapedStream(WrappedStream):
    """A :class:`~proxy.relay.base.ClientStream` that wraps another one and records its body on a tape."""

    def __init__(self, client: ClientStream, tape: RunTape) -> None:
        super().__init__(client)
        self._tape = tape
        self._leg: Leg | None = None
        self._send: Sink = client.push

    def blank_out(self, secrets: Secrets | None) -> None:
        self._tape.secrets = secrets
        super().blank_out(secrets)

    def start(self, status: int, headers: Headers) -> None:
        self._leg = leg = self._tape.leg("client.response", 0, status, media_type(headers))
        self._send = self._tape.recording_sink(leg, self._client.push)
        super().start(status, headers)

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        if not last:
            return self._send(data)
        if self._leg is not None:
            self._tape.record(self._leg, data)
        return self._client.push(data, last)

    async def write(self, data: bytes) -> None:
        if self._leg is not None:
            self._tape.record(self._leg, data)
        await super().write(data)
