"""Readers of turns that cite the pages to which the model links."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from msgspec import structs

from proxy.base.events import CitationAdded, Frame, TextDelta, TurnEvent, UsageReported
from proxy.wires.client_port import ClientRequest
from proxy.wires.crossed_reader import ContinuedReader
from proxy.wires.dialect import Dialect
from proxy.wires.hosted.links import LinkFinder
from proxy.wires.hosted.markers import highest_number
from proxy.wires.hosted.tools import FoundPage
from proxy.wires.upstream_port import (
    BodyEditor,
    CitingPort,
    ForwardingReader,
    StateHabit,
    TurnReader,
    UpstreamPort,
)
from proxy.wires.wire import Wire

_MOST_PAGES = 1000
"""The most pages that the answers of one request cite."""


class LinkingPort(CitingPort):
    """A port whose turns are encoded anew for the client of a ``request``, at least from a citation on."""

    def __init__(self, request: ClientRequest) -> None:
        self._request = request
        self._pages: dict[str, FoundPage] = {}
        self._numbers: dict[int, FoundPage] = {}
        self._next = 0

    def cite_earlier(self, pages: Iterable[tuple[FoundPage, int]]) -> None:
        if self._request.wants_json:
            return
        for page, number in itertools.islice(pages, _MOST_PAGES):
            self._pages.setdefault(page.url, page)
            if number:
                self._numbers.setdefault(number, page)

    def cite(self, pages: Sequence[FoundPage], conversation: Callable[[], bytes]) -> Mapping[str, int]:
        # A citation would cut a JSON answer of Messages into blocks that are no JSON.
        if self._request.wants_json:
            return {}
        if pages and not self._next:
            self._next = max(highest_number(conversation()), *self._numbers, 0) + 1
        for page in pages[: _MOST_PAGES - len(self._pages)]:
            if page.url not in self._pages:
                self._pages[page.url] = page
                self._numbers[self._next] = page
                self._next += 1
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


class PassingLinks(LinkingReader):
    """A reader whose frames stay as they came, up to the first that has a citation.

    The reader in it may itself have changed frames, as a :class:`~proxy.wires.crossed_reader.PassingReader`.
    """

    rewritten: bool = False

    def __init__(
        self, reader: TurnReader, pages: Mapping[str, FoundPage], numbers: Mapping[int, FoundPage]
    ) -> None:
        super().__init__(reader, pages, numbers)
        self.passed = 0
        self._waiting: list[tuple[Frame, Frame]] = []

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        self.passed = 0
        return self._passing(self._reader.feed(chunk, most=most, large=large))

    def close(self) -> list[Frame]:
        self.passed = 0
        frames = self._passing(self._reader.close())
        rest = Frame(b"", None, tuple(self._links.end()))
        return [*frames, *self._take(Frame(b""), rest)] if rest.events else frames

    def read_reply(self, body: bytes) -> Frame:
        frame = self._reader.read_reply(body)
        linked = self._linked(frame, whole=True)
        self.rewritten = self._reader.rewritten or _citations(linked) > _citations(frame)
        return linked if self.rewritten else frame

    def _passing(self, frames: Sequence[Frame]) -> list[Frame]:
        own: int = getattr(self._reader, "passed", 0) if self._reader.rewritten else len(frames)
        return [
            out
            for at, frame in enumerate(frames)
            for out in self._take(frame, self._linked(frame), changed=at >= own)
        ]

    def _take(self, frame: Frame, linked: Frame, *, changed: bool = False) -> list[Frame]:
        """Return what is certain after a frame: nothing while the text at its end may become a citation."""
        if self.rewritten:
            return [linked]
        self._waiting.append((frame, linked))
        if changed or _citations(linked) > _citations(frame):
            self.rewritten = True
        elif self._links.holds:
            return []
        else:
            self.passed += len(self._waiting)
        waiting, self._waiting = self._waiting, []
        return [new if self.rewritten else old for old, new in waiting]


def _citations(frame: Frame) -> int:
    return sum(isinstance(event, CitationAdded) for event in frame.events)


class CitingWire(LinkingPort, UpstreamPort):
    """The port of an upstream of the client's dialect, whose bytes pass until there is a citation."""

    def __init__(self, wire: Wire, request: ClientRequest) -> None:
        super().__init__(request)
        self._wire = wire

    @property
    def dialect(self) -> Dialect:
        return self._wire.dialect

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        return self._wire.editor(raw, request, state, caller=caller)

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        reader = self._wire.reader(declared, is_hidden, max_argument_bytes)
        if not self._pages:
            return reader
        linking = PassingLinks(reader, self._pages, self._numbers)
        return ContinuedReader(linking, partial(self._wire.encoder, self._request))
