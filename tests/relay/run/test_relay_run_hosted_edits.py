"""Changing images of the conversation, through an upstream's /images/edits."""

import base64
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from client_keys import ALICE, BOB, bearer, declared
from image_model import EDIT_USAGE, IMAGE, PARTIAL, ImageModel, png
from provider_models import ProviderModel, serving_models
from running_proxy import Answer, Proxy

RESPONSES = "/v1/responses"
TOOL = {"type": "image_generation"}
PROMPT = {"prompt": "A paper boat on a pond"}
DRAW = {"image_generation": PROMPT}
EDIT = {"image_generation": {"prompt": "Make it blue", "edit_images": 1}}
PHOTOS = [f"data:image/png;base64,{png(shade)}" for shade in (10, 20, 30)]
MASK = f"data:image/png;base64,{png(40)}"
MADE = f"data:image/png;base64,{IMAGE}"
MODELS = ("gpt-4o-mini", "claude-opus-4-7", "gpt-5-2025-08-07")
"""Of a dialect each; the last one speaks the client's."""


def said(text: str, *urls: str) -> dict[str, Any]:
    """A message of the user with images."""
    parts: list[Any] = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in urls]
    return {"role": "user", "content": [{"type": "input_text", "text": text}, *parts]}


async def ask(
    proxy: Proxy,
    items: list[Any],
    tool: Mapping[str, Any] = TOOL,
    model: str = "gpt-4o-mini",
    headers: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> Answer:
    """Ask a model that may make images."""
    body = {"model": model, "input": items, "tools": [tool], **more}
    answer = await proxy.ask(body, headers, path=RESPONSES)
    assert answer.status == 200, answer.body
    return answer


def calls(model: ProviderModel, made: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the model make these calls from now on."""
    model._calls = made


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
async def test_an_image_of_the_user(model: str, stream: bool) -> None:
    """An image that the user sent is changed; the item, its events and the usage are those of OpenAI."""
    images = ImageModel()
    tool = {**TOOL, "partial_images": 1, "input_fidelity": "high", "moderation": "low", "quality": "low"}
    async with serving_models(EDIT, native=(), images=images) as (proxy, models):
        answer = await ask(proxy, [said("Bluer, please.", PHOTOS[0])], tool, model, stream=stream)
        (row,) = (await proxy.only_run()).invocations
        results = models[model].results
    (edit,) = images.edited
    assert edit.images == [PHOTOS[0]]
    assert (
        edit.fields.items()
        >= {
            "model": "gpt-image-2",
            "n": 1,
            "prompt": "Make it blue",
            "input_fidelity": "high",
            "quality": "low",
        }.items()
    )
    if stream:
        assert edit.fields["stream"] is True
        assert f'"partial_image_b64":"{PARTIAL[0]}"'.encode() in answer.body
        last = next(
            line for line in answer.body.splitlines() if b'"response.completed"' in line and b"data" in line
        )
        response = json.loads(last.removeprefix(b"data: "))["response"]
    else:
        response = answer.json
    item = next(item for item in response["output"] if item["type"] == "image_generation_call")
    assert (item["status"], item["action"], item["result"]) == ("completed", "edit", IMAGE)
    assert response["tool_usage"]["image_gen"] == EDIT_USAGE
    assert len(results) == 1
    assert "the user sees the image" in results[0]
    assert png(10) not in str(row)


async def test_which_images() -> None:
    """The model says how many of the newest images it wants; an edit without a number takes the newest
    message's."""
    images = ImageModel()
    history = [said("These.", PHOTOS[0], PHOTOS[1]), said("And this.", PHOTOS[2]), said("Combine them.")]
    async with serving_models(EDIT, native=(), images=images) as (proxy, models):
        model = models["gpt-4o-mini"]
        for number in (1, 2, 16):
            calls(model, {"image_generation": {**PROMPT, "edit_images": number}})
            await ask(proxy, history)
        calls(model, DRAW)
        await ask(proxy, history, {**TOOL, "action": "edit"})
        calls(model, EDIT)
        await ask(proxy, history, {**TOOL, "action": "generate"})
    assert [edit.images for edit in images.edited] == [PHOTOS[2:], PHOTOS[1:], PHOTOS, PHOTOS[2:]]
    assert images.asked[-1].path == "/images/generations"


async def test_a_mask() -> None:
    """The declaration's mask goes with the images, and only with them."""
    images = ImageModel()
    tool = {**TOOL, "input_image_mask": {"image_url": MASK}}
    async with serving_models(EDIT, native=(), images=images) as (proxy, models):
        await ask(proxy, [said("Bluer.", PHOTOS[0])], tool)
        calls(models["gpt-4o-mini"], DRAW)
        await ask(proxy, [said("Draw.", PHOTOS[0])], tool)
    (edit,) = images.edited
    assert (edit.images, edit.mask) == ([PHOTOS[0]], MASK)
    assert images.asked[-1].payload.keys() == {"model", "n", "prompt"}


async def test_a_mask_of_several_images() -> None:
    """A mask belongs to the first image, so the first one of the newest message is sent first."""
    images = ImageModel()
    tool = {**TOOL, "input_image_mask": {"image_url": MASK}}
    edit = {"image_generation": {**PROMPT, "edit_images": 3}}
    async with serving_models(edit, native=(), images=images) as (proxy, _):
        items = [said("Look.", PHOTOS[0]), said("Change the first, like the others.", *PHOTOS[1:])]
        await ask(proxy, items, tool)
    (sent,) = images.edited
    assert (sent.images, sent.mask) == ([*PHOTOS[1:], PHOTOS[0]], MASK)


async def test_an_image_that_is_a_file_of_the_providers() -> None:
    """An image that the client sent by a file's id cannot be changed, and the answer says how to send it."""
    images = ImageModel()
    part = {"type": "input_image", "file_id": "file-1", "detail": "auto"}
    async with serving_models(EDIT, native=(), images=images) as (proxy, models):
        await ask(proxy, [{"role": "user", "content": [part]}], model=MODELS[-1])
        (result,) = models[MODELS[-1]].results
    assert "a file's id" in result
    assert not images.asked


@pytest.mark.parametrize("way", ["item", "reference", "id", "response", "chain"])
@pytest.mark.parametrize("model", MODELS)
async def test_an_image_of_an_earlier_response(way: str, model: str) -> None:
    """An image that was made before is changed: sent back as its item, named by the item's id, or by the
    response that has it."""
    images = ImageModel()
    async with serving_models(DRAW, native=(), images=images) as (proxy, models):
        first = await ask(proxy, [said("Draw a boat.", PHOTOS[0])], model=model, store=True)
        item = next(one for one in first.json["output"] if one["type"] == "image_generation_call")
        more: dict[str, Any] = {}
        question = said("Make it blue.")
        if way == "item":
            items = [said("Draw a boat.", PHOTOS[0]), *first.json["output"], question]
        elif way == "reference":
            items = [{"type": "item_reference", "id": item["id"]}, question]
        elif way == "id":
            items = [question, {"type": "image_generation_call", "id": item["id"]}]
        else:
            items, more = [question], {"previous_response_id": first.json["id"]}
            if way == "chain":
                calls(models[model], {})
                middle = await ask(proxy, [said("Nice!")], model=model, store=True, **more)
                more = {"previous_response_id": middle.json["id"]}
        calls(models[model], EDIT)
        await ask(proxy, items, model=model, **more)
    (edit,) = images.edited
    assert edit.images == [MADE]


async def test_an_image_of_this_run() -> None:
    """An image that the run has just made is changed by its next call."""
    images = ImageModel()
    async with serving_models(DRAW, native=(), images=images) as (proxy, models):
        models["gpt-4o-mini"].then = [EDIT]
        answer = await ask(proxy, [said("Draw, then make it blue.")])
    assert [edit.images for edit in images.edited] == [[MADE]]
    kinds = [item.get("action") for item in answer.json["output"]]
    assert kinds[:2] == ["generate", "edit"]
    assert len({item["id"] for item in answer.json["output"]}) == 3


async def test_images_of_another_caller() -> None:
    """The id of another caller's image, or an invented one, names nothing."""
    images = ImageModel()
    keys = {"alice": declared(ALICE), "bob": declared(BOB)}
    async with serving_models(DRAW, native=(), images=images, keys=keys) as (proxy, models):
        first = await ask(proxy, [said("Draw a boat.")], store=True, headers=bearer(ALICE))
        item = first.json["output"][0]
        forged = f"{item['id'][:-4]}ffff"
        other = f"ig_toolrelay{'0' * 52}"
        calls(models["gpt-4o-mini"], EDIT)
        for item_id, secret in ((item["id"], BOB), (forged, ALICE), (other, ALICE)):
            named = [{"type": "image_generation_call", "id": item_id}, said("Make it blue.")]
            answer = await ask(proxy, named, headers=bearer(secret))
            assert answer.json["output"][0]["status"] == "failed"
        assert not images.edited
        named = [{"type": "image_generation_call", "id": item["id"]}, said("Make it blue.")]
        await ask(proxy, named, headers=bearer(ALICE))
    assert [edit.images for edit in images.edited] == [[MADE]]


async def test_the_models_of_a_key() -> None:
    """A key with models may call the tool by its name, with the operator's model or one of its own; a model
    that it may not use is refused."""
    images = ImageModel()
    keys = {"alice": declared(ALICE, models=("gpt-4o-mini", "gpt-image-1.*"))}
    body = {"model": "gpt-4o-mini", "input": [said("Draw.")]}
    headers = {**bearer(ALICE), "x-toolrelay-tools": "images__generate"}
    async with serving_models({}, native=(), images=images, keys=keys) as (proxy, models):
        model = models["gpt-4o-mini"]
        for name in ("gpt-image-dear", "gpt-image-1.5", ""):
            calls(model, {"images__generate": {**PROMPT, "model": name}})
            await proxy.ask(body, headers, path=RESPONSES)
            if not images.asked:
                assert "model must match" in model.results[-1]
    assert [asked.payload["model"] for asked in images.asked] == ["gpt-image-1.5", "gpt-image-2"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://images.example/1.png", "not as an address"),
        ("data:image/gif;base64,R0lGODlhAQABAIAAAAUEBA==", "must be PNG, JPEG or WebP"),
        ("data:image/png;base64,%%%", "is no image"),
        ("data:image/png;base64,é", "is no image"),
        (f"data:image/png;base64,{base64.b64encode(bytes(21 << 20)).decode()}", "bytes together"),
        ("", "has no image that can be changed"),
    ],
    ids=["address", "gif", "no base64", "no ASCII", "large", "none"],
)
@pytest.mark.accepts("*", why="the images are odd on purpose")
async def test_images_that_cannot_be_changed(url: str, words: str) -> None:
    """What cannot be changed is a failed item that says why; nothing is fetched and no upstream is asked."""
    images = ImageModel()
    async with serving_models(EDIT, native=(), images=images) as (proxy, models):
        answer = await ask(proxy, [said("Make it blue.", *([url] if url else []))])
        (result,) = models["gpt-4o-mini"].results
    item = answer.json["output"][0]
    assert (item["status"], item["error"]["code"]) == ("failed", "invalid_arguments")
    assert words in item["error"]["message"]
    assert words in result
    assert not images.asked


async def test_images_of_many_large_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The responses that are read for named items have a bound, whatever of them the request gets."""
    images = ImageModel()
    async with serving_models(DRAW, native=(), images=images) as (proxy, models):
        made = [await ask(proxy, [said(f"Draw {number}.")], store=True) for number in range(2)]
        named = [{"type": "item_reference", "id": answer.json["output"][0]["id"]} for answer in made]
        asked = len(models["gpt-4o-mini"].asked)
        most = len(made[0].body) * 3 // 2
        monkeypatch.setattr("proxy.relay.memory.references.MOST_RESPONSE_BYTES", most)
        body = {"model": "gpt-4o-mini", "input": [*named, said("Nice!")], "tools": [TOOL]}
        answer = await proxy.ask(body, path=RESPONSES)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert len(models["gpt-4o-mini"].asked) == asked


async def test_an_image_that_is_named_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What named items stand for is bounded: a small body could bring one large image many times."""
    images = ImageModel()
    async with serving_models(DRAW, native=(), images=images) as (proxy, models):
        first = await ask(proxy, [said("Draw a boat.")], store=True)
        item = first.json["output"][0]
        monkeypatch.setattr("proxy.wires.responses.items.MOST_NAMED_BYTES", 2 * len(json.dumps(item)))
        calls(models["gpt-4o-mini"], {})
        asked = len(models["gpt-4o-mini"].asked)
        named = {"type": "image_generation_call", "id": item["id"]}
        await ask(proxy, [named, named, said("Nice!")])
        for name in (named, {"type": "item_reference", "id": item["id"]}):
            body = {"model": "gpt-4o-mini", "input": [name, name, name, said("Nice!")], "tools": [TOOL]}
            answer = await proxy.ask(body, path=RESPONSES)
            assert (answer.status, answer.error["code"]) == (413, "request_too_large")
            assert answer.error["param"] == "input"
        assert len(models["gpt-4o-mini"].asked) == asked + 1
