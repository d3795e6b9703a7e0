"""What an official SDK would show as a call, the reader sees as a call, or nothing more passes (rule W5).

The SDKs are the readers here: they get the bytes that a reader lets through, as a client gets them as long as
no call of a server tool was seen.
"""

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import ollama
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

from proxy.base.errors import Unreadable
from proxy.base.events import ToolCallStarted
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire

OURS, THEIRS = "core__time", "mine"
Payload = dict[str, Any]


def sse(payloads: list[Payload]) -> bytes:
    """A stream whose events have the names of their types, as Anthropic and OpenAI send them."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (str(one.get("type")).encode(), json.dumps(one).encode())
        for one in payloads
    )


def lines(payloads: list[Payload]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in payloads)


def said_in(raw: bytes) -> Iterator[Payload]:
    """The payloads of a stream of events or of lines."""
    for row in raw.split(b"\n"):
        text = row.removeprefix(b"data: ")
        if text[:1] == b"{":
            yield json.loads(text)


def texts(values: Iterable[Any]) -> set[Any]:
    """The values that are texts: an SDK may build an object whose name is a list."""
    return {value for value in values if isinstance(value, str)}


def shown_by_anthropic(raw: bytes) -> set[Any]:
    """The names of the calls that Anthropic's SDK shows."""
    snapshot: Any = None
    for payload in said_in(raw):
        try:
            snapshot = accumulate_event(event=payload, current_snapshot=snapshot, json_bufs={})  # type: ignore[arg-type]
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
            break  # The SDK raises, so its user sees no more.
    blocks = getattr(snapshot, "content", None) or ()
    return texts(_get(one, "name") for one in blocks if _get(one, "type") == "tool_use")


def shown_by_openai_chat(raw: bytes) -> set[Any]:
    """The names of the calls that OpenAI's SDK shows of a Chat stream."""
    found = set()
    for payload in said_in(raw):
        if payload.get("error"):
            break
        chunk: Any = construct_type(type_=ChatCompletionChunk, value=payload)
        for choice in _listed(getattr(chunk, "choices", None)):
            delta = _get(choice, "delta")
            for call in _listed(_get(delta, "tool_calls")):
                found |= texts([_get(_get(call, "function"), "name"), _get(_get(call, "custom"), "name")])
            found |= texts([_get(_get(delta, "function_call"), "name")])
    return found


def shown_by_openai_responses(raw: bytes) -> set[Any]:
    """The names of the calls that OpenAI's SDK shows of a Responses stream."""
    found = set()
    for payload in said_in(raw):
        if payload.get("error"):
            break
        one: Any = construct_type(type_=ResponseStreamEvent, value=payload)
        items = [_get(one, "item"), *_listed(_get(_get(one, "response"), "output"))]
        found |= texts(_get(item, "name") for item in items if _get(item, "type") == "function_call")
    return found


def shown_by_ollama(raw: bytes) -> set[Any]:
    """The names of the calls that Ollama's Python SDK shows, and those that its Go client reads."""
    found = set()
    for row in raw.split(b"\n"):
        if row[:1] != b"{":
            continue
        try:
            said = ollama.ChatResponse(**json.loads(row))
            found |= {call.function.name for call in said.message.tool_calls or ()}
        except (TypeError, ValueError, AttributeError):
            pass  # The SDK raises; Go may read the line all the same.
        found |= set(_go_names(json.loads(row, object_pairs_hook=_Pairs)))
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object whose members are all kept."""


def _go_names(line: Any) -> Iterator[str]:
    """The names of calls in a line, with the names of members in any case and all of several members."""
    for message in _go(line, "message"):
        for calls in _go(message, "tool_calls"):
            for call in _listed(calls):
                for function in _go(call, "function"):
                    yield from (name for name in _go(function, "name") if isinstance(name, str))


def _go(holder: Any, wanted: str) -> list[Any]:
    pairs = holder if isinstance(holder, _Pairs) else ()
    return [value for name, value in pairs if name.casefold() == wanted]


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) and not isinstance(value, _Pairs) else []


USE = {"type": "tool_use", "id": "toolu_1", "name": OURS, "input": {}}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": OURS, "arguments": "{}"}}
ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": OURS, "arguments": "{}"}
FUNCTION = {"name": OURS, "arguments": {}}


def messages(*events: Payload, content: Any = ()) -> list[Payload]:
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content)}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return [
        {"type": "message_start", "message": {**start, "usage": usage}},
        *events,
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage},
        {"type": "message_stop"},
    ]


def began(block: Payload, index: Any = 0, **more: Any) -> Payload:
    return {"type": "content_block_start", "index": index, "content_block": block, **more}


def piece(text: str, index: Any = 0) -> Payload:
    delta = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": index, "delta": delta}


def ended(index: Any = 0) -> Payload:
    return {"type": "content_block_stop", "index": index}


def chunks(*choices: Any, **more: Any) -> list[Payload]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", **more}
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    return [*({**head, "choices": one if isinstance(one, dict) else [*one]} for one in choices),
            {**head, "choices": [end]}]  # fmt: skip


def delta(**members: Any) -> list[Payload]:
    return [{"index": 0, "delta": members, "finish_reason": None}]


def response(*events: Payload, output: Any = ()) -> list[Payload]:
    whole = {"id": "resp_1", "object": "response", "model": "m", "status": "completed"}
    return [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
        *events,
        {"type": "response.completed", "response": {**whole, "output": list(output)}},
    ]


def item_event(kind: str, item: Payload, **more: Any) -> Payload:
    return {"type": f"response.output_item.{kind}", "output_index": 0, "item": item, **more}


def told(message: Any, **more: Any) -> list[Payload]:
    head = {"model": "m", "created_at": "2026-11-27T10:00:00Z"}
    last = {"role": "assistant", "content": ""}
    return [
        {**head, "message": message, "done": False, **more},
        {**head, "message": last, "done": True, "done_reason": "stop"},
    ]


class Dialect(NamedTuple):
    """How one dialect is read here and by its official SDK."""

    wire: Any
    write: Callable[[list[Payload]], bytes]
    shown: Callable[[bytes], set[Any]]
    plain: list[Payload]


DIALECTS: Mapping[str, Dialect] = {
    "anthropic": Dialect(
        AnthropicWire(),
        sse,
        shown_by_anthropic,
        messages(
            began({"type": "text", "text": "Hi"}), ended(), began(USE, 1), piece('{"a":1}', 1), ended(1)
        ),
    ),
    "chat": Dialect(
        ChatWire(), sse, shown_by_openai_chat, chunks(delta(content="Hi"), delta(tool_calls=[CALL]))
    ),
    "responses": Dialect(
        ResponsesWire(),
        sse,
        shown_by_openai_responses,
        response(item_event("added", ITEM), item_event("done", ITEM), output=[ITEM]),
    ),
    "ollama": Dialect(
        OllamaWire(),
        lines,
        shown_by_ollama,
        told({"role": "assistant", "content": "", "tool_calls": [{"function": FUNCTION}]}),
    ),
}


def read(dialect: Dialect, stream: bytes) -> tuple[bytes, set[str], Any]:
    """Read a stream; return the bytes let through, the names of the calls seen, and the reader's fault."""
    reader = dialect.wire.reader({OURS, THEIRS}, lambda name: name != THEIRS, 1000)
    frames = [*reader.feed(stream), *reader.close()]
    names = {event.name for frame in frames for event in frame.events if isinstance(event, ToolCallStarted)}
    return b"".join(frame.raw for frame in frames), names, reader.fault


@pytest.mark.parametrize("name", DIALECTS)
def test_the_plain_form_is_a_call_for_both(name: str) -> None:
    """The SDK and the reader both see the call in the usual stream of each dialect."""
    dialect = DIALECTS[name]
    stream = dialect.write(dialect.plain)
    passed, seen, fault = read(dialect, stream)
    assert (passed, seen, fault) == (stream, {OURS}, None)
    assert OURS in dialect.shown(passed)


VISIBLE = {**USE, "id": "toolu_2", "name": THEIRS}
OTHER_CALL = {**CALL, "function": {"name": THEIRS, "arguments": ""}}
ATTACKS: dict[str, tuple[str, bytes]] = {
    "a block in message_start": ("anthropic", sse(messages(content=[USE]))),
    **{
        f"index {index!r}": ("anthropic", sse(messages(began(USE, index), ended(index))))
        for index in (-1, "0", 0.0, None, True, [0])
    },
    "no index": ("anthropic", sse(messages({"type": "content_block_start", "content_block": USE}))),
    "a block that starts twice": ("anthropic", sse(messages(began(USE), began(USE), ended()))),
    "a call over an open call": ("anthropic", sse(messages(began(VISIBLE), began(USE), ended()))),
    "a block beside an error": ("anthropic", sse(messages(began(USE, error={"message": "x"})))),
    "a block in a delta": ("anthropic", sse(messages({**piece("{}"), "content_block": USE}))),
    "a call without a name": ("anthropic", sse(messages(began({**USE, "name": " "})))),
    "arguments before their block": ("anthropic", sse(messages(piece('{"a":1}'), began(USE)))),
    "arguments in a text": (
        "anthropic",
        sse(messages(began({"type": "text", "text": ""}), piece('{"a":1}'))),
    ),
    "arguments at a text index": ("anthropic", sse(messages(began(VISIBLE), piece("{}", "0")))),
    "a letter as an escape": (
        "anthropic",
        sse(messages(content=[USE])).replace(b'"tool_use", "id"', b'"tool_\\u0075se", "id"'),
    ),
    "message beside delta": (
        "chat",
        sse(chunks([{"index": 0, "delta": {"content": "a"}, "message": {"tool_calls": [CALL]}}])),
    ),
    "function_call beside tool_calls": (
        "chat",
        sse(chunks(delta(tool_calls=[OTHER_CALL], function_call={"name": OURS, "arguments": "{}"}))),
    ),
    "function_call beside no list": (
        "chat",
        sse(chunks(delta(tool_calls="x", function_call={"name": OURS, "arguments": "{}"}))),
    ),
    "function beside custom": (
        "chat",
        sse(chunks(delta(tool_calls=[{**CALL, "custom": {"name": THEIRS, "input": "x"}}]))),
    ),
    "a second name": (
        "chat",
        sse(chunks(delta(tool_calls=[{**OTHER_CALL, "function": {"name": THEIRS, "arguments": "{"}}]),
                   delta(tool_calls=[{"index": 0, "function": {"name": OURS}}]))),
    ),
    "choices that are no list": ("chat", sse(chunks({"0": delta(tool_calls=[CALL])[0]}))),
    "calls of a choice": ("chat", sse(chunks([{"index": 0, "delta": {}, "tool_calls": [CALL]}]))),
    "calls at the top": ("chat", sse(chunks(delta(content="a"), tool_calls=[CALL]))),
    "calls in other letters": ("chat", sse(chunks(delta(Tool_Calls=[CALL])))),
    "calls in mixed letters": ("chat", sse(chunks(delta(tool_cAlls=[CALL])))),
    "the later choice first": (
        "chat",
        sse(chunks([{"index": 1, "delta": {"tool_calls": [CALL]}}, *delta(content="a")])),
    ),
    "an item in another event": (
        "responses",
        sse(response({"type": "response.output_text.delta", "delta": "a", "item": ITEM})),
    ),
    "an item beside an error": ("responses", sse(response({"type": "x", "error": {"a": 1}, "item": ITEM}))),
    "an item in an item": (
        "responses",
        sse(response(item_event("done", {"type": "message", "id": "m", "content": [ITEM]}))),
    ),
    "another name at the end": (
        "responses",
        sse(response(item_event("added", {**ITEM, "name": THEIRS}), item_event("done", ITEM))),
    ),
    **{
        f"{key} for {exact}": (
            "ollama",
            lines(told({"tool_calls": [{"function": FUNCTION}]})).replace(
                f'"{exact}"'.encode(), f'"{key}"'.encode(), 1
            ),
        )
        for exact, key in [
            ("tool_calls", "Tool_Calls"),
            ("tool_calls", "TOOL_CALLS"),
            ("tool_calls", "tool_call\u017f"),
            ("tool_calls", "Tool\\u005fcalls"),
            ("message", "Message"),
            ("message", "me\\u017fsage"),
            ("function", "Function"),
            ("name", "NAME"),
            ("arguments", "Arguments"),
        ]
    },
    "calls twice": (
        "ollama",
        b'{"model":"m","message":{"role":"assistant","content":"","tool_calls":[{"function":'
        b'{"name":"core__time","arguments":{}}}],"tool_calls":null},"done":false}\n',
    ),
    "a message twice": (
        "ollama",
        b'{"model":"m","message":{"tool_calls":[{"function":{"name":"core__time","arguments":{}}}]},'
        b'"message":{"role":"assistant","content":"a"},"done":false}\n',
    ),
    "a name twice": (
        "ollama",
        b'{"model":"m","message":{"tool_calls":[{"function":{"name":"core__time","name":"mine",'
        b'"arguments":{}}}]},"done":false}\n',
    ),
    "calls beside the message": (
        "ollama", lines(told({"content": "a"}, tool_calls=[{"function": FUNCTION}])),
    ),
    "calls beside an error": ("ollama", lines(told({"content": "a"}, error="x", Tool_Calls=[FUNCTION]))),
    "calls that are no list": ("ollama", lines(told({"content": "", "tool_calls": {"function": FUNCTION}}))),
    "a call that has no name": ("ollama", lines(told({"tool_calls": [{"function": {"arguments": {}}}]}))),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_call_that_cannot_be_placed_does_not_pass(attack: str) -> None:
    """Rule W5: a call in an odd place or form ends the turn in an error, and its bytes go no further."""
    name, stream = ATTACKS[attack]
    passed, seen, fault = read(DIALECTS[name], stream)
    assert isinstance(fault, Unreadable)
    assert OURS.encode() not in passed or OURS in seen
    assert b'"partial_json"' not in passed
    assert OURS not in DIALECTS[name].shown(passed) - seen


@pytest.mark.parametrize("attack", [one for one, (name, _) in ATTACKS.items() if name == "ollama"])
def test_a_whole_reply_of_ollama_with_such_a_call_is_refused(attack: str) -> None:
    """Rule W5: the same holds for a reply that is no stream."""
    reader: Any = OllamaWire().reader({OURS, THEIRS}, lambda name: name != THEIRS, 1000)
    with pytest.raises(Unreadable):
        reader.read_reply(ATTACKS[attack][1].split(b"\n")[0])


REPLIES: dict[str, tuple[str, Payload]] = {
    "content that is no list": ("anthropic", {"content": {"0": USE}}),
    "a block in a message": ("anthropic", {"content": [], "message": {"content": [USE]}}),
    "delta beside message": (
        "chat",
        {"choices": [{"message": {"content": "a"}, "delta": {"tool_calls": [CALL]}}]},
    ),
    "function_call beside tool_calls": (
        "chat",
        {"choices": [{"message": {"tool_calls": [OTHER_CALL], "function_call": {"name": OURS}}}]},
    ),
    "calls in mixed letters": ("chat", {"choices": [{"message": {"content": "a", "tool_cAlls": [CALL]}}]}),
    "an item beside the output": ("responses", {"output": [], "item": ITEM}),
}


@pytest.mark.parametrize("case", REPLIES)
def test_a_whole_reply_with_a_call_elsewhere_is_refused(case: str) -> None:
    """Rule W5: a reply with a server's call where the reader does not look for one is an error."""
    name, payload = REPLIES[case]
    reader = DIALECTS[name].wire.reader({OURS, THEIRS}, lambda name: name != THEIRS, 1000)
    with pytest.raises(Unreadable):
        reader.read_reply(json.dumps({"id": "x", "model": "m", **payload}).encode())


FOREIGN = {**ITEM, "name": THEIRS}


@pytest.mark.parametrize(
    ("events", "output"),
    [
        ([], [ITEM]),
        ([item_event("done", ITEM)], []),
        ([item_event("added", FOREIGN), item_event("done", FOREIGN)], [FOREIGN, ITEM]),
        ([item_event("added", FOREIGN), item_event("done", FOREIGN)], [ITEM]),
    ],
    ids=["the last event alone", "done without added", "the id of another call", "in place of another call"],
)
def test_an_item_that_comes_late_is_a_call(events: list[Payload], output: list[Payload]) -> None:
    """Rule W5: an item is a call for the reader wherever in a Responses stream the SDK shows it first."""
    stream = sse(response(*events, output=output))
    passed, seen, fault = read(DIALECTS["responses"], stream)
    assert fault is None
    assert OURS in seen
    assert OURS in shown_by_openai_responses(passed)


def test_the_same_call_in_both_forms_is_one() -> None:
    """Rule W7: a gateway that writes a call as ``tool_calls`` and as ``function_call`` is understood."""
    both = sse(chunks(delta(tool_calls=[CALL], function_call={"name": OURS, "arguments": "{}"})))
    assert read(DIALECTS["chat"], both)[1:] == ({OURS}, None)


def test_words_about_calls_are_text() -> None:
    """Text that names the members of calls is no call, in any dialect."""
    word = 'The "tool_calls" and \\u0074ool_use of {"type":"tool_use","name":"core__time"}'
    texts = {
        "anthropic": messages(began({"type": "text", "text": word}), ended()),
        "chat": chunks(delta(content=word)),
        "responses": response({"type": "response.output_text.delta", "delta": word}),
        "ollama": told({"role": "assistant", "content": word}),
    }
    for name, payloads in texts.items():
        stream = DIALECTS[name].write(payloads)
        assert read(DIALECTS[name], stream) == (stream, set(), None)


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1, 0.0, "0", "", [], {}, OURS, THEIRS, "tool_use", "function_call"]
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON value, itself left out."""
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in members:
        yield (*at, key)
        yield from places(inner, (*at, key))


def value_at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@st.composite
def mutated(draw: st.DrawFn, plain: list[Payload]) -> list[Payload]:
    """A stream in which values were moved, copied, replaced, renamed or taken out."""
    said: list[Any] = copy.deepcopy(plain)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["set", "copy", "rename", "drop", "repeat", "swap"]))
        if kind == "repeat":
            said.insert(draw(st.integers(0, len(said))), copy.deepcopy(draw(st.sampled_from(said))))
            continue
        path = draw(st.sampled_from([one for one in places(said) if len(one) > 1]))
        holder, key = value_at(said, path[:-1]), path[-1]
        if kind == "set":
            holder[key] = draw(ODD)
        elif kind == "copy":
            source = draw(st.sampled_from([one for one in places(said) if len(one) > 1]))
            holder[key] = copy.deepcopy(value_at(said, source))
        elif kind == "rename" and isinstance(holder, dict):
            new = draw(st.sampled_from([key.upper(), key.title(), "message", "delta", "item", "error", "x"]))
            holder[new] = holder.pop(key)
        elif kind == "drop":
            del holder[key]
        else:
            first, second = draw(st.integers(0, len(said) - 1)), draw(st.integers(0, len(said) - 1))
            said[first], said[second] = said[second], said[first]
    return said


# The SDKs' models warn of members whose values have another type.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@given(name=st.sampled_from(sorted(DIALECTS)), data=st.data())
def test_no_shape_shows_a_call_that_the_reader_did_not_see(name: str, data: st.DataObject) -> None:
    """Rule W5: however a stream is mutated, a server's call that the SDK shows was seen by the reader."""
    dialect = DIALECTS[name]
    stream = dialect.write(data.draw(mutated(dialect.plain)))
    passed, seen, _ = read(dialect, stream)
    if OURS not in seen:
        assert OURS not in dialect.shown(passed)
        if name == "ollama":
            assert OURS not in {str(one).casefold() for one in dialect.shown(passed)}
