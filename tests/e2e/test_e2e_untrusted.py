"""After a tool has returned an untrusted page, the proxy withholds dangerous tools."""

import json
from typing import Any

import pytest
import responses_script
from chat_script import reply
from openai import AsyncOpenAI
from probe_tools import WATCH
from raw_upstream import RawUpstream, Step
from running_proxy import make_config, running

from proxy.json.splice import members

PAGE, BUY, ECHO = "probe_tools__page", "probe_tools__buy", "probe_tools__echo"
MILK = '{"what":"milk"}'
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
MINE: dict[str, Any] = {"name": "mine", "description": "d", "parameters": PARAMETERS}


def turns_of(wire: str) -> list[list[Step]]:
    """Return turns of a model that reads a page, tries to buy, gives up, and answers once more."""
    if wire == "chat":
        calls = [(("call_p", PAGE, "{}"),), (("call_b", BUY, MILK),)]
        return [*(reply(None, *made) for made in calls), reply("No milk."), reply("Bye.")]
    items = [
        responses_script.function_call("call_p", PAGE),
        responses_script.function_call("call_b", BUY, MILK),
        responses_script.message("No milk."),
        responses_script.message("Bye."),
    ]
    return [responses_script.reply(item, id=f"resp_{n}") for n, item in enumerate(items, 1)]


async def talk(client: AsyncOpenAI, wire: str) -> list[str | None]:
    """Send two requests of one conversation, as a user of the package does; return the answers."""
    said: list[str | None] = []
    conversation: list[Any] = []
    for text in ("Read the page.", "Thanks."):
        conversation.append({"role": "user", "content": text})
        if wire == "chat":
            tools: Any = [{"type": "function", "function": MINE}]
            answer = await client.chat.completions.create(model="m", messages=conversation, tools=tools)
            conversation.append(answer.choices[0].message)
            said.append(answer.choices[0].message.content)
        else:
            flat: Any = [{"type": "function", "strict": False, **MINE}]
            response = await client.responses.create(model="m", input=conversation, tools=flat)
            conversation += response.output
            said.append(response.output_text)
    return said


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_page_takes_the_dangerous_tools_away(wire: str) -> None:
    """Rule T2: from the turn after the page on, each request offers the same tools, without ``buy``."""
    WATCH.reset()
    async with (
        RawUpstream(*turns_of(wire)) as upstream,
        running(make_config(upstream.url, allow=(PAGE, BUY, ECHO), modules=("probe_tools",))) as proxy,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0) as client,
    ):
        assert await talk(client, wire) == ["No milk.", "Bye."]
    sent = [members(request.body) for request in upstream.requests]
    tools = [parts["tools"] for parts in sent]
    assert len(tools) == 4
    without_buy = [tool for tool in json.loads(tools[0]) if tool.get("function", tool)["name"] != BUY]
    assert len(without_buy) == len(json.loads(tools[0])) - 1
    assert json.loads(tools[1]) == without_buy
    assert tools[1] == tools[2] == tools[3]
    assert BUY.encode() in tools[0]
    assert not any(BUY.encode() in one for one in tools[1:])
    # Earlier messages are sent again as the same bytes.
    conversation = "messages" if wire == "chat" else "input"
    told = [parts[conversation].strip()[1:-1] for parts in sent]
    assert told[1].startswith(told[0])
    assert told[2].startswith(told[1])
    assert told[3].startswith(told[2])
    assert b"approval_required" in told[2]
    assert WATCH.finished == []
