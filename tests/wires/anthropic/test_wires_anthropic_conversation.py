"""Messages requests read as conversations, and conversations written as Messages requests."""

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from anthropic.types import ContentBlockParam, ToolUnionParam, message_create_params
from conversations import names, natives, objects
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.conversation import (
    ASPECTS,
    Conversation,
    CustomTool,
    FunctionTool,
    Image,
    Inline,
    Message,
    Output,
    OutputFormat,
    Reasoning,
    ReasoningSettings,
    Sampling,
    Service,
    Text,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.base.errors import ModelMissing, RequestError
from proxy.wires.anthropic.crossing.fields import ANTHROPIC_FIELDS
from proxy.wires.anthropic.crossing.from_client import read_conversation
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.wire import ResponsesWire

ROOT = Path(__file__).resolve().parents[3]
REQUESTS = sorted((ROOT / "fixtures" / "llamacpp.anthropic").rglob("*request*.json"))
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
HELLO = (Message("user", (Text("hi"),)),)


def body_of(conversation: Conversation, **options: Any) -> dict[str, Any]:
    """Return the body that is written for a conversation."""
    found = json.loads(AnthropicWire.codec.write(conversation, **options).body)
    assert isinstance(found, dict)
    return found


def asking(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a request with these messages."""
    return {"model": "m", "max_tokens": 100, "messages": list(messages), **fields}


def user(*content: Any) -> dict[str, Any]:
    """Return a message of a user."""
    return {"role": "user", "content": list(content)}


def words(text: str) -> dict[str, Any]:
    """Return a block of text."""
    return {"type": "text", "text": text}


WHOLE = asking(
    user(words("What is this?"), {"type": "image", "source": PNG}),
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
            words("Let me look."),
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "it"}},
        ],
    },
    user({"type": "tool_result", "tool_use_id": "toolu_1", "content": [words("a cat")]}, words("Well?")),
    system=[words("Be brief.")],
    tools=[{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}],
    tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    stop_sequences=["END"],
    temperature=0.5,
    top_p=0.9,
    top_k=5,
    output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    metadata={"user_id": "u1"},
    stream=True,
)


def test_what_is_read_is_written_as_the_same() -> None:
    """A request that is read and written again stays the same, and no field is left out."""
    read = read_conversation(WHOLE)
    written = AnthropicWire.codec.write(read, strict=True)
    assert json.loads(written.body) == WHOLE
    assert not written.left_out
    assert read_conversation(json.loads(written.body)) == read


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_recorded_requests_are_read(path: Path) -> None:
    """Recorded requests keep their messages and tools after reading and writing."""
    payload = json.loads(path.read_bytes())
    payload = payload.get("body", payload)
    if "messages" not in payload:
        pytest.skip("no request of messages")
    read = read_conversation(payload)
    again = read_conversation(body_of(read))
    assert [(m.role, m.parts) for m in again.messages] == [(m.role, m.parts) for m in read.messages]
    assert again.tools == read.tools


def test_a_reference_to_a_tool_is_text() -> None:
    """A model that knows no references reads which tool a client's own search has loaded."""
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "tool_reference", "tool_name": "f"}],
    }
    use = {"type": "tool_use", "id": "t", "name": "find", "input": {}}
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]}]  # fmt: skip
    read = read_conversation({**asking(), "messages": said})
    assert not natives(read)
    (part,) = read.messages[-1].parts
    assert isinstance(part, ToolResultPart)
    assert part.parts == (Text("The tool f can be called now."),)


def test_every_field_of_the_sdk_has_a_rule() -> None:
    """The table has a rule for every field that Anthropic's library can send."""
    fields = get_type_hints(message_create_params.MessageCreateParamsBase).keys() | {"stream"}
    assert fields - ANTHROPIC_FIELDS.read.keys() == set()


def types_of(params: object) -> set[str]:
    """Return the values that ``type`` can have in a union of typed dictionaries."""
    found: set[str] = set()
    for kind in getattr(params, "__args__", ()):
        annotation = get_type_hints(kind).get("type")
        for value in getattr(annotation, "__args__", ()):
            found |= {value} if isinstance(value, str) else set(getattr(value, "__args__", ()))
    return found


FORMS = {
    "text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result",
}  # fmt: skip


def test_every_block_and_tool_of_the_sdk_has_a_rule_or_a_form() -> None:
    """The proxy knows every type of block and tool in Anthropic's library."""
    blocks = [("messages[0].content[0]", kind) for kind in types_of(ContentBlockParam) - FORMS]
    tools = [("tools[0]", kind) for kind in types_of(ToolUnionParam) - {"custom"}]
    assert len(tools) > 15
    for path, kind in (*blocks, *tools):
        native = ANTHROPIC_FIELDS.native({}, path, kind=kind)
        assert "does not know" not in native.reason, kind


def test_every_aspect_has_a_rule() -> None:
    """The tables have a rule for every aspect, and a reason for each that is not translated."""
    assert ANTHROPIC_FIELDS.written.keys() == set(ASPECTS)
    for table in (ANTHROPIC_FIELDS.read, ANTHROPIC_FIELDS.written):
        assert all(rule.reason for rule in table.values() if rule.handling != "translated")
    assert {to for rule in ANTHROPIC_FIELDS.read.values() for to in rule.to} <= set(ASPECTS)


OBJECTS: list[tuple[str, dict[str, Any]]] = [
    ("messages[0]", {"role": "user", "content": "a"}),
    ("messages[0].content[0]", {"type": "text", "text": "a"}),
    ("messages[0].content[0]", {"type": "image", "source": PNG}),
    ("tools[0]", {"name": "f", "input_schema": {"type": "object"}}),
    ("output_config", {"effort": "low"}),
    ("metadata", {"user_id": "a"}),
]


@given(st.sampled_from(OBJECTS), names.map("x_".__add__), objects)
def test_nothing_inside_is_dropped(
    place: tuple[str, dict[str, Any]], name: str, value: dict[str, Any]
) -> None:
    """The proxy finds an unknown field at any place, and another dialect refuses it by its path."""
    path, known = place
    found: Any = {**known, name: value}
    for step in reversed(path.split(".")):
        key, _, listed = step.partition("[")
        found = {key: [found] if listed else found}
        if key == "content":
            found["role"] = "user"
    conversation = read_conversation({**asking(), **found})
    lost = [native for native in natives(conversation) if native.loss == "refused"]
    assert [(native.path, json.loads(native.value)) for native in lost] == [(f"{path}.{name}", value)]
    with pytest.raises(RequestError) as refusal:
        ChatWire.codec.write(conversation)
    assert refusal.value.param == f"{path}.{name}"


def test_results_stand_behind_their_calls() -> None:
    """Results come first, one for each call; a missing result becomes an error."""
    calls = Message("assistant", (ToolCallPart("c:1", "f", '{"a": 1}'), ToolCallPart("c:2", "f", "no json")))
    results = Message("tool", (ToolResultPart("c:2", (Text("two"),), is_error=True),))
    before, after = Message("user", (Text("hi"),)), Message("user", (Text("so?"),))
    asked = Conversation("m", (before, calls, results, after))
    _, made, answered = body_of(asked)["messages"]
    ids = [block["id"] for block in made["content"]]
    assert [block["input"] for block in made["content"]] == [{"a": 1}, {"INVALID_JSON": "no json"}]
    assert all(name.replace("_", "").isalnum() for name in ids)
    assert [block["type"] for block in answered["content"]] == ["tool_result", "tool_result", "text"]
    assert [block["tool_use_id"] for block in answered["content"][:2]] == ids[::-1]
    assert [block["is_error"] for block in answered["content"][:2]] == [True, True]


def test_a_stray_result_is_what_the_user_says() -> None:
    """A result without a call becomes text of the user, since the API would refuse it."""
    results = Message("tool", (ToolResultPart("c1", (Text("two"),)),))
    (message,) = body_of(Conversation("m", (results,)))["messages"]
    assert message == user(words("two"))


def test_the_first_word_is_the_users_and_neighbours_are_one() -> None:
    """A user message comes first, neighbours are merged, and a later system message keeps its place."""
    said = (
        Message("assistant", (Text("Hello."),)),
        Message("user", (Text("hi"),)),
        Message("developer", (Text("Be brief."),)),
    )
    messages = body_of(Conversation("m", said))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[2]["content"] == [words("hi"), words("<system>Be brief.</system>")]


def test_a_bound_is_always_set() -> None:
    """The API requires a token limit, so the proxy sets the model's maximum if there is none."""
    for model, most in (
        ("m", 8192),
        ("claude-3-haiku-20240307", 4096),
        ("anthropic/claude-3-5-sonnet-latest", 8192),
        ("claude-opus-4-1-20250805", 32_000),
        ("claude-opus-4-5", 64_000),
        ("claude-opus-4-6", 128_000),
        ("claude-sonnet-4.6", 128_000),
        ("claude-opus-5-5", 128_000),
        ("anthropic.claude-opus-4-1-20250805-v1:0", 32_000),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", 64_000),
    ):
        assert body_of(Conversation(model, HELLO))["max_tokens"] == most
    assert body_of(Conversation("m", HELLO, output=Output(max_tokens=5)))["max_tokens"] == 5


def test_reasoning_goes_back_only_with_its_signature() -> None:
    """Reasoning without a signature is left out, because the API would refuse it."""
    thought = Message("assistant", (Reasoning("Hm."), Reasoning("So.", signature="s"), Text("Hello.")))
    asked = Conversation("m", (Message("user", (Text("hi"),)), thought, Message("user", (Text("so?"),))))
    written = AnthropicWire.codec.write(asked)
    blocks = json.loads(written.body)["messages"][1]["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert len(written.left_out) == 1


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (ToolChoice("auto"), {"type": "auto"}),
        (ToolChoice("required"), {"type": "any"}),
        (ToolChoice("none"), {"type": "none"}),
        (ToolChoice("named", ("f",)), {"type": "tool", "name": "f"}),
        (ToolChoice("allowed", ("f",), forced=True), {"type": "any"}),
    ],
)
def test_a_choice_of_tools(choice: ToolChoice, said: dict[str, Any]) -> None:
    """Each tool choice has its form; for an allowed list only these tools are offered."""
    tools = (FunctionTool("f"), FunctionTool("g"))
    body = body_of(Conversation("m", HELLO, tools=tools, tool_choice=choice))
    assert body["tool_choice"] == said
    assert [tool["name"] for tool in body["tools"]] == (["f"] if choice.kind == "allowed" else ["f", "g"])
    assert body["tools"][0]["input_schema"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        (
            "heat",
            Conversation(
                "m", HELLO, sampling=Sampling(temperature=1.5), names={"sampling.temperature": "heat"}
            ),
        ),
        ("sampling.presence_penalty", Conversation("m", HELLO, sampling=Sampling(presence_penalty=1))),
        ("output.choices", Conversation("m", HELLO, output=Output(choices=2))),
        ("output.format", Conversation("m", HELLO, output=Output(format=OutputFormat("json_object")))),
        ("tools[0]", Conversation("m", HELLO, tools=(CustomTool("f", at="tools[0]"),))),
        (
            "tools[0]",
            Conversation(
                "m", HELLO, tools=(FunctionTool("f", parameters={"type": "string"}, at="tools[0]"),)
            ),
        ),
        (
            "messages[1]",
            Conversation(
                "m", (Message("user", (Text("a"),)), Message("assistant", (Text("b"),), at="messages[1]"))
            ),
        ),
    ],
)
def test_what_messages_cannot_say_is_refused(field: str, asked: Conversation) -> None:
    """Rule E1: a conversation that Messages cannot express is refused with a 400 that names the field."""
    with pytest.raises(RequestError) as refusal:
        AnthropicWire.codec.write(asked)
    found = refusal.value
    assert (found.status, found.code, found.param) == (400, "not_translatable", field)
    assert found.message.startswith(f"{field}: ")


def test_what_is_left_out_is_reported() -> None:
    """The proxy reports fields that it leaves out, or refuses them in strict mode."""
    asked = Conversation("m", HELLO, sampling=Sampling(seed=7), service=Service(cache_key="k"))
    left_out = {left.field for left in AnthropicWire.codec.write(asked).left_out}
    assert left_out == {"sampling.seed", "service.cache_key"}
    with pytest.raises(RequestError):
        AnthropicWire.codec.write(asked, strict=True)


@pytest.mark.parametrize(
    ("effort", "fields"),
    [
        ("none", {"thinking": {"type": "disabled"}}),
        ("minimal", {"output_config": {"effort": "low"}}),
        ("high", {"output_config": {"effort": "high"}}),
    ],
)
def test_efforts(effort: str, fields: dict[str, Any]) -> None:
    """Each effort becomes a thinking setting or an ``effort`` of Messages."""
    body = body_of(Conversation("m", HELLO, reasoning=ReasoningSettings(effort)))
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == fields


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        ({"type": "disabled"}, "none"),
        ({"type": "enabled", "budget_tokens": 2000}, "low"),
        ({"type": "enabled", "budget_tokens": 9000}, "medium"),
        ({"type": "enabled", "budget_tokens": 30000}, "high"),
        ({"type": "adaptive"}, None),
    ],
)
def test_budgets_of_thought(thinking: dict[str, Any], effort: str | None) -> None:
    """A thinking budget in tokens becomes an effort, which other dialects know."""
    assert read_conversation(asking(thinking=thinking)).reasoning.effort == effort


@pytest.mark.parametrize("codec", [ChatWire.codec, ResponsesWire.codec], ids=["chat", "responses"])
def test_a_request_of_claude_code_crosses(codec: Any) -> None:
    """Only cache marks and context edits are left out of a request of Claude Code, and reported."""
    asked = asking(
        user({**words("hi"), "cache_control": {"type": "ephemeral"}}),
        {"role": "system", "content": "Later."},
        system=[{**words("You are."), "cache_control": {"type": "ephemeral"}}],
        tools=[
            {
                "name": "Bash",
                "description": "d",
                "input_schema": {"type": "object"},
                "eager_input_streaming": True,
            }
        ],
        thinking={"type": "adaptive"},
        context_management={"edits": []},
        output_config={"effort": "medium"},
        metadata={"user_id": "{}"},
        stream=True,
    )
    written = codec.write(read_conversation(asked))
    left = {one.field for one in written.left_out}
    assert left == {"messages[].content[].cache_control", "system[].cache_control", "context_management"}
    assert json.loads(written.body)["stream"] is True


def test_mistakes_are_named() -> None:
    """The error for an invalid field names its path."""
    for asked, param in (
        (asking({"role": "robot", "content": "a"}), "messages[0].role"),
        (asking({"role": "user", "content": 7}), "messages[0].content"),
        (asking(user({"type": "image", "source": {"type": "x"}})), "messages[0].content[0].source.type"),
        (asking(tool_choice={"type": "tool"}), "tool_choice.type"),
    ):
        with pytest.raises(RequestError) as refusal:
            AnthropicWire.codec.read(asked)
        assert refusal.value.param == param
    with pytest.raises(ModelMissing):
        AnthropicWire.codec.read({"messages": []})


def test_images_cross_to_chat() -> None:
    """An image becomes a data URL on Chat."""
    read = read_conversation(asking(user({"type": "image", "source": PNG})))
    assert read.messages[0].parts == (Image(Inline("image/png", PNG["data"])),)
    content = json.loads(ChatWire.codec.write(read).body)["messages"][0]["content"]
    assert content[0]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="


def test_a_forced_tool_may_be_one_of_the_proxys() -> None:
    """A forced choice is kept without client tools, because server tools are offered later."""
    forced = json.loads(
        AnthropicWire.codec.write(Conversation("m", HELLO, tool_choice=ToolChoice("required"))).body
    )
    assert forced["tool_choice"] == {"type": "any"}


def test_a_system_message_may_have_settings_alone() -> None:
    """A system message without content is valid, and its settings are reported."""
    codec = AnthropicWire.codec
    read = codec.read({"model": "m", "messages": [{"role": "system", "output_config": {"effort": "low"}}]})
    assert [native.path for native in natives(read)] == ["messages[0].output_config"]
    with pytest.raises(RequestError, match=r"messages\[0\].content"):
        codec.read({"model": "m", "messages": [{"role": "user"}]})
