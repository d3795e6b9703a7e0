"""The fast path of a stream: events that differ only in their text pass without being read one by one.

It is open while the reader of the upstream's dialect recognizes such events by their bytes, and the writer
of the client's dialect passes bytes on. If a turn crosses dialects, an encoder writes the texts anew. The
stream of a dialect without a fast path is read event by event.
"""

from abc import abstractmethod
from collections.abc import Callable

from proxy.base.events import Frame, TurnEvent
from proxy.wires.client_port import StreamWriter
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.upstream_port import TurnReader


class FastReader:
    """A :class:`~proxy.wires.upstream_port.TurnReader` that can take events without reading them.

    This class and :class:`FastWriter` are no ``ABC``, which would make ``isinstance`` slow.
    """

    @abstractmethod
    def take_unread(self, chunk: bytes) -> bool:
        """Take ``chunk`` unread if it is whole events that differ from an earlier one only in their text.

        Its bytes may go out through :meth:`FastWriter.transform`; the next frames begin with one that holds
        its text. Return ``False`` if this is not certain; then the caller must feed the chunk.
        """

    @abstractmethod
    def feed(
        self, chunk: bytes, *, together: bool = False, most: int = 0, large: bool = False
    ) -> list[Frame]:
        """See :meth:`proxy.wires.upstream_port.TurnReader.feed`.

        ``together`` means that the writer passes frames on unchanged. Then one frame may report several
        events that differ only in their text, after their bytes have gone out.
        """

    @abstractmethod
    def catch_up(self) -> list[Frame]:
        """Return frames for what was taken unread and is not reported yet.

        Call this if the stream will not be fed or closed any more.
        """

    def take_texts(
        self, chunk: bytes, is_open: Callable[[type[TurnEvent]], bool]
    ) -> tuple[type[TurnEvent], list[bytes]] | None:
        """Take ``chunk`` like :meth:`take_unread`, if each event holds one text that ``is_open``.

        ``is_open`` gets the kind of the text. Return the kind, and for each event the inside of its JSON
        string. Return ``None`` if the caller must feed the chunk.
        """
        return None

    def note_plain(self, turn: PlainTurn) -> None:
        """Note a whole turn that ``turn`` has read."""
        raise NotImplementedError

    def wrap(self, writer: "FastWriter") -> "FastWriter":
        """Return the writer through which unread events leave."""
        return writer


class FastWriter:
    """A :class:`~proxy.wires.client_port.StreamWriter` that may pass events on without a frame."""

    @abstractmethod
    def transform(self) -> Callable[[bytes], bytes] | None:
        """Return what to apply to whole text events that leave without a frame, until a frame is written;
        ``None`` if the writer needs frames."""

    def note_plain(self, text: str) -> None:
        """Note a turn of plain text that the client has got to its end mark."""
        raise NotImplementedError


class FastPath:
    """The reader and the writer of one stream that may use the fast path.

    ``transform`` is applied to the events that pass; it is ``None`` while the path is closed. Code that
    writes a frame must get it anew from the ``writer``. Call :attr:`take_unread` only while the path is
    open.
    """

    __slots__ = ("reader", "take_unread", "transform", "writer")

    def __init__(self, reader: FastReader, writer: FastWriter) -> None:
        self.reader = reader
        self.writer = reader.wrap(writer)
        self.take_unread = reader.take_unread
        self.transform = self.writer.transform()

    @classmethod
    def of(cls, reader: TurnReader, writer: StreamWriter) -> "FastPath | None":
        """Return the fast path of a stream; ``None`` if it has none."""
        if isinstance(reader, FastReader) and isinstance(writer, FastWriter):
            return cls(reader, writer)
        return None

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        return self.reader.feed(chunk, together=self.transform is not None, most=most, large=large)
