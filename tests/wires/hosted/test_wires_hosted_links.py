"""Links to found pages in a text that comes in any pieces."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.events import CitationAdded, Frame, TextDelta, Usage, UsageReported
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.crossed_links import CitingWire, LinkingReader
from proxy.wires.hosted.links import LinkFinder
from proxy.wires.hosted.tools import FoundPage
from proxy.wires.text_calls.port import text_call_port
from proxy.wires.text_calls.rules import FORMS, TextCallRules
from proxy.wires.upstream_port import CitingPort

PAGES = {
    url: FoundPage(url, f"Title of {url}", "x" * 400)
    for url in ("https://a.example/x_(y)", "https://b.example", "http://c.example/?q=1")
}
PIECES = st.sampled_from(
    [
        *(f"[{label}]({url})" for label in ("a", "\U0001f30a", "河", "e\u0301", "") for url in PAGES),
        *("[", "]", "(", ")", "](", "[[", "\n", " ", "plain", "\U0001f30a", "[no](https://other.example/)"),
        *("[x](<https://b.example>)", '[x](https://b.example "t")', "[x](<", " 't'", '"', ">)", "<"),
        *("[x](https://b.example/)", "[x](https://b.example", "https://b.example", "!", "[1]", "[a]: x"),
    ]
)


def read(pieces: list[str]) -> tuple[str, list[CitationAdded]]:
    """Return the text and the citations of a text in these pieces."""
    finder, text = LinkFinder(PAGES), ""
    found: list[CitationAdded] = []
    for piece in pieces:
        for event in finder.take(piece):
            if isinstance(event, TextDelta):
                text += event.text
            else:
                assert event.end == len(text)
                found.append(event)
    return text + "".join(event.text for event in finder.end() if isinstance(event, TextDelta)), found


@given(st.lists(PIECES, max_size=12).map("".join), st.lists(st.integers(0, 400), max_size=20))
def test_any_cut(whole: str, cuts: list[int]) -> None:
    """The text stays the same, and the citations do not depend on how it is cut; each is over its link."""
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert read(pieces) == read([whole]) == read(list(whole))
    text, found = read(pieces)
    assert text == whole
    for citation in found:
        link = whole[citation.start : citation.end]
        assert link.startswith("[")
        assert f"]({citation.url}" in link or f"](<{citation.url}" in link
        assert link.endswith(")")
        assert len(citation.cited) == 300


def test_the_links_of_a_text() -> None:
    """Links with parentheses, angle brackets, titles and another slash at the end are found; broken ones are
    text."""
    links = [
        "[a](https://a.example/x_(y))",
        "[b](https://b.example/)",
        "[b](<https://b.example>)",
        "[c](http://c.example/?q=1 'title')",
        '[b](https://b.example "A (fine) title" )',
        '[a](<https://a.example/x_(y)> "t")',
    ]
    broken = [
        "[b](https://b.example title)",
        '[b](https://b.example "title',
        "[b](<https://b.example",
        "[b](<https:// b.example>)",
        "[b] (https://b.example)",
        "[d](",
    ]
    whole = " ".join([*links, *broken])
    _, found = read(list(whole))
    assert [whole[one.start : one.end] for one in found] == links
    assert read([whole])[1] == found


def test_what_is_held_back_is_bounded() -> None:
    """A bracket that never becomes a link holds back no more than a link's length."""
    for start, most in (("[", 500), ("[a](https://", 2048 + 4)):
        finder, sent = LinkFinder(PAGES), 0
        for count in range(3000):
            events = finder.take(start if not count else "x")
            sent += sum(len(event.text) for event in events if isinstance(event, TextDelta))
            assert len(start) + count - sent <= most


def test_many_links_are_cited_up_to_a_bound() -> None:
    """No more than 1,000 links are cited."""
    _, found = read(["[b](https://b.example)" * 1100])
    assert len(found) == 1000


class Reading:
    """A reader whose every chunk is a piece of text, with the usage so far, as some servers send it."""

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        return [Frame(b"", None, (TextDelta(chunk.decode()), UsageReported(Usage(1, 1, 2))))]


def test_usage_between_the_pieces_of_a_link() -> None:
    """Usage that comes with each piece of the text does not cut a link."""
    reader = LinkingReader(Reading(), PAGES)  # type: ignore[arg-type]  # It only feeds.
    whole = b"See [b](https://b.example)."
    frames = [frame for at in range(len(whole)) for frame in reader.feed(whole[at : at + 1])]
    events = [event for frame in frames for event in frame.events]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)).encode() == whole
    assert [event.url for event in events if isinstance(event, CitationAdded)] == ["https://b.example"]


def test_what_a_page_says_is_one_line() -> None:
    """The text that a citation repeats has no character that acts in a terminal."""
    pages = {"https://b.example": FoundPage("https://b.example", "B", "a\x1b[2J\n\u202eb")}
    *_, cited = LinkFinder(pages).take("[b](https://b.example)")
    assert isinstance(cited, CitationAdded)
    assert cited.cited == "a [2J b"


@pytest.mark.parametrize("prompt", [False, True])
def test_models_that_write_calls_into_their_text(prompt: bool) -> None:
    """An answer from which calls are read is cited as well, also if its tools were in the prompt."""
    client, upstream = AnthropicWire(), ChatWire()
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hm?"}]}
    request = client.parse(asked)
    rules = TextCallRules(FORMS["hermes"], prompt=prompt)
    port = text_call_port(client, upstream, request, rules, lambda facts: None)
    assert isinstance(port, CitingPort)
    port.editor(json.dumps(asked).encode(), request).render()
    port.cite(list(PAGES.values()), lambda: b"")
    message = {"role": "assistant", "content": "See [b](https://b.example)."}
    reply = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    frame = port.reader((), lambda name: False, 8192).read_reply(json.dumps(reply).encode())
    blocks = json.loads(frame.raw)["content"]
    assert [block["text"] for block in blocks] == ["See ", "[b](https://b.example)", "."]
    assert blocks[1]["citations"][0]["url"] == "https://b.example"


@given(st.lists(PIECES, max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_an_upstream_of_the_clients_dialect(pieces: list[str], cuts: list[int]) -> None:
    """The upstream's bytes pass until the first citation; the text is the same, however the stream is cut."""
    wire = ChatWire()
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hm?"}]}
    port = CitingWire(wire, wire.parse(asked))
    port.cite(list(PAGES.values()), lambda: b"")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": p} for p in pieces)]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    sent = b"".join(b"data: %b\n\n" % json.dumps(head | chunk).encode() for chunk in chunks)
    sent += b"data: [DONE]\n\n"
    reader = port.reader((), lambda name: False, 8192)
    frames: list[Frame] = []
    left = sent
    for size in itertools.cycle(cuts):
        frames += reader.feed(left[:size])
        left = left[size:]
        if not left:
            break
    frames += reader.close()
    got = b"".join(frame.raw for frame in frames)
    payloads = [json.loads(line[6:]) for line in got.split(b"\n\n") if line.startswith(b"data: {")]
    parts = [choice["delta"] for payload in payloads for choice in payload["choices"]]
    finder = LinkFinder(PAGES, dict(enumerate(PAGES.values(), 1)))
    events = [*finder.take("".join(pieces)), *finder.end()]
    whole = "".join(event.text for event in events if isinstance(event, TextDelta))
    found = [event for event in events if isinstance(event, CitationAdded)]
    assert "".join(part.get("content") or "" for part in parts) == whole
    notes = [note["url_citation"] for part in parts for note in part.get("annotations", ())]
    assert [(note["start_index"], note["end_index"]) for note in notes] == [(c.start, c.end) for c in found]
    if not found:
        assert got == sent
    assert got.count(b"[DONE]") == 1
