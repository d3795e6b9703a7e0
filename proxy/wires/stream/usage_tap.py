"""Reads usage from a response that only passes through, and removes it if only the proxy asked for it.

It parses only events that contain ``"usage"``, or the sign of usage in their dialect. Inside a JSON string
the quotes would be escaped, so these bytes can only be a key.
"""

import contextlib
import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import orjson

from proxy.base.errors import FrameTooLarge
from proxy.base.events import Usage
from proxy.json.in_thread import LARGE_EVENT_BYTES
from proxy.json.size import is_large
from proxy.wires.dialect import Event, EventParser, Framing, UsageFields
from proxy.wires.stream.sse import SSEEvent, SSEParser, encode_event
from proxy.wires.turn.usage import merge_usage, read_usage, usage_of, without_null_usage

_USAGE: Final = re.compile(rb'"usage"\s*:\s*(?=[{n])')
_KEY: Final = b'"usage"'
_SSE_END: Final = b"\n\n"
_WHOLE_REPLY: Final = 1 << 20
_TAIL: Final = 1 << 16
_PIECES: Final = 8
_BEGAN: Final = re.compile(rb'"type"\s*:\s*"message_start"')
_MOST_KEYS: Final = 4
"""The largest number of ``"usage"`` keys to try: a field of a tool may have this name, too."""


class UsageTap:
    """Watches one response. With ``strip`` it removes the usage from an event stream (rule W2).

    ``began`` means that some bytes of the response came; ``events`` is the number of events of a stream.
    """

    def __init__(
        self, *, strip: bool = False, framing: Framing | None = None, fields: UsageFields | None = None
    ) -> None:
        """Take ``framing`` and ``fields`` of the dialect if they differ from OpenAI's."""
        self.usage: Usage | None = None
        self.began = False
        self.events = 0
        self._strip = strip
        self._parser: EventParser[Any] | None = SSEParser() if framing is None else framing.parser()
        self._end = _SSE_END if framing is None else framing.event_end
        self._event_sign = b"data:" if framing is None else framing.event_sign
        # If usage has no member of its own, search for its counts.
        bare = fields if fields is not None and not fields.member else None
        self._counts = _counts_of(bare) if bare is not None else None
        self._sign = self._counts or _USAGE
        self._key = f'"{bare.sent}"'.encode() if bare is not None else _KEY
        self._reply: bytearray = bytearray()
        self._head = b""
        self._cut = False

    def feed(self, chunk: bytes) -> bytes:
        """Take a piece of an event stream, and return the bytes that may go on now.

        With ``strip`` these are whole events, otherwise the piece itself.
        """
        self.began = True
        self.events += chunk.count(self._event_sign)
        if self._parser is None:
            return chunk
        if chunk.endswith(self._end) and self._parser.at_boundary:
            # Whole events, the usual case: without any usage they need not be split.
            less = without_null_usage(chunk)
            if self._key not in less:
                return less if self._strip else chunk
        try:
            pieces = self._read_events(self._parser, chunk)
        except FrameTooLarge:
            # No API has such an event. Its usage stays unknown, and the stream itself stays whole.
            tail, self._parser = self._parser.tail, None
            return tail if self._strip else chunk
        return b"".join(pieces) if self._strip else chunk

    def _read_events(self, parser: EventParser[Any], chunk: bytes) -> list[bytes]:
        """Read the events that ``chunk`` completes, and return the part of each that may go on."""
        parser.take(chunk)
        pieces = []
        while True:
            event = parser.next(LARGE_EVENT_BYTES)
            if event is not None:
                pieces.append(self._stripped(event) if self._strip else self._look(event))
            elif parser.too_large:
                # The event loop would serve no other request while this is split.
                raw = parser.skip()
                self._find_in(raw[-_TAIL:], raw[:_TAIL])
                pieces.append(raw)
            else:
                return pieces

    def close(self) -> bytes:
        """End a stream that ended properly, and return the rest that may go on."""
        if self._parser is None:
            return b""
        tail = self._parser.tail
        event, self._parser = self._parser.close(), None
        if event is None or self._sign.search(event.raw) is None:
            return tail if self._strip else b""
        return self._stripped(event) if self._strip else self._look(event)

    def _look(self, event: Event) -> bytes:
        if self._sign.search(event.raw) is not None:
            self._read(event.data)
        return b""

    def _stripped(self, event: Event) -> bytes:
        raw = event.raw
        if self._sign.search(raw) is None:
            return raw
        less = without_null_usage(raw)
        if self._sign.search(less) is None:
            return less
        payload = self._read(event.data)
        if not isinstance(payload, dict) or "usage" not in payload:
            return raw
        if not payload.get("choices") and payload["usage"] is not None:
            return b""
        name = event.event if isinstance(event, SSEEvent) else b""
        return encode_event(orjson.dumps({k: v for k, v in payload.items() if k != "usage"}), name)

    def _read(self, data: bytes) -> object:
        if is_large(data):
            # The event loop would serve no other request while this is parsed.
            self._find_in(data[-_TAIL:], data[:_TAIL])
            return None
        try:
            payload = orjson.loads(data)
        except orjson.JSONDecodeError:
            return None
        if isinstance(payload, dict) and (usage := usage_of(payload)) is not None:
            if self.usage is not None and payload.get("type") == "message_delta":
                # It may omit what the first event of the message reported.
                usage = read_usage(merge_usage(self.usage.native, usage.native))
            self.usage = usage
        return payload

    def keep(self, chunk: bytes) -> None:
        """Take a piece of a reply that is not an event stream. Keep only the two ends of a long reply."""
        self.began = True
        self._reply += chunk
        if len(self._reply) > _WHOLE_REPLY:
            if not self._cut:
                self._cut, self._head = True, bytes(self._reply[:_TAIL])
            del self._reply[:-_TAIL]

    def read_reply(self) -> None:
        """Read the usage of the kept reply."""
        if not self._cut:
            self._read(bytes(self._reply))
            return
        self._find_in(self._reply, self._head)

    def _find_in(self, *parts: bytes | bytearray) -> None:
        """Read the usage in one of these parts of a long text.

        Embeddings and images fill megabytes, and usage stands before or after them.
        """
        for part in parts:
            usage = _last_usage(part) if self._counts is None else _last_counts(self._counts, part)
            if usage is not None:
                self.usage = usage
                return


def _counts_of(fields: UsageFields) -> re.Pattern[bytes]:
    """Return the pattern of a count that is no member of an object ``usage``."""
    return re.compile(rb'"(%b|%b)"\s*:\s*(\d{1,18})' % (fields.received.encode(), fields.sent.encode()))


def _last_counts(pattern: re.Pattern[bytes], part: bytes | bytearray) -> Usage | None:
    """Return what the counts in a piece of JSON text say; the last of each counts."""
    counts = {name.decode(): int(number) for name, number in pattern.findall(part)}
    return usage_of(counts) if counts else None


def _last_usage(part: bytes | bytearray) -> Usage | None:
    """Return what the last object under a ``"usage"`` key in a piece of JSON text says."""
    for key in reversed([*_USAGE.finditer(part)][-_MOST_KEYS:]):
        text = part[key.end() :].decode("utf-8", "replace")
        with contextlib.suppress(ValueError, RecursionError):
            native, _ = json.JSONDecoder().raw_decode(text)
            if (usage := usage_of({"usage": native})) is not None:
                return usage
    return None


class UsageTail:
    """Keeps the two ends of one response that passes through, and reads its usage from them after its end.

    A piece of a stream costs one call that is built in. What it reads is for reports: a long response reports
    nothing if its usage is between the two ends. :class:`UsageTap` reads all of a response, for limits.
    """

    __slots__ = ("_counts", "_first", "_last", "note")

    note: Callable[[bytes], None]
    """Takes one piece of an event stream."""

    def __init__(self, fields: UsageFields | None = None) -> None:
        """Take ``fields`` of the dialect if they differ from OpenAI's."""
        self._counts = fields if fields is not None and not fields.member else None
        self._first = b""
        self._last: deque[bytes] = deque(maxlen=_PIECES)
        self.note = self._begin

    def _begin(self, piece: bytes) -> None:
        self._first = piece
        self._last.append(piece)
        self.note = self._last.append

    def keep(self, piece: bytes) -> None:
        """Take one piece of any other body; of a large one only its end."""
        if len(piece) <= _TAIL:
            self.note(piece)
            return
        if not self._last:
            self.note(piece[:_TAIL])
        self.note(piece[-_TAIL:])

    def read(self) -> Usage | None:
        """Return the usage that the response reported, or ``None``."""
        first, end = self._first, b"".join(self._last)[-_TAIL:]
        fields = self._counts
        usage = _usage_in_line(end, _KEY if fields is None else b'"%b"' % fields.sent.encode())
        if fields is not None:
            pattern = _counts_of(fields)
            return usage or _last_counts(pattern, end) or _last_counts(pattern, first)
        if usage is None:
            if _KEY not in end and _KEY not in first:
                return None
            usage = _last_usage(end) or _last_usage(first)
        if usage is None or (began := _BEGAN.search(first)) is None:
            return usage
        # Messages reports one part in its first event and the rest in its last one.
        stop = first.find(_SSE_END, began.end())
        opened = _last_usage(first[: stop if stop >= 0 else len(first)])
        if opened is None:
            return usage if usage.input_tokens else None
        return read_usage(merge_usage(opened.native, usage.native))


def _usage_in_line(text: bytes, key: bytes) -> Usage | None:
    """Return the usage in the last line with ``key``, if that is a whole JSON object: the usual case."""
    at = text.rfind(key)
    if at < 0:
        return None
    stop = text.find(b"\n", at)
    line = text[text.rfind(b"\n", 0, at) + 1 : stop if stop >= 0 else len(text)].removeprefix(b"data:")
    if is_large(line):
        return None
    try:
        payload = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return usage_of(payload) if isinstance(payload, dict) else None
