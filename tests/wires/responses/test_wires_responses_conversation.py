"""Responses requests read as conversations, and conversations written as Responses requests."""

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from conversations import conversations, names, natives, objects, words
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import response_create_params

from proxy.base.conversation import (
    ASPECTS,
    Audio,
    Conversation,
    File,
    FunctionTool,
    Image,
    Inline,
    Message,
    NativePart,
    Output,
    Reasoning,
    ReasoningSettings,
    Remote,
    Sampling,
    Stored,
    Text,
    ToolCallPart,
    ToolResultPart,
)
from proxy.base.errors import ModelMissing, RequestError
from proxy.wires.chat.wire import ChatWire
from proxy.wires.profile import EFFORTS, Profile
from proxy.wires.responses.crossing.fields import RESPONSES_FIELDS
from proxy.wires.responses.crossing.from_client import read_conversation
from proxy.wires.responses.wire import ResponsesWire

ROOT = Path(__file__).resolve().parents[3]
EXACT = Profile(limit_field="max_completion_tokens", efforts=EFFORTS, user_chars=1_000_000, text_lists=True)
PNG = "data:image/png;base64,iVBORw0KGgo="


def body_of(conversation: Conversation, **options: Any) -> dict[str, Any]:
    found = json.loads(ResponsesWire.codec.write(conversation, **options).body)
    assert isinstance(found, dict)
    return found


def asking(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": list(items), **fields}


@given(conversations())
def test_what_is_written_reads_as_the_same(conversation: Conversation) -> None:
    """A conversation that Responses can express is the same after it was written and read again."""
    written = ResponsesWire.codec.write(conversation, EXACT, strict=True)
    assert read_conversation(json.loads(written.body)) == conversation
    assert not written.left_out


@given(conversations(kinds=("text", "file")))
def test_what_chat_says_crosses_to_responses_and_back(conversation: Conversation) -> None:
    """What both dialects can express stays the same when it goes from Chat to Responses and back."""
    chat, responses = ChatWire.codec, ResponsesWire.codec
    asked = chat.read(json.loads(chat.write(conversation, EXACT).body))
    crossed = responses.read(json.loads(responses.write(asked, EXACT, strict=True).body))
    assert crossed == asked
    assert chat.read(json.loads(chat.write(crossed, EXACT, strict=True).body)) == asked


REQUESTS = sorted(
    path for path in ROOT.glob("fixtures/*/*/*/request*.json") if "input" in json.loads(path.read_bytes())
)


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: "/".join(path.parts[-4:]))
def test_recorded_requests_are_read(path: Path) -> None:
    """Recorded requests keep messages, tools and native fields after reading and writing."""
    read = read_conversation(json.loads(path.read_bytes()))
    again = read_conversation(body_of(read))
    assert (again.messages, again.tools, again.native) == (read.messages, read.tools, read.native)


def test_every_field_of_the_sdk_has_a_rule() -> None:
    """The table has a rule for every field that OpenAI's library can send."""
    fields = {
        name
        for kind in ("ResponseCreateParamsNonStreaming", "ResponseCreateParamsStreaming")
        for name in get_type_hints(getattr(response_create_params, kind))
    }
    assert fields - RESPONSES_FIELDS.read.keys() == set()


def types_of(params: object) -> set[str]:
    """Return the values that ``type`` can have in a union of typed dictionaries."""
    found = set()
    for kind in getattr(params, "__args__", ()):
        annotation = get_type_hints(kind).get("type") if hasattr(kind, "__annotations__") else None
        for value in getattr(annotation, "__args__", ()):
            found |= {value} if isinstance(value, str) else set(getattr(value, "__args__", ()))
    return {value for value in found if isinstance(value, str)}


def test_every_item_and_tool_of_the_sdk_has_a_rule_or_a_form() -> None:
    """The proxy knows every type of item and tool in OpenAI's library."""
    from openai.types.responses.response_input_item_param import ResponseInputItemParam
    from openai.types.responses.tool_param import ToolParam

    items = {"message", "reasoning"} | {
        kind + end for kind in ("function_call", "custom_tool_call") for end in ("", "_output")
    }
    known = {f"input[type={kind}]" for kind in types_of(ResponseInputItemParam) - items}
    known |= {f"tools[type={kind}]" for kind in types_of(ToolParam) - {"function", "custom"}}
    assert len(known) > 30
    assert known - RESPONSES_FIELDS.read.keys() == set()


def test_every_aspect_has_a_rule() -> None:
    """The tables have a rule for every aspect, and a reason for each that is not translated."""
    assert RESPONSES_FIELDS.written.keys() == set(ASPECTS)
    for table in (RESPONSES_FIELDS.read, RESPONSES_FIELDS.written):
        assert all(rule.reason for rule in table.values() if rule.handling != "translated")
    assert {to for rule in RESPONSES_FIELDS.read.values() for to in rule.to} <= set(ASPECTS)


OBJECTS: list[tuple[str, dict[str, Any]]] = [
    ("input[0]", {"role": "user", "content": "a"}),
    ("input[0]", {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
    ("input[0]", {"type": "function_call_output", "call_id": "c", "output": "a"}),
    ("input[0]", {"type": "reasoning", "summary": [], "encrypted_content": "x"}),
    ("input[0].content[0]", {"type": "input_text", "text": "a"}),
    ("input[0].content[0]", {"type": "input_image", "image_url": PNG}),
    ("input[0].content[0]", {"type": "input_file", "file_id": "f"}),
    ("tools[0]", {"type": "function", "name": "f", "parameters": {}}),
    ("tools[0]", {"type": "custom", "name": "f"}),
    ("text", {"verbosity": "low"}),
    ("text.format", {"type": "json_schema", "name": "a", "schema": {}}),
    ("reasoning", {"effort": "low"}),
    ("stream_options", {"include_obfuscation": True}),
]


@given(st.sampled_from(OBJECTS), names.map("x_".__add__), objects)
def test_nothing_inside_is_dropped(
    place: tuple[str, dict[str, Any]], name: str, value: dict[str, Any]
) -> None:
    """The proxy finds an unknown field at any place, and writes it there again for Responses."""
    path, known = place
    found: Any = {**known, name: value}
    for step in reversed(path.split(".")):
        key, _, listed = step.partition("[")
        found = {key: [found] if listed else found}
        if key == "content":
            found["role"] = "user"
    conversation = read_conversation({**asking(), "stream": True, **found})
    lost = [native for native in natives(conversation) if native.loss == "refused"]
    assert [(native.path, json.loads(native.value)) for native in lost] == [(f"{path}.{name}", value)]
    assert json.dumps({name: value}).strip("{}") in json.dumps(body_of(conversation))


@given(st.dictionaries(words.filter(lambda name: name not in RESPONSES_FIELDS.read), objects, min_size=1))
def test_unknown_fields_stay_with_the_dialect(fields: dict[str, Any]) -> None:
    """An unknown field is written for Responses as it was read, and another dialect refuses it."""
    conversation = read_conversation({**asking(), **fields})
    assert {native.path: native.loss for native in conversation.native} == dict.fromkeys(fields, "refused")
    assert {name: value for name, value in body_of(conversation).items() if name in fields} == fields
    with pytest.raises(RequestError) as refusal:
        ChatWire.codec.write(conversation)
    assert refusal.value.param in fields


@pytest.mark.parametrize("kind", ["web_search_call", "shell_call", "item_reference", "x_search_call"])
def test_items_of_responses_alone_stay_with_it(kind: str) -> None:
    """An item that no other dialect has goes back unchanged."""
    item = {"type": kind, "id": "i", "deep": {"a": [1]}}
    read = read_conversation(asking(item))
    (part,) = read.messages[0].parts
    assert isinstance(part, NativePart)
    assert body_of(read)["input"] == [item]
    assert part.native[0].loss == ("omitted" if kind == "web_search_call" else "refused")


def test_what_a_model_made_of_a_turn_is_one_message() -> None:
    """Consecutive reasoning, texts and calls become one message, and their results the next."""
    read = read_conversation(
        asking(
            {"role": "user", "content": "q"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
                {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
            ]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "message", "id": "msg_2", "role": "assistant", "content": "b"},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "text", "text": "2"}]},
            {"role": "assistant", "content": "c"},
            {"role": "assistant", "content": "d"},
        )
    )  # fmt: skip
    assert [message.role for message in read.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "assistant",
    ]
    kinds = [type(part) for part in read.messages[1].parts]
    assert kinds == [Reasoning, Text, ToolCallPart, Text, ToolCallPart]
    assert read.messages[2].parts == (
        ToolResultPart("c1", (Text("1"),)),
        ToolResultPart("c2", (Text("2"),)),
    )
    ids = [item.get("id") for item in body_of(read)["input"]]
    assert ids == [None, "rs_1", "msg_1", "fc_1", None, None, None, None, None, None]
    said = json.loads(ChatWire.codec.write(read).body)["messages"][1]
    assert said["content"] == "ab"
    assert [call["id"] for call in said["tool_calls"]] == ["c1", "c2"]


def test_instructions_are_the_first_system_message() -> None:
    """Instructions are the first system message; a developer message does not become instructions."""
    read = read_conversation(asking({"role": "developer", "content": "b"}, instructions="a"))
    assert [(message.role, message.parts) for message in read.system] == [
        ("system", (Text("a"),)),
        ("developer", (Text("b"),)),
    ]
    assert body_of(read)["instructions"] == "a"
    assert body_of(read)["input"] == [{"role": "developer", "content": "b"}]
    only = Conversation("m", (), (Message("developer", (Text("b"),)),))
    assert "instructions" not in body_of(only)


def test_a_string_is_one_message() -> None:
    """A text as input is one user message."""
    assert read_conversation({"model": "m", "input": "hi"}).messages == (Message("user", (Text("hi"),)),)
    assert read_conversation({"model": "m"}).messages == ()


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (Conversation("m", (), output=Output(stops=("a",)), names={"output.stops": "stop"}), "stop"),
        (Conversation("m", (), output=Output(choices=2), names={"output.choices": "n"}), "n"),
        (Conversation("m", (), sampling=Sampling(presence_penalty=1)), "sampling.presence_penalty"),
        (Conversation("m", (Message("user", (Audio("", "wav", at="messages[0]"),)),)), "messages[0]"),
        (Conversation("m", (Message("user", (Image(Stored("f", "else"), at="x"),)),)), "x"),
        (Conversation("m", (Message("user", (File(Stored("f", "else"), at="x"),)),)), "x"),
    ],
)
def test_what_responses_cannot_say_is_refused(asked: Conversation, param: str) -> None:
    """The refusal names the client's field, and the dialect of the upstream."""
    with pytest.raises(RequestError, match="responses") as refusal:
        ResponsesWire.codec.write(asked)
    assert (refusal.value.status, refusal.value.param, refusal.value.code) == (400, param, "not_translatable")


def test_what_is_left_out_is_reported() -> None:
    """Fields that the answer does not need are left out and reported, or refused in strict mode."""
    names_ = {"sampling.seed": "seed"}
    thought = Message("assistant", (Reasoning("a", at="messages[0].reasoning_content"), Text("b")))
    asked = Conversation("m", (thought, thought), sampling=Sampling(seed=1), names=names_)
    written = ResponsesWire.codec.write(asked)
    assert [left.field for left in written.left_out] == ["seed", "messages[].reasoning_content"]
    assert json.loads(written.body)["input"] == [{"role": "assistant", "content": "b"}] * 2
    with pytest.raises(RequestError) as refusal:
        ResponsesWire.codec.write(asked, strict=True)
    assert refusal.value.param == "seed"


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (asking(temperature="hot"), "temperature"),
        (asking(truncation="some"), "truncation"),
        (asking(text={"verbosity": 1}), "text.verbosity"),
        (asking({"role": "tool", "content": ""}), "input[0].role"),
        (asking({"role": "user", "content": 1}), "input[0].content"),
        (asking({"role": "user", "content": [{"type": "input_image"}]}), "input[0].content[0].image_url"),
        (asking({"role": "user", "content": [{"type": "input_file"}]}), "input[0].content[0].file_data"),
        ({"model": "m", "input": 1}, "input"),
        ({"model": "m", "input": [1]}, "input[0]"),
    ],
)
def test_a_mistake_is_named(request_: dict[str, Any], param: str) -> None:
    """Rule E1: the error names a missing field, or one with a wrong value."""
    with pytest.raises(RequestError) as mistake:
        read_conversation(request_)
    assert (mistake.value.status, mistake.value.param) == (400, param)


def test_a_model_is_asked_for() -> None:
    """A request without a model is refused."""
    with pytest.raises(ModelMissing):
        read_conversation({"input": "hi"})


def test_results_keep_their_images_and_say_that_they_failed() -> None:
    """Results keep their images, and the text says that one failed, since there is no field for it."""
    image = Image(Inline("image/png", "AAAA"))
    results = (
        ToolResultPart("c1", (Text("no"), image), is_error=True),
        ToolResultPart("c2", (image,), is_error=True),
        ToolResultPart("c3", (Text('{"ok": false}'),), is_error=True),
    )
    first, second, third = body_of(Conversation("m", (Message("tool", results),)))["input"]
    assert [part.get("text") for part in first["output"]] == ["Error: no", None]
    assert first["output"][1] == {
        "type": "input_image",
        "detail": "auto",
        "image_url": "data:image/png;base64,AAAA",
    }
    assert second["output"][0]["text"].startswith("Error")
    assert third["output"] == '{"ok": false}'


def test_settings_have_their_own_names() -> None:
    """Nested settings and values of ``include`` are read and written, and reported if Chat lacks them."""
    asked = asking(
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        reasoning={"effort": "low", "generate_summary": "auto", "context": "auto"},
        text={"format": {"type": "text"}, "verbosity": "low"},
        truncation="auto",
        seed=3,
    )
    read = read_conversation(asked)
    assert read.output == Output(verbosity="low", logprobs=True)
    assert read.reasoning == ReasoningSettings("low", "auto")
    assert (read.truncate, read.sampling.seed) == (True, 3)
    assert {native.path for native in read.native} == {"include", "reasoning.context"}
    left_out = {left.field for left in ChatWire.codec.write(read).left_out}
    assert left_out == {"include", "reasoning.context", "reasoning.generate_summary", "truncation"}
    assert body_of(read)["include"] == asked["include"]


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    """A tool without parameters gets an empty object, which servers other than OpenAI's need."""
    tools = body_of(Conversation("m", (), tools=(FunctionTool("f"),)))["tools"]
    assert tools == [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]


def test_a_file_may_be_an_address() -> None:
    """A file may have a URL; Chat has no field for that and refuses it."""
    read = read_conversation(
        asking({"role": "user", "content": [{"type": "input_file", "file_url": "https://a.example/b.pdf"}]})
    )
    assert read.messages[0].parts == (File(Remote("https://a.example/b.pdf")),)
    assert body_of(read)["input"][0]["content"] == [
        {"type": "input_file", "file_url": "https://a.example/b.pdf"}
    ]
    with pytest.raises(RequestError) as refusal:
        ChatWire.codec.write(read)
    assert refusal.value.param == "input[0].content[0]"


def test_what_coding_agents_always_declare_is_left_out_by_name() -> None:
    """Tool groups and an offline search are left out and reported, but a web search is refused."""
    group = {"type": "namespace", "name": "n", "description": "d", "tools": []}
    search = {"type": "web_search", "external_web_access": False}
    asked = {"model": "m", "input": "hi", "client_metadata": {"id": "1"}, "tools": [group, search]}
    written = ChatWire.codec.write(read_conversation(asked))
    assert [left.field for left in written.left_out] == ["tools[]"]
    assert "tools" not in json.loads(written.body)
    live = read_conversation({**asked, "tools": [{"type": "web_search"}]})
    with pytest.raises(RequestError, match=r"tools\[0\]"):
        ChatWire.codec.write(live)
