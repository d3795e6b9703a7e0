"""Official clients read llama-server's Responses streams: directly, passed through and repaired.

The counts are those of docs/doctor.md.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agents import ModelSettings, ModelTracing
from agents.models.openai_responses import OpenAIResponsesModel
from aiohttp import web
from e2e_packages import SCRIPTS, installed_packages
from fixture_loader import FIXTURES
from in_process import serving_app
from openai import AsyncOpenAI
from openai.types.responses import ResponseCompletedEvent
from require import require
from running_proxy import make_config, running

pytestmark = pytest.mark.asyncio(loop_scope="function")

RUN_S = 120
STREAMS = {
    path.parent.parent.name: path.read_bytes()
    for path in sorted(FIXTURES.glob("llamacpp.responses/*/turn-1/response.sse"))
    if "length" not in path.parts and b"core__" not in path.read_bytes()
}
"""Recorded streams without a server tool that completed; openai-python's helper accepts no others."""
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
EVENT_FIELDS = ("sequence_number", "output_index")


@dataclass(frozen=True)
class Said:
    """What a stream says: its text, and the arguments of its calls."""

    text: str
    calls: list[Any]


def recorded(name: str) -> Said:
    """Return what the last event of a recorded stream says."""
    data = [json.loads(line[6:]) for line in STREAMS[name].split(b"\n") if line.startswith(b"data: {")]
    return said_in(data[-1]["response"]["output"])


def said_in(output: list[dict[str, Any]]) -> Said:
    texts = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
    calls = [json.loads(item["arguments"]) for item in output if item["type"] == "function_call"]
    return Said("".join(texts), calls)


@asynccontextmanager
async def llama_server() -> AsyncIterator[str]:
    """A server that answers for each model with the recorded stream of that name."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return web.Response(body=STREAMS[body["model"]], content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/responses", answer)
    async with serving_app(app) as address:
        yield f"{address}/v1"


@asynccontextmanager
async def served(repair: str) -> AsyncIterator[str]:
    """Yield the address for clients: of llama-server itself, or of a proxy in front of it."""
    async with llama_server() as url:
        if repair == "straight":
            yield url
            return
        config = make_config({"base_url": url, "repair": repair}, allow=())
        async with running(config) as proxy:
            yield f"http://127.0.0.1:{proxy.port}/v1"


# Each check reads one stream and returns what it says, or raises what the client's user would get.


async def read_events(client: AsyncOpenAI, model: str) -> Said:
    """Read typed events; each needs a number, and an index if it is about an item."""
    final = None
    stream = await client.responses.create(model=model, input="hi", stream=True)
    async for event in stream:
        fields = set(EVENT_FIELDS) & set(type(event).model_fields)
        missing = [name for name in fields if getattr(event, name, None) is None]
        assert not missing, f"{event.type} has no {missing}"
        final = event
    assert isinstance(final, ResponseCompletedEvent)
    return said_in(final.response.model_dump()["output"])


async def read_helper(client: AsyncOpenAI, model: str) -> Said:
    """Read with the stream helper."""
    async with client.responses.stream(model=model, input="hi") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    return said_in(final.model_dump()["output"])


async def read_opening(client: AsyncOpenAI, model: str) -> Said:
    """Check that the response in the first events has all required fields; read the stream."""
    final = None
    async for event in await client.responses.create(model=model, input="hi", stream=True):
        if event.type in ("response.created", "response.in_progress"):
            for name, field in type(event.response).model_fields.items():
                assert not field.is_required() or name in event.response.model_fields_set, name
        final = event
    assert isinstance(final, ResponseCompletedEvent)
    return said_in(final.response.model_dump()["output"])


async def read_agents(client: AsyncOpenAI, model: str) -> Said:
    """Read with the Agents SDK's model, as its runner does."""
    final = None
    async for event in OpenAIResponsesModel(model, client).stream_response(
        None,
        "hi",
        ModelSettings(),
        [],
        None,
        [],
        ModelTracing.DISABLED,
        previous_response_id=None,
        conversation_id=None,
        prompt=None,
    ):
        final = event
    assert isinstance(final, ResponseCompletedEvent)
    return said_in(final.response.model_dump()["output"])


Check = Callable[[AsyncOpenAI, str], Awaitable[Said]]
PYTHON: tuple[Check, ...] = (read_events, read_opening, read_helper, read_agents)


@pytest.mark.parametrize(("repair", "good"), [("straight", 5), ("off", 5), ("auto", 16), ("always", 16)])
async def test_pythons_clients(repair: str, good: int) -> None:
    """Four clients read four streams: most fail on llama-server's own bytes, and none on repaired ones."""
    passed, failed = [], []
    async with (
        served(repair) as base_url,
        AsyncOpenAI(base_url=base_url, api_key="x", max_retries=0) as client,
    ):
        for name in STREAMS:
            for check in PYTHON:
                try:
                    said = await check(client, name)
                except Exception as error:  # noqa: BLE001 - whatever a client raises, its user would get
                    failed.append(f"{name}, {check.__name__}: {error!r}"[:200])
                    continue
                assert said == recorded(name)
                passed.append((name, check.__name__))
    assert len(passed) == good, failed


def as_said(found: Mapping[str, Any]) -> Said | None:
    """Return what a script read; ``None`` if it failed."""
    return None if "error" in found else Said(found["text"], [json.loads(call) for call in found["calls"]])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("repair", "good"), [("straight", 0), ("off", 0), ("auto", 8), ("always", 8)])
async def test_nodes_clients(repair: str, good: int, tmp_path: Path) -> None:
    """The Node package's helper and the Vercel AI SDK fail without repair, and succeed with it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    require("node", bool(node and npm), "node and npm are not installed")
    packages, trouble = installed_packages(str(npm))
    require("node", packages is not None, f"the npm packages cannot be installed: {trouble}")
    assert packages is not None
    shutil.copy(SCRIPTS / "repaired.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    async with served(repair) as base_url:
        process = await asyncio.create_subprocess_exec(
            str(node),
            "repaired.mjs",
            cwd=tmp_path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        question = {"baseURL": base_url, "models": list(STREAMS), "tool": TOOL}
        async with asyncio.timeout(RUN_S):
            out, _ = await process.communicate(json.dumps(question).encode())
    found = json.loads(out)
    passed = [1 for name in STREAMS for one in found[name].values() if as_said(one) == recorded(name)]
    assert len(passed) == good, found
