"""Chat requests read as conversations, and conversations written as Chat requests."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from cases import each
from conversations import conversations, names, natives, objects, words
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import completion_create_params

from proxy.base.conversation import (
    ASPECTS,
    Conversation,
    Image,
    Inline,
    Message,
    Native,
    Reasoning,
    Remote,
    Text,
    ToolCallPart,
    ToolResultPart,
)
from proxy.base.errors import ModelMissing, RequestError
from proxy.wires.chat.crossing.fields import CHAT_FIELDS
from proxy.wires.chat.crossing.from_client import read_conversation
from proxy.wires.chat.wire import ChatWire
from proxy.wires.crossing.fitting import with_word_json
from proxy.wires.profile import EFFORTS, SAMPLING, Profile

ROOT = Path(__file__).resolve().parents[3]
EXACT = Profile(text_lists=True, sampling=SAMPLING, all_reasoning=True, efforts=EFFORTS, user_chars=1_000_000)
PLAIN = Profile()
PNG = "data:image/png;base64,iVBORw0KGgo="


def body_of(conversation: Conversation, profile: Profile = PLAIN, **options: Any) -> dict[str, Any]:
    found = json.loads(ChatWire.codec.write(conversation, profile, **options).body)
    assert isinstance(found, dict)
    return found


def asking(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


@given(
    conversations(
        kinds=("text", "image", "file", "audio", "reasoning"),
        sampling=(
            *("temperature", "top_p", "top_k", "min_p", "seed"),
            *("presence_penalty", "frequency_penalty", "logit_bias"),
        ),
        output=("max_tokens", "stops", "format", "verbosity", "choices", "logprobs", "top_logprobs"),
        bare_tools=True,
    )
)
def test_what_is_written_reads_as_the_same(conversation: Conversation) -> None:
    """A conversation that Chat can express is the same after it was written and read again."""
    if not conversation.service.store:
        conversation = replace(conversation, service=replace(conversation.service, metadata=None))
    conversation = with_word_json(conversation)
    written = ChatWire.codec.write(conversation, EXACT, strict=True)
    assert read_conversation(json.loads(written.body)) == conversation
    assert not written.left_out
    assert not written.renamed


REQUESTS = sorted(
    path
    for path in ROOT.glob("fixtures/*.chat/*/*/request*.json")
    if "messages" in json.loads(path.read_bytes())
)


@each("path", REQUESTS, lambda path: "/".join(path.parts[-4:]))
def test_recorded_requests_are_read(path: Path) -> None:
    """Recorded requests are read without unknown fields, and stay the same after writing and reading."""
    read = read_conversation(json.loads(path.read_bytes()))
    again = read_conversation(body_of(read, EXACT))
    assert read_conversation(body_of(again, EXACT)) == again
    assert not read.native


def test_every_field_of_the_sdk_has_a_rule() -> None:
    """Chat's table has a rule for every field that OpenAI's library can send."""
    fields = {
        name
        for kind in ("CompletionCreateParamsNonStreaming", "CompletionCreateParamsStreaming")
        for name in get_type_hints(getattr(completion_create_params, kind))
    }
    assert fields - CHAT_FIELDS.read.keys() == set()


def test_every_aspect_has_a_rule() -> None:
    """Chat's tables have a rule for every aspect, and a reason for each that is not translated."""
    assert CHAT_FIELDS.written.keys() == set(ASPECTS)
    for table in (CHAT_FIELDS.read, CHAT_FIELDS.written):
        assert all(rule.reason for rule in table.values() if rule.handling != "translated")
    assert {to for rule in CHAT_FIELDS.read.values() for to in rule.to} <= set(ASPECTS)


@given(st.dictionaries(words.filter(lambda name: name not in CHAT_FIELDS.read), objects, min_size=1))
def test_unknown_fields_stay_with_the_dialect(fields: dict[str, Any]) -> None:
    """An unknown field is kept for Chat, and marked to be refused by every other dialect."""
    conversation = read_conversation({**asking(), **fields})
    assert {native.path: native.loss for native in conversation.native} == dict.fromkeys(fields, "refused")
    assert {name: value for name, value in body_of(conversation).items() if name in fields} == fields


OBJECTS: list[tuple[str, dict[str, Any]]] = [
    ("messages[0]", {"role": "user", "content": "a"}),
    ("messages[0].content[0]", {"type": "text", "text": "a"}),
    ("messages[0].content[0]", {"type": "image_url", "image_url": {"url": PNG}}),
    ("messages[0].content[0].image_url", {"url": PNG}),
    ("messages[0].content[0].file", {"file_id": "f"}),
    ("messages[0].content[0].input_audio", {"data": "AA==", "format": "wav"}),
    (
        "messages[0].tool_calls[0]",
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}},
    ),
    ("messages[0].tool_calls[0].function", {"name": "f", "arguments": "{}"}),
    ("tools[0]", {"type": "function", "function": {"name": "f"}}),
    ("tools[0].function", {"name": "f"}),
    ("tools[0].custom.format.grammar", {"syntax": "lark", "definition": "a"}),
    ("response_format", {"type": "json_object"}),
    ("response_format.json_schema", {"name": "a", "schema": {}}),
    ("stream_options", {"include_usage": True}),
]


def holding(path: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return a request that has an object at a path."""
    types = {"image_url", "file", "input_audio", "function", "custom", "json_schema", "grammar"}
    found: Any = value
    for step in reversed(path.split(".")):
        name, _, listed = step.partition("[")
        found = {name: [found] if listed else found}
        if name in types:
            found["type"] = name
        if name in ("content", "tool_calls"):
            found["role"] = "assistant" if name == "tool_calls" else "user"
    return {**asking(), "stream": True, **found}


@given(st.sampled_from(OBJECTS), names.map("x_".__add__), objects)
def test_nothing_inside_is_dropped(
    place: tuple[str, dict[str, Any]], name: str, value: dict[str, Any]
) -> None:
    """The proxy finds an unknown field at any place, and writes it there again for Chat."""
    path, known = place
    request = holding(path, {**known, name: value})
    conversation = read_conversation(request)
    lost = [native for native in natives(conversation) if native.loss == "refused"]
    assert [(native.path, json.loads(native.value)) for native in lost] == [(f"{path}.{name}", value)]
    assert json.dumps({name: value}).strip("{}") in json.dumps(body_of(conversation, EXACT))


def test_what_other_dialects_say_is_refused_or_reported() -> None:
    """Unneeded fields are dropped silently, omitted ones are reported, all others are refused."""

    def native(loss: Any) -> Conversation:
        native = Native("other", ("field",), "messages[3].field", b"1", loss, "Because.")
        return Conversation("m", (Message("user", native=(native,)),))

    assert ChatWire.codec.write(native("unneeded"), strict=True).left_out == ()
    written = ChatWire.codec.write(native("omitted"))
    assert [(left.field, left.reason) for left in written.left_out] == [("messages[].field", "Because.")]
    assert json.loads(written.body)["messages"] == [{"role": "user", "content": ""}]
    for loss, strict in (("refused", False), ("omitted", True)):
        with pytest.raises(RequestError, match=r"messages\[3\]\.field: .* speaks chat .* Because") as refusal:
            ChatWire.codec.write(native(loss), strict=strict)
        assert (refusal.value.status, refusal.value.param) == (400, "messages[3].field")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (asking(temperature="hot"), "temperature"),
        (asking(n=1.5), "n"),
        (asking(stream="yes"), "stream"),
        (asking(stop=[1]), "stop"),
        (asking(tools={}), "tools"),
        (asking(tools=[1]), "tools[0]"),
        (asking(max_tokens=1, max_completion_tokens=2), "max_tokens"),
        (asking({"role": "robot", "content": ""}), "messages[0].role"),
        (asking({"role": "user", "content": 1}), "messages[0].content"),
        (asking({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0].image_url"),
        (asking({"role": "user", "content": [{"type": "file", "file": {}}]}), "messages[0].content[0].file"),
        (asking({"role": "assistant", "tool_calls": [{}]}), "messages[0].tool_calls[0].function"),
        ({"model": "m"}, "messages"),
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
        read_conversation({"messages": []})


def test_old_function_calls_are_calls() -> None:
    """A legacy function call gets an id, and its result gets the same id."""
    read = read_conversation(
        asking(
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "1"},
            functions=[{"name": "f", "parameters": {"type": "object"}}],
            function_call={"name": "f"},
        )
    )
    assert read.messages[0].parts == (ToolCallPart("call_0", "f", "{}"),)
    assert read.messages[1].parts == (ToolResultPart("call_0", (Text("1"),), name="f"),)
    assert body_of(read)["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body_of(read)["tools"][0]["function"]["name"] == "f"


def test_results_become_text() -> None:
    """A failed result begins with ``Error:``; an image becomes a note, or a user message if allowed."""
    image = Image(Inline("image/png", "AAAA"), at="input[3].output[1]")
    results = (
        ToolResultPart("c1", (Text("no"), image), is_error=True),
        ToolResultPart("c2", (Text("Error: x"),)),
    )
    conversation = Conversation("m", (Message("tool", results),))
    written = ChatWire.codec.write(conversation, Profile(result_images=False))
    first, second = json.loads(written.body)["messages"]
    assert first["content"].startswith("Error: no\n[toolrelay: an image (image/png, 3 bytes) was left out")
    assert second["content"] == "Error: x"
    assert [left.field for left in written.left_out] == ["input[].output[]"]
    shown = body_of(conversation, PLAIN)["messages"]
    assert [message["role"] for message in shown] == ["tool", "tool", "user"]
    assert shown[0]["content"] == "Error: no"
    assert shown[2]["content"][1]["image_url"] == {"url": "data:image/png;base64,AAAA"}


THOUGHT = Reasoning(summary=("a", "b"), at="input[0]")
CALLED = (
    Message("assistant", (ToolCallPart("c1", "f", "{}"),)),
    Message("tool", (ToolResultPart("c1", (Text("x"),)),)),
)


@pytest.mark.parametrize(
    ("messages", "goes"),
    [
        ((Message("assistant", (THOUGHT, Text("c"))),), False),
        ((Message("assistant", (THOUGHT, ToolCallPart("c0", "f", "{}"))), *CALLED[1:]), True),
        ((*CALLED, Message("assistant", (THOUGHT, Text("c")))), True),
        ((Message("assistant", (THOUGHT, Text("c"))), *CALLED), True),
        ((Message("assistant", (THOUGHT, Text("c"))), Message("user", (Text("and"),)), *CALLED), False),
        ((*CALLED, Message("user", (Text("and"),)), Message("assistant", (THOUGHT, Text("c")))), False),
    ],
)
def test_reasoning_goes_back_with_calls(messages: tuple[Message, ...], goes: bool) -> None:
    """Reasoning of a loop with calls is sent under the upstream's name for it, until a user message."""
    conversation = Conversation("m", messages)
    written = ChatWire.codec.write(conversation, Profile(reasoning_field="thoughts"))
    said = [one.get("thoughts") for one in json.loads(written.body)["messages"]]
    assert said.count("a\n\nb") == goes
    assert [left.field for left in written.left_out] == ([] if goes else ["input[]"])
    if not goes:
        with pytest.raises(RequestError):
            ChatWire.codec.write(conversation, strict=True)


@pytest.mark.parametrize("mark", ["signature", "encrypted", "redacted"])
def test_another_providers_reasoning_stays_away(mark: str) -> None:
    """Reasoning that a provider signed, encrypted or redacted is not sent to another one."""
    made: dict[str, Any] = {"text": "a", "at": "messages[1]", mark: "x"}
    thought = Reasoning(**made)
    conversation = Conversation(
        "m", (Message("assistant", (thought, ToolCallPart("c1", "f", "{}"))), CALLED[1])
    )
    written = ChatWire.codec.write(conversation)
    assert b'"a"' not in written.body
    assert [left.field for left in written.left_out] == ["messages[]"]


def test_ids_and_names_are_made_to_fit() -> None:
    """A long id is shortened alike in call and result; an invalid name is replaced and can be mapped back."""
    call = ToolCallPart("i" * 64, "a.b", "")
    messages = (Message("assistant", (call,)), Message("tool", (ToolResultPart("i" * 64, ()),)))
    written = ChatWire.codec.write(Conversation("m", messages))
    said, result = json.loads(written.body)["messages"]
    made = said["tool_calls"][0]
    assert made["id"] == result["tool_call_id"]
    assert len(made["id"]) == 40 - 3
    assert made["function"]["arguments"] == "{}"
    assert written.renamed == {made["function"]["name"]: "a.b"}


def test_an_id_that_only_a_gateway_makes_goes_back_whole() -> None:
    """An id that is longer than any provider's stays as it is, since a gateway keeps data in it."""
    call = ToolCallPart("i" * 65, "a", "")
    messages = (Message("assistant", (call,)), Message("tool", (ToolResultPart("i" * 65, ()),)))
    said, result = json.loads(ChatWire.codec.write(Conversation("m", messages)).body)["messages"]
    assert said["tool_calls"][0]["id"] == result["tool_call_id"] == "i" * 65


def test_values_that_ask_for_nothing_are_no_loss() -> None:
    """A field with its default value is not lost for a dialect that lacks it."""
    codec = ChatWire.codec
    read = codec.read(asking(n=1, modalities=["text"], logprobs=False, response_format={"type": "text"}))
    assert not read.native
    assert codec.write(read, strict=True).left_out == ()
    sound = read_conversation(asking(modalities=["text", "audio"]))
    assert [native.path for native in sound.native] == ["modalities"]


def test_a_value_in_an_unknown_form_stays_with_chat() -> None:
    """A choice, format, part or tool of an unknown form is kept for Chat only."""
    for asked in (
        {"tool_choice": "some"},
        {"tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}},
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp"}]},
            }
        },
        {"response_format": {"type": "grammar", "grammar": "a"}},
        {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "v"}}]}]},
        {"tools": [{"type": "web_search", "filters": {}}]},
    ):
        request = {**asking(), **asked}
        read = read_conversation(request)
        assert {native.loss for native in natives(read)} == {"refused"}
        assert body_of(read).items() >= asked.items()


def test_an_image_may_be_a_bare_address() -> None:
    """An image may have a bare URL instead of an object, as some clients send it."""
    read = read_conversation(
        asking({"role": "user", "content": [{"type": "image_url", "image_url": "https://a.example/b.png"}]})
    )
    assert read.messages[0].parts == (Image(Remote("https://a.example/b.png")),)


@pytest.mark.parametrize(
    ("most", "call_id", "written"),
    [
        (0, "call_" + "x" * 90, "call_" + "x" * 90),
        (40, "call_" + "x" * 90, None),
        (40, "call_1", "call_1"),
        (9, "call_1", None),
        (9, "aB3dE6gH9", "aB3dE6gH9"),
        (9, "aB3dE6gH9\n", None),
    ],
)
def test_ids_of_calls_fit_the_provider(most: int, call_id: str, written: str | None) -> None:
    """OpenAI takes 40 characters, Mistral exactly nine; a gateway's own id goes back as it came."""
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function",
                                              "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": call_id, "content": "1"},
    ]  # fmt: skip
    body = body_of(read_conversation({"model": "m", "messages": said}), Profile(call_id_chars=most))
    (_, asked, result) = body["messages"]
    made = asked["tool_calls"][0]["id"]
    assert made == result["tool_call_id"]
    if written is None:
        assert made != call_id
        assert re.fullmatch("[A-Za-z0-9]{9}" if most == 9 else "[A-Za-z0-9_]{1,40}", made)
    else:
        assert made == written
