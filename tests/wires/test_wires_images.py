"""Images in tool results on Chat and Responses: what is sent, what is kept, what is recorded."""

import base64
import json
from typing import Any

import pytest
from openai.types.responses.response_input_item_param import FunctionCallOutput
from pydantic import TypeAdapter
from responses_rig import continued
from responses_script import function_call, output, user

from proxy.base.events import ResultImage, ToolCall
from proxy.wires.chat.wire import ChatWire
from proxy.wires.responses.own_items.outputs import image_bytes, output_item, recorded_output, without_images
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.upstream_port import BodyEditor

DATA = b"\x89PNG\r\n\x1a\n-pixels"
ENCODED = base64.b64encode(DATA).decode()
IMAGE = ResultImage(f"data:image/png;base64,{ENCODED}", "image/png", len(DATA), "chart")
FAR = ResultImage("https://a.example/x.png", "", 0)
LABEL = '[toolrelay: image "chart" (image/png, 15 bytes)]'
LEFT_OUT = '[toolrelay: an image "chart" (image/png, 15 bytes) was left out; only text can be passed on]'
CALL = ToolCall("call_1", "core__x", "{}", 0)
ASK = {"model": "m", "input": [user("hi")]}
MODEL_TURN = json.dumps(
    {"id": "resp_1", "store": False, "output": [function_call("call_1", "core__x", "{}")]}
).encode()


def body_of(body: Any = None, state: Any = "stateless") -> BodyEditor:
    """Make an editor of the Responses wire."""
    wire = ResponsesWire()
    asked = body or ASK
    return wire.editor(json.dumps(asked).encode(), wire.parse(asked), state)


def output_of(editor: BodyEditor) -> Any:
    """Return the only tool result in the next request."""
    items = json.loads(editor.render())["input"]
    (found,) = [item["output"] for item in items if item.get("type") == "function_call_output"]
    return found


def big(size: int) -> ResultImage:
    """Return an image whose base64 text has ``size`` bytes."""
    return ResultImage("data:image/png;base64," + "A" * size, "image/png", size, "big")


@pytest.mark.parametrize("images", [(), (IMAGE,), (IMAGE, FAR)])
@pytest.mark.parametrize("content", ["", "text"])
def test_an_output_is_what_the_official_types_say(content: str, images: tuple[ResultImage, ...]) -> None:
    """An output is a string without images, else a list of official parts with a label before each image."""
    item = json.loads(output_item("call_1", content, images))
    TypeAdapter(FunctionCallOutput).validate_python(item)
    if not images:
        assert item["output"] == content
        return
    kinds = [part["type"] for part in item["output"]]
    assert kinds == [*(["input_text"] if content else []), *["input_text", "input_image"] * len(images)]
    assert {part["image_url"] for part in item["output"] if "image_url" in part} == {i.url for i in images}


def test_chat_has_words_for_images() -> None:
    """On Chat, a note replaces each image in a tool result, also in a legacy function's result."""
    raw = b'{"model":"m","messages":[]}'
    wire = ChatWire()
    editor = wire.editor(raw, wire.parse({"model": "m", "messages": []}))
    editor.edit(images_left_out=True)
    assert editor.edits.images_refused is False
    message = json.loads(editor.result_message(CALL, "text", (IMAGE, FAR)))
    assert message["content"].splitlines() == [
        "text",
        LEFT_OUT,
        "[toolrelay: an image (https://a.example/x.png) was left out; only text can be passed on]",
    ]
    legacy = ToolCall("", "core__x", "{}", 0, legacy=True)
    assert json.loads(editor.result_message(legacy, "", (IMAGE,)))["content"] == LEFT_OUT


def test_images_can_be_taken_out_again() -> None:
    """Notes can replace the images in the proxy's own output; the client's items stay unchanged."""
    ours = output_item("call_1", "text", (IMAGE,))
    item = json.loads(without_images(ours))
    assert item == {"type": "function_call_output", "call_id": "call_1", "output": f"text\n{LEFT_OUT}"}
    far = {"type": "input_image", "image_url": LABEL}
    theirs = [
        json.dumps(output("c", "plain")),
        json.dumps(output("c", LABEL)),
        json.dumps(output("c", [{"type": "input_image", "image_url": IMAGE.url}])),
        json.dumps(output("c", [{"type": "input_text", "text": LABEL}, {"type": "input_file"}])),
        json.dumps(output("c", [{"type": "input_text", "text": "a"}, far])),
        json.dumps({"role": "user", "content": [{"type": "input_text", "text": LABEL}]}),
    ]  # fmt: skip
    for raw in map(str.encode, theirs):
        assert without_images(raw) == raw
    assert image_bytes([ours, theirs[0].encode()]) == len(ours)


def test_the_record_says_what_an_image_was() -> None:
    """Rule R3: the record holds the image's type and size, or its URL, but never its data."""
    item = json.loads(output_item("call_1", "text", (IMAGE, FAR)))
    assert (
        recorded_output(item["output"]) == "text\n[image image/png 15 bytes]\n[image https://a.example/x.png]"
    )
    assert recorded_output("plain") == "plain"
    assert recorded_output([{"type": "other"}]) == '[{"type":"other"}]'
    editor = body_of()
    editor.append_turn(MODEL_TURN, [editor.result_message(CALL, "text", (IMAGE,))])
    rows = editor.records("run_1", lambda name, arguments: arguments)
    assert rows[-1].content == "text\n[image image/png 15 bytes]"
    assert ENCODED not in repr(rows)


@pytest.mark.parametrize("state", ["stateless", "chained"])
def test_a_refusal_leaves_images_out_once(state: str) -> None:
    """After a refusal the proxy replaces the images that it sent with notes; the next refusal is final."""
    editor = body_of(state=state)
    assert editor.recover("no", None) is False
    editor.append_turn(MODEL_TURN, [editor.result_message(CALL, "text", (IMAGE,))])
    assert output_of(editor)[-1]["image_url"] == IMAGE.url
    assert editor.recover("Input should be a valid string", None) is True
    assert editor.edits.images_refused
    assert output_of(editor) == f"text\n{LEFT_OUT}"
    assert editor.recover("Input should be a valid string", None) is False
    # From here on, notes replace all images.
    assert json.loads(editor.result_message(CALL, "more", (IMAGE,)))["output"] == f"more\n{LEFT_OUT}"


@pytest.mark.parametrize(
    ("message", "code", "refused"),
    [
        ("Invalid content type. image_url is only supported by certain models.", None, True),
        ("No endpoints found that support image input", None, True),
        ("1 validation error: Input should be a valid string", None, True),
        ("images are not supported in tool results", None, True),
        ("", None, False),
        ("The image data you provided does not represent a valid image.", "invalid_value", False),
        ("You uploaded an unsupported image. Make sure it is valid.", "image_parse_error", False),
        ("Error while downloading https://a.example/x.png: could not fetch image", None, False),
        ("At most 1 image(s) may be provided in one prompt.", None, False),
        ("Request entity too large", None, False),
    ],
)
def test_a_refusal_of_one_image_says_nothing_about_others(
    message: str, code: str | None, refused: bool
) -> None:
    """The proxy remembers a refusal only if it says that the upstream takes no images at all."""
    editor = body_of()
    editor.append_turn(MODEL_TURN, [editor.result_message(CALL, "text", (IMAGE,))])
    assert editor.recover(message, code) is True
    assert editor.edits.images_refused is refused


def test_an_upstream_that_is_known_gets_words() -> None:
    """An upstream that takes no images gets notes, also for images that were kept from earlier requests."""
    first = body_of()
    first.append_turn(MODEL_TURN, [first.result_message(CALL, "text", (IMAGE,))])
    done = json.dumps({"id": "resp_2", "store": False, "output": []}).encode()
    kept = continued(first, done, (), lambda name, arguments: arguments)
    assert ENCODED.encode() in kept
    later = body_of({"model": "m", "input": [user("so?")], "previous_response_id": "resp_1"})
    later.edit(resumed=kept)
    assert output_of(later)[-1]["image_url"] == IMAGE.url
    later.edit(images_left_out=True)
    assert output_of(later) == f"text\n{LEFT_OUT}"


def test_a_request_has_room_for_so_many_images() -> None:
    """Rule T7: once the images of a run have used up the budget, notes replace further images."""
    editor = body_of()
    eight = 8 << 20
    for number in range(3):
        call = ToolCall(f"call_{number}", "core__x", "{}", 0)
        turn = {"id": f"r{number}", "store": False, "output": [function_call(call.call_id, call.name, "{}")]}
        result = editor.result_message(call, "text", (big(eight),))
        assert (b"input_image" in result) is (number < 2)
        editor.append_turn(json.dumps(turn).encode(), [result])
    assert b"was left out" in editor.render()


def test_the_calls_of_one_turn_share_the_room() -> None:
    """Rule T7: the results of one turn share the budget, even before they are in the request."""
    editor = body_of()
    results = [editor.result_message(CALL, "text", (big(10 << 20),)) for _ in range(3)]
    assert [b"input_image" in one for one in results] == [True, True, False]


@pytest.mark.parametrize("dropped", [True, False])
def test_images_of_the_past_give_way_to_new_ones(dropped: bool) -> None:
    """A new image takes the budget of restored ones, also after restored turns were dropped."""
    editor = body_of({"model": "m", "input": [user("a"), _said("x"), user("b")]})
    items = [
        json.dumps(function_call("call_0", "core__x", "{}")),
        output_item("call_0", "text", (big(20 << 20),)).decode(),
    ]
    editor.restore(1, json.dumps({"items": items}).encode(), needed=False)
    if dropped:
        assert editor.recover("maximum context length", None) is True
    assert b"input_image" in editor.result_message(CALL, "text", (big(20 << 20),))
    assert b"input_image" not in editor.render()


def test_too_many_images_of_the_past_are_said_in_words() -> None:
    """Of restored images that exceed the budget, notes replace the oldest first."""
    ten = 10 << 20
    asked = {"model": "m", "input": [user("a"), _said("x"), user("b"), _said("y"), user("c"), _said("z")]}
    editor = body_of(asked)
    for number, position in enumerate((1, 3, 5)):
        items = [
            json.dumps(function_call(f"call_{number}", "core__x", "{}")),
            output_item(f"call_{number}", "text", (big(ten),)).decode(),
        ]
        editor.restore(position, json.dumps({"items": items}).encode(), needed=False)
    outputs = [
        item["output"]
        for item in json.loads(editor.render())["input"]
        if item.get("type") == "function_call_output"
    ]
    assert [isinstance(one, list) for one in outputs] == [False, True, True]
    assert "was left out" in outputs[0]


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
