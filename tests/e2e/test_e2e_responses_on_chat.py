"""OpenAI's client speaks Responses to a proxy whose upstream knows Chat Completions only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from client_keys import ALICE, BOB, key_config
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseFunctionToolCall
from plain_chat import PlainChat, serving_plain_chat
from pydantic import BaseModel
from running_proxy import Proxy, make_config, running

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    "strict": False,
}
REQUIRED = {
    *(
        "id",
        "object",
        "created_at",
        "status",
        "error",
        "incomplete_details",
        "instructions",
        "model",
        "tools",
    ),
    *("output", "parallel_tool_calls", "metadata", "tool_choice", "temperature", "top_p", "usage", "text"),
    *("reasoning", "truncation", "previous_response_id", "store", "max_output_tokens", "max_tool_calls"),
    *("background", "service_tier", "completed_at", "top_logprobs", "safety_identifier", "prompt_cache_key"),
    *("presence_penalty", "frequency_penalty", "user"),
}


@asynccontextmanager
async def chatting(
    provider: PlainChat | None = None, **sections: Any
) -> AsyncIterator[tuple[AsyncOpenAI, PlainChat, Proxy]]:
    """Yield a client of a proxy without tools, the plain Chat provider behind it, and the proxy."""
    provider = provider or PlainChat()
    make = key_config if sections.pop("keyed", False) else make_config
    async with serving_plain_chat(provider) as url:
        config = make({"base_url": url, "wires": ("chat",)}, allow=(), **sections)
        async with running(config) as proxy:
            base = f"http://127.0.0.1:{proxy.port}/v1"
            async with AsyncOpenAI(base_url=base, api_key=ALICE, max_retries=0) as client:
                yield client, provider, proxy


async def test_a_chain_goes_on_from_what_the_record_has() -> None:
    """The client sends only what is new, and the upstream gets the whole conversation."""
    async with chatting() as (client, provider, _):
        first = await client.responses.create(model="m", input="Remember the code word: papaya.")
        second = await client.responses.create(
            model="m", input="And now?", instructions="Be short.", previous_response_id=first.id
        )
        third = await client.responses.create(
            model="m", input="Which code word?", previous_response_id=second.id
        )
    assert third.output_text == "papaya"
    assert third.previous_response_id == second.id
    # Instructions hold for one request (API reference, "instructions").
    assert [message["role"] for message in provider.requests[1]["messages"]] == [
        *("system", "user", "assistant", "user")
    ]
    assert provider.requests[2]["messages"][0]["role"] == "user"


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_client_names_items_that_it_was_given(keyed: bool) -> None:
    """A client can name reasoning, a call and an answer by their ids, as Vercel's AI SDK does."""
    async with chatting(PlainChat(reasoning="Hm."), keyed=keyed) as (client, provider, _):
        history: list[Any] = [{"role": "user", "content": "How is the weather?"}]
        first = await client.responses.create(model="m", input=history, tools=[WEATHER])
        assert [item.type for item in first.output] == ["reasoning", "function_call"]
        history += [{"type": "item_reference", "id": item.id} for item in first.output]
        call = first.output[1]
        assert isinstance(call, ResponseFunctionToolCall)
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
        second = await client.responses.create(model="m", input=history, tools=[WEATHER])
        history += [{"id": item.id} for item in second.output]
        history.append({"role": "user", "content": "And now?"})
        third = await client.responses.create(model="m", input=history, tools=[WEATHER])
        assert third.output_text == "You said: And now?"
    sent = provider.requests[2]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert sent[1]["tool_calls"][0]["id"] == call.call_id
    assert [one.get("reasoning_content") for one in sent if one["role"] == "assistant"] == ["Hm.", "Hm."]
    assert sent[3]["content"] == second.output_text


@pytest.mark.parametrize("why", ["unknown", "theirs", "not kept", "another's"])
async def test_an_item_that_nobody_knows_is_named(why: str) -> None:
    """Rule E1: an unknown item is a 404 with its id; another caller's item gets the same error."""
    async with chatting(keyed=True) as (client, provider, proxy):
        kept = await client.responses.create(model="m", input="hi", store=why != "not kept")
        ids = {"unknown": f"msg_{56 * 'a'}", "theirs": "msg_0123456789abcdef"}
        named: Any = {"type": "item_reference", "id": ids.get(why, kept.output[0].id)}
        base = f"http://127.0.0.1:{proxy.port}/v1"
        key = BOB if why == "another's" else ALICE
        async with AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as asking:
            with pytest.raises(openai.NotFoundError) as told:
                await asking.responses.create(model="m", input=[named, {"role": "user", "content": "x"}])
    assert told.value.code == "item_not_found"
    assert told.value.param == "input"
    assert named["id"] in told.value.message
    assert len(provider.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_every_field_of_a_response_is_there(stream: bool) -> None:
    """A reply, and each event with a response, has every field of the SDK's type."""
    asked: dict[str, Any] = {"model": "m", "input": "hi", "temperature": 0.5, "metadata": {"a": "b"}}
    asked |= {"tools": [WEATHER], "truncation": "auto", "max_output_tokens": 100}
    responses: list[Response] = []
    async with chatting(PlainChat(reasoning="Well, well.")) as (client, _, _):
        if stream:
            events = await client.responses.create(**asked, stream=True)
            responses = [event.response async for event in events if hasattr(event, "response")]
        else:
            responses = [await client.responses.create(**asked)]
    assert len(responses) == (3 if stream else 1)
    for response in responses:
        assert response.to_dict().keys() >= REQUIRED
        assert (response.temperature, response.metadata, response.truncation) == (0.5, {"a": "b"}, "auto")
        assert [tool.to_dict() for tool in response.tools] == [{**WEATHER, "description": None}]
    last = responses[-1]
    assert last.usage is not None
    assert last.usage.output_tokens_details.reasoning_tokens == 3
    assert last.usage.input_tokens_details.cached_tokens == 0
    assert [item.type for item in last.output] == ["reasoning", "message"]


async def test_a_stored_response_can_be_read_and_deleted() -> None:
    """The proxy stores responses itself: they can be read and deleted without asking the upstream."""
    async with chatting() as (client, provider, _):
        made = await client.responses.create(model="m", input="hi")
        read = await client.responses.retrieve(made.id)
        items = await client.responses.input_items.list(made.id)
        again = [event.type async for event in await client.responses.retrieve(made.id, stream=True)]
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError) as gone:
            await client.responses.create(model="m", input="hi", previous_response_id=made.id)
    assert read.to_dict() == made.to_dict()
    assert [item.to_dict()["content"] for item in items.data] == [[{"type": "input_text", "text": "hi"}]]
    assert (again[0], again[-1]) == ("response.created", "response.completed")
    assert gone.value.code == "previous_response_not_found"
    assert provider.others == []


async def test_what_is_not_to_be_stored_is_not() -> None:
    """With ``store: false``, a response can be neither read nor continued."""
    async with chatting() as (client, provider, _):
        made = await client.responses.create(model="m", input="hi", store=False)
        assert made.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model="m", input="hi", previous_response_id=made.id)
    assert (len(provider.requests), provider.others) == (1, [])


async def test_a_response_is_its_callers_alone() -> None:
    """Another key can neither read nor delete nor continue a response."""
    async with chatting(keyed=True) as (alice, _, _):
        made = await alice.responses.create(model="m", input="Remember the code word: papaya.")
        bob = alice.with_options(api_key=BOB)
        for call in (bob.responses.retrieve, bob.responses.delete, bob.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await call(made.id)
        with pytest.raises(openai.NotFoundError) as refused:
            await bob.responses.create(model="m", input="Which code word?", previous_response_id=made.id)
        assert refused.value.code == "previous_response_not_found"
        assert (await alice.responses.retrieve(made.id)).id == made.id


async def test_a_client_runs_its_own_tools() -> None:
    """A client answers its call by the response's id alone; an output for another call is refused."""
    async with chatting() as (client, provider, _):
        first = await client.responses.create(model="m", input="The weather?", tools=[WEATHER])
        (call,) = first.output
        assert isinstance(call, ResponseFunctionToolCall)
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        second = await client.responses.create(
            model="m", input=[output], tools=[WEATHER], previous_response_id=first.id
        )
        assert second.output_text == "You said: sunny"
        wrong: Any = {**output, "call_id": "call_other"}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input=[wrong], previous_response_id=first.id)
    assert refused.value.param == "input[0].call_id" or "call_id" in str(refused.value.param)
    assert len(provider.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_cut_off_is_incomplete(stream: bool) -> None:
    """Chat's ``length`` becomes an incomplete response with an incomplete message."""
    async with chatting(PlainChat(finish="length")) as (client, _, _):
        if stream:
            events = [e async for e in await client.responses.create(model="m", input="hi", stream=True)]
            assert events[-1].type == "response.incomplete"
            response = events[-1].response
        else:
            response = await client.responses.create(model="m", input="hi")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in response.output if item.type == "message"] == ["incomplete"]


async def test_a_refusal_is_a_part_of_its_own() -> None:
    """Chat's ``refusal`` becomes a refusal part, which the stream helper reads."""
    async with (
        chatting(PlainChat(refusal="I will not.")) as (client, _, _),
        client.responses.stream(model="m", input="hi") as helper,
    ):
        response = await helper.get_final_response()
    (message,) = response.output
    assert message.type == "message"
    assert [part.to_dict() for part in message.content] == [{"type": "refusal", "refusal": "I will not."}]


class Said(BaseModel):
    """What the model is to fill in."""

    text: str


async def test_an_answer_has_the_form_that_was_asked_for() -> None:
    """``text.format`` becomes Chat's ``response_format``, and the SDK's parser reads the answer."""

    class Json(PlainChat):
        def answer(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
            form = body["response_format"]["json_schema"]
            assert (form["name"], form["strict"]) == ("Said", True)
            return {"role": "assistant", "content": '{"text":"noon"}'}, "stop"

    async with chatting(Json()) as (client, _, _):
        parsed = await client.responses.parse(model="m", input="hi", text_format=Said)
        async with client.responses.stream(model="m", input="hi", text_format=Said) as helper:
            streamed = await helper.get_final_response()
    assert parsed.output_parsed == streamed.output_parsed == Said(text="noon")


async def test_a_caller_bounds_the_calls_of_server_tools() -> None:
    """``max_tool_calls`` limits the server calls, although Chat has no such field."""

    class Curious(PlainChat):
        def answer(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
            if body.get("tool_choice") == "none" or not body.get("tools"):
                return {"role": "assistant", "content": "Enough."}, "stop"
            function = {"name": "core__calculate", "arguments": '{"expression":"1+1"}'}
            call = {"id": f"call_{len(self.requests)}", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"

    provider = Curious()
    async with serving_plain_chat(provider) as url:
        config = make_config({"base_url": url, "wires": ("chat",)})
        async with (
            running(config) as proxy,
            AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="none") as client,
        ):
            response = await client.responses.create(model="m", input="hi", max_tool_calls=1)
            run = await proxy.only_run()
    assert (response.output_text, response.max_tool_calls) == ("Enough.", 1)
    assert [item.type for item in response.output] == ["message"]
    assert len([call for call in run.invocations if call.status == "success"]) == 1
