"""``/responses/compact`` on upstreams of each dialect, and requests with the items that it makes."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import messages_script as messages
import ollama_script as ollama
import pytest
from chat_script import reply
from openai import AsyncOpenAI
from openai.types.responses import CompactedResponse
from raw_upstream import RawUpstream, Step, whole
from running_proxy import Proxy, make_config, running

PATH = "/v1/responses/compact"
SUMMARY = "They launch on Tuesday."
ASK: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "user", "content": "We launch on Tuesday."},
        {"role": "assistant", "content": "Understood."},
    ],
}
REPLIES: dict[str, list[Step]] = {
    "chat": reply(SUMMARY),
    "anthropic": messages.reply(messages.text(SUMMARY)),
    "ollama": ollama.reply(SUMMARY),
}


@asynccontextmanager
async def serving(
    wire: str, *scripts: Sequence[Step], **more: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy before an upstream of one dialect."""
    async with RawUpstream(*scripts) as upstream:
        served = {"base_url": upstream.url, "wires": (wire,), **more}
        async with running(make_config(served, modules=("probe_tools",))) as proxy:
            yield proxy, upstream


@pytest.mark.parametrize("wire", REPLIES)
async def test_any_upstream_summarizes(wire: str) -> None:
    """The client gets one compaction item; the proxy asks the upstream for a summary, without tools."""
    async with serving(wire, REPLIES[wire]) as (proxy, upstream):
        answer = await proxy.ask(ASK, path=PATH)
    assert answer.status == 200, answer.body
    body = answer.json
    assert (body["object"], body["output"][-1]["type"]) == ("response.compaction", "compaction")
    assert [item["type"] for item in body["output"]] == ["compaction"]
    assert {"input_tokens", "output_tokens", "total_tokens"} <= body["usage"].keys()
    assert SUMMARY not in json.dumps(body)
    asked = json.loads(upstream.requests[0].body)
    assert "tools" not in asked
    assert not asked.get("stream")
    assert "write a summary" in json.dumps(asked["messages"][-1])


async def test_the_official_client_compacts_and_goes_on() -> None:
    """openai-python sends the compacted items with its next request, and the model gets the summary."""
    async with serving("chat", REPLIES["chat"], reply("On Tuesday.")) as (proxy, upstream):
        base = f"http://127.0.0.1:{proxy.port}/v1"
        async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            compacted = await client.responses.compact(**ASK)
            items: Any = [*compacted.output, {"role": "user", "content": "When?"}]
            answer = await client.responses.create(model="m", input=items)
    assert isinstance(compacted, CompactedResponse)
    assert answer.output_text == "On Tuesday."
    told = json.loads(upstream.requests[1].body)["messages"]
    assert [message["role"] for message in told] == ["user", "user"]
    assert f"{SUMMARY}\n\nThe user's newest messages, word for word:\n\nWe launch" in told[0]["content"]
    assert "encrypted_content" not in json.dumps(told)


async def test_an_upstream_of_this_dialect_compacts_by_itself() -> None:
    """Rule W2: an upstream of Responses compacts itself; the proxy passes request and answer unchanged."""
    said = b'{"object": "response.compaction", "output":[] }'
    async with serving("responses", whole(said)) as (proxy, upstream):
        raw = json.dumps(ASK, indent=1).encode()
        answer = await proxy.ask(raw, path=PATH)
    assert answer.body == said
    assert (upstream.requests[0].target, upstream.requests[0].body) == (PATH, raw)


async def test_a_stored_response_is_compacted_by_its_id() -> None:
    """With ``previous_response_id`` the model summarizes that response and its input."""
    async with serving("chat", reply("Understood."), REPLIES["chat"]) as (proxy, upstream):
        first = await proxy.ask({"model": "m", "input": "We launch on Tuesday."}, path="/v1/responses")
        ask = {"model": "m", "previous_response_id": first.json["id"]}
        answer = await proxy.ask(ask, path=PATH)
    assert answer.json["output"][-1]["type"] == "compaction"
    told = json.dumps(json.loads(upstream.requests[1].body)["messages"])
    assert "We launch on Tuesday." in told
    assert "Understood." in told


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_empty_summary_is_an_error(text: str) -> None:
    """If the model writes no summary, the client gets a 502 and can keep its conversation."""
    async with serving("chat", reply(text)) as (proxy, _):
        answer = await proxy.ask(ASK, path=PATH)
    assert answer.status == 502
    assert "did not write a summary" in answer.error["message"]


async def test_a_summary_that_was_cut_off_is_an_error() -> None:
    """A summary that was cut off is a 502, because it would lose a part of the conversation."""
    async with serving("chat", reply("They la", reason="length")) as (proxy, _):
        answer = await proxy.ask(ASK, path=PATH)
    assert answer.status == 502
    assert "not complete" in answer.error["message"]


async def test_a_compaction_that_was_changed_is_refused_before_anybody_is_asked() -> None:
    """The proxy refuses a changed compaction with a 400 that names the field."""
    item = {"type": "compaction", "id": "cmp_toolrelay00", "encrypted_content": "AAAA"}
    async with serving("chat") as (proxy, upstream):
        answer = await proxy.ask({"model": "m", "input": [item]}, path="/v1/responses")
    assert (answer.status, answer.error["param"]) == (400, "input[0].encrypted_content")
    assert not upstream.requests


async def test_a_compaction_of_a_provider_is_refused_where_it_cannot_be_read() -> None:
    """A provider's own compaction gets a 400 that names its item, because other upstreams cannot read it."""
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
    async with serving("chat") as (proxy, upstream):
        answer = await proxy.ask({"model": "m", "input": [item]}, path="/v1/responses")
    assert answer.status == 400
    assert answer.error["param"] == "input[0]"
    assert not upstream.requests


@pytest.mark.parametrize(
    ("ask", "param"),
    [({"input": "hi"}, "model"), ({"model": "m", "input": 7}, "input")],
    ids=["model", "input"],
)
async def test_a_wrong_field_is_named(ask: dict[str, Any], param: str) -> None:
    """A missing model or a wrong input gets a 400 that names the field."""
    async with serving("chat") as (proxy, _):
        answer = await proxy.ask(ask, path=PATH)
    assert (answer.status, answer.error["param"]) == (400, param)
