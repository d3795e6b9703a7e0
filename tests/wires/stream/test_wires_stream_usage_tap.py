"""Usage that is read from forwarded responses, and removed if only the proxy asked for it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.base.events import Usage
from proxy.wires.stream.sse import END_MARK
from proxy.wires.stream.usage_tap import UsageTap
from proxy.wires.turn.usage import read_usage, usage_of

COUNTED = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def event(payload: Any, end: str = "\n\n") -> bytes:
    return f"data: {json.dumps(payload, separators=(',', ':'))}{end}".encode()


def chunk(text: str, **more: Any) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], **more})


PLAIN = [chunk("Hel"), chunk('lo, "usage":null, \\"usage\\":{}'), b": comment\n\n", chunk("", x=1)]
ASKED = [
    chunk("Hel", usage=None),
    chunk('lo, "usage":null, \\"usage\\":{}', usage=None),
    b": comment\n\n",
    event({"id": "c", "choices": [{"index": 0, "delta": {"content": ""}}], "usage": None, "x": 1}),
    event({"id": "c", "choices": [], "usage": COUNTED}),
]


def cuts(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def run(tap: UsageTap, pieces: list[bytes]) -> bytes:
    return b"".join([*map(tap.feed, pieces), tap.close()])


@given(st.lists(st.integers(0, 700), max_size=12))
@settings(max_examples=200, deadline=None)
def test_what_we_asked_for_is_taken_out_however_it_is_cut(places: list[int]) -> None:
    """Rules W2, W6: usage that only the proxy asked for is removed, for every way of cutting."""
    tap = UsageTap(strip=True)
    assert run(tap, cuts(b"".join(ASKED) + END_MARK, places)) == b"".join(PLAIN) + END_MARK
    assert tap.usage == Usage(7, 5, 12, COUNTED)


@given(st.lists(st.integers(0, 700), max_size=12))
@settings(max_examples=100, deadline=None)
def test_what_the_client_asked_for_stays(places: list[int]) -> None:
    """Rule W1: without ``strip`` each piece leaves unchanged and at once, and usage is still read."""
    tap = UsageTap()
    for piece in cuts(b"".join(ASKED) + END_MARK, places):
        assert tap.feed(piece) == piece
    assert tap.close() == b""
    assert tap.usage == Usage(7, 5, 12, COUNTED)


def test_usage_beside_text_leaves_the_text() -> None:
    """Only the usage is removed from a chunk that has other content."""
    tap = UsageTap(strip=True)
    out = run(tap, [chunk("Hi", usage=COUNTED, x={"usage": 1})])
    assert json.loads(out.removeprefix(b"data: ")) == json.loads(chunk("Hi", x={"usage": 1})[6:])
    assert tap.usage is not None
    assert tap.usage.total_tokens == 12


def test_the_last_report_counts() -> None:
    """If each chunk reports usage so far, the last report counts."""
    tap = UsageTap()
    run(tap, [chunk("a", usage={"total_tokens": n}) for n in (3, 9)])
    assert tap.usage is not None
    assert tap.usage.total_tokens == 9


def test_a_last_event_without_its_blank_line_is_read() -> None:
    """Usage in a last event without its blank line is read and removed; other tails stay."""
    tap = UsageTap(strip=True)
    assert run(tap, [chunk("a"), event({"choices": [], "usage": COUNTED}, end="")]) == chunk("a")
    assert tap.usage is not None
    tap = UsageTap(strip=True)
    assert run(tap, [chunk("a"), b"data: [DO"]) == chunk("a") + b"data: [DO"


def test_an_event_of_responses_holds_it_inside() -> None:
    """Usage of Responses is read from the last event's response, however large the event is."""
    usage = {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 4,
        "total_tokens": 7,
    }
    done = event({"type": "response.completed", "response": {"output": "x" * 200_000, "usage": usage}})
    created = event({"type": "response.created", "response": {"usage": None}})
    tap = UsageTap()
    assert run(tap, cuts(created + done, [100, 70_000, 150_000])) == created + done
    assert tap.usage == Usage(3, 4, 7, usage, 2)


@pytest.mark.parametrize("strip", [True, False])
def test_an_endless_event_stays_whole(monkeypatch: pytest.MonkeyPatch, strip: bool) -> None:
    """An event larger than the limit is forwarded unread and complete."""
    from proxy.wires.stream import usage_tap
    from proxy.wires.stream.sse import SSEParser

    monkeypatch.setattr(usage_tap, "SSEParser", lambda: SSEParser(max_event_bytes=100))
    tap = UsageTap(strip=strip)
    data = chunk("a") + b"data: " + b"x" * 300 + b"\n\n" + chunk("b")
    assert run(tap, cuts(data, [40, 120, 250])) == data
    assert tap.usage is None


@pytest.mark.parametrize(
    "junk", [b'data: {"usage":{\n\n', b'data: ["usage",{"usage":{}}]\n\n', b'data: "usage": {\n\n']
)
def test_what_is_no_usage_passes(junk: bytes) -> None:
    """Data that only looks like usage passes unchanged."""
    tap = UsageTap(strip=True)
    assert run(tap, [junk]) == junk
    assert tap.usage is None


def test_a_reply_is_read_at_its_end() -> None:
    """The usage of a reply is read, also near the end of a long one, and invalid bodies have none."""
    tap = UsageTap()
    body = json.dumps({"choices": [], "usage": COUNTED}).encode()
    for piece in cuts(body, [5, 30]):
        tap.keep(piece)
    tap.read_reply()
    assert tap.usage == Usage(7, 5, 12, COUNTED)
    tap = UsageTap()
    counted = {"prompt_tokens": 8, "total_tokens": 8}
    body = json.dumps({"data": [0.123456789] * 400_000, "model": 'a "usage": {', "usage": counted}).encode()
    for piece in cuts(body, list(range(0, len(body), 65536))):
        tap.keep(piece)
    tap.read_reply()
    assert tap.usage == Usage(8, 0, 8, counted)
    for junk in (b"", b"{", b"[1]", b"x" * (2 << 20), b" " * (2 << 20) + b'"usage": {"a":'):
        tap = UsageTap()
        tap.keep(junk)
        tap.read_reply()
        assert tap.usage is None


def test_usage_in_every_dialect() -> None:
    """Usage is read from the fields of Chat and Responses, Groq's own field, and cached counts."""
    assert read_usage({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}).cached_tokens == 1
    assert read_usage({"prompt_tokens": 3, "prompt_cache_hit_tokens": 2}).cached_tokens == 2
    assert usage_of({"x_groq": {"usage": {"total_tokens": 4}}}) == Usage(0, 0, 4, {"total_tokens": 4})
    assert usage_of({"usage": None, "response": "x"}) is None
    odd = {"prompt_tokens": -1, "completion_tokens": True, "total_tokens": "5", "prompt_tokens_details": 3}
    assert usage_of({"usage": odd}) == Usage(0, 0, 0, odd)
    assert Usage(3, 4, 0).all_tokens == 7
    assert Usage(3, 4, 9).all_tokens == 9


def test_usage_of_a_message_is_said_in_two_events() -> None:
    """The usage of a Messages stream combines its first and last report."""
    tap = UsageTap()
    cached = {"input_tokens": 3, "cache_read_input_tokens": 90, "output_tokens": 1}
    tap.feed(event({"type": "message_start", "message": {"usage": cached}}))
    tap.feed(event({"type": "message_delta", "usage": {"output_tokens": 8}}))
    assert tap.usage is not None
    assert (tap.usage.input_tokens, tap.usage.output_tokens, tap.usage.cached_tokens) == (93, 8, 90)
