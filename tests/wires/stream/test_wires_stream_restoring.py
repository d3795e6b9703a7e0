"""Originals come back into streams and answers of every dialect, wherever their placeholders are cut."""

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.hooks.placeholders import Placeholders
from proxy.wires.dialect import Dialect
from proxy.wires.registry.table import BY_WIRE
from proxy.wires.stream.restoring import Restorer

ORIGINALS = {"[EMAIL_a]": "anna@example.com", "[NAME_b]": 'O"Neil \\ Söhne'}
TEXTS = st.lists(
    st.sampled_from([*ORIGINALS, "[EMAIL_", "[N", "[", "]", "a", " to ", "é", "\n", "[EMAIL_x]"])
).map("".join)
CUTS = st.lists(st.integers(0, 80), max_size=8)
DIALECTS = sorted(BY_WIRE)


def placeholders() -> Placeholders:
    made = Placeholders()
    made.add(ORIGINALS)
    return made


def restored(text: str) -> str:
    for placeholder, original in ORIGINALS.items():
        text = text.replace(placeholder, original)
    return text


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[begin:end] for begin, end in pairwise(places)]


def payloads(wire: str, said: Sequence[str], arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the events of a turn with a text and a call, whose texts come in these pieces."""
    whole, call = "".join(said), "".join(arguments)
    if wire == "chat":
        function = [{"index": 0, "function": {"arguments": one}} for one in arguments]
        deltas = [*({"content": one} for one in said), *({"tool_calls": [one]} for one in function)]
        chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        return [*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    if wire == "anthropic":
        blocks = [({"type": "text_delta", "text": one}, 0) for one in said]
        blocks += [({"type": "input_json_delta", "partial_json": one}, 1) for one in arguments]
        return [{"type": "content_block_delta", "index": at, "delta": delta} for delta, at in blocks]
    if wire == "responses":
        text = [{"type": "response.output_text.delta", "output_index": 0, "delta": one} for one in said]
        kind = "response.function_call_arguments"
        made = [{"type": f"{kind}.delta", "output_index": 1, "delta": one} for one in arguments]
        return [
            *(*text, {"type": "response.output_text.done", "output_index": 0, "text": whole}),
            *(*made, {"type": f"{kind}.done", "output_index": 1, "arguments": call}),
        ]
    assert wire == "ollama"
    lines: list[dict[str, Any]] = [{"message": {"content": one}, "done": False} for one in said]
    called = {"function": {"name": "f", "arguments": json.loads(call)}}
    return [*lines, {"message": {"content": "", "tool_calls": [called]}}, {"done": True}]


def encoded(dialect: Dialect, events: Sequence[dict[str, Any]]) -> bytes:
    texts = [json.dumps(one, ensure_ascii=False).encode() for one in events]
    if dialect.framing.content_type != "text/event-stream":
        return b"".join(text + b"\n" for text in texts)
    named = [(one.get("type", ""), text) for one, text in zip(events, texts, strict=True)]
    return b"".join((f"event: {name}\n".encode() if name else b"") + b"data: " + text + b"\n\n" for name, text in named)  # fmt: skip  # noqa: E501


def read(dialect: Dialect, stream: bytes) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the text, the arguments and the events that a client reads."""
    parser = dialect.framing.parser()
    events = [json.loads(one.data) for one in parser.feed(stream) if one.data and not one.is_end_mark]
    assert parser.at_boundary
    found: dict[str, str] = defaultdict(str)
    for event in events:
        delta = (
            event["choices"][0]["delta"] if "choices" in event else event.get("delta", event.get("message"))
        )
        if isinstance(delta, str):
            found["arguments" if "arguments" in event["type"] else "text"] += delta
        elif isinstance(delta, dict):
            found["text"] += delta.get("content") or delta.get("text") or ""
            found["arguments"] += delta.get("partial_json", "")
            for call in delta.get("tool_calls", ()):
                given = call["function"]["arguments"]
                found["arguments"] += given if isinstance(given, str) else json.dumps(given)
    return found["text"], found["arguments"], events


@pytest.mark.parametrize("wire", DIALECTS)
@given(text=TEXTS, argument=TEXTS, cuts=CUTS, other_cuts=CUTS, bytes_cuts=CUTS)
def test_a_stream_is_restored_wherever_it_is_cut(
    wire: str, text: str, argument: str, cuts: list[int], other_cuts: list[int], bytes_cuts: list[int]
) -> None:
    """The client reads the text and the arguments as if they had come whole, in as many events."""
    dialect, arguments = BY_WIRE[wire], json.dumps({"to": argument}, ensure_ascii=False)
    events = payloads(wire, pieces(text, cuts), pieces(arguments, other_cuts))
    stream = encoded(dialect, events) + dialect.framing.end_mark
    restorer = Restorer(dialect, placeholders())
    places = sorted({0, len(stream), *(cut * 7 for cut in bytes_cuts if cut * 7 < len(stream))})
    out = b"".join(restorer.feed(stream[begin:end]) for begin, end in pairwise(places)) + restorer.close()
    said, called, seen = read(dialect, out)
    assert said == restored(text)
    assert json.loads(called) == {"to": restored(argument)}
    assert len(seen) == len(events)
    assert out.endswith(dialect.framing.end_mark)
    if wire == "responses":
        wholes = [one for one in seen if one["type"].endswith(".done")]
        assert wholes[0]["text"] == said
        assert wholes[1]["arguments"] == called


@pytest.mark.parametrize("wire", DIALECTS)
def test_events_without_placeholders_keep_their_bytes(wire: str) -> None:
    """What holds no placeholder goes out as it came, at once, with spaces and comments."""
    dialect = BY_WIRE[wire]
    said = ["hello ", "[x] w\u00f6rld"]
    stream = encoded(dialect, payloads(wire, said, ['{"a": 1}'])).replace(b'": ', b'" : ')
    restorer = Restorer(dialect, placeholders())
    assert restorer.feed(stream) == stream
    assert restorer.close() == b""


def test_texts_of_several_answers_wait_for_their_own_next_piece() -> None:
    """Two answers of one stream, whose pieces alternate, are told apart by their index."""
    chat = BY_WIRE["chat"]

    def chunk(index: int, text: str) -> bytes:
        return encoded(chat, [{"choices": [{"index": index, "delta": {"content": text}}]}])

    restorer = Restorer(chat, placeholders())
    assert restorer.feed(chunk(0, "to [EMA")) == b""
    assert restorer.feed(chunk(1, "a [NA")) == b""
    assert restorer.feed(chunk(0, "IL_a]!")) == b""
    assert restorer.feed(b": ping\n\n") == b": ping\n\n"
    out = restorer.feed(chunk(1, "ME_b]"))
    texts = [json.loads(line[6:])["choices"][0] for line in out.decode().splitlines() if line]
    assert [(one["index"], one["delta"]["content"]) for one in texts] == [
        (0, "to "), (1, "a "), (0, "anna@example.com!"), (1, ORIGINALS["[NAME_b]"])
    ]  # fmt: skip


def test_what_becomes_no_placeholder_leaves_with_the_end() -> None:
    """A text that ends like the beginning of a placeholder loses nothing, and comes before the end mark."""
    chat = BY_WIRE["chat"]
    stream = encoded(chat, payloads("chat", ["see [EMAIL_"], ["{}"])) + chat.framing.end_mark
    restorer = Restorer(chat, placeholders())
    assert restorer.feed(stream) + restorer.close() == stream


def test_the_bytes_that_wait_are_bounded() -> None:
    """A stream that never decides is sent on after a number of events."""
    chat = BY_WIRE["chat"]
    restorer = Restorer(chat, placeholders())
    first = encoded(chat, [{"choices": [{"index": 0, "delta": {"content": "[EMA"}}]}])
    other = encoded(chat, [{"choices": [{"index": 1, "delta": {"content": "x"}}]}])
    out = restorer.feed(first) + b"".join(restorer.feed(other) for _ in range(400))
    assert out.startswith(first)


@pytest.mark.parametrize("wire", DIALECTS)
@given(text=TEXTS)
def test_a_whole_answer_is_restored(wire: str, text: str) -> None:
    """All texts of an answer, and of an error, are restored; arguments stay JSON."""
    body = {
        "a": [{"content": text, "n": 1}],
        "arguments": json.dumps({"to": text}),
        "error": {"message": text},
    }
    out = Restorer(BY_WIRE[wire], placeholders()).whole(json.dumps(body).encode())
    said = json.loads(out)
    assert said["a"] == [{"content": restored(text), "n": 1}]
    assert said["error"] == {"message": restored(text)}
    if BY_WIRE[wire].turns.json_texts:
        assert json.loads(said["arguments"]) == {"to": restored(text)}


def test_an_answer_that_is_json_stays_json() -> None:
    """Where the client asked for JSON, an original with quotes is escaped in the text, too."""
    body = json.dumps({"choices": [{"message": {"content": '{"name": "[NAME_b]"}'}}]}).encode()
    out = Restorer(BY_WIRE["chat"], placeholders(), json_answer=True).whole(body)
    content = json.loads(out)["choices"][0]["message"]["content"]
    assert json.loads(content) == {"name": ORIGINALS["[NAME_b]"]}


def test_an_event_with_data_in_several_lines_keeps_its_name() -> None:
    """Clients of dialects with named events find them by their names."""
    head = b"event: content_block_delta\nid: 3\n"
    data = b'data: {"type":"content_block_delta","index":0,\ndata: "delta":{"text":"[EMAIL_a]"}}\n\n'
    written = Restorer(BY_WIRE["anthropic"], placeholders()).feed(head + data)
    assert written.startswith(head)
    assert written.endswith(b"}\n\n")
    event = json.loads(written.removeprefix(head).removeprefix(b"data: "))
    assert event["delta"] == {"text": "anna@example.com"}


def test_what_is_nested_too_deeply_stays_as_it_came() -> None:
    """It ends neither a stream nor an answer, and keeps its place among the events."""
    deep = b'{"a":' + b"[" * 900 + b'"[EMAIL_a]"' + b"]" * 900 + b"}"
    restorer = Restorer(BY_WIRE["chat"], placeholders())
    assert restorer.whole(deep) == deep
    before = b'data: {"choices":[{"index":0,"delta":{"content":"[EMAIL_"}}]}\n\n'
    assert restorer.feed(before + b"data: " + deep + b"\n\n") == before + b"data: " + deep + b"\n\n"


@pytest.mark.parametrize("index", ["[]", "{}"])
def test_an_index_that_is_none_ends_no_stream(index: str) -> None:
    """An upstream's fault there is not the proxy's."""
    restorer = Restorer(BY_WIRE["chat"], placeholders())
    event = f'data: {{"choices":[{{"index":{index},"delta":{{"content":"[EMAIL_a]"}}}}]}}\n\n'
    assert b"anna@example.com" in restorer.feed(event.encode())
