"""Citations that an encoder writes are those that the reader of its dialect reads."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turn_encoding import cut, encoded, read_again

from proxy.events import CitationAdded, Frame, TextDelta, TurnEvent, TurnFinished, TurnStarted
from proxy.wires.anthropic import AnthropicWire
from proxy.wires.chat import ChatWire
from proxy.wires.ollama import OllamaWire
from proxy.wires.responses import ResponsesWire
from proxy.wires.turn.citations import read_annotations, with_moved_indices

WIRES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (ChatWire(), {"model": "m", "messages": []}),
    "responses": (ResponsesWire(), {"model": "m", "input": "hi"}),
    "anthropic": (AnthropicWire(), {"model": "m", "max_tokens": 9, "messages": []}),
}
each_wire = pytest.mark.parametrize("name", WIRES)
PIECES = st.lists(
    st.tuples(st.text('aé🎂 \n"', min_size=1, max_size=9).filter(str.strip), st.booleans()), max_size=8
)


def turn_of(pieces: Sequence[tuple[str, bool]]) -> tuple[list[TurnEvent], list[CitationAdded]]:
    """A turn that says these pieces, each cited or not; and its citations."""
    events: list[TurnEvent] = [TurnStarted("up_1", "m")]
    citations = []
    start = 0
    for number, (text, cited) in enumerate(pieces):
        events.append(TextDelta(text))
        if cited:
            url = f"https://example.com/{number}"
            citations.append(CitationAdded(start, start + len(text), url, f"Page {number}"))
            events.append(citations[-1])
        start += len(text)
    return [*events, TurnFinished("stop")], citations


def encoder(name: str) -> Any:
    """What writes a turn of the dialect."""
    wire, body = WIRES[name]
    return wire.encoder(wire.parse(body))


def citations_of(events: Sequence[TurnEvent]) -> list[CitationAdded]:
    """The citations of a turn, less their sources' own words."""
    return [event for event in events if isinstance(event, CitationAdded)]


@each_wire
@given(PIECES, st.sets(st.integers(1, 5000)))
def test_a_stream_has_them(name: str, pieces: Sequence[tuple[str, bool]], cuts: set[int]) -> None:
    """They are the same in whatever pieces the bytes come, and the text is whole."""
    events, citations = turn_of(pieces)
    raw = b"".join(frame.raw for frame in encoded(encoder(name), [Frame(b"x", {}, (one,)) for one in events]))
    again = read_again(WIRES[name][0], cut(raw, cuts))
    assert "".join(e.text for e in again if isinstance(e, TextDelta)) == "".join(text for text, _ in pieces)
    read = citations_of(again)
    if name == "anthropic":
        # There they belong to the block that is open, which may have begun sooner.
        assert [(one.url, one.title, one.end) for one in read] == [
            (one.url, one.title, one.end) for one in citations
        ]
        assert all(one.start <= known.start for one, known in zip(read, citations, strict=True))
    else:
        assert read == citations


@each_wire
@given(PIECES)
def test_a_reply_has_them(name: str, pieces: Sequence[tuple[str, bool]]) -> None:
    """In a reply all three dialects say of what text they are the sources."""
    events, citations = turn_of(pieces)
    wire = WIRES[name][0]
    made = encoder(name).encode_reply(Frame(b"x", {}, tuple(events)))
    again = wire.reader((), lambda name: False, 1 << 20).read_reply(made.raw).events
    assert citations_of(again) == citations
    assert "".join(e.text for e in again if isinstance(e, TextDelta)) == "".join(text for text, _ in pieces)


@each_wire
@pytest.mark.parametrize("whole", [True, False])
def test_one_without_an_address_is_left_out(name: str, whole: bool) -> None:
    """No dialect has a form for the files of another's provider."""
    events = (TurnStarted("1", "m"), TextDelta("a"), CitationAdded(0, 1, ""), TurnFinished("stop"))
    one = encoder(name)
    if whole:
        made = one.encode_reply(Frame(b"x", {}, events)).raw
    else:
        made = b"".join(frame.raw for frame in encoded(one, [Frame(b"x", {}, events)]))
    assert set(one.left_out) == {"answer.citations"}
    assert b"citation" not in made


@each_wire
def test_one_before_its_text_waits(name: str) -> None:
    """Some gateways tell what they have found before the model says anything."""
    events = (
        TurnStarted("1", "m"),
        CitationAdded(0, 0, "https://example.com/a"),
        TextDelta("a"),
        TurnFinished("stop"),
    )
    one = encoder(name)
    raw = b"".join(frame.raw for frame in encoded(one, [Frame(b"x", {}, events)]))
    (read,) = citations_of(read_again(WIRES[name][0], [raw]))
    assert (read.url, one.left_out) == ("https://example.com/a", set())


@pytest.mark.parametrize("name", ["responses", "anthropic"])
def test_one_without_any_text_is_left_out(name: str) -> None:
    """There is no place for it, which is said."""
    events = (TurnStarted("1", "m"), CitationAdded(0, 0, "https://example.com/a"), TurnFinished("stop"))
    one = encoder(name)
    encoded(one, [Frame(b"x", {}, events)])
    assert one.left_out == {"answer.citations"}
    one = encoder(name)
    one.encode_reply(Frame(b"x", {}, events))
    assert one.left_out == {"answer.citations"}


def test_ollama_has_no_form_for_them() -> None:
    """Its client is told nothing, and the record everything."""
    wire = OllamaWire()
    one = wire.encoder(wire.parse({"model": "m", "messages": []}))
    events, _ = turn_of([("a", True)])
    raw = b"".join(frame.raw for frame in encoded(one, [Frame(b"x", {}, tuple(events))]))
    assert b"example.com" not in raw
    assert set(one.left_out) == {"answer.citations"}


@pytest.mark.parametrize("odd", [None, 7, "x", [7], [None], [{}], [{"url_citation": 7}], [{"url": 7}]])
def test_odd_annotations(odd: Any) -> None:
    """Rule W1: what a gateway makes of them is let through."""
    assert all(one.url == "" for one in read_annotations(odd))
    assert with_moved_indices(odd, 5) == odd


def test_places_that_are_none() -> None:
    """Indices that bound no text, as OpenRouter sends them, are not made up."""
    said = {"url": "https://example.com/a", "start_index": 0, "end_index": 0}
    (one,) = read_annotations([{"type": "url_citation", "url_citation": said}], base=9)
    assert (one.start, one.end) == (0, 0)
    reply = encoder("chat").encode_reply(Frame(b"x", {}, (TextDelta("abc"), one)))
    (noted,) = orjson.loads(reply.raw)["choices"][0]["message"]["annotations"]
    assert noted["url_citation"] == {
        "start_index": 3,
        "end_index": 3,
        "title": "",
        "url": "https://example.com/a",
    }
