"""Real clients with two proxies that share only a seal key; each request goes to the other proxy.

Each proxy has its own record, which is empty at first, so it can restore a turn with hidden calls only if
the client carries it.
"""

import asyncio
import importlib.util
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from e2e_process import clean_environment
from e2e_rig import CORE_TOOLS
from in_process import serving_app
from openai import AsyncOpenAI
from openai.types.responses import Response
from pair_kits import SPEAKERS, Call, Got, Turn
from recorded_answers import Asked, Given, Scripted
from require import require
from responses_rules import ANSWERS, CALENDAR, NOON
from running_proxy import make_config, running
from strict_provider import Provider, serving_provider
from waiting import LATE_S, until

from proxy.app.app import Overrides
from proxy.config.secret import Secret
from proxy.toolbox.clock import FixedClock

pytestmark = pytest.mark.asyncio(loop_scope="function")

KEY = "5e" * 32
CLOCK = "core__get_current_time"
MIXED = "Given time and calendar, am I late?"
MARK = "toolrelay-turn:"
CODEX = """\
export TOOLRELAY_KEY=none
codex exec --skip-git-repo-check 'What time is it?' -m gpt-4o-mini -c model_provider=toolrelay \\
  -c model_providers.toolrelay.name=toolrelay \\
  -c model_providers.toolrelay.base_url=http://127.0.0.1:8080/v1 \\
  -c model_providers.toolrelay.env_key=TOOLRELAY_KEY -c model_providers.toolrelay.wire_api=responses
"""


class Balancer:
    """A load balancer that sends each request to the next of some ports.

    ``bodies`` has the bodies of POST requests, ``ports`` the ports that got them.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._known = ports
        self.ports: list[int] = []
        self.bodies: list[dict[str, Any]] = []

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Forward one request, and its answer piece by piece."""
        body = await request.read()
        port = self._known[len(self.bodies) % len(self._known)]
        if request.method == "POST":
            self.ports.append(port)
            self.bodies.append(json.loads(body))
        url = f"http://127.0.0.1:{port}{request.rel_url}"
        sent = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, url, data=body, headers=sent) as got,
        ):
            left_out = ("transfer-encoding", "content-length", "connection")
            kept = [(name, value) for name, value in got.headers.items() if name.lower() not in left_out]
            answer = web.StreamResponse(status=got.status, headers=dict(kept))
            await answer.prepare(request)
            async for piece in got.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer


async def run(script: str, env: dict[str, str], folder: Path) -> str:
    """Return what a shell script prints; it must exit with status 0."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script),
        env=env,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), LATE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()
    return out.decode()


@asynccontextmanager
async def balanced(
    folder: Path, upstream: Any, overrides: Callable[[], Overrides], **config: Any
) -> AsyncIterator[tuple[int, Balancer]]:
    """Yield the port of a balancer in front of two proxies, whose SQLite records are in a folder."""
    async with AsyncExitStack() as stack:
        ports = []
        for name in ("one", "two"):
            store = {"url": f"sqlite:///{folder / name}.db", "seal_key": Secret("env:SEAL", KEY)}
            made = make_config(upstream, store={**store, "content": "all"}, **config)
            proxy = await stack.enter_async_context(running(made, overrides()))
            stack.push_async_callback(until, lambda proxy=proxy: proxy.services.store.waiting == 0)  # type: ignore[misc]
            ports.append(proxy.port)
        balancer = Balancer(ports)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", balancer.forward)
        address = await stack.enter_async_context(serving_app(app))
        yield int(address.rpartition(":")[2]), balancer


def kept_in(folder: Path) -> dict[str, int]:
    """Count the rows of content in both records."""
    tables = ("messages", "suspended_turns", "hidden_turns", "responses", "native_calls")
    counts = dict.fromkeys(tables, 0)
    for name in ("one", "two"):
        with closing(sqlite3.connect(folder / f"{name}.db")) as db:
            for table in tables:
                counts[table] += db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return counts


@asynccontextmanager
async def rule_following(folder: Path) -> AsyncIterator[tuple[AsyncOpenAI, Balancer, Provider]]:
    """Yield the SDK on two proxies, with a provider as strict as OpenAI's behind them."""
    provider = Provider()

    def overrides() -> Overrides:
        return Overrides(clock=FixedClock(datetime.fromisoformat(NOON)))

    async with (
        serving_provider(provider) as url,
        balanced(folder, url, overrides, allow=CORE_TOOLS) as (port, balancer),
        AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client, balancer, provider


@pytest.mark.parametrize("include", [True, False], ids=["asks for it", "does not ask"])
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_openai_python(streaming: bool, include: bool, tmp_path: Path) -> None:
    """With ``store=False``, a loop that sends each output back works across both proxies."""
    history: list[Any] = [{"role": "user", "content": MIXED}]
    asked: dict[str, Any] = {"model": "m", "tools": [CALENDAR], "store": False}
    if include:
        asked["include"] = ["reasoning.encrypted_content"]
    async with rule_following(tmp_path) as (client, balancer, provider):
        for _ in range(2):
            response = await _ask(client, streaming, input=history, **asked)
            history += response.output
            history += [
                {"type": "function_call_output", "call_id": item.call_id, "output": "15:00, dentist"}
                for item in response.output
                if item.type == "function_call"
            ]
        assert response.output_text == ANSWERS[MIXED]
        history.append({"role": "user", "content": "And the time now?"})
        after = await _ask(client, streaming, input=history, **asked)
        assert after.output_text == f"{CLOCK}={NOON}"
        _check(balancer, provider)
    assert not any(kept_in(tmp_path).values())


async def _ask(client: AsyncOpenAI, streaming: bool, **asked: Any) -> Response:
    if not streaming:
        whole: Response = await client.responses.create(**asked)
        return whole
    async with client.responses.stream(**asked) as stream:
        return await stream.get_final_response()


def _check(balancer: Balancer, provider: Provider) -> None:
    """Check that each request went to another proxy, and that no provider got the carried turn."""
    assert all(one != other for one, other in zip(balancer.ports, balancer.ports[1:], strict=False))
    assert MARK in json.dumps(balancer.bodies)
    assert MARK not in json.dumps(provider.requests)
    assert not [words for words in provider.refused if "required following item" not in words]


@pytest.mark.parametrize("policy", ["preserve", "omit"])
async def test_openai_agents(policy: Any, tmp_path: Path) -> None:
    """The Agents SDK works with ``store=False``, even if it leaves out the ids of reasoning items."""
    require("openai-agents", importlib.util.find_spec("agents") is not None, "openai-agents is not installed")
    from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool

    def get_calendar() -> str:
        """The next appointment."""
        return "15:00, dentist"

    async with rule_following(tmp_path) as (client, balancer, provider):
        agent = Agent(
            name="late",
            model=OpenAIResponsesModel(model="m", openai_client=client),
            tools=[function_tool(get_calendar)],
            model_settings=ModelSettings(store=False),
        )
        config = RunConfig(tracing_disabled=True, reasoning_item_id_policy=policy)
        result = await Runner.run(agent, MIXED, run_config=config)
        assert result.final_output == ANSWERS[MIXED]
        streamed = Runner.run_streamed(agent, MIXED, run_config=config)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == ANSWERS[MIXED]
        again: list[Any] = [*result.to_input_list(), {"role": "user", "content": "time?"}]
        after = await Runner.run(agent, again, run_config=config)
        assert after.final_output == f"{CLOCK}={NOON}"
        _check(balancer, provider)
    assert not any(kept_in(tmp_path).values())


class Planner(Scripted):
    """A model whose first turn calls a server tool and Codex's own ``exec_command``."""

    name = "default"

    def __init__(self) -> None:
        super().__init__(self._say)
        self.speaker = SPEAKERS["chat"]

    def _say(self, asked: Asked) -> Given:
        got = self.speaker.got(asked.payload)
        calls = (Call("call_1", CLOCK, {}), Call("call_2", "exec_command", {"cmd": "echo ok"}))
        turn = Turn("It is noon.") if got.results else Turn("", calls)
        return Given(content_type=self.speaker.content_type, pieces=self.speaker.events(turn))

    def got(self, number: int) -> Got:
        """Return a request as the model reads it."""
        return self.speaker.got(self.asked[number].payload)

    async def aclose(self) -> None:
        return


@pytest.mark.slow
async def test_codex(tmp_path: Path) -> None:
    """Codex sends its turn back to the other proxy, and the model, of another dialect, reads both results."""
    require("codex", shutil.which("codex") is not None, "codex is not installed")
    model = Planner()
    served = {"base_url": "http://127.0.0.1:9/v1", "wires": ("chat",)}
    overrides = Overrides(wrap_upstream=lambda _: model)
    async with balanced(tmp_path, served, lambda: overrides, allow=CORE_TOOLS) as (port, balancer):
        script = CODEX.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
        said = await run(script, clean_environment(tmp_path / "home"), tmp_path)
    assert "It is noon." in said
    assert len(set(balancer.ports)) == 2
    assert all(body["store"] is False for body in balancer.bodies)
    second = model.got(-1)
    assert [call.name for call in second.calls] == [CLOCK, "exec_command"]
    assert len(second.results) == 2
    assert MARK in json.dumps(balancer.bodies[-1])
    assert not any(kept_in(tmp_path).values())
