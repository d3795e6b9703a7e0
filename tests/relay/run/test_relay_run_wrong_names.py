"""Names that no tool can have, in calls that a model made up, over real sockets."""

import json
import re
from collections.abc import Sequence
from typing import Any

import chat_script as chat
import messages_script as messages
import ollama_script as ollama
import pytest
import responses_script as responses
from pair_kits import SPEAKERS
from raw_upstream import RawUpstream, Step
from running_proxy import make_config, running
from speaker import Message

NAME = "functions.echo\u200b" + "x" * 80
UPSTREAMS: dict[str, Sequence[list[Step]]] = {
    "chat": (
        chat.stream(chat.role(), chat.call("call_1", NAME, "{}"), chat.finish("tool_calls")),
        chat.stream(chat.role(), chat.content("Sorry."), chat.finish()),
    ),
    "chat reply": (
        chat.reply(None, ("call_1", NAME, "{}")),
        chat.reply("Sorry."),
    ),
    "responses": (
        responses.stream(responses.function_call("call_1", NAME)),
        responses.stream(responses.message("Sorry.", id="msg_2"), id="resp_2"),
    ),
    "responses reply": (
        responses.reply(responses.function_call("call_1", NAME)),
        responses.reply(responses.message("Sorry.", id="msg_2"), id="resp_2"),
    ),
    "anthropic": (
        messages.stream(messages.tool_use("toolu_1", NAME)),
        messages.stream(messages.text("Sorry.")),
    ),
    "anthropic reply": (
        messages.reply(messages.tool_use("toolu_1", NAME)),
        messages.reply(messages.text("Sorry.")),
    ),
    "ollama": (ollama.stream("", ollama.call(NAME)), ollama.stream("Sorry.")),
}


def called_in(value: Any) -> set[str]:
    """Return the names of all calls in a request body."""
    if isinstance(value, list):
        return set().union(*map(called_in, value))
    if not isinstance(value, dict):
        return set()
    found = set().union(*(called_in(inner) for key, inner in value.items() if key != "tools"))
    is_call = value.keys() >= {"name"} and value.keys() & {"arguments", "input"}
    return found | {value["name"]} if is_call else found


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_a_name_that_was_made_up_goes_back_as_one_that_is_accepted(upstream: str) -> None:
    """Rule W8: providers refuse such a name of their own model; only Ollama's finds results by names."""
    wire, _, whole = upstream.partition(" ")
    speaker = SPEAKERS["anthropic" if wire == "chat" else "chat"]
    async with RawUpstream(*UPSTREAMS[upstream]) as server:
        served = {"base_url": server.url, "wires": (wire,)}
        async with running(make_config(served, modules=("probe_tools",))) as proxy:
            ask = speaker.ask([Message("user", "Hello.")], stream=not whole)
            answer = await proxy.ask(ask, path=speaker.path)
            assert answer.status == 200, answer.body
        (name,) = called_in(json.loads(server.requests[1].body))
    assert name == (NAME if wire == "ollama" else re.sub("[.\u200b]", "_", NAME)[:64])
