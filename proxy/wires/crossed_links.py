"""A reader of another dialect's turn that cites the pages to which the model links."""

from collections.abc import Collection, Mapping

from msgspec import structs

from proxy.base.events import Frame, TextDelta, TurnEvent, UsageReported
from proxy.wires.hosted.links import LinkFinder
from proxy.wires.hosted.tools import FoundPage
from proxy.wires.upstream_port import ForwardingReader, TurnReader


class LinkingReader(ForwardingReader):
    """A reader whose links to ``pages`` are citations, too."""

    rewritten = False

    def __init__(self, reader: TurnReader, pages: Mapping[str, FoundPage]) -> None:
        super().__init__(reader)
        self._links = LinkFinder(pages)

    @property
    def left_out(self) -> Collection[str]:
        return self._reader.left_out

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        return list(map(self._linked, self._reader.feed(chunk, most=most, large=large)))

    def close(self) -> list[Frame]:
        frames = list(map(self._linked, self._reader.close()))
        rest = tuple(self._links.end())
        return [*frames, Frame(b"", None, rest)] if rest else frames

    def read_reply(self, body: bytes) -> Frame:
        return self._linked(self._reader.read_reply(body), whole=True)

    def _linked(self, frame: Frame, *, whole: bool = False) -> Frame:
        events: list[TurnEvent] = []
        for event in frame.events:
            if isinstance(event, TextDelta):
                events += self._links.take(event.text)
            elif isinstance(event, UsageReported):
                events.append(event)  # Some servers report usage with each piece of the text.
            else:
                events += self._links.end()
                events.append(event)
        if whole:
            events += self._links.end()
        return structs.replace(frame, events=tuple(events))
