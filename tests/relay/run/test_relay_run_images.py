"""Images of server tools in the loop: where they go, where words go, and where no byte of them may be."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from looping import ANSWER, called, follow_up, looping
from looping import ASK as CHAT_ASK
from probe_tools import PNG, Watch
from raw_upstream import Step, whole
from responding import client_of, well_formed
from responses_script import function, function_call, message, output, stream, user
from structlog.testing import capture_logs

PICTURE = "probe_tools__picture"
ENCODED = base64.b64encode(PNG).decode()
DRAW = function_call("call_p", PICTURE, "{}")
MINE = function_call("call_c", "mine", '{"a":1}')
SEEN = message("I see it.", id="msg_2")
ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "Draw."}
HIDDEN = (PICTURE, "call_p", "base64")
WORDS = 'an image "noon" (image/png, 248 bytes) was left out; only text can be passed on]'
NO_IMAGES = "Invalid content type. image_url is only supported by certain models."


def refusal(text: str, status: str = "400 Bad Request") -> list[Step]:
    """An upstream that does not want it."""
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    return whole(json.dumps({"error": error}).encode(), status=status)


def result_in(body: dict[str, Any]) -> Any:
    """The output of the picture in a request."""
    (found,) = [i["output"] for i in body["input"] if i.get("type") == "function_call_output"]
    return found


def image_in(body: dict[str, Any]) -> str:
    """The picture in a request."""
    return str(result_in(body)[-1]["image_url"])


@pytest.mark.parametrize("kept", [True, False], ids=["chained", "stateless"])
async def test_the_model_gets_the_image(kept: bool, tmp_path: Path) -> None:
    """Rule R3: text, link, words and image go upstream;  and the client have no byte of it."""
    config = {"store": {"url": f"sqlite:///{tmp_path / 't.db'}", "content": "tools"}}
    tools = {"trace": "events", "trace_max": "events"}
    with capture_logs() as lines:
        async with client_of(
            stream(DRAW, store=kept), stream(SEEN, id="resp_2", store=kept), tools=tools, **config
        ) as client:
            read = await client.said(ASK, hidden=("base64", ENCODED[:60]))
            assert result_in(client.asked(2)) == [
                {"type": "input_text", "text": "A chart.\n[link: https://a.example/x]"},
                {"type": "input_text", "text": '[toolrelay: image "noon" (image/png, 248 bytes)]'},
                {"type": "input_image", "image_url": f"data:image/png;base64,{ENCODED}", "detail": "auto"},
            ]
            detail = await client.proxy.run_reaches("completed")
    assert read.text == "I see it."
    (shown,) = read.of_type("mcp_call")
    assert json.loads(shown["output"]) == {"images": [{"bytes": 248}]}
    (row,) = detail.invocations
    assert row.result_bytes == 248 + len("A chart.\n[link: https://a.example/x]")
    assert [each.content for each in detail.messages if each.role == "tool"] == [
        "A chart.\n[link: https://a.example/x]\n[image image/png 248 bytes]"
    ]
    assert ENCODED[:60] not in repr((detail, lines))


async def test_chat_has_no_images() -> None:
    """Where the wire takes only text the model is told what was left out."""
    async with looping(called(("call_p", PICTURE, "{}")), ANSWER) as (proxy, upstream):
        answer = await proxy.ask(CHAT_ASK)
        assert answer.status == 200
        _, (result,) = follow_up(upstream.requests)
    assert result["content"] == f"A chart.\n[link: https://a.example/x]\n[toolrelay: {WORDS}"


async def test_an_upstream_without_images_is_asked_again() -> None:
    """Once with words, and remembered for that upstream's model when it took them."""
    async with client_of(
        stream(DRAW), refusal(NO_IMAGES), stream(SEEN, id="resp_2"),
        stream(DRAW, id="resp_3"), stream(SEEN, id="resp_4"),
        stream(DRAW, id="resp_5"), stream(SEEN, id="resp_6"),
    ) as client:  # fmt: skip
        assert (await client.said(ASK, hidden=HIDDEN)).text == "I see it."
        assert image_in(client.asked(2))
        assert WORDS in result_in(client.asked(3))
        well_formed(client.asked(3)["input"])
        await client.said(ASK, hidden=HIDDEN)
        assert WORDS in result_in(client.asked(5))
        # Another model is another matter.
        await client.said({**ASK, "model": "other"}, hidden=HIDDEN)
        assert image_in(client.asked(7))


@pytest.mark.parametrize(
    ("text", "status"),
    [("The image data you provided is no valid image.", "400 Bad Request"), ("", "413 Too Large")],
)
async def test_one_bad_image_is_not_remembered(text: str, status: str) -> None:
    """A refusal of this image, or of its size, is asked again with words; the next image is tried."""
    async with client_of(
        stream(DRAW), refusal(text, status), stream(SEEN, id="resp_2"),
        stream(DRAW, id="resp_3"), stream(SEEN, id="resp_4"),
    ) as client:  # fmt: skip
        assert (await client.said(ASK, hidden=HIDDEN)).text == "I see it."
        await client.said(ASK, hidden=HIDDEN)
        assert image_in(client.asked(5))


async def test_a_refusal_of_something_else_is_not_remembered() -> None:
    """With words it refuses as well: the error is told, and nothing is concluded about images."""
    bad = refusal("Something else is wrong.")
    async with client_of(
        stream(DRAW), bad, bad, stream(DRAW, id="resp_3"), stream(SEEN, id="resp_4")
    ) as client:
        assert b"Something else is wrong." in (await client.ask(ASK)).body
        await client.said(ASK, hidden=HIDDEN)
        assert image_in(client.asked(5))


@pytest.mark.parametrize("kept", [True, False], ids=["by id", "full input"])
async def test_a_turn_that_waits_keeps_its_image(kept: bool) -> None:
    """Rule R4: the client returns with its own result, and the model gets ours whole."""
    ask = {**ASK, "tools": [function("mine")]}
    async with client_of(stream(DRAW, MINE), stream(SEEN, id="resp_2")) as client:
        read = await client.said(ask, hidden=HIDDEN)
        assert read.calls == [("call_c", "mine", '{"a":1}')]
        theirs = output("call_c", "7")
        back: dict[str, Any] = (
            {"input": [theirs], "previous_response_id": read.id}
            if kept
            else {"input": [user("Draw."), *read.response["output"], theirs]}
        )
        await client.ask({**ask, **back})
        ours = [i for i in client.asked(2)["input"] if i.get("call_id") == "call_p" and "output" in i]
        assert ours[0]["output"][-1]["image_url"] == f"data:image/png;base64,{ENCODED}"


@pytest.mark.parametrize("by_id", [True, False])
async def test_hidden_turns_come_back_with_their_image(by_id: bool, tmp_path: Path) -> None:
    """Rule R4: after an answer, from the record of another process too; the bytes count in the header."""
    config = {"store": {"url": f"sqlite:///{tmp_path / 't.db'}"}}
    async with client_of(stream(DRAW), stream(SEEN, id="resp_2"), **config) as client:
        read = await client.said(ASK, hidden=HIDDEN)
    back: dict[str, Any] = (
        {"input": "so?", "previous_response_id": read.id}
        if by_id
        else {"input": [user("Draw."), *read.response["output"], user("so?")]}
    )
    async with client_of(stream(SEEN, id="resp_3"), **config) as client:
        answer = await client.ask({**ASK, **back})
        assert image_in(client.asked(1)) == f"data:image/png;base64,{ENCODED}"
        restored = str(answer.header("x-toolrelay-restored"))
        assert by_id or int(restored.partition("bytes=")[2]) > len(ENCODED)


async def test_a_first_turn_whose_images_are_refused() -> None:
    """What was put back is said in words, and the tools stay offered though the refusal speaks of tools."""
    refused = refusal("This model does not support images in tool results.")
    async with client_of(
        stream(DRAW), stream(SEEN, id="resp_2"), refused, stream(SEEN, id="resp_3")
    ) as client:
        read = await client.said(ASK, hidden=HIDDEN)
        answer = await client.ask({**ASK, "input": "so?", "previous_response_id": read.id})
        assert answer.status == 200
        assert WORDS in result_in(client.asked(4))
        assert client.asked(4)["tools"] == client.asked(3)["tools"]


async def test_calls_in_a_wrapper_bring_their_images() -> None:
    """The one result of the wrapper has the image beside the text of all."""
    uses = [{"recipient_name": f"functions.{PICTURE}", "parameters": {}}]
    wrapper = function_call("call_w", "multi_tool_use.parallel", json.dumps({"tool_uses": uses}))
    async with client_of(stream(wrapper), stream(SEEN, id="resp_2")) as client:
        await client.said(ASK, hidden=HIDDEN)
        told = result_in(client.asked(2))
        assert json.loads(told[0]["text"])[0]["output"].startswith("A chart.")
        assert image_in(client.asked(2)).endswith(ENCODED)


async def test_a_repeated_request_gets_words(watch: Watch) -> None:
    """Rule R5: the effect happens once; what is kept of it for a repeat is text."""
    paint = function_call("call_a", "probe_tools__paint", "{}")
    async with client_of(
        stream(paint), stream(SEEN, id="resp_2"), stream(paint, id="resp_3"), stream(SEEN, id="resp_4")
    ) as client:
        headers = {"Idempotency-Key": "k"}
        for _ in range(2):
            assert (await client.ask(ASK, headers)).status == 200
        assert watch.started == ["paint"]
        assert image_in(client.asked(2))
        assert "it was given to an earlier try" in result_in(client.asked(4))


async def test_another_process_gets_words(watch: Watch, tmp_path: Path) -> None:
    """Rule R3: what the record keeps of an effect for a repeat elsewhere has no byte of its image."""
    config = {"store": {"url": f"sqlite:///{tmp_path / 't.db'}"}}
    paint = function_call("call_a", "probe_tools__paint", "{}")
    told = ""
    for _ in range(2):
        async with client_of(stream(paint), stream(SEEN, id="resp_2"), **config) as client:
            assert (await client.ask(ASK, {"Idempotency-Key": "k"})).status == 200
            told = result_in(client.asked(2))
    assert watch.started == ["paint"]
    assert told.startswith("Painted.\n[toolrelay: an image (image/png, 248 bytes) was left out; ")


async def test_no_images_where_policy_says_none() -> None:
    """``policy.max_image_bytes = 0``: words on every wire."""
    async with client_of(stream(DRAW), stream(SEEN, id="resp_2"), policy={"max_image_bytes": 0}) as client:
        await client.said(ASK, hidden=HIDDEN)
        assert "policy passes no images on" in result_in(client.asked(2))
