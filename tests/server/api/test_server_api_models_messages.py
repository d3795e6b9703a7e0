"""Lists of models for clients of Anthropic's Messages API, which expect another format."""

import json
from urllib.parse import quote

import pytest
from anthropic import AsyncAnthropic
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


async def test_anthropics_client_lists_the_models_of_a_chat_upstream() -> None:
    """Anthropic's client gets the list and one model in its format; other clients get the list unchanged."""
    listed = whole(json.dumps(LISTED).encode())
    async with RawUpstream(listed) as upstream:
        config = make_config({"base_url": upstream.url, "wires": ("chat",)})
        async with running(config) as proxy:
            async with AsyncAnthropic(base_url=f"http://127.0.0.1:{proxy.port}", api_key="x") as client:
                models = [model async for model in client.models.list()]
                one = await client.models.retrieve("m-1")
            plain = await proxy.ask(method="GET", path="/v1/models")
    assert [(model.id, model.type, model.display_name) for model in models] == [("m-1", "model", "m-1")]
    assert (one.id, one.created_at.year) == ("m-1", 1970)
    assert plain.json == LISTED
