"""Lists of models for clients of Anthropic's Messages API, which expect another format."""

import json

from anthropic import AsyncAnthropic
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running

LISTED = {"object": "list", "data": [{"id": "m-1", "object": "model", "created": 7, "owned_by": "me"}]}


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
