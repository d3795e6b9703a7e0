"""For mutated recorded streams, the parser and both readers raise only what they declare, do not depend on
cuts, and need bounded memory and linear work."""

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proxy.base.errors import WireError
from proxy.base.events import Frame
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.stream import sse
from proxy.wires.stream.sse import EventBoundary, SSEParser, is_comment
from proxy.wires.upstream_port import TurnReader
from proxy.wires.wire import Wire

pytestmark = pytest.mark.accepts("*", why="requests are odd by intention")

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MAX_SEED_BYTES = 60_000


def _recorded(wire: str) -> list[bytes]:
    """Return the recorded streams of one wire, except long ones, since every mutation reads a whole one."""
    found = sorted(FIXTURES.glob(f"*.{wire}/*/turn-*/response.sse"))
    streams = [file.read_bytes() for file in found]
    return [stream for stream in streams if len(stream) <= MAX_SEED_BYTES]


SEEDS = {"chat": _recorded("chat"), "responses": _recorded("responses")}
WIRES: dict[str, Wire] = {"chat": ChatWire(), "responses": ResponsesWire()}
TOKENS = [
    b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"data: ", b"data:", b"event: ", b": ", b"data: [DONE]\n\n",
    b"[DONE]", b"\x00", b"\xff", b"\xef\xbb\xbf", b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u0000", b"\\ud800",
    b",", b":", b"null", b"true", b"-1", b"0", b"1e999", b"9" * 30, b'""', b"[]", b"{}", b"[" * 300,
    b'{"a":' * 300, b'"index":', b'"id":', b'"name":', b'"arguments":', b'"tool_calls":', b'"item_id":',
    b'"finish_reason":"stop"', b'"output_index":', b'"type":"response.completed"', b'"type":"error"',
    b'"error":{"message":7}',
]  # fmt: skip


def mutate(stream: bytes, rng: random.Random) -> bytes:
    """Return the stream with one to six changes: of bytes, tokens, values or events."""
    for _ in range(rng.randint(1, 6)):
        events = stream.split(b"\n\n")
        at, other = (rng.randrange(len(stream) + 1) for _ in range(2))
        match rng.randrange(10):
            case 0:
                stream = stream[: min(at, other)] + stream[max(at, other) :]
            case 1:
                stream = stream[:at] + rng.choice(TOKENS) + stream[at:]
            case 2:
                stream = stream[:at] + bytes([rng.randrange(256)]) + stream[at + 1 :]
            case 3:
                stream = stream[:at]
            case 4:
                rng.shuffle(events)
                stream = b"\n\n".join(events)
            case 5:
                place = rng.randrange(len(events))
                stream = b"\n\n".join(
                    [*events[:place], *events[place:][:1] * rng.randint(2, 5), *events[place:]]
                )
            case 6:
                del events[rng.randrange(len(events))]
                stream = b"\n\n".join(events)
            case 7:
                stream = stream.replace(b"\n", rng.choice([b"\r\n", b"\r"]))
            case 8:
                stream = _another_value(stream, rng)
            case _:
                stream = stream.replace(rng.choice(TOKENS), rng.choice(TOKENS), rng.randint(1, 20))
        stream = stream[: 2 * MAX_SEED_BYTES] or b"\n"
    return stream


def _another_value(stream: bytes, rng: random.Random) -> bytes:
    """Replace one JSON value by one of another kind."""
    colon = stream.find(b'":', rng.randrange(len(stream)))
    if colon < 0:
        return stream
    end = min(
        place for place in (stream.find(b",", colon), stream.find(b"}", colon), len(stream)) if place >= 0
    )
    value = rng.choice([b"null", b"7", b"-1", b'"x"', b"[]", b"[null]", b"{}", b'{"a":1}', b"true", b"1e400"])
    return stream[: colon + 2] + value + stream[max(end, colon + 2) :]


def cuts(stream: bytes, rng: random.Random) -> list[bytes]:
    """Return the stream in pieces: few, many, or single bytes."""
    if rng.random() < 0.15:
        return [stream[at : at + 1] for at in range(len(stream))]
    places = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.choice([1, 5, 60])))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


def reader_of(wire: str) -> TurnReader:
    """Return a reader that takes some of the recorded tools for server tools, and some for the client's."""
    hidden: Callable[[str], bool] = lambda name: "time" in name or "weather" in name  # noqa: E731
    return WIRES[wire].reader(frozenset({"mine", "book", "get_weather"}), hidden, 8192)


def read(wire: str, pieces: list[bytes]) -> tuple[list[Frame], str, str, bytes]:
    """Read all pieces; return frames, ending, text and message; after an error, the message is empty."""
    reader = reader_of(wire)
    frames: list[Frame] = []
    end = "closed"
    try:
        for piece in pieces:
            frames += reader.feed(piece)
        frames += reader.close()
    except WireError as error:
        return frames, f"{type(error).__name__}: {error}", "", b""
    if reader.fault is not None:
        return frames, f"fault: {reader.fault}", reader.text, b""
    return frames, end, reader.text, reader.message()


def _sameness(frames: list[Frame]) -> list[tuple[bytes, object, list[str], bool, int]]:
    return [
        (f.raw, f.payload is None, [type(e).__name__ for e in f.events], f.is_end_mark, f.undecided)
        for f in frames
        # How blank lines and comments are divided depends on the cuts and does not matter.
        if f.events or (f.raw and not is_comment(f.raw))
    ]


fuzzed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**48)


@pytest.mark.parametrize("wire", SEEDS)
def test_there_is_something_to_mutate(wire: str) -> None:
    """Every wire has recorded streams to mutate."""
    assert len(SEEDS[wire]) >= 5


@pytest.mark.parametrize("wire", SEEDS)
@fuzzed
@given(seeds)
@example(0)
def test_a_reader_and_any_stream(wire: str, seed: int) -> None:
    """Rule W6: a reader raises only WireError, loses no byte of the turn, and does not depend on cuts."""
    rng = random.Random(seed)
    stream = mutate(rng.choice(SEEDS[wire]), rng)
    frames, end, text, _ = read(wire, [stream])
    if end == "closed" or end.startswith("fault"):
        ends = [at for at, frame in enumerate(frames) if frame.is_end_mark]
        turn = b"".join(frame.raw for frame in frames[: ends[0] + 1 if ends else None])
        assert stream.startswith(turn) or (turn.startswith(stream) and end == "closed")
        assert ends or end != "closed" or turn.startswith(stream)
        again, other_end, other_text, message = read(wire, cuts(stream, rng))
        assert _sameness(again) == _sameness(frames)
        assert b"".join(frame.raw for frame in again) == b"".join(frame.raw for frame in frames)
        assert (other_end, other_text) == (end, text)
        assert message.startswith(b"{") is (end == "closed")
    else:
        assert end.startswith(("WireError", "FrameTooLarge"))
        assert read(wire, cuts(stream, rng))[1] == end


@pytest.mark.parametrize("wire", SEEDS)
@fuzzed
@given(seeds)
def test_a_reader_and_any_reply(wire: str, seed: int) -> None:
    """A body that is not streamed is read or refused with WireError."""
    rng = random.Random(seed)
    stream = mutate(rng.choice(SEEDS[wire]), rng)
    body = max(stream.split(b"data: "), key=len).strip()
    reader = reader_of(wire)
    try:
        frame = reader.read_reply(body)
    except WireError:
        return
    assert frame.raw == body
    assert isinstance(reader.text, str)
    assert reader.message().startswith(b"{")


@fuzzed
@given(seeds)
def test_the_parser_and_any_stream(seed: int) -> None:
    """Rules W1, W6: the parser returns every byte once and in order, and the cuts change nothing."""
    rng = random.Random(seed)
    stream = mutate(rng.choice([*SEEDS["chat"], *SEEDS["responses"]]), rng)
    outcomes = []
    for pieces in ([stream], cuts(stream, rng)):
        parser, boundary = SSEParser(), EventBoundary(max_held=rng.choice([16, 1000, 65536]))
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert b"".join(event.raw for event in events) + parser.tail == stream
        sent = b"".join(boundary.feed(piece) for piece in pieces)
        assert stream.startswith(sent)
        assert len(stream) - len(sent) <= 65536 + 4
        assert (sent + boundary.close()).startswith(stream)
        said = [event for event in events if not event.is_comment]
        outcomes.append((said, parser.tail, parser.close(), boundary.done_seen))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("shape", ["one event", "many lines", "bare cr", "comments", "crlf"])
def test_each_byte_is_looked_at_a_few_times(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a stream in pieces of ten bytes, the parser's work grows linearly with the stream."""
    steps = 0
    inner = sse._next_boundary

    def counted(data: bytes | bytearray, position: int, has_cr: bool) -> int:
        nonlocal steps
        found = inner(data, position, has_cr)
        steps += (found if found >= 0 else len(data)) - position
        return found

    monkeypatch.setattr(sse, "_next_boundary", counted)
    unit = {
        "one event": b"0123456789", "many lines": b"data: 123\n", "bare cr": b"data: 123\r",
        "comments": b": abcdef\n\n", "crlf": b"data: 12\r\n",
    }[shape]  # fmt: skip
    counts = []
    for size in (2_000, 4_000):
        steps = 0
        parser = SSEParser()
        for _ in range(size):
            parser.feed(unit)
        counts.append(steps)
    assert counts[1] <= 2.2 * counts[0]
    assert counts[1] <= 3 * 4_000 * len(unit)


LONG = b"x" * 100_000
FLOODS: dict[str, dict[str, bytes]] = {
    "chat": {
        "text": b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n',
        "calls": b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a",'
        b'"function":{"name":"get_time","arguments":"%s"}}]}}]}\n\n',
        "rubbish": b"data: {%s\n\n",
        "comments": b": %s\n\n",
    },
    "responses": {
        "text": b'data: {"type":"response.output_text.delta","output_index":0,"delta":"%s"}\n\n',
        "items": b'data: {"type":"response.output_item.done","item":{"type":"message","x":"%s"}}\n\n',
        "openings": b'data: {"type":"response.in_progress","response":{"x":"%s"}}\n\n',
        "rubbish": b"data: {%s\n\n",
        "comments": b": %s\n\n",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(("wire", "kind"), [(wire, kind) for wire in FLOODS for kind in FLOODS[wire]])
def test_what_a_reader_keeps_is_bounded(wire: str, kind: str) -> None:
    """For 110 MB of one response, a reader keeps at most 100 MB, or refuses the response as too large."""
    reader, unit = reader_of(wire), FLOODS[wire][kind] % LONG
    ended = ""
    tracemalloc.start()
    try:
        for _ in range(1_100):
            reader.feed(unit)
    except WireError as error:
        ended = str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= 100 << 20
    assert not ended or "larger than" in ended or "more than" in ended
