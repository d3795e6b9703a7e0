"""Citations that an encoder writes and the reader of its dialect reads again."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turn_encoding import cut, encoded, read_again

from proxy.base.events import (
    CitationAdded,
    FinishReason,
    Frame,
    TextDelta,
    TurnEvent,
    TurnFinished,
    TurnStarted,
)
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire
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
    """Return a turn with these pieces of text, each cited or not, and its citations."""
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
    return [*events, TurnFinished(FinishReason.STOP)], citations


def encoder(name: str) -> Any:
    """Return the encoder of the dialect."""
    wire, body = WIRES[name]
    return wire.encoder(wire.parse(body))


def citations_of(events: Sequence[TurnEvent]) -> list[CitationAdded]:
    """Return the citations of a turn."""
    return [event for event in events if isinstance(event, CitationAdded)]


@each_wire
@given(PIECES, st.sets(st.integers(1, 5000)))
def test_a_stream_has_them(name: str, pieces: Sequence[tuple[str, bool]], cuts: set[int]) -> None:
    """A stream keeps all citations and the complete text, however its bytes are cut."""
    events, citations = turn_of(pieces)
    raw = b"".join(frame.raw for frame in encoded(encoder(name), [Frame(b"x", {}, (one,)) for one in events]))
    again = read_again(WIRES[name][0], cut(raw, cuts))
    assert "".join(e.text for e in again if isinstance(e, TextDelta)) == "".join(text for text, _ in pieces)
    read = citations_of(again)
    if name == "anthropic":
        # In Messages a citation belongs to the open block, which may have begun earlier.
        assert [(one.url, one.title, one.end) for one in read] == [
            (one.url, one.title, one.end) for one in citations
        ]
        assert all(one.start <= known.start for one, known in zip(read, citations, strict=True))
    else:
        assert read == citations


@each_wire
@given(PIECES)
def test_a_reply_has_them(name: str, pieces: Sequence[tuple[str, bool]]) -> None:
    """A reply keeps all citations with the text that they belong to, in all three dialects."""
    events, citations = turn_of(pieces)
    wire = WIRES[name][0]
    made = encoder(name).encode_reply(Frame(b"x", {}, tuple(events)))
    again = wire.reader((), lambda name: False, 1 << 20).read_reply(made.raw).events
    assert citations_of(again) == citations
    assert "".join(e.text for e in again if isinstance(e, TextDelta)) == "".join(text for text, _ in pieces)


@each_wire
@pytest.mark.parametrize("whole", [True, False])
def test_one_without_an_address_is_left_out(name: str, whole: bool) -> None:
    """The encoder leaves out and reports a citation without a URL, such as one of a provider's file."""
    events = (TurnStarted("1", "m"), TextDelta("a"), CitationAdded(0, 1, ""), TurnFinished(FinishReason.STOP))
    one = encoder(name)
    if whole:
        made = one.encode_reply(Frame(b"x", {}, events)).raw
    else:
        made = b"".join(frame.raw for frame in encoded(one, [Frame(b"x", {}, events)]))
    assert set(one.left_out) == {"answer.citations"}
    assert b"citation" not in made


@each_wire
def test_one_before_its_text_waits(name: str) -> None:
    """A citation that comes before any text waits for the text, as some gateways send it first."""
    events = (
        TurnStarted("1", "m"),
        CitationAdded(0, 0, "https://example.com/a"),
        TextDelta("a"),
        TurnFinished(FinishReason.STOP),
    )
    one = encoder(name)
    raw = b"".join(frame.raw for frame in encoded(one, [Frame(b"x", {}, events)]))
    (read,) = citations_of(read_again(WIRES[name][0], [raw]))
    assert (read.url, one.left_out) == ("https://example.com/a", set())


@pytest.mark.parametrize("name", ["responses", "anthropic"])
def test_one_without_any_text_is_left_out(name: str) -> None:
    """In a turn without text there is no place for a citation: the encoder leaves it out and reports it."""
    events = (
        TurnStarted("1", "m"),
        CitationAdded(0, 0, "https://example.com/a"),
        TurnFinished(FinishReason.STOP),
    )
    one = encoder(name)
    encoded(one, [Frame(b"x", {}, events)])
    assert one.left_out == {"answer.citations"}
    one = encoder(name)
    one.encode_reply(Frame(b"x", {}, events))
    assert one.left_out == {"answer.citations"}


def test_ollama_has_no_form_for_them() -> None:
    """Ollama's dialect has no citations, so the encoder leaves them out and reports it."""
    wire = OllamaWire()
    one = wire.encoder(wire.parse({"model": "m", "messages": []}))
    events, _ = turn_of([("a", True)])
    raw = b"".join(frame.raw for frame in encoded(one, [Frame(b"x", {}, tuple(events))]))
    assert b"example.com" not in raw
    assert set(one.left_out) == {"answer.citations"}


@pytest.mark.parametrize("odd", [None, 7, "x", [7], [None], [{}], [{"url_citation": 7}], [{"url": 7}]])
def test_odd_annotations(odd: Any) -> None:
    """Rule W1: annotations of an unknown form do not raise an error and stay unchanged."""
    assert all(one.url == "" for one in read_annotations(odd))
    assert with_moved_indices(odd, 5) == odd


def test_places_that_are_none() -> None:
    """Indices of 0 and 0, which OpenRouter sends, stay an empty range; the proxy does not invent one."""
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
