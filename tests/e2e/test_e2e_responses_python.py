"""The official ``openai`` package for Python on the Responses API, every warning an error.

The provider behind the proxy refuses whatever OpenAI would refuse, so that an answer shows not only
what the client got but that each request of the run was well-formed.
"""

import importlib.util
import json
from typing import Any

import openai
import pytest
from e2e_rig import ProxyFor
from fixture_loader import all_exchanges, exchange
from openai import AsyncOpenAI
from openai.types.responses import ParsedResponse, Response
from pydantic import BaseModel
from require import require
from responses_rules import ANSWERS, CALENDAR, NOON, rig
from strict_provider import Refused

pytestmark = pytest.mark.asyncio(loop_scope="function")


async def ask(client: AsyncOpenAI, streaming: bool, **arguments: Any) -> Response | ParsedResponse[Any]:
    """Return one response, from the SDK's stream helper or not streamed."""
    if not streaming:
        response: Response = await client.responses.create(**arguments)
        return response
    async with client.responses.stream(**arguments) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    return final


async def loop(
    client: AsyncOpenAI, question: str, *, streaming: bool, store: bool, by_id: bool
) -> tuple[Response | ParsedResponse[Any], list[Any]]:
    """Run a client's tool loop; return its last response and the whole conversation."""
    history: list[Any] = [{"role": "user", "content": question}]
    fresh, previous = list(history), None
    for _ in range(4):
        more: dict[str, Any] = {"previous_response_id": previous} if by_id and previous else {}
        response = await ask(
            client,
            streaming,
            model="m",
            input=fresh if by_id else history,
            tools=[CALENDAR],
            **({} if store else {"store": False}),
            **more,
        )
        assert all(
            item.type in ("message", "function_call", "reasoning", "mcp_call") for item in response.output
        )
        calls = [item for item in response.output if item.type == "function_call"]
        history += response.output
        previous = response.id
        if not calls:
            return response, history
        assert [call.name for call in calls] == ["get_calendar"]
        fresh = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "15:00, dentist"}
            for call in calls
        ]
        history += fresh
    raise AssertionError("it never ended")


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("question", ANSWERS)
@pytest.mark.parametrize(
    ("store", "by_id", "keeps"),
    [
        (True, True, True),
        (True, False, True),
        (True, True, False),
        (True, False, False),
        (False, False, True),
    ],
    ids=["by id", "full input", "by id, stateless", "full input, stateless", "store false"],
)
async def test_a_loop_gets_the_right_answer(
    question: str, streaming: bool, store: bool, by_id: bool, keeps: bool
) -> None:
    """A loop gets the right answer with server tools, client tools or both, whoever keeps the state."""
    if by_id and not keeps and "time" not in question:
        # Without a server tool, the proxy leaves the response's id to the provider, which keeps nothing.
        by_id = False
    async with rig(keeps=keeps) as made:
        response, history = await loop(made.client, question, streaming=streaming, store=store, by_id=by_id)
        assert response.output_text == ANSWERS[question]
        assert made.provider.refused == []
        assert response.usage is not None
        assert response.usage.total_tokens > 0
        assert json.dumps([tool.to_dict() for tool in response.tools]).count('"name"') == 1
        assert store or not made.provider.stored

        # The conversation goes on.
        fresh: Any = {"role": "user", "content": "And the time now?"}
        more: dict[str, Any] = {"previous_response_id": response.id} if by_id else {}
        after = await ask(
            made.client,
            streaming,
            model="m",
            input=[fresh] if by_id else [*history, fresh],
            tools=[CALENDAR],
            **({} if store else {"store": False}),
            **more,
        )
        assert after.output_text == f"core__get_current_time={NOON}"
        # The whole input has reasoning without its hidden call; the provider refuses that, and the proxy asks
        # again without it.
        assert all("required following item" in words for words in made.provider.refused)
        assert len(made.provider.refused) <= (0 if by_id else 2)


@pytest.mark.parametrize("trace", ["reasoning", "status", "events"])
@pytest.mark.parametrize("by_id", [True, False], ids=["by id", "full input"])
async def test_a_loop_with_a_trace(trace: str, by_id: bool) -> None:
    """With a trace, the SDK gets the right answer, and the provider accepts what the SDK sends back."""
    async with rig(trace=trace) as made:
        question = "Given time and calendar, am I late?"
        response, history = await loop(made.client, question, streaming=True, store=True, by_id=by_id)
        assert response.output_text.endswith(ANSWERS[question])
        kinds = {item.type for item in history if not isinstance(item, dict)}
        assert ("mcp_call" in kinds) == (trace == "events")
        assert made.provider.refused == []


async def test_a_chain_of_responses() -> None:
    """A chain by ``previous_response_id`` works over runs and plain responses, stored or not."""
    for keeps in (True, False):
        async with rig(keeps=keeps) as made:
            first = await ask(made.client, True, model="m", input="What time is it?")
            second = await ask(made.client, True, model="m", input="Hello?", previous_response_id=first.id)
            third = await ask(
                made.client, False, model="m", input="time again", previous_response_id=second.id
            )
            fourth = await ask(made.client, True, model="m", input="Hello?", previous_response_id=third.id)
            texts = [r.output_text for r in (first, second, third, fourth)]
            told = f"core__get_current_time={NOON}"
            assert texts == [told, "Hello.", told, "Hello."]
            assert len({r.id for r in (first, second, third, fourth)}) == 4
            assert fourth.previous_response_id == third.id
            assert made.provider.refused == []
            again = await ask(made.client, True, model="m", input="time?", previous_response_id=first.id)
            assert again.output_text == told


async def test_a_conversation() -> None:
    """With ``conversation``, the provider keeps the history with hidden calls, and the loop works."""
    async with rig() as made:
        question = "Given time and calendar, am I late?"
        arguments: dict[str, Any] = {"model": "m", "tools": [CALENDAR], "conversation": "conv_1"}
        first = await ask(made.client, True, input=question, **arguments)
        (call,) = [item for item in first.output if item.type == "function_call"]
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": "15:00, dentist"}
        second = await ask(made.client, True, input=[answer], **arguments)
        assert second.output_text == ANSWERS[question]
        assert made.provider.refused == []


class Told(BaseModel):
    """What the model is asked to answer with."""

    told: list[str]


async def test_parsed_output() -> None:
    """``parse()`` and the stream's ``text_format`` get one JSON text, with and without a server call."""
    async with rig() as made:
        for question, told in (("time", [f"core__get_current_time={NOON}"]), ("Hello?", [])):
            reply = await made.client.responses.parse(model="m", input=question, text_format=Told)
            assert reply.output_parsed == Told(told=told)
            async with made.client.responses.stream(model="m", input=question, text_format=Told) as stream:
                final = await stream.get_final_response()
            assert final.output_parsed == Told(told=told)


async def test_stored_responses() -> None:
    """A stored response can be retrieved, streamed, listed and deleted, but not cancelled."""
    async with rig() as made:
        response = await ask(made.client, False, model="m", input="What time is it?")
        responses = made.client.responses
        assert (await responses.retrieve(response.id)).to_dict() == response.to_dict()
        events = [event async for event in await responses.retrieve(response.id, stream=True)]
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == response.output_text
        rest = [event async for event in await responses.retrieve(response.id, stream=True, starting_after=3)]
        assert [event.type for event in rest] == [event.type for event in events[4:]]
        items = [item async for item in responses.input_items.list(response.id)]
        assert [item.to_dict()["content"] for item in items] == [
            [{"type": "input_text", "text": "What time is it?"}]
        ]
        with pytest.raises(openai.BadRequestError, match="background"):
            await responses.cancel(response.id)
        kept = list(made.provider.stored)
        await responses.delete(response.id)
        assert sorted(made.provider.deleted) == kept
        with pytest.raises(openai.NotFoundError):
            await responses.retrieve(response.id)


async def test_a_failure_inside_a_stream_is_raised() -> None:
    """If the provider refuses a later turn, the SDK raises an error with its message and code."""
    async with rig() as made:
        answer = made.provider.answer
        made.provider.answer = lambda body: (  # type: ignore[method-assign]
            answer(body) if len(made.provider.requests) == 1 else _refuse()
        )
        with pytest.raises(openai.APIError, match="Out of luck") as caught:
            await ask(made.client, True, model="m", input="What time is it?")
        assert caught.value.code == "luck"


def _refuse() -> Any:
    raise Refused("Out of luck.", "luck")


async def test_every_recorded_stream(way: str, shared_proxy: ProxyFor) -> None:
    """The SDK's stream helper reads each recorded exchange, without a sign of the server tools."""
    proxy = await shared_proxy(way)
    async with AsyncOpenAI(base_url=proxy.base_url, api_key="unused", max_retries=0) as client:
        for fixture in all_exchanges():
            if fixture.wire == "responses" and fixture.meta.get("clock"):
                arguments = {k: v for k, v in fixture.client_request.items() if k not in ("stream", "seed")}
                extra: dict[str, Any] = (
                    {"extra_body": {"seed": fixture.client_request["seed"]}}
                    if "seed" in fixture.client_request
                    else {}
                )
                async with client.responses.stream(**arguments, **extra) as stream:
                    events = [event async for event in stream]
                    final = await stream.get_final_response()
                assert events[-1].type == "response.completed", fixture.name
                assert "core__" not in final.to_json(), fixture.name
                assert final.output, fixture.name


async def test_the_agents_sdk() -> None:
    """openai-agents runs its own tool beside server tools and goes on, streamed or not, stored or not."""
    require("openai-agents", importlib.util.find_spec("agents") is not None, "openai-agents is not installed")
    from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool

    def get_calendar() -> str:
        """The next appointment."""
        return "15:00, dentist"

    for store, trace in ((True, "silent"), (False, "silent"), (True, "events")):
        async with rig(trace=trace) as made:
            agent = Agent(
                name="late",
                model=OpenAIResponsesModel(model="m", openai_client=made.client),
                tools=[function_tool(get_calendar)],
                model_settings=ModelSettings(store=store),
            )
            config = RunConfig(tracing_disabled=True)
            for question, wanted in ANSWERS.items():
                result = await Runner.run(agent, question, run_config=config)
                assert result.final_output == wanted
                streamed = Runner.run_streamed(agent, question, run_config=config)
                async for _ in streamed.stream_events():
                    pass
                assert streamed.final_output == wanted
                again = result.to_input_list()
                again.append({"role": "user", "content": "time?"})
                after = await Runner.run(agent, again, run_config=config)
                assert after.final_output == f"core__get_current_time={NOON}"


async def test_the_recordings_have_what_is_needed() -> None:
    """The recordings have a chain with parallel calls, calls of both sides and encrypted reasoning."""
    second = exchange("openai.responses/parallel-calls").turns[1].request
    assert second is not None
    assert second["previous_response_id"]
    assert exchange("openai.responses/mixed-calls").run_by == "mixed"
    assert exchange("openai.responses/reasoning-encrypted").client_request["store"] is False


@pytest.mark.parametrize("sees", [True, False])
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_images_are_between_the_proxy_and_the_model(streaming: bool, store: bool, sees: bool) -> None:
    """A model with vision gets the image, another one a text for it, and the client an ordinary answer."""
    async with rig(allow=("probe_tools__picture",), modules=("probe_tools",)) as made:
        made.provider.sees = sees
        made.provider.calls = {"picture": "probe_tools__picture"}
        asked = {"model": "m", "input": "Draw a picture", "tools": [CALENDAR]}
        for _ in range(2):
            response = await ask(made.client, streaming, store=store, **asked)
            about = 'image "noon" (image/png, 248 bytes)'
            shown = f"[toolrelay: {about}] IMAGE" if sees else f"[toolrelay: an {about} was left out; "
            assert shown in response.output_text
            assert "A chart.\n[link: https://a.example/x]" in response.output_text
            assert [item.type for item in response.output if item.type != "reasoning"] == ["message"]
            assert "base64" not in response.model_dump_json()
        # The provider refuses the image once; the proxy does not send it again.
        assert len(made.provider.refused) == (0 if sees else 1)
