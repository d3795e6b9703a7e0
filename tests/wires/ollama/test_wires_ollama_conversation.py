"""Ollama's requests read as conversations, and conversations written as Ollama's requests."""

import json
from typing import Any

import pytest
from conversations import names, natives, objects
from hypothesis import given
from hypothesis import strategies as st
from ollama_script import assistant, call, tool, user

from proxy.base.conversation import (
    ASPECTS,
    Conversation,
    FunctionTool,
    Image,
    Inline,
    Message,
    Output,
    OutputFormat,
    Reasoning,
    ReasoningSettings,
    Remote,
    Sampling,
    Service,
    Text,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.base.errors import ModelMissing, RequestError
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.crossing.fields import OLLAMA_FIELDS
from proxy.wires.ollama.crossing.from_client import read_conversation
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.profile import EFFORTS, Profile
from proxy.wires.responses.wire import ResponsesWire

PNG = "iVBORw0KGgo="
CALL = "messages[0].tool_calls[0].function"
WHOLE: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        user("What is this?", images=[PNG]),
        assistant("Let me look.", call("look", {"at": "it"}, "call_1"), thinking="Hm."),
        {"role": "tool", "content": "a cat", "tool_call_id": "call_1", "tool_name": "look"},
        user("Well?"),
    ],
    "tools": [tool("look")],
    "stream": True,
    "think": "high",
    "options": {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "num_predict": 100,
                "presence_penalty": 0.5, "frequency_penalty": 0.25, "stop": ["END"]},
}  # fmt: skip


def body_of(conversation: Conversation, **options: Any) -> dict[str, Any]:
    """Return the body that is written for a conversation."""
    found = json.loads(OllamaWire.codec.write(conversation, **options).body)
    assert isinstance(found, dict)
    return found


def test_what_is_read_is_written_as_the_same() -> None:
    """A request that is read and written again stays the same, and no field is left out."""
    read = read_conversation(WHOLE)
    written = OllamaWire.codec.write(read, strict=True)
    assert json.loads(written.body) == WHOLE
    assert not written.left_out
    assert read_conversation(json.loads(written.body)) == read


_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
_image = st.just(Image(Inline("image/png", PNG)))
_user = st.builds(
    lambda text, images: Message("user", (Text(text), *images)), _text, st.lists(_image, max_size=2)
)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """A message of the model and the results of all its calls."""
    called = draw(st.lists(st.tuples(names, objects), max_size=3))
    calls = [
        ToolCallPart(f"call_{place}", name, json.dumps(given, separators=(",", ":"), ensure_ascii=False))
        for place, (name, given) in enumerate(called)
    ]
    thought = draw(st.lists(st.builds(Reasoning, _text), max_size=1))
    said = Message("assistant", (*thought, Text(draw(_text)), *calls))
    results = tuple(ToolResultPart(one.call_id, (Text(draw(_text)),), name=one.name) for one in calls)
    return [said, *([Message("tool", results)] if results else [])]


_conversations = st.builds(
    lambda system, first, rest, tools, sampling, output, effort, stream: Conversation(
        "m",
        (first, *(message for turn in rest for message in turn)),
        system=tuple(Message("system", (Text(text),)) for text in system),
        tools=tuple(FunctionTool(name, "d", schema, False) for name, schema in tools.items()),
        service=Service(store=False),
        sampling=sampling,
        output=output,
        reasoning=effort,
        stream=stream,
    ),
    st.lists(_text, max_size=2),
    _user,
    st.lists(turns(), max_size=2),
    st.dictionaries(names, st.just({"type": "object", "properties": {}}), max_size=2),
    st.builds(Sampling, temperature=st.none() | st.floats(0, 2), top_k=st.none() | st.integers(1, 50)),
    st.builds(
        Output, max_tokens=st.none() | st.integers(1, 9000), stops=st.lists(_text, max_size=2).map(tuple)
    ),
    st.sampled_from([ReasoningSettings(), ReasoningSettings("none"), ReasoningSettings("medium", "auto")]),
    st.booleans(),
)


@given(_conversations)
def test_a_conversation_is_the_same_once_it_was_written(conversation: Conversation) -> None:
    """A conversation that Ollama can express is the same after it was written and read again."""
    assert read_conversation(body_of(conversation)) == conversation


def test_every_aspect_has_a_rule() -> None:
    """Ollama's tables have a rule for every aspect, and a reason for each that is not translated."""
    assert OLLAMA_FIELDS.written.keys() == set(ASPECTS)
    for table in (OLLAMA_FIELDS.read, OLLAMA_FIELDS.written):
        assert all(rule.reason for rule in table.values() if rule.handling != "translated")
    assert {to for rule in OLLAMA_FIELDS.read.values() for to in rule.to} <= set(ASPECTS)


OBJECTS: list[tuple[str, dict[str, Any]]] = [
    ("messages[0]", {"role": "user", "content": "a"}),
    ("tools[0]", {"type": "function", "function": {"name": "f"}}),
    ("tools[0].function", {"name": "f"}),
    ("options", {}),
]


@given(st.sampled_from(OBJECTS), names.map("x_".__add__), objects)
def test_nothing_inside_is_dropped(
    place: tuple[str, dict[str, Any]], name: str, value: dict[str, Any]
) -> None:
    """The proxy finds an unknown field at any place; every other dialect leaves it out by its path, as
    Ollama's own server ignores it, and refuses it only in strict mode."""
    path, known = place
    found: Any = {**known, name: value}
    for step in reversed(path.split(".")):
        key, _, listed = step.partition("[")
        found = {key: [found] if listed else found}
    payload = {"model": "m", "messages": [user("a")], **found}
    lost = [native for native in natives(read_conversation(payload)) if native.loss == "omitted"]
    assert [(native.path, json.loads(native.value)) for native in lost] == [(f"{path}.{name}", value)]
    for codec in (ChatWire.codec, AnthropicWire.codec, ResponsesWire.codec):
        written = codec.write(read_conversation(payload))
        assert [one.field for one in written.left_out] == [f"{path}.{name}".replace("[0]", "[]")]
        with pytest.raises(RequestError) as refusal:
            codec.write(read_conversation(payload), strict=True)
        assert refusal.value.param == f"{path}.{name}"


@pytest.mark.parametrize("codec", [ChatWire.codec, AnthropicWire.codec, ResponsesWire.codec])
def test_what_real_clients_send_unasked_is_ignored(codec: Any) -> None:
    """Vercel's provider sends ``tool_choice``, others ``num_ctx`` at the top, which Ollama ignores."""
    more = {"tool_choice": "auto", "num_ctx": 8192, "user": "ann", "metadata": {"a": "b"}}
    messages = [{"role": "user", "content": "a", "id": "msg_1", "refusal": None, "name": "Ann"}]
    asked = {"model": "m", "messages": messages, "tools": [{**tool("look"), "strict": True}], **more}
    written = codec.write(read_conversation(asked))
    left = {*more, "messages[].id", "messages[].name", "tools[].strict"}
    assert {one.field for one in written.left_out} == left
    assert not {"tool_choice", "user", "metadata"} & json.loads(written.body).keys()


def test_a_responses_upstream_stores_nothing_and_holds_to_no_schema() -> None:
    """Ollama stores no answer and has no strict tools; Responses does both by default."""
    asked = {"model": "m", "messages": [user("a")], "tools": [tool("look")]}
    body = json.loads(ResponsesWire.codec.write(read_conversation(asked)).body)
    assert body["store"] is False
    assert [one["strict"] for one in body["tools"]] == [False]


@pytest.mark.parametrize("codec", [ChatWire.codec, AnthropicWire.codec, ResponsesWire.codec])
def test_what_only_ollama_can_say_is_left_out_by_its_name(codec: Any) -> None:
    """Other dialects report a left-out option that affects the answer, but not a machine setting."""
    options = {"num_ctx": 4096, "num_gpu": 1, "repeat_penalty": 1.1}
    asked = {"model": "m", "messages": [user("a")], "options": options, "keep_alive": "5m"}
    left = [one.field for one in codec.write(read_conversation(asked)).left_out]
    assert sorted(left) == ["options.num_ctx", "options.repeat_penalty"]


@pytest.mark.parametrize("codec", [ChatWire.codec, AnthropicWire.codec, ResponsesWire.codec])
@pytest.mark.parametrize("think", [True, False, "low"])
def test_think_is_not_left_out_where_the_effort_is_asked_for(codec: Any, think: Any) -> None:
    """In strict mode, every other dialect translates ``think`` for a model that takes every effort."""
    asked = read_conversation({"model": "m", "messages": [user("a")], "think": think})
    written = codec.write(asked, Profile(efforts=EFFORTS), strict=True)
    assert not written.left_out
    body = json.loads(written.body)
    assert {"reasoning_effort", "reasoning", "output_config", "thinking"} & body.keys()


def test_results_without_ids_find_their_calls() -> None:
    """A result without an id belongs to a call by name, else by order; calls get stable ids."""
    messages = [
        assistant("", call("f", {"a": 1}), call("g"), call("f", {"a": 1})),
        {"role": "tool", "tool_name": "g", "content": "g"},
        {"role": "tool", "content": "first"},
        {"role": "tool", "content": "second"},
        {"role": "tool", "content": "stray"},
    ]
    read = read_conversation({"model": "m", "messages": [user("a"), *messages]})
    _, made, results, stray = read.messages
    ids = [part.call_id for part in made.parts if isinstance(part, ToolCallPart)]
    assert len(set(ids)) == 3
    assert read == read_conversation({"model": "m", "messages": [user("a"), *messages]})
    found = [(part.call_id, part.parts) for part in results.parts if isinstance(part, ToolResultPart)]
    assert found == [(ids[0], (Text("first"),)), (ids[1], (Text("g"),)), (ids[2], (Text("second"),))]
    assert stray == Message("user", (Text("stray"),))


@pytest.mark.parametrize(
    ("conversation", "param"),
    [
        (Conversation("m", (Message("user", (Image(Remote("https://x.example/a.png"), at="x"),)),)), "x"),
        (
            Conversation(
                "m", (), tools=(FunctionTool("f"),), tool_choice=ToolChoice("required"),
                names={"tool_choice": "tool_choice"},
            ),
            "tool_choice",
        ),
        (
            Conversation(
                "m", (), tools=(FunctionTool("f"),), output=Output(format=OutputFormat("json_object")),
                names={"output.format": "response_format"},
            ),
            "response_format",
        ),
    ],
)  # fmt: skip
def test_what_ollama_cannot_be_asked_for_is_refused(conversation: Conversation, param: str) -> None:
    """The proxy refuses what Ollama cannot do, with the name of the client's own field."""
    with pytest.raises(RequestError) as refusal:
        OllamaWire.codec.write(conversation)
    assert (refusal.value.status, refusal.value.param) == (400, param)


def test_a_choice_of_none_sends_no_tools_and_a_list_only_those() -> None:
    """Ollama has no field for a tool choice, so the proxy sends only the tools that the choice allows."""
    tools = (FunctionTool("f"), FunctionTool("g"))
    assert "tools" not in body_of(Conversation("m", (), tools=tools, tool_choice=ToolChoice("none")))
    chosen = body_of(Conversation("m", (), tools=tools, tool_choice=ToolChoice("allowed", ("g",))))
    assert [one["function"]["name"] for one in chosen["tools"]] == ["g"]


@pytest.mark.parametrize(
    ("think", "reasoning", "again"),
    [
        (True, ReasoningSettings("medium", "auto"), "medium"),
        (False, ReasoningSettings("none"), False),
        ("max", ReasoningSettings("max", "auto"), "max"),
        (None, ReasoningSettings(), None),
    ],
)
def test_thinking_and_effort(think: Any, reasoning: ReasoningSettings, again: Any) -> None:
    """Each value of ``think`` is read as an effort, and the effort is written as ``think`` again."""
    read = read_conversation({"model": "m", "messages": [user("a")], "think": think})
    assert read.reasoning == reasoning
    assert body_of(read).get("think") == again


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        ({"messages": []}, "model"),
        ({"model": "m", "messages": [{"role": "odd"}]}, "messages[0].role"),
        ({"model": "m", "messages": [user("a", images=[1])]}, "messages[0].images[0]"),
        ({"model": "m", "messages": [{"role": "user", "content": [1]}]}, "messages[0].content"),
        ({"model": "m", "messages": [], "think": "odd"}, "think"),
        ({"model": "m", "messages": [], "format": 3}, "format"),
        (
            {"model": "m", "messages": [assistant("", {"function": {}})]},
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"model": "m", "messages": [assistant("", call("f", "{}"))]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_field_of_the_wrong_type_is_named(payload: dict[str, Any], param: str) -> None:
    """Rule E1: the error names the field that is missing or has a wrong value."""
    with pytest.raises((RequestError, ModelMissing)) as refusal:
        OllamaWire.codec.read(payload)
    assert refusal.value.param == param


def test_streams_unless_it_is_told_not_to() -> None:
    """Ollama streams by default, so the proxy writes ``stream: false`` for a request that does not stream."""
    assert read_conversation({"model": "m", "messages": []}).stream
    assert not read_conversation({"model": "m", "messages": [], "stream": False}).stream
    assert body_of(Conversation("m", ()))["stream"] is False
