"""Results that do not exist yet: a held turn keeps their holes, and no model gets a turn with one."""

from typing import Any

import orjson
import pytest
from responses_rig import continued

from proxy.base.conversation import Message, ToolCallPart
from proxy.base.events import ResultImage, ToolCall
from proxy.records.result_for_model import (
    Hole,
    ResultForModel,
    UnfilledHole,
    failure_text,
    fill_holes,
    holes_in,
    read_result,
    stored_result,
)
from proxy.relay.memory.hidden.old_marks import with_holes
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.upstream_port import BodyEditor, SuspendedCall
from proxy.wires.wire import Wire

WIRES: dict[str, Wire] = {
    "chat": ChatWire(),
    "anthropic": AnthropicWire(),
    "ollama": OllamaWire(),
    "responses": ResponsesWire(),
}
CALLS = [ToolCall(f"call_{number}", "core__buy", "{}", number) for number in (0, 1)]
TURN = Message("assistant", tuple(ToolCallPart(call.call_id, call.name, "{}") for call in CALLS))
MESSAGES = {id(wire): wire.write_turn(TURN) for wire in WIRES.values()}
"""Written once: some dialects make up ids."""
OLD_MARK = "toolrelay-waits-for:"
TEXTS = ["Bought.", "", failure_text("approval_denied", "No."), '{"waits_for":"appr_1"}', f"{OLD_MARK}appr_1"]
"""What fills a hole may be any text; the last two only look like holes."""


def editor_of(wire: Wire) -> BodyEditor:
    """An editor of a request that goes on after the notice at position 1."""
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "appr_1 waits"}]
    conversation = "input" if wire is WIRES["responses"] else "messages"
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 9,
        conversation: [*said, {"role": "user", "content": "Go."}],
    }
    return wire.editor(orjson.dumps(body), wire.parse(body))


def no_mask(name: str, arguments: str) -> str:
    return arguments


def held(wire: Wire, *results: bytes | ResultForModel) -> bytes:
    """A turn with the calls, as it is held with these results of theirs."""
    calls = [SuspendedCall(call.call_id, None, result) for call, result in zip(CALLS, results, strict=True)]
    return editor_of(wire).suspend(MESSAGES[id(wire)], calls, no_mask)


def sent(wire: Wire, payload: bytes) -> bytes:
    """What the model gets of a held turn."""
    editor = editor_of(wire)
    editor.restore(1, payload)
    return editor.render()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dialect", WIRES)
def test_a_filled_hole_is_like_any_result(dialect: str, text: str) -> None:
    """The model gets the same bytes whether a call waited or not."""
    wire = WIRES[dialect]
    first, second = (wire_result(wire, call, each) for call, each in zip(CALLS, (text, "there"), strict=True))
    payload = held(wire, ResultForModel(CALLS[0], ((None, Hole("appr_1")),)), second)
    assert holes_in(payload) == ["appr_1"]
    filled = fill_holes(payload, {"appr_1": text})
    assert holes_in(filled) == []
    assert sent(wire, filled) == sent(wire, held(wire, first, second))


def wire_result(wire: Wire, call: ToolCall, text: str) -> bytes:
    return editor_of(wire).result_message(call, text)


@pytest.mark.parametrize("dialect", WIRES)
def test_a_turn_with_a_hole_reaches_no_model(dialect: str) -> None:
    """A turn that still waits counts as put back, but a body with it cannot be written."""
    wire = WIRES[dialect]
    waits = [ResultForModel(call, ((None, Hole("appr_1")),)) for call in CALLS]
    editor = editor_of(wire)
    editor.restore(1, held(wire, *waits))
    assert editor.restored[0] == 1
    with pytest.raises(UnfilledHole, match="call_0 waits for appr_1"):
        editor.render()


def test_a_response_keeps_the_holes_of_the_one_before() -> None:
    """A response that only says that calls still wait can be continued, and its calls still wait."""
    wire = WIRES["responses"]
    waits = [ResultForModel(call, ((None, Hole(f"appr_{call.index}")),)) for call in CALLS]
    first, second = editor_of(wire), editor_of(wire)
    calls = [SuspendedCall(call.call_id, None, result) for call, result in zip(CALLS, waits, strict=True)]
    second.edit(resumed=continued(first, MESSAGES[id(wire)], calls, no_mask))
    empty = wire.write_turn(Message("assistant", ()))
    kept = continued(second, empty, (), no_mask)
    assert holes_in(kept) == ["appr_0", "appr_1"]
    assert holes_in(fill_holes(kept, {"appr_0": Hole("agent-appr_2")})) == ["agent-appr_2", "appr_1"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dialect", WIRES)
def test_marks_of_the_last_version_are_read(dialect: str, text: str) -> None:
    """A turn that an earlier version held with a mark goes on like one with a hole."""
    wire = WIRES[dialect]
    first, second = (wire_result(wire, call, each) for call, each in zip(CALLS, (text, "there"), strict=True))
    old = held(wire, wire_result(wire, CALLS[0], f"{OLD_MARK}appr_1"), second)
    payload = with_holes(old[:-1] + b',"waiting":"appr_1","untrusted":"x"}')
    assert holes_in(payload) == ["appr_1"]
    assert orjson.loads(payload)["untrusted"] == "x"
    assert sent(wire, fill_holes(payload, {"appr_1": text})) == sent(wire, held(wire, first, second))


@pytest.mark.parametrize("dialect", WIRES)
def test_marks_inside_a_wrapper_are_read(dialect: str) -> None:
    """The result of a wrapper call had marks in the JSON of its text."""
    wire = WIRES[dialect]
    inside = [
        {"recipient_name": "functions.a", "output": "x"},
        {"recipient_name": "functions.b", "output": ""},
    ]
    inside[1]["output"] = f"{OLD_MARK}appr_2"
    old = held(wire, *(wire_result(wire, call, orjson.dumps(inside).decode()) for call in CALLS))
    payload = with_holes(old[:-1] + b',"waiting":"appr_2"}')
    assert holes_in(payload) == ["appr_2"]
    inside[1]["output"] = "y"
    whole = held(wire, *(wire_result(wire, call, orjson.dumps(inside).decode()) for call in CALLS))
    assert sent(wire, fill_holes(payload, {"appr_2": "y"})) == sent(wire, whole)


@pytest.mark.parametrize("output", [[f"{OLD_MARK}appr_1"], {"waits_for": f"{OLD_MARK}appr_1"}, None, 7])
@pytest.mark.parametrize("dialect", WIRES)
def test_a_result_that_resembles_that_of_a_wrapper_is_a_text(dialect: str, output: Any) -> None:
    """A tool may write a list of outputs: unless all of them are texts, no wrapper call wrote it."""
    wire = WIRES[dialect]
    text = orjson.dumps([{"output": output}, {"output": f"{OLD_MARK}appr_1"}]).decode()
    waits = wire_result(wire, CALLS[1], f"{OLD_MARK}appr_1")
    old = held(wire, wire_result(wire, CALLS[0], text), waits)
    filled = fill_holes(with_holes(old[:-1] + b',"waiting":"appr_1"}'), {"appr_1": "Bought."})
    results = (wire_result(wire, call, each) for call, each in zip(CALLS, (text, "Bought."), strict=True))
    assert sent(wire, filled) == sent(wire, held(wire, *results))


@pytest.mark.parametrize("dialect", WIRES)
def test_a_text_that_looks_like_a_mark_is_a_text(dialect: str) -> None:
    """A tool may write what an old mark looks like: only what the turn itself lists was a mark."""
    wire = WIRES[dialect]
    old = held(wire, *(wire_result(wire, call, f"{OLD_MARK}appr_3") for call in CALLS))
    assert holes_in(with_holes(old[:-1] + b',"waiting":"appr_1"}')) == []
    assert sent(wire, with_holes(old)) == sent(wire, old)


def test_a_stored_result_comes_back_whole() -> None:
    """Names, images and a legacy call survive; the arguments do not, since they may be private."""
    call = ToolCall("c", "f", '{"secret":1}', 3, legacy=True)
    image = ResultImage("data:image/png;base64,AA==", "image/png", 1, "A")
    result = ResultForModel(call, (("a", "x"), ("b", Hole("appr_1"))), (image,))
    written = orjson.loads(orjson.dumps(stored_result(result)))
    assert b"secret" not in orjson.dumps(written)
    assert read_result(written) == ResultForModel(
        ToolCall("c", "f", "", 3, legacy=True), result.parts, result.images
    )
    assert read_result(stored_result(b"{}")) == b"{}"
