"""For tests of Ollama's own clients: a proxy with the probe tools before an upstream of any dialect."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import messages_script as messages
import ollama_script as script
import responses_script as responses
from chat_script import call, content, finish, role, stream, usage
from looping import ECHO
from raw_upstream import RawUpstream, Step
from running_proxy import make_config, running

SAY = '{"text":"noon"}'
SAID = {"text": "noon"}
ASK: list[dict[str, Any]] = [{"role": "user", "content": "What time is it?"}]
SCRIPTS: dict[str, Sequence[Sequence[Step]]] = {
    "chat": (
        stream(
            role(), call("call_1", ECHO, SAY), call("call_2", "add", '{"a":1,"b":2}', 1), finish("tool_calls")
        ),
        stream(role(), content("It ", "is noon."), finish(), usage(7, 4)),
    ),
    "responses": (
        responses.stream(
            responses.function_call("call_1", ECHO, SAY),
            responses.function_call("call_2", "add", '{"a":1,"b":2}'),
        ),
        responses.stream(responses.message("It is noon.", id="msg_2"), id="resp_2"),
    ),
    "anthropic": (
        messages.stream(
            messages.tool_use("toolu_1", ECHO, SAID), messages.tool_use("toolu_2", "add", {"a": 1, "b": 2})
        ),
        messages.stream(messages.text("It is noon."), id="msg_2"),
    ),
    "ollama": (
        script.stream("", script.call(ECHO, SAID), script.call("add", {"a": 1, "b": 2}), thinking="Hm."),
        script.stream("It is noon."),
    ),
}


@asynccontextmanager
async def serving(wire: str, *scripts: Sequence[Step]) -> AsyncIterator[tuple[str, RawUpstream]]:
    """Run a proxy before an upstream with one dialect and these scripts; yield URL and upstream."""
    async with RawUpstream(*(scripts or SCRIPTS[wire])) as upstream:
        config = make_config({"base_url": upstream.url, "wires": (wire,)}, modules=("probe_tools",))
        async with running(config) as proxy:
            yield f"http://127.0.0.1:{proxy.port}", upstream
