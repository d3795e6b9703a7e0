"""The provider's image generation, run through an upstream's /images/generations."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from image_model import IMAGE, PARTIAL, USAGE, ImageModel
from provider_models import ANSWER, serving_models
from recorded_answers import Given

from proxy.wires.responses.own_items.images import MOST_STORED, with_bounded_images
from proxy.wires.stream.sse import SSEParser

RESPONSES = "/v1/responses"
PROMPT = {"prompt": "A paper boat on a pond"}
CALLS = {"image_generation": PROMPT}
QUESTION = [{"role": "user", "content": "Draw a boat."}]
TOOL = {"type": "image_generation"}
MODELS = ("gpt-4o-mini", "claude-opus-4-7", "qwen3", "gpt-5-2025-08-07")
"""One of each dialect. The last one speaks Responses, as OpenAI does."""


def asked(tool: Mapping[str, Any] = TOOL, model: str = "gpt-4o-mini", **more: Any) -> dict[str, Any]:
    return {"model": model, "input": QUESTION, "tools": [tool], **more}


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream, without its end mark."""
    parser = SSEParser()
    parser.take(body)
    found = []
    while (event := parser.next()) is not None:
        if event.data and not event.is_end_mark:
            found.append(orjson.loads(event.data))
    return found


@pytest.mark.parametrize("model", MODELS)
async def test_an_image(model: str) -> None:
    """The client gets the image with its facts and usage, the model words, and the record neither image."""
    images = ImageModel()
    async with serving_models(CALLS, native=(), images=images) as (proxy, models):
        answer = await proxy.ask(asked(model=model), path=RESPONSES)
        (row,) = (await proxy.only_run()).invocations
    item, message = [item for item in answer.json["output"] if item["type"] != "reasoning"]
    assert item.pop("id").startswith("ig_")
    assert item == {
        "type": "image_generation_call",
        "status": "completed",
        "action": "generate",
        "size": "1024x1024",
        "quality": "medium",
        "background": "opaque",
        "output_format": "png",
        "result": IMAGE,
    }
    assert message["content"][0]["text"] == ANSWER
    assert answer.json["tool_usage"] == {"image_gen": USAGE, "web_search": {"num_requests": 0}}
    assert images.asked[0].payload == {"model": "gpt-image-2", "n": 1, **PROMPT}
    (result,) = models[model].results
    assert "the user sees the image" in result
    assert all(IMAGE not in json.dumps(one.payload) for one in models[model].asked)
    assert (row.tool, row.effect, row.arguments_redacted) == ("images__generate", "read_only", PROMPT)
    assert row.result_redacted["size"] == "1024x1024"
    assert IMAGE not in str(row)


async def test_the_order_of_the_events() -> None:
    """A stream has the events of OpenAI's recorded streams in their order, each with the item's place."""
    tool = {**TOOL, "partial_images": 2, "size": "1536x1024", "quality": "low"}
    images = ImageModel()
    async with serving_models(CALLS, native=(), images=images) as (proxy, _):
        answer = await proxy.ask(asked(tool, stream=True), path=RESPONSES)
    events = events_of(answer.body)
    begin = next(at for at, event in enumerate(events) if event["type"].endswith("output_item.added"))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[begin : begin + 7] == [
        "output_item.added",
        "image_generation_call.in_progress",
        "image_generation_call.generating",
        "image_generation_call.partial_image",
        "image_generation_call.partial_image",
        "image_generation_call.completed",
        "output_item.done",
    ]
    assert kinds.count("output_item.added") == 2
    added, *states, done = events[begin : begin + 7]
    place = {"output_index": 0, "item_id": added["item"]["id"]}
    assert added["item"] == {"id": place["item_id"], "type": done["item"]["type"], "status": "in_progress"}
    assert all(event.items() >= place.items() for event in states)
    for at, event in enumerate(states[2:4]):
        assert event["partial_image_index"] == at
        assert event["partial_image_b64"] == PARTIAL[at]
        facts = ("1536x1024", "low", "opaque", "png")
        assert tuple(event[name] for name in ("size", "quality", "background", "output_format")) == facts
    assert done["item"]["result"] == IMAGE
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0] == done["item"]
    assert images.asked[0].payload.items() >= {"partial_images": 2, "stream": True}.items()


async def test_only_the_declaration_chooses() -> None:
    """What a model writes for the model, quality or format does not count; its size does."""
    calls = {"image_generation": {**PROMPT, "model": "gpt-image-dear", "quality": "max", "size": "16x16"}}
    images = ImageModel()
    async with serving_models(calls, native=(), images=images) as (proxy, _):
        await proxy.ask(asked(), path=RESPONSES)
        tool = {**TOOL, "model": "gpt-image-1.5", "quality": "low", "size": "32x32", "moderation": "low"}
        await proxy.ask(asked(tool), path=RESPONSES)
    free, bound = (one.payload for one in images.asked)
    assert free == {"model": "gpt-image-2", "n": 1, **PROMPT, "size": "16x16"}
    assert bound == {**free, "model": "gpt-image-1.5", "quality": "low", "size": "32x32", "moderation": "low"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (Given(b'{"error":{"message":"Not allowed."}}', 400), "the upstream answered 400: Not allowed."),
        (Given(b'{"error":{"message":"secret details"}}', 500), "the upstream answered 500"),
        (Given(b"{}"), "the upstream answered without an image"),
        (Given(b"<html>"), "no image was made: the upstream answered with something that is no image"),
        (
            Given(b'{"data":[{"url":"https://images.example/1.png"}]}'),
            "no image was made: the upstream answered with no image in base64",
        ),
        (Given(b'{"data":[{"b64_json":"bm8gaW1hZ2U="}]}'), "The tool made no image that can be shown."),
    ],
)
async def test_failures(fails: Given, said: str, stream: bool) -> None:
    """A failed image is an item with the status failed, whose result is a string, and words for the model."""
    async with serving_models(CALLS, native=(), images=ImageModel(fails)) as (proxy, models):
        answer = await proxy.ask(asked(stream=stream), path=RESPONSES)
    output = events_of(answer.body)[-1]["response"]["output"] if stream else answer.json["output"]
    item, message = output
    assert (item["status"], item["result"], message["type"]) == ("failed", "", "message")
    assert item["error"]["message"] == said
    assert "secret" not in answer.body.decode()
    assert len(models["gpt-4o-mini"].results) == 1
    assert b"image_generation_call.completed" not in answer.body


async def test_an_image_that_is_too_large() -> None:
    """An image above policy.max_image_bytes reaches nobody, whether it is streamed or not."""
    large: dict[str, Any] = {"policy": {"max_image_bytes": 40}}
    async with serving_models(CALLS, native=(), images=ImageModel(), **large) as (proxy, _):
        answer = await proxy.ask(asked(), path=RESPONSES)
    item = answer.json["output"][0]
    assert (item["status"], item["error"]["code"]) == ("failed", "result_too_large")
    async with serving_models(CALLS, native=(), images=ImageModel(image="A" * 200_000), **large) as (
        proxy,
        _,
    ):
        answer = await proxy.ask(asked({**TOOL, "partial_images": 1}, stream=True), path=RESPONSES)
    assert b'"status":"failed"' in answer.body
    assert len(answer.body) < 100_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", "huge"),
        ("size", 3),
        ("quality", "best"),
        ("background", "blue"),
        ("output_format", "gif"),
        ("output_compression", 101),
        ("output_compression", True),
        ("partial_images", 4),
        ("moderation", "off"),
        ("model", ""),
        ("model", ["gpt-image-2"]),
        ("action", "draw"),
        ("input_image_mask", {"file_id": "file-1"}),
        ("input_image_mask", {"image_url": "https://images.example/mask.png"}),
        ("input_image_mask", "mask"),
        ("input_fidelity", "best"),
        ("svg", {}),
        ("sharpness", 1),
    ],
)
async def test_odd_declarations(field: str, value: Any) -> None:
    """A field of another type or value than the provider takes is a 400 that names it; no model is asked."""
    async with serving_models(CALLS, native=(), images=ImageModel()) as (proxy, models):
        answer = await proxy.ask(asked({**TOOL, field: value}), path=RESPONSES)
        assert not models["gpt-4o-mini"].asked
    assert answer.status == 400
    assert answer.error["param"] == f"tools[0].{field}"
    assert f"tools[0].{field}" in answer.error["message"]


async def test_it_is_offered_to_nobody_else() -> None:
    """A request that does not declare it is not offered the tool, unless it names the tool."""
    async with serving_models({}, native=(), images=ImageModel()) as (proxy, models):
        body = {"model": "gpt-4o-mini", "input": QUESTION}
        for headers in ({}, {"x-toolrelay-tools": "all"}, {"x-toolrelay-tools": "images__generate"}):
            await proxy.ask(body, headers, path=RESPONSES)
        names = [
            {tool["function"]["name"] for tool in one.payload.get("tools", ())}
            for one in models["gpt-4o-mini"].asked
        ]
    assert ["images__generate" in one for one in names] == [False, False, True]


async def test_policy_and_prices() -> None:
    """It needs to be allowed like every tool; a person may have to approve it; each image costs its price."""
    settings = {"hosted": {"image_generation": "upstream:images/gpt-image-2"}}
    denied: dict[str, Any] = {"policy": {"allow": ("core__*",)}}
    async with serving_models(CALLS, native=(), images=ImageModel(), tools=settings, **denied) as (proxy, _):
        assert (await proxy.ask(asked(), path=RESPONSES)).status == 400
    images = ImageModel()
    needed: dict[str, Any] = {"policy": {"approve": ("images__*",)}, "approvals": {"enabled": True}}
    async with serving_models(CALLS, native=(), images=images, **needed) as (proxy, _):
        answer = await proxy.ask(asked(), path=RESPONSES)
        assert "images__generate" in json.dumps(answer.json["output"])
        assert not images.asked
    priced = {**settings, "prices": {"images__generate": 0.04}}
    async with serving_models(CALLS, native=(), images=ImageModel(), tools=priced) as (proxy, _):
        await proxy.ask(asked(), path=RESPONSES)
        assert (await proxy.only_run()).run.cost == 40_000_000


@pytest.mark.parametrize("model", MODELS)
async def test_an_image_that_comes_back(model: str) -> None:
    """An item that the client sends back becomes an image for the model, beside the call and its words."""
    async with serving_models(CALLS, native=(), images=ImageModel()) as (proxy, models):
        first = await proxy.ask(asked(model=model), path=RESPONSES)
        items = [*QUESTION, *first.json["output"], {"role": "user", "content": "Make it blue."}]
        second = await proxy.ask({**asked(model=model), "input": items}, path=RESPONSES)
        sent = models[model].asked[2].payload
    assert second.status == 200
    assert json.dumps(sent).count(IMAGE) == 1
    assert "the user sees the image" in json.dumps(sent)


async def test_a_model_that_takes_no_images() -> None:
    """If the upstream refuses the image that came back, the model gets words in its place."""
    async with serving_models(CALLS, native=(), images=ImageModel()) as (proxy, models):
        first = await proxy.ask(asked(), path=RESPONSES)
        model = models["gpt-4o-mini"]
        answers = model._answer

        def blind(one: Any) -> Given:
            if IMAGE in json.dumps(one.payload):
                said = "This model does not support image input."
                return Given(json.dumps({"error": {"message": said, "code": "invalid_image"}}).encode(), 400)
            return answers(one)

        model._answer = blind
        items = [*QUESTION, *first.json["output"], {"role": "user", "content": "Make it blue."}]
        second = await proxy.ask({**asked(), "input": items}, path=RESPONSES)
        sent = model.asked[3].payload
    assert second.status == 200
    assert IMAGE not in json.dumps(sent)
    assert "was left out" in json.dumps(sent)


async def test_a_chain_of_stored_responses() -> None:
    """A response that continues an earlier one has its image, and the stored one can be read."""
    async with serving_models(CALLS, native=(), images=ImageModel()) as (proxy, models):
        first = await proxy.ask(asked(store=True), path=RESPONSES)
        stored = await proxy.get(f"{RESPONSES}/{first.json['id']}")
        body = {**asked(), "input": "Make it blue.", "previous_response_id": first.json["id"]}
        second = await proxy.ask(body, path=RESPONSES)
        sent = models["gpt-4o-mini"].asked[2].payload
    assert stored.json["output"][0]["result"] == IMAGE
    assert second.status == 200
    assert "the user sees the image" in json.dumps(sent)


def test_the_record_keeps_few_images() -> None:
    """Of the images of a response the record keeps the newest within its bound; other items stay."""
    large = "A" * (MOST_STORED // 2)
    calls = [{"type": "image_generation_call", "id": f"ig_{at}", "result": large} for at in range(3)]
    response: dict[str, Any] = {"id": "resp_1", "output": [calls[0], {"type": "message"}, *calls[1:]]}
    kept = with_bounded_images(response)
    assert kept is not None
    assert [item.get("result") for item in kept["output"]] == [None, None, large, large]
    assert response["output"][0]["result"] == large
    plain = {"id": "resp_1", "output": [{"type": "message"}, "odd"]}
    assert with_bounded_images(plain) is plain
    assert with_bounded_images(None) is None
    for odd in ({}, {"output": None}, {"output": "image_generation_call"}, {"output": [1]}):
        assert with_bounded_images(odd) is odd
