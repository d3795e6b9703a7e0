"""Texts that the fast path translates unread: same bytes, events and message as when each is read."""

import json
import random
import re
from collections.abc import Sequence

import pytest
from cases import each
from crossed_recordings import ASKED, MOST_BYTES, WIRES, Recording, recordings
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.crossed import DIALECTS
from proxy.base.events import ReasoningDelta, RefusalDelta, TextDelta, ToolCallFinished, TurnEvent
from proxy.wires.client_port import ClientView
from proxy.wires.crossed_reader import CrossedReader
from proxy.wires.crossed_texts import crossed_reader
from proxy.wires.stream.fast_path import FastPath, FastWriter

TEXTS = (TextDelta, ReasoningDelta, RefusalDelta)
PAIRS = [(client, upstream) for client in WIRES for upstream in WIRES if client != upstream]
pairs = pytest.mark.parametrize(("client", "upstream"), PAIRS, ids=[f"{c}-{u}" for c, u in PAIRS])
CHANGING = re.compile(
    rb'"(?:created|created_at|completed_at|total_duration)":(?:\d+|"[^"]*")|(?:chatcmpl-|(?:msg|resp|fc|rs|call)_)\w{20,}'
)


def same_names(data: bytes) -> bytes:
    """Remove the times, and number the ids, which each encoder makes anew."""
    names: dict[bytes, bytes] = {}

    def name(found: re.Match[bytes]) -> bytes:
        return b"" if found[0][:1] == b'"' else names.setdefault(found[0], b"id%d" % len(names))

    return CHANGING.sub(name, data)


class Heard:
    """The result of a stream: the client's bytes, the events for the run, and what is remembered."""

    def __init__(self, wire: str, client: str, pieces: Sequence[bytes], *, unread: bool) -> None:
        port, upstream = WIRES[client], WIRES[wire]
        request = port.parse({"model": "m", "stream": True, **ASKED[client]})
        inner = upstream.reader((), lambda name: False, MOST_BYTES)
        make = crossed_reader if unread else CrossedReader
        reader = make(inner, port.encoder(request), {})
        writer = port.writer(request, ClientView("m", lambda name: False))
        assert isinstance(writer, FastWriter)
        fast = FastPath.of(reader, writer) if unread else None
        assert (fast is not None) is unread
        events: list[TurnEvent] = []
        out = []
        self.unread = 0
        for piece in pieces:
            if fast is not None and (transform := fast.transform) is not None and fast.take_unread(piece):
                self.unread += 1
                out.append(transform(piece))
                continue
            for frame in reader.feed(piece):
                events += frame.events
                out.append(writer.write(frame))
            if fast is not None:
                fast.transform = fast.writer.transform()
        for frame in [*(fast.reader.catch_up() if fast is not None else ()), *reader.close()]:
            events += frame.events
            out.append(writer.write(frame))
        out.append(writer.turn_ended("final") + writer.finish(None))
        self.out = same_names(b"".join(out))
        texts = {kind.__name__: "".join(e.text for e in events if isinstance(e, kind)) for kind in TEXTS}
        calls = [event.call for event in events if isinstance(event, ToolCallFinished)]
        told = [type(event).__name__ for event in events if not isinstance(event, TEXTS)]
        message = same_names(reader.message())
        self.meant = (
            texts,
            [(c.name, c.arguments) for c in calls],
            told,
            message,
            reader.text,
            writer.visible,
        )


def events_in(recording: Recording) -> list[bytes]:
    """Return the events of a recorded stream, as a server writes them."""
    ends = rb"(?<=\n)" if recording.wire == "ollama" else rb"(?<=\n\n)|(?<=\r\n\r\n)"
    return [piece for piece in re.split(ends, recording.data) if piece]


STREAMS = [recording for recording in recordings() if recording.stream]


@each("recording", STREAMS, lambda recording: recording.name)
def test_a_recorded_stream_crosses_alike(recording: Recording) -> None:
    """Rule W6: the fast path gives the same bytes as reading every event, however the stream is cut."""
    events, data = events_in(recording), recording.data
    at = sorted(random.Random(recording.name).sample(range(len(data)), min(40, len(data))))
    cuts = [data[begin:end] for begin, end in zip([0, *at], [*at, len(data)], strict=True)]
    for client in WIRES:
        for pieces in (events, cuts) if client != recording.wire else ():
            # Several comments in one piece are joined, so both runs need the same pieces.
            read = Heard(recording.wire, client, pieces, unread=False)
            heard = Heard(recording.wire, client, pieces, unread=True)
            assert (heard.out, heard.meant) == (read.out, read.meant)


def stream_of(upstream: str, texts: Sequence[str], *, escaped: bool) -> list[bytes]:
    """Return a turn with these texts, as a serializer with or without ASCII escapes writes it."""
    spoken = DIALECTS[upstream]
    begun, *_, ended = spoken.events(1) if spoken.begins else (b"", b"", *spoken.events(0))
    said = [json.dumps(text, ensure_ascii=escaped)[1:-1].encode("utf-8", "surrogatepass") for text in texts]
    pieces = [
        spoken.says.replace("NUMBER", str(number + len(spoken.begins))).encode().replace(b"WORD", text)
        for number, text in enumerate(said)
    ]
    return [piece for piece in (begun, *pieces, ended) if piece]


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["\u2028", "\x85", '"', "\\", "/", "\x7f", "\n\n", "👩‍👩‍👧", "é", "", "WORD", '","delta":""']
)


@pairs
@settings(max_examples=25)
@given(texts=st.lists(words, min_size=3, max_size=8), escaped=st.booleans(), together=st.integers(1, 3))
def test_any_text_crosses_alike(
    client: str, upstream: str, texts: list[str], escaped: bool, together: int
) -> None:
    """The fast path keeps every text, however it is escaped, also with several events in one read."""
    pieces = stream_of(upstream, texts, escaped=escaped)
    read = Heard(upstream, client, pieces, unread=False)
    joined = [b"".join(pieces[at : at + together]) for at in range(0, len(pieces), together)]
    heard = Heard(upstream, client, joined, unread=True)
    assert (heard.out, heard.meant) == (read.out, read.meant)
    assert heard.meant[0]["TextDelta"] == "".join(texts)


@pairs
def test_most_pieces_are_not_read(client: str, upstream: str) -> None:
    """The fast path reads hardly any events of a long text except the first."""
    pieces = stream_of(upstream, ["so "] * 400, escaped=False)
    heard = Heard(upstream, client, pieces, unread=True)
    # After a number of unread events, the reader catches up and reads the next one.
    assert heard.unread >= 396
    assert heard.meant[0]["TextDelta"] == "so " * 400


@pairs
def test_what_was_taken_is_told_where_the_stream_breaks(client: str, upstream: str) -> None:
    """If the stream breaks, the run still gets all text that the client got."""
    *pieces, _ = stream_of(upstream, ["so ", "it ", "is "], escaped=False)
    heard = Heard(upstream, client, pieces, unread=True)
    read = Heard(upstream, client, pieces, unread=False)
    assert heard.unread > 0
    assert heard.meant[0]["TextDelta"] == "so it is "
    assert (heard.out, heard.meant) == (read.out, read.meant)
