"""Repair a stream that passes through, if it turns out to be defective.

While nothing is wrong, nothing is parsed: the dialect names the text in its events by which a defect is
noticed (:class:`~proxy.wires.dialect.RepairSigns`). Only then the proxy makes a reader and a writer, the
same as for a run. The writer decides from which event on it composes the stream.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from proxy.base.errors import RequestError, RunFault
from proxy.base.events import Frame
from proxy.relay.routing.router import Route
from proxy.wires.client_port import ClientView, StreamWriter
from proxy.wires.dialect import Endpoint, RepairSigns
from proxy.wires.upstream_port import TurnReader
from proxy.wires.wire import Wire

_MAX_ARGUMENT_BYTES: Final = 1024 * 1024
_NONEMPTY: Final = rb"\s*:\s*(?:\{|\[\s*[^\s\]])"


def repair_of(
    wires: Mapping[str, Wire], endpoint: Endpoint, route: Route, payload: Mapping[str, Any]
) -> "StreamRepair | None":
    """Return the repair for the answer to a request that passes through; ``None`` if it needs none.

    A stream with several alternative answers is left alone: composed, it would keep only one.
    """
    signs, always = endpoint.dialect.repair, route.served.repair == "always"
    if signs is None or not (always or signs.sound or payload.get("tools")):
        return None
    wire = wires.get(endpoint.dialect.name)
    if wire is None or endpoint.kind != "generate" or payload.get("stream") is not True:
        return None
    if payload.get("n") not in (None, 1):
        return None
    return StreamRepair(wire, payload, signs, always=always)


class StreamRepair:
    """The repair of one stream, which it gets in whole events.

    ``finished`` says that the stream is sound and needs no more repair. ``suspect`` is a text that every
    relevant piece contains; it is empty if all pieces are relevant.
    """

    def __init__(self, wire: Wire, payload: Mapping[str, Any], signs: RepairSigns, *, always: bool) -> None:
        self._wire = wire
        self._payload = payload
        self._signs = signs
        self._always = always
        self._reader: TurnReader | None = None
        self._writer: StreamWriter | None = None
        self._unread = b""
        self._ended = False
        self.finished = False
        self.suspect = b"" if always or signs.sound else signs.suspect

    @property
    def reads(self) -> bool:
        """Whether the stream is parsed, so that its end must be given to :meth:`close`."""
        return self._writer is not None and not self.finished

    @property
    def composing(self) -> bool:
        """Whether the output is no longer the upstream's own bytes."""
        return self._writer is not None and self._writer.composing

    def feed(self, data: bytes) -> bytes:
        """Return the output for a piece of the stream."""
        if self.finished:
            return data
        if self._writer is None and not (self._is_due(data) and self._begin()):
            return data
        return self._read(data)

    def _is_due(self, data: bytes) -> bool:
        """Return whether the stream must be parsed from this piece on."""
        if self._always:
            return True
        if self._signs.sound:
            # Comments may come before the first event.
            self.finished = self._signs.sound in data
            return not self.finished and b"data:" in data
        found = re.search(re.escape(self._signs.suspect) + _NONEMPTY, data)
        return found is not None

    def _begin(self) -> bool:
        """Make the reader and the writer; return whether this request has any."""
        try:
            request = self._wire.parse(self._payload)
        except RequestError:
            # The upstream accepted the request although the proxy cannot parse it.
            self.finished = True
            return False
        writer = self._wire.writer(request, ClientView(request.model, _is_ours))
        begun = not (self._always or self._signs.sound)
        if not writer.repair(always=self._always, begun=begun, single_turn=True):
            self.finished = True
            return False
        self._writer = writer
        self._reader = self._wire.reader(request.declared, _is_ours, _MAX_ARGUMENT_BYTES)
        self.suspect = b""
        return True

    def _read(self, data: bytes) -> bytes:
        reader, writer = self._reader, self._writer
        if reader is None or writer is None or self._ended:
            return b""
        frames = reader.feed(data)
        self._unread = (self._unread + data)[sum(len(frame.raw) for frame in frames) :]
        out = b"".join(map(self._written, frames))
        if reader.fault is None or self._ended:
            return out
        self._ended = True
        if writer.composing:
            fault = reader.fault
            return out + writer.fail(str(fault), type=fault.type, code=fault.code)
        # Unreadable bytes pass through, as they would without a repair.
        self.finished, rest = True, self._unread
        return out + writer.turn_ended("final") + rest

    def _written(self, frame: Frame) -> bytes:
        if self._writer is None or self._ended:
            return b""
        out = self._writer.write(frame)
        return out + self._end() if frame.is_end_mark and self._writer.composing else out

    def _end(self) -> bytes:
        """Return the end of a composed stream as soon as the upstream sends its own: the stream may stay
        open for long."""
        if self._reader is None or self._writer is None or self._ended:
            return b""
        self._ended = True
        out = [self._writer.write(frame) for frame in self._reader.close()]
        return b"".join(out) + self._writer.turn_ended("final") + self._writer.finish(None)

    def close(self, tail: bytes) -> bytes:
        """Return the output for the end of a parsed stream that ended properly.

        ``tail`` is the unread rest of it, without an end mark that the upstream did not send.
        """
        return self._read(tail) + self._end()

    def fail(self, fault: RunFault) -> bytes:
        """Return the end of a stream that broke; empty if nothing of it was composed."""
        if not self.composing or self._writer is None or self._ended:
            return b""
        self._ended = True
        return self._writer.fail(str(fault), type=fault.type, code=fault.code)


def _is_ours(name: str) -> bool:
    """Return ``False``: in a request that passes through, no call is the proxy's."""
    return False
