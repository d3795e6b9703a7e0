"""Programmatic tool calling on Responses, and OpenAI's client that answers what programs call."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agents_rig import Asked, Models, Turn
from openai import AsyncOpenAI
from openai.types.responses import Response
from raw_upstream import RawUpstream
from running_proxy import Proxy, make_config, running

KIND = "programmatic_tool_calling"
SKU: dict[str, Any] = {
    "type": "object",
    "properties": {"sku": {"type": "string"}},
    "required": ["sku"],
    "additionalProperties": False,
}


def function(name: str, *callers: str) -> dict[str, Any]:
    """A function of the client that these may call."""
    return {
        "type": "function",
        "name": name,
        "description": "Look up a SKU.",
        "parameters": SKU,
        "output_schema": {"type": "object", "properties": {"units": {"type": "number"}}},
        "strict": True,
        "allowed_callers": list(callers),
    }


TOOLS: Sequence[Any] = [
    {"type": KIND},
    function("get_inventory", "programmatic"),
    function("get_demand", "direct", "programmatic"),
]
ONE_BY_ONE = """
const inventory = await tools.get_inventory({sku: "sku_123"});
const demand = await tools.get_demand({sku: "sku_123"});
text(JSON.stringify({inventory, demand}));
"""
QUESTION: Any = {"role": "user", "content": "Is there enough of sku_123?"}


def writes(code: str) -> Callable[[Asked], Turn]:
    """A model that runs one program and repeats its result."""

    def say(asked: Asked) -> Turn:
        results = asked.results
        return Turn(f"Read: {results[-1]}") if results else Turn(calls=[(KIND, {"code": code})])

    return say


@asynccontextmanager
async def served(models: Models, **config: Any) -> AsyncIterator[Proxy]:
    """A proxy with programs before a Chat upstream of these models."""
    tools = {"programs": "auto", **config.pop("tools", {})}
    config = {"allow": ("probe_tools__*",), **config}
    async with RawUpstream(models) as upstream:
        chat = {"base_url": upstream.url, "wires": ("chat",)}
        async with running(make_config(chat, modules=("probe_tools",), tools=tools, **config)) as proxy:
            yield proxy


def client_of(proxy: Proxy, key: str = "none") -> AsyncOpenAI:
    """OpenAI's client of a proxy, which does not send a request again."""
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key=key, max_retries=0)


async def answer(client: AsyncOpenAI, items: Sequence[Any], *, stream: bool, **more: Any) -> Response:
    """The answer to a request, read with OpenAI's client."""
    body: dict[str, Any] = {"model": "m", "store": False, "input": items, "tools": TOOLS, **more}
    if not stream:
        whole: Response = await client.responses.create(**body)
        return whole
    async with client.responses.stream(**body) as events:
        async for _ in events:
            pass
        final: Response = await events.get_final_response()
        return final


def sent_back(response: Response) -> list[Any]:
    """The items of an answer as a client sends them back."""
    return [item.model_dump(exclude_none=True, mode="json") for item in response.output]


def outputs(response: Response, run: Callable[[str, Any], Any]) -> list[Any]:
    """The outputs of the calls in an answer, by what the client's functions return."""
    return [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": json.dumps(run(call.name, json.loads(call.arguments))),
            "caller": call.caller.model_dump() if call.caller else None,
        }
        for call in response.output
        if call.type == "function_call"
    ]


def units(name: str, given: Any) -> Any:
    """The client's functions."""
    assert given == {"sku": "sku_123"}
    return {"units": {"get_inventory": 42, "get_demand": 31}[name]}


async def conversation(client: AsyncOpenAI, *, stream: bool, **more: Any) -> tuple[list[Any], list[Response]]:
    """Ask, run what the answers call until there is a message, and return all items and answers."""
    items, answers = [QUESTION], list[Response]()
    while True:
        response = await answer(client, items, stream=stream, **more)
        assert response.status == "completed"
        answers.append(response)
        items += sent_back(response)
        if not (made := outputs(response, units)):
            return items, answers
        items += made
