"""Images from server tools: which requests have them, which have words instead, and who gets no byte."""

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
    """Return an upstream's refusal of a request."""
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    return whole(json.dumps({"error": error}).encode(), status=status)


def result_in(body: dict[str, Any]) -> Any:
    """Return the result of the picture tool in a request."""
    (found,) = [i["output"] for i in body["input"] if i.get("type") == "function_call_output"]
    return found


def image_in(body: dict[str, Any]) -> str:
    """Return the URL of the picture in a request."""
    return str(result_in(body)[-1]["image_url"])


@pytest.mark.parametrize("kept", [True, False], ids=["chained", "stateless"])
async def test_the_model_gets_the_image(kept: bool, tmp_path: Path) -> None:
    """Rule R3: the model gets the image with its text; record, logs and client get no byte of it."""
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
    """On Chat Completions, a result is only text, so that the model is told which image was left out."""
    async with looping(called(("call_p", PICTURE, "{}")), ANSWER) as (proxy, upstream):
        answer = await proxy.ask(CHAT_ASK)
        assert answer.status == 200
        _, (result,) = follow_up(upstream.requests)
    assert result["content"] == f"A chart.\n[link: https://a.example/x]\n[toolrelay: {WORDS}"


async def test_an_upstream_without_images_is_asked_again() -> None:
    """If a model takes no images, the proxy repeats the request with words and remembers that model."""
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
        # The proxy remembers this for one model only.
        await client.said({**ASK, "model": "other"}, hidden=HIDDEN)
        assert image_in(client.asked(7))


@pytest.mark.parametrize(
    ("text", "status"),
    [("The image data you provided is no valid image.", "400 Bad Request"), ("", "413 Too Large")],
)
async def test_one_bad_image_is_not_remembered(text: str, status: str) -> None:
    """If an upstream refuses one image, the proxy repeats that request with words, but still sends others."""
    async with client_of(
        stream(DRAW), refusal(text, status), stream(SEEN, id="resp_2"),
        stream(DRAW, id="resp_3"), stream(SEEN, id="resp_4"),
    ) as client:  # fmt: skip
        assert (await client.said(ASK, hidden=HIDDEN)).text == "I see it."
        await client.said(ASK, hidden=HIDDEN)
        assert image_in(client.asked(5))


async def test_a_refusal_of_something_else_is_not_remembered() -> None:
    """If the upstream also refuses words, the client gets its error, and the next image is sent as usual."""
    bad = refusal("Something else is wrong.")
    async with client_of(
        stream(DRAW), bad, bad, stream(DRAW, id="resp_3"), stream(SEEN, id="resp_4")
    ) as client:
        assert b"Something else is wrong." in (await client.ask(ASK)).body
        await client.said(ASK, hidden=HIDDEN)
        assert image_in(client.asked(5))


@pytest.mark.parametrize("kept", [True, False], ids=["by id", "full input"])
async def test_a_turn_that_waits_keeps_its_image(kept: bool) -> None:
    """Rule R4: when the client returns its own result, the model still gets the image of the server tool."""
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
    """Rule R4: another process restores a hidden turn with its image; a header counts its bytes."""
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
    """If a restored image is refused, the proxy repeats the request with words and keeps its tools."""
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
    """The result of a wrapper call has the image beside the text of its calls."""
    uses = [{"recipient_name": f"functions.{PICTURE}", "parameters": {}}]
    wrapper = function_call("call_w", "multi_tool_use.parallel", json.dumps({"tool_uses": uses}))
    async with client_of(stream(wrapper), stream(SEEN, id="resp_2")) as client:
        await client.said(ASK, hidden=HIDDEN)
        told = result_in(client.asked(2))
        assert json.loads(told[0]["text"])[0]["output"].startswith("A chart.")
        assert image_in(client.asked(2)).endswith(ENCODED)


async def test_a_repeated_request_gets_words(watch: Watch) -> None:
    """Rule R5: a repeated request does not repeat the side effect, and gets words in place of its image."""
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
    """Rule R3: for a repeated request, another process finds only words in the record, no image."""
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
    """With ``policy.max_image_bytes = 0`` the model gets words instead of an image."""
    async with client_of(stream(DRAW), stream(SEEN, id="resp_2"), policy={"max_image_bytes": 0}) as client:
        await client.said(ASK, hidden=HIDDEN)
        assert "policy passes no images on" in result_in(client.asked(2))
