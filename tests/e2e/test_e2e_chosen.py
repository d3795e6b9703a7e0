"""Official clients choose server tools in the body of a request; every warning is an error."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e_packages import run_node
from messages_script import stream, text, tool_use
from raw_upstream import RawUpstream
from require import require
from responses_rules import ANSWERS, CALENDAR, NOON, rig
from running_proxy import make_config, running

pytestmark = pytest.mark.asyncio(loop_scope="function")

CLOCK: Any = {
    "type": "mcp",
    "server_label": "clock",
    "server_url": "toolrelay/core",
    "allowed_tools": ["get_current_time"],
    "require_approval": "never",
}
TIME = "core__get_current_time"
QUESTION = "Given time and calendar, am I late?"


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_openai_python(streaming: bool) -> None:
    """The ``openai`` package reads the items of hosted tools and sends them back."""
    async with rig() as made:
        asked: Any = {"model": "m", "tools": [CLOCK], "store": False}
        history: list[Any] = [{"role": "user", "content": "What time is it?"}]
        if streaming:
            async with made.client.responses.stream(input=history, **asked) as events:
                kinds = [event.type async for event in events]
                response: Any = await events.get_final_response()
            assert kinds.count("response.mcp_list_tools.completed") == 1
            assert kinds.count("response.mcp_call_arguments.done") == 1
            assert kinds.count("response.mcp_call.completed") == 1
        else:
            response = await made.client.responses.create(input=history, **asked)
        assert response.output_text == f"{TIME}={NOON}"
        (listed,) = [item for item in response.output if item.type == "mcp_list_tools"]
        (call,) = [item for item in response.output if item.type == "mcp_call"]
        assert response.output[0] == listed
        assert [(tool.name, tool.annotations) for tool in listed.tools] == [
            ("get_current_time", {"read_only": True})
        ]
        assert (call.type, call.server_label, call.name) == ("mcp_call", "clock", "get_current_time")
        assert (call.status, call.error) == ("completed", None)
        assert response.usage.model_extra == {"server_tool_use_details": {"tool_calls_executed": 1}}
        (tool,) = response.tools
        assert (tool.type, tool.server_url) == ("mcp", "toolrelay/core")
        assert [tool["name"] for tool in made.provider.requests[0]["tools"]] == [TIME]

        again = [*history, *response.output, {"role": "user", "content": "Hello?"}]
        after = await made.client.responses.create(input=again, **asked)
        assert after.output_text == "Hello."
        assert "mcp_list_tools" not in [item.type for item in after.output]
        assert made.provider.refused == []


async def test_openai_python_is_told_of_a_wrong_name() -> None:
    """A wrong ``server_url`` raises BadRequestError with the name of the field."""
    async with rig() as made:
        wrong: Any = {**CLOCK, "server_url": "toolrelay/cloc"}
        with pytest.raises(openai.BadRequestError, match="Write one of: toolrelay, toolrelay/core") as caught:
            await made.client.responses.create(model="m", input="hi", tools=[wrong])
        assert caught.value.param == "tools[0].server_url"


async def test_openai_agents() -> None:
    """The Agents SDK uses ``HostedMCPTool`` beside its own function, streamed and not, and goes on."""
    require("openai-agents", importlib.util.find_spec("agents") is not None, "openai-agents is not installed")
    from agents import (
        Agent,
        HostedMCPTool,
        ModelSettings,
        OpenAIResponsesModel,
        RunConfig,
        Runner,
        function_tool,
    )

    def get_calendar() -> str:
        """The next appointment."""
        return "15:00, dentist"

    for store in (True, False):
        async with rig() as made:
            agent = Agent(
                name="late",
                model=OpenAIResponsesModel(model="m", openai_client=made.client),
                tools=[function_tool(get_calendar), HostedMCPTool(tool_config=CLOCK)],
                model_settings=ModelSettings(store=store),
            )
            config = RunConfig(tracing_disabled=True)
            result = await Runner.run(agent, QUESTION, run_config=config)
            assert result.final_output == ANSWERS[QUESTION]
            shown = [getattr(item.raw_item, "type", "") for item in result.new_items]
            assert shown.count("mcp_list_tools") == 1
            assert shown.count("mcp_call") == 1
            streamed = Runner.run_streamed(agent, QUESTION, run_config=config)
            async for _ in streamed.stream_events():
                pass
            assert streamed.final_output == ANSWERS[QUESTION]
            again = result.to_input_list()
            again.append({"role": "user", "content": "time?"})
            after = await Runner.run(agent, again, run_config=config)
            assert after.final_output == f"{TIME}={NOON}"


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_anthropic_python(streaming: bool) -> None:
    """The ``anthropic`` package chooses a server tool by its MCP connector and gets an ordinary answer."""
    require(
        "anthropic", importlib.util.find_spec("anthropic") is not None, "the extra readers is not installed"
    )
    from anthropic import AsyncAnthropic
    from messages_script import reply

    said = stream if streaming else reply
    scripts = (
        said(tool_use("toolu_s", TIME, {"timezone": "UTC"})),
        said(text("It is noon."), id="msg_2"),
    )
    async with RawUpstream(*scripts) as upstream:
        served = {"base_url": upstream.url, "wires": ["anthropic"]}
        async with (
            running(make_config(served)) as proxy,
            AsyncAnthropic(
                base_url=f"http://127.0.0.1:{proxy.port}", api_key="client", max_retries=0
            ) as client,
        ):
            asked: Any = {
                "model": "m",
                "max_tokens": 100,
                "messages": [{"role": "user", "content": "hi"}],
                "mcp_servers": [{"type": "url", "name": "clock", "url": "toolrelay/core"}],
                "tools": [{"type": "mcp_toolset", "mcp_server_name": "clock"}],
                "betas": ["mcp-client-2025-11-20"],
            }
            if streaming:
                async with client.beta.messages.stream(**asked) as events:
                    message = await events.get_final_message()
            else:
                message = await client.beta.messages.create(**asked)
        assert [block.type for block in message.content] == ["text"]
        sent = json.loads(upstream.requests[0].body)
        assert "mcp_servers" not in sent
        assert TIME in [tool["name"] for tool in sent["tools"]]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_vercel_sdk(scripts: Path) -> None:
    """With ``openai.tools.mcp``, the AI SDK shows the call as the provider's, with its result."""
    async with rig() as made:
        asked = {"baseURL": str(made.client.base_url), "calendar": CALENDAR, "question": QUESTION}
        found = await run_node(scripts / "hosted_mcp.mjs", asked)
        assert found["faults"] == []
        assert found["text"] == ANSWERS[QUESTION]
        assert found["shown"] == ["mcp.get_current_time"]
        assert made.provider.refused == []
