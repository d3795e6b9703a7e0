"""Requests of Messages with Anthropic's code execution, and a client that answers what programs call."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents_rig import Asked, Models, Turn
from raw_upstream import RawUpstream
from running_proxy import Answer, Proxy, make_config, running

ECHO, BUY = "probe_tools__echo", "probe_tools__buy"
MESSAGES = "/v1/messages"
HEADERS = {"anthropic-version": "2023-06-01"}
QUESTION: Any = {"role": "user", "content": "Who sold most?"}
CODE_TOOL = {"type": "code_execution_20260120", "name": "code_execution"}
CALLER = "code_execution_20260120"
QUERY: dict[str, Any] = {
    "name": "query_sales",
    "description": "Return the sales of a region.",
    "input_schema": {
        "type": "object",
        "properties": {"region": {"type": "string"}},
        "required": ["region"],
    },
    "allowed_callers": [CALLER],
}
TWO_STEPS = """
found = {}
for region in ["West", "East"]:
    found[region] = (await query_sales(region=region))["total"]
print(max(found, key=lambda name: found[name]))
"""


def writes(code: str) -> Any:
    """A model that runs one program and repeats its result."""

    def say(asked: Asked) -> Turn:
        results = asked.results
        return Turn(f"Read: {results[-1]}") if results else Turn(calls=[("code_execution", {"code": code})])

    return say


@asynccontextmanager
async def served(models: Models, **config: Any) -> AsyncIterator[Proxy]:
    """A proxy with programs before an upstream of these models."""
    tools = {"programs": "auto", **config.pop("tools", {})}
    config = {"allow": ("probe_tools__*",), **config}
    async with (
        RawUpstream(models) as upstream,
        running(make_config(upstream.url, modules=("probe_tools",), tools=tools, **config)) as proxy,
    ):
        yield proxy


def body(*messages: Any, tools: Any = None, **more: Any) -> dict[str, Any]:
    """A request with code execution and the client's tool."""
    listed = [CODE_TOOL, QUERY] if tools is None else tools
    return {"model": "m", "max_tokens": 500, "messages": list(messages), "tools": listed, **more}


async def ask(proxy: Proxy, *messages: Any, status: int = 200, **more: Any) -> Answer:
    """Ask, with the answer's status as expected."""
    answer = await proxy.ask(body(*messages, **more), HEADERS, path=MESSAGES)
    assert answer.status == status, answer.body
    return answer


def results_of(message: Any, sales: Any) -> dict[str, Any]:
    """The results of the calls in an answer, by what the client's tool returns for their input."""
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    assert calls
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call["id"], "content": json.dumps(sales(call["input"]))}
            for call in calls
        ],
    }


SALES = {"West": {"total": 7}, "East": {"total": 9}}


def sold(given: Any) -> Any:
    """The client's tool."""
    return SALES[given["region"]]


def said(message: Any) -> dict[str, Any]:
    """An answer as the client sends it back."""
    return {"role": "assistant", "content": message["content"]}


async def paused(proxy: Proxy) -> tuple[Any, list[Any]]:
    """The first answer of a program that waits, and the conversation with the results."""
    first = (await ask(proxy, QUESTION)).json
    return first, [QUESTION, said(first), results_of(first, sold)]
