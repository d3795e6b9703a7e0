"""Carries text from one dialect to another without parsing it.

Most events of a stream are one piece of text. The upstream's reader cuts it out of the bytes, still as JSON,
and the client's encoder puts it into an event of its own dialect.
"""

from collections.abc import Callable, Mapping, Sequence

import orjson

from proxy.base.events import Frame, ReasoningDelta, RefusalDelta, TextDelta, TurnEvent
from proxy.wires.client_port import TurnEncoder
from proxy.wires.crossed_reader import CrossedReader
from proxy.wires.stream.fast_path import FastReader, FastWriter
from proxy.wires.stream.held import identity
from proxy.wires.upstream_port import TurnReader


def crossed_reader(reader: TurnReader, encoder: TurnEncoder, renamed: Mapping[str, str]) -> CrossedReader:
    """Return a reader for a client of another dialect, with a fast path for text if both sides have one.

    ``renamed`` maps the upstream's names of tools to the client's.
    """
    if isinstance(reader, FastReader):
        return _FastCrossedReader(reader, reader, encoder, renamed)
    return CrossedReader(reader, encoder, renamed)


class _FastCrossedReader(CrossedReader, FastReader):
    """A reader that puts text into events of the client's dialect as JSON, without parsing it."""

    def __init__(
        self, reader: TurnReader, fast: FastReader, encoder: TurnEncoder, renamed: Mapping[str, str]
    ) -> None:
        """``fast`` is the reader, as one that takes texts."""
        super().__init__(reader, encoder, renamed)
        self._take_texts = fast.take_texts
        self._inner_catch_up = fast.catch_up
        self._text_encoder = encoder
        self._is_open = encoder.text_is_open
        self._taken: tuple[type[TurnEvent], Sequence[bytes]] = (TextDelta, ())
        self._untold = False

    def feed(
        self, chunk: bytes, *, together: bool = False, most: int = 0, large: bool = False
    ) -> list[Frame]:
        return super().feed(chunk, most=most, large=large)

    def take_unread(self, chunk: bytes) -> bool:
        if self._closed or (taken := self._take_texts(chunk, self._is_open)) is None:
            return False
        self._taken = taken
        self._untold = True
        return True

    def wrap(self, writer: FastWriter) -> FastWriter:
        return _TextWriter(writer, self.write_taken)

    def write_taken(self, _: bytes) -> bytes:
        """Encode the last text that was taken as events of the client's dialect."""
        kind, texts = self._taken
        pieces = [_as_written(text) if b"\\" in text else text for text in texts if text]
        return self._text_encoder.write_text(kind, pieces)

    def catch_up(self) -> list[Frame]:
        return self._encoded(self._inner_catch_up())

    def _encoded(self, frames: Sequence[Frame]) -> list[Frame]:
        if not (frames and self._untold):
            return super()._encoded(frames)
        # The first frame reports the text that was taken unread, so it must come before anything else.
        self._untold = False
        said, *rest = frames
        told = [
            self._text_encoder.report_text(event, said.count)
            for event in said.events
            if isinstance(event, TextDelta | ReasoningDelta | RefusalDelta)
        ]
        return [*told, *super()._encoded(rest)]


class _TextWriter(FastWriter):
    """A writer that gets an encoder's bytes in place of the upstream's."""

    def __init__(self, writer: FastWriter, write: Callable[[bytes], bytes]) -> None:
        self._writer = writer
        self._write = write

    def transform(self) -> Callable[[bytes], bytes] | None:
        transform = self._writer.transform()
        if transform is None or transform is identity:
            return transform and self._write
        changed, write = transform, self._write
        return lambda chunk: changed(write(chunk))


def _as_written(text: bytes) -> bytes:
    """Return the inside of a JSON string as orjson writes it, however the upstream escaped it."""
    return orjson.dumps(orjson.loads(b'"%b"' % text))[1:-1]
