"""Usage that is read from the two ends of a response, after it has passed through."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.base.events import Usage
from proxy.wires.ollama.dialect import OLLAMA
from proxy.wires.stream.usage_tap import UsageTail

COUNTED = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
DECOY = 'said "usage":{"prompt_tokens":99} and {"eval_count":99}'


def event(payload: Any) -> bytes:
    return f"data: {json.dumps(payload, separators=(',', ':'))}\n\n".encode()


def words(count: int) -> list[bytes]:
    return [event({"choices": [{"index": 0, "delta": {"content": DECOY}}], "usage": None})] * count


def read(pieces: list[bytes], **fields: Any) -> Usage | None:
    tail = UsageTail(**fields)
    for piece in pieces:
        tail.note(piece)
    return tail.read()


@given(st.integers(0, 40), st.integers(120, 700), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_last_usage_of_a_stream_counts_however_it_is_cut(before: int, size: int, done: bool) -> None:
    """The usage near the end is read for every size of pieces, and no text of the model is taken for it."""
    stream = b"".join([*words(before), event({"choices": [], "usage": COUNTED})])
    stream += b"data: [DONE]\n\n" if done else b""
    assert read([stream[at : at + size] for at in range(0, len(stream), size)]) == Usage(7, 5, 12, COUNTED)


@pytest.mark.parametrize("count", [0, 1, 30])
def test_a_stream_without_usage_reports_none(count: int) -> None:
    """A stream that reports no usage has none, whatever the model writes."""
    assert read([*words(count), b"data: [DONE]\n\n"]) is None
    assert read([]) is None


def test_messages_reports_in_two_events() -> None:
    """The input that Messages reports in its first event is joined with the output of its last one."""
    opened = {"input_tokens": 20, "cache_read_input_tokens": 4, "output_tokens": 1}
    start = b"event: message_start\n" + event(
        {"type": "message_start", "message": {"id": "msg_1", "usage": opened}}
    )
    delta = event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": DECOY}})
    end = event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 30}})
    for pieces in ([start, *[delta] * 30, end], [b"".join([start, delta, end])]):
        usage = read(pieces)
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (24, 30, 4)
    torn = [start[:80], start[80:], *[delta] * 30, end]
    assert read(torn) is None  # Half of a sum would be wrong.


def test_a_reply_that_is_no_stream() -> None:
    """A JSON body reports its usage, before or after megabytes of data."""
    vectors = [{"embedding": "A" * 300_000}] * 4
    for body in (
        {"usage": COUNTED, "data": vectors},
        {"data": vectors, "usage": COUNTED},
        {"usage": COUNTED},
    ):
        raw = json.dumps(body).encode()
        tail = UsageTail()
        for at in range(0, len(raw), 65_000):
            tail.keep(raw[at : at + 65_000])
        assert tail.read() == Usage(7, 5, 12, COUNTED)


def test_the_counts_of_ollama() -> None:
    """The last line of an Ollama stream has the counts without an object around them."""
    line = json.dumps({"message": {"content": DECOY}, "done": False}).encode() + b"\n"
    last = json.dumps({"done": True, "prompt_eval_count": 11, "eval_count": 3}).encode() + b"\n"
    usage = read([*[line] * 20, last], fields=OLLAMA.usage)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (11, 3)
    assert read([line] * 3, fields=OLLAMA.usage) is None


@pytest.mark.parametrize("usage", ["9" * 5000, '{"prompt_tokens":' + "9" * 5000 + "}", "[" * 5000, "tru"])
def test_an_absurd_usage_is_none_and_no_error(usage: str) -> None:
    """A usage that cannot be read is not reported."""
    for fields in (None, OLLAMA.usage):
        body = f'{{"usage":{usage},"eval_count":{usage}}}'.encode()
        found = read([body], fields=fields)
        assert found is None or found.input_tokens < 10**18
