"""A model that wants to buy milk, and a proxy that wants to be asked before."""

from pathlib import Path
from typing import Any

import chat_script
import responses_script
from openai import AsyncOpenAI
from raw_upstream import Step
from running_proxy import Proxy, make_config

from proxy.server.config.load import Config

BUY, ECHO = "probe_tools__buy", "probe_tools__echo"
MILK = '{"what": "milk"}'


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
    """A model that buys milk, beside something harmless with ``more``, and says so."""
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


def client_of(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="unused", max_retries=0)
