"""Which upstreams a model's requests go to, and in which dialect the proxy asks each of them."""

from messages_script import stream, text
from raw_upstream import RawUpstream
from running_proxy import make_config, running

CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


async def test_a_chat_that_is_translated_brings_no_other_request_to_its_upstream() -> None:
    """An upstream of another dialect answers chats; a request for embeddings of the same model gets a 404."""
    async with (
        RawUpstream(stream(text("Hello."))) as upstream,
        running(make_config({"base_url": upstream.url, "wires": ("anthropic",)})) as proxy,
    ):
        assert (await proxy.ask(CHAT)).status == 200
        refused = await proxy.ask({"model": "m", "input": "hi"}, path="/v1/embeddings")
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
        assert len(upstream.requests) == 1
