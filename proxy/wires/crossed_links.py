"""A reader of turns in another dialect that cites the pages to which the model links."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from msgspec import structs

from proxy.base.events import Frame, TextDelta, TurnEvent, UsageReported
from proxy.wires.client_port import ClientRequest
from proxy.wires.hosted.links import LinkFinder
from proxy.wires.hosted.markers import highest_number
from proxy.wires.hosted.tools import FoundPage
from proxy.wires.upstream_port import CitingPort, ForwardingReader, TurnReader

_MOST_PAGES = 1000
"""The most pages that the answers of one request cite."""


class LinkingPort(CitingPort):
    """A port of an upstream whose turns are encoded anew for the client of a ``request``."""

    def __init__(self, request: ClientRequest) -> None:
        self._request = request
        self._pages: dict[str, FoundPage] = {}
        self._numbers: dict[int, FoundPage] = {}
        self._first = 0

    def cite(self, pages: Sequence[FoundPage], conversation: Callable[[], bytes]) -> Mapping[str, int]:
        # A citation would cut a JSON answer of Messages into blocks that are no JSON.
        if self._request.wants_json:
            return {}
        if pages and not self._first:
            self._first = highest_number(conversation()) + 1
        for page in pages[: _MOST_PAGES - len(self._pages)]:
            if page.url not in self._pages:
                self._pages[page.url] = page
                self._numbers[self._first + len(self._numbers)] = page
        found = {page.url for page in pages}
        return {page.url: number for number, page in self._numbers.items() if page.url in found}

    def linking(self, reader: TurnReader) -> TurnReader:
        """Return the reader of a turn whose links are citations, too, if there are pages to cite."""
        return LinkingReader(reader, self._pages, self._numbers) if self._pages else reader


class LinkingReader(ForwardingReader):
    """A reader whose links to ``pages`` are citations, too, and so are the markers of ``numbers``."""

    rewritten = False

    def __init__(
        self,
        reader: TurnReader,
        pages: Mapping[str, FoundPage],
        numbers: Mapping[int, FoundPage] = MappingProxyType({}),
    ) -> None:
        super().__init__(reader)
        self._links = LinkFinder(pages, numbers)

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
