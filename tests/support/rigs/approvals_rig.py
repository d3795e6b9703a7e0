"""A model that buys milk, which needs an approval, and a client that sends its whole conversation."""

import re
from pathlib import Path
from typing import Any

import chat_script
import responses_script
from openai import AsyncOpenAI
from raw_upstream import Step
from running_proxy import make_config

from proxy.config.load import Config

BUY, ECHO = "probe_tools__buy", "probe_tools__echo"
MILK = '{"what": "milk"}'
SHOP: Any = {
    "type": "mcp",
    "server_label": "shop",
    "server_url": "toolrelay/probe_tools",
    "require_approval": "never",
}
ID = re.compile(r"appr_[0-9a-f]{32}")


def config_of(upstream: str, tmp_path: Path, **sections: Any) -> Config:
    policy = {"approve": ("probe_tools__buy",), **sections.pop("policy", {})}
    return make_config(
        upstream,
        allow=("probe_tools__*",),
        modules=("probe_tools",),
        policy=policy,
        store={"url": f"sqlite:///{tmp_path / 'r.db'}"},
        approvals=sections.pop("approvals", {}),
        **sections,
    )


def turns_of(wire: str, *, stream: bool, more: bool = False) -> list[list[Step]]:
    """Return the turns of a model that buys milk and then says so; ``more`` adds a harmless call."""
    calls = [("call_b", BUY, MILK)]
    if more:
        calls.insert(0, ("call_e", ECHO, '{"text": "hi"}'))
    if wire == "chat":
        if not stream:
            return [chat_script.reply(None, *calls), chat_script.reply("Bought.")]
        pieces = [chat_script.call(*call, index=at) for at, call in enumerate(calls)]
        first = chat_script.stream(chat_script.role(), *pieces, chat_script.finish("tool_calls"))
        last = chat_script.stream(chat_script.role(), chat_script.content("Bought."), chat_script.finish())
        return [first, last]
    items = [responses_script.function_call(*call) for call in calls]
    said = [responses_script.message("Bought.", id="msg_2")]
    make = responses_script.stream if stream else responses_script.reply
    return [make(*items, id="resp_1"), make(*said, id="resp_2")]


async def say(client: AsyncOpenAI, wire: str, conversation: list[Any], *, stream: bool, **more: Any) -> str:
    """Send one request with the whole conversation, add the answer to it, and return the answer's text."""
    if wire == "chat":
        if not stream:
            answer = await client.chat.completions.create(model="m", messages=conversation, **more)
            conversation.append(answer.choices[0].message)
            assert answer.choices[0].finish_reason == "stop"
            return answer.choices[0].message.content or ""
        text = ""
        async for chunk in await client.chat.completions.create(
            model="m", messages=conversation, stream=True, **more
        ):
            for choice in chunk.choices:
                text += choice.delta.content or ""
        conversation.append({"role": "assistant", "content": text})
        return text
    if not stream:
        response = await client.responses.create(model="m", input=conversation, **more)
    else:
        async with client.responses.stream(model="m", input=conversation, **more) as events:
            async for _ in events:
                pass
            response = await events.get_final_response()
    conversation += [item.model_dump(exclude_none=True) for item in response.output]
    assert response.status == "completed"
    return str(response.output_text)
