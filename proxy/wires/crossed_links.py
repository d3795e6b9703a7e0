"""A reader of turns in another dialect that cites the pages to which the model links."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import structs

from proxy.base.events import Frame, TextDelta, TurnEvent, UsageReported
from proxy.wires.client_port import ClientRequest
from proxy.wires.hosted.links import LinkFinder
from proxy.wires.hosted.tools import FoundPage
from proxy.wires.upstream_port import CitingPort, ForwardingReader, TurnReader

_MOST_PAGES = 1000
"""The most pages that the answers of one request cite."""


class LinkingPort(CitingPort):
    """A port of an upstream whose turns are encoded anew for the client of a ``request``."""

    def __init__(self, request: ClientRequest) -> None:
        self._request = request
        self._pages: dict[str, FoundPage] = {}

    def cite(self, pages: Sequence[FoundPage]) -> None:
        for page in pages[: _MOST_PAGES - len(self._pages)]:
            self._pages[page.url] = page

    def linking(self, reader: TurnReader) -> TurnReader:
        """Return the reader of a turn whose links are citations, too, if there are pages to cite."""
        # A citation would cut a JSON answer of Messages into blocks that are no JSON.
        return LinkingReader(reader, self._pages) if self._pages and not self._request.wants_json else reader


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
