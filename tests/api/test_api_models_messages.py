"""Lists of models for clients of Anthropic's Messages API, which expect another format."""

import json
from urllib.parse import quote

import pytest
from anthropic import AsyncAnthropic, NotFoundError
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running

LISTED = {"object": "list", "data": [{"id": "m-1", "object": "model", "created": 7, "owned_by": "me"}]}


@pytest.mark.parametrize("upstreams", [1, 2])
@pytest.mark.parametrize("name", ["org/m-1", "org/m-1:free"])
async def test_a_model_is_found_however_its_name_is_encoded(upstreams: int, name: str) -> None:
    """The name of a model may be in the path with its slash encoded, as openai-python sends it, or not."""
    model = {"id": name, "object": "model", "created": 7, "owned_by": "me"}
    said: dict[str, object] = model if upstreams == 1 else {"object": "list", "data": [model]}
    listed = whole(json.dumps(said).encode())
    async with (
        RawUpstream(listed) as one,
        RawUpstream(listed) as other,
        running(make_config(*[one.url, other.url][:upstreams])) as proxy,
    ):
        for path in (name, quote(name, safe=""), quote(name, safe="").replace("%2F", "%2f")):
            found = await proxy.ask(method="GET", path=f"/v1/models/{path}")
            assert (found.status, found.json["id"]) == (200, name)
    targets = {request.target for request in one.requests}
    assert all("%2" not in target for target in targets)


async def test_the_list_has_pages() -> None:
    """Anthropic's client gets all models page by page, in both directions, and its own errors."""
    data = [{"id": f"m-{at}", "object": "model", "created": 7, "owned_by": "me"} for at in range(5)]
    listed = whole(json.dumps({"object": "list", "data": data}).encode())
    version = {"anthropic-version": "2023-06-01"}
    async with RawUpstream(listed) as upstream:
        config = make_config({"base_url": upstream.url, "wires": ("chat",)})
        async with running(config) as proxy:
            async with AsyncAnthropic(base_url=f"http://127.0.0.1:{proxy.port}", api_key="x") as client:
                assert [one.id async for one in client.models.list(limit=2)] == [one["id"] for one in data]
                before = await client.models.list(limit=2, before_id="m-3")
                assert ([one.id for one in before.data], before.has_more) == (["m-1", "m-2"], True)
                with pytest.raises(NotFoundError):
                    await client.models.retrieve("unknown")
            missing = await proxy.get("/v1/models/unknown", version)
            for query in ("limit=0", "limit=1001", "limit=x", "after_id=unknown"):
                wrong = await proxy.ask(None, version, method="GET", path=f"/v1/models?{query}")
                assert (wrong.status, wrong.json["error"]["type"]) == (400, "invalid_request_error")
    assert (missing.status, missing.json["type"]) == (404, "error")
    assert missing.json["error"]["type"] == "not_found_error"


async def test_an_anthropic_upstream_is_asked_for_all_its_models() -> None:
    """Anthropic lists 20 models if it is not asked for more."""
    entry = {"type": "model", "id": "claude-x", "display_name": "X", "created_at": "2026-01-01T00:00:00Z"}
    listed = whole(json.dumps({"data": [entry], "has_more": False}).encode())
    async with RawUpstream(listed) as one, RawUpstream(whole(json.dumps(LISTED).encode())) as other:
        config = make_config(
            {"base_url": one.url, "wires": ("anthropic",)}, {"base_url": other.url, "wires": ("chat",)}
        )
        async with running(config) as proxy:
            found = await proxy.get("/v1/models")
    assert {model["id"] for model in found.json["data"]} == {"claude-x", "m-1"}
    assert [request.target for request in one.requests] == ["/v1/models?limit=1000"]
    assert [request.target for request in other.requests] == ["/v1/models"]


async def test_anthropics_client_lists_the_models_of_a_chat_upstream() -> None:
    """Anthropic's client gets the list and one model in its format; other clients get the list unchanged."""
    listed = whole(json.dumps(LISTED).encode())
    async with RawUpstream(listed) as upstream:
        config = make_config({"base_url": upstream.url, "wires": ("chat",)})
        async with running(config) as proxy:
            async with AsyncAnthropic(base_url=f"http://127.0.0.1:{proxy.port}", api_key="x") as client:
                models = [model async for model in client.models.list()]
                one = await client.models.retrieve("m-1")
            plain = await proxy.get("/v1/models")
    assert [(model.id, model.type, model.display_name) for model in models] == [("m-1", "model", "m-1")]
    assert (one.id, one.created_at.year) == ("m-1", 1970)
    assert plain.json == LISTED
