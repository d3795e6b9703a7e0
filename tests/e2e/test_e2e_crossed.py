"""The official clients of each dialect read answers of upstreams with other dialects."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import responses_script as responses
from anthropic import AsyncAnthropic
from chat_script import call, content, finish, role, stream, usage
from looping import ECHO
from messages_script import stream as message_stream
from messages_script import text, tool_use
from openai import AsyncOpenAI
from raw_upstream import RawUpstream, Step
from running_proxy import make_config, running

SAY = '{"text":"noon"}'
SCRIPTS: dict[str, Sequence[Sequence[Step]]] = {
    "chat": (
        stream(role(), call("call_1", ECHO, SAY), finish("tool_calls"), usage(3, 2)),
        stream(role(), content("It ", "is noon."), finish(), usage(7, 4)),
    ),
    "responses": (
        responses.stream(responses.function_call("call_1", ECHO, SAY)),
        responses.stream(responses.message("It is noon.", id="msg_2"), id="resp_2"),
    ),
    "anthropic": (
        message_stream(tool_use("toolu_1", ECHO, {"text": "noon"})),
        message_stream(text("It is noon."), id="msg_2"),
    ),
}


@asynccontextmanager
async def asking(wire: str) -> AsyncIterator[str]:
    """Yield the address of a proxy whose upstream's model calls one of the probe tools."""
    async with RawUpstream(*SCRIPTS[wire]) as upstream:
        config = make_config({"base_url": upstream.url, "wires": (wire,)}, modules=("probe_tools",))
        async with running(config) as proxy:
            yield f"http://127.0.0.1:{proxy.port}"


@pytest.mark.parametrize("wire", SCRIPTS)
async def test_openais_client_streams_chat(wire: str) -> None:
    """OpenAI's client reads a Chat stream with its helper, whatever dialect the upstream has."""
    async with (
        asking(wire) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.chat.completions.stream(
            model="m",
            messages=[{"role": "user", "content": "What time is it?"}],
            stream_options={"include_usage": True},
        ) as helper,
    ):
        completion = await helper.get_final_completion()
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("It is noon.", "stop")
    assert choice.message.tool_calls is None
    # The script of Responses reports no usage.
    assert wire == "responses" or (completion.usage is not None and completion.usage.total_tokens > 0)


@pytest.mark.parametrize("wire", SCRIPTS)
async def test_openais_client_streams_responses(wire: str) -> None:
    """OpenAI's client reads a Responses stream with its helper, whatever dialect the upstream has."""
    async with (
        asking(wire) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.responses.stream(model="m", input="What time is it?") as helper,
    ):
        response = await helper.get_final_response()
    assert (response.output_text, response.status) == ("It is noon.", "completed")
    assert [item.type for item in response.output if item.type != "reasoning"] == ["message"]


@pytest.mark.parametrize("wire", SCRIPTS)
async def test_anthropics_client_streams_messages(wire: str) -> None:
    """Anthropic's client reads a Messages stream with its helper, whatever dialect the upstream has."""
    async with (
        asking(wire) as url,
        AsyncAnthropic(base_url=url, api_key="none") as client,
        client.messages.stream(
            model="m", max_tokens=500, messages=[{"role": "user", "content": "What time is it?"}]
        ) as helper,
    ):
        message = await helper.get_final_message()
    assert [block.text for block in message.content if block.type == "text"] == ["It is noon."]
    assert [block.type for block in message.content if block.type == "tool_use"] == []
    assert message.stop_reason == "end_turn"
