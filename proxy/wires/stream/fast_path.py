"""The fast path of a stream: events that differ in their text alone pass without being read one by one.

It is open while the reader of the upstream's dialect can tell such events by their bytes, and the writer of
the client's dialect hands on what it is given.  In a turn that crosses from one dialect to another an encoder
writes their texts anew.  A dialect without it is read event by event.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from proxy.events import Frame, TurnEvent
from proxy.wires.client_port import StreamWriter
from proxy.wires.upstream_port import TurnReader

__all__ = ["FastPath", "FastReader", "FastWriter", "TextReader"]


class FastReader(ABC):
    """A :class:`~proxy.wires.upstream_port.TurnReader` that can take events without reading them."""

    @abstractmethod
    def take_unread(self, chunk: bytes) -> bool:
        """Take ``chunk`` unread, where it is whole events that differ from one before in their text alone.

        Its bytes may go out as the writer has them pass; the next frames begin with one that tells what it
        said.  ``False`` where that is not certain: then it has to be fed.
        """

    @abstractmethod
    def feed(
        self, chunk: bytes, *, together: bool = False, most: int = 0, large: bool = False
    ) -> list[Frame]:
        """See :meth:`proxy.wires.upstream_port.TurnReader.feed`.

        ``together`` says that the writer hands frames on as they come.  Then events that differ in their
        text alone may be told together, once their bytes have gone out.
        """

    @abstractmethod
    def catch_up(self) -> list[Frame]:
        """What was taken unread and not told yet, for a stream that will not be fed or closed any more."""

    def through(self, writer: "FastWriter") -> "FastWriter":
        """The writer by which what was taken unread leaves."""
        return writer


@runtime_checkable
class TextReader(Protocol):
    """A reader that gives the texts of events that it takes without reading them."""

    def take_texts(
        self, chunk: bytes, is_open: Callable[[type[TurnEvent]], bool]
    ) -> tuple[type[TurnEvent], list[bytes]] | None:
        """Take ``chunk`` as :meth:`FastReader.take_unread` does, if its events say one text each, of a kind
        that ``is_open``.

        The kind, and of each event the inside of the JSON string; ``None`` where it has to be fed.
        """
        ...


class FastWriter(ABC):
    """A :class:`~proxy.wires.client_port.StreamWriter` that may hand events on without a frame."""

    @abstractmethod
    def passing(self) -> Callable[[bytes], bytes] | None:
        """What is done to whole events of text that leave without a frame, as long as no frame is written;
        ``None`` where frames have to be written."""


class FastPath:
    """Reader and writer of one stream whose events may pass.

    ``passing`` is what is done to those that do, ``None`` while the path is closed: whoever writes a frame
    asks the ``writer`` for it anew.  Only while it is open may :attr:`take_unread` be called.
    """

    __slots__ = ("passing", "reader", "take_unread", "writer")

    def __init__(self, reader: FastReader, writer: FastWriter) -> None:
        self.reader = reader
        self.writer = reader.through(writer)
        self.take_unread = reader.take_unread
        self.passing = self.writer.passing()

    @classmethod
    def of(cls, reader: TurnReader, writer: StreamWriter) -> "FastPath | None":
        """The fast path of a stream, if there is one."""
        if isinstance(reader, FastReader) and isinstance(writer, FastWriter):
            return cls(reader, writer)
        return None

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        """See :meth:`proxy.wires.upstream_port.TurnReader.feed`."""
        return self.reader.feed(chunk, together=self.passing is not None, most=most, large=large)
