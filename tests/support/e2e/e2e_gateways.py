"""Real gateways as upstreams: LiteLLM's and Portkey's, before fake providers on the loopback.

``TOOLRELAY_TEST_LITELLM`` is the path of the ``litellm`` command, and ``TOOLRELAY_TEST_PORTKEY`` that of
Portkey's ``start-server.js``. The defaults are the paths to which ``.ci/run`` installs them.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from child_server import reserved_port
from in_process import serving_app
from require import require
from running_proxy import SERVER_KEY
from strict_chat import StrictChat, serving_chat

ROOT = Path(__file__).resolve().parents[3]
LITELLM = Path(os.environ.get("TOOLRELAY_TEST_LITELLM") or ROOT / ".venv-ci-litellm/bin/litellm")
PORTKEY = Path(
    os.environ.get("TOOLRELAY_TEST_PORTKEY")
    or ROOT / ".venv-ci-portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
)
MASTER_KEY = "sk-master-0123456789abcdef"
START_S = 220.0
"""LiteLLM needs a minute for its imports if none of its files are cached."""

ATTACKS: Mapping[str, str] = {
    "x-portkey-custom-host": "{evil}",
    "X_Portkey_Custom_Host": "{evil}",
    "x-portkey-config": '{{"provider":"openai","custom_host":"{evil}"}}',
    "x-portkey-forward-headers": "authorization",
    "Helicone-Target-URL": "{evil}",
    "Helicone-OpenAI-Api-Base": "{evil}",
    "helicone-auth": "Bearer other",
    "cf-aig-authorization": "Bearer other",
    "cf-aig-metadata": "{{}}",
    "x-litellm-api-key": "Bearer other",
    "x-litellm-timeout": "0.001",
    "x-litellm-tags": "other",
    "X-HTTP-Method-Override": "DELETE",
    "X-Method-Override": "DELETE",
    "X-Original-URL": "/v1/files",
    "X-Rewrite-URL": "/v1/files",
}
"""Headers by which a client may try to control a gateway; it wants the key sent to ``{evil}``."""


@dataclass
class Gateway:
    """A running gateway.

    ``url`` is a proxy before it that notes in ``heads`` the headers of each request; ``direct`` is the
    gateway itself. The gateway must send requests to ``provider``, and must never send one to ``evil``.
    """

    url: str
    direct: str
    provider: StrictChat
    provider_url: str
    evil: StrictChat
    evil_url: str
    heads: list[list[tuple[str, str]]] = field(default_factory=list)

    def attack(self) -> dict[str, str]:
        """Return all these headers."""
        return {name: value.format(evil=self.evil_url) for name, value in ATTACKS.items()}

    async def ask(self, body: object, headers: Mapping[str, str], query: str = "") -> tuple[int, str]:
        """Send a chat request to the gateway itself; return status and body."""
        url = f"{self.direct}/chat/completions{query}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.text()

    def forget(self) -> None:
        """Forget all requests so far."""
        self.heads.clear()
        for provider in (self.provider, self.evil):
            provider.requests.clear()
            provider.keys.clear()


@asynccontextmanager
async def _tap(target: str, heads: list[list[tuple[str, str]]]) -> AsyncIterator[str]:
    """Run a proxy that changes nothing and notes the headers; yield its address."""
    session = aiohttp.ClientSession(auto_decompress=False)

    async def relay(request: web.Request) -> web.StreamResponse:
        heads.append([(name, value) for name, value in request.headers.items()])
        passed = [(n, v) for n, v in request.headers.items() if n.lower() not in ("host", "content-length")]
        async with session.request(
            request.method, target + request.path_qs, data=await request.read(), headers=passed
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", relay)
    async with serving_app(app) as address:
        yield address
        await session.close()


@asynccontextmanager
async def _process(command: Sequence[str], folder: Path, alive: str) -> AsyncIterator[None]:
    """Run a gateway's process, wait until ``alive`` answers, and kill it at the end."""
    # LiteLLM must use the prices in its package and not download them.
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_PROXY": "*", **quiet}
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
                while True:
                    assert process.returncode is None, (folder / "log").read_text(errors="replace")[-3000:]
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(alive) as answer:
                            if answer.status == 200:
                                break
                    await asyncio.sleep(0.2)
            yield
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def _gateway(
    folder: Path, alive: str, command: Callable[[int, str], Sequence[str]]
) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as stack:
        provider, evil = StrictChat(emits={}), StrictChat(emits={})
        good_url = await stack.enter_async_context(serving_chat(provider))
        evil_url = await stack.enter_async_context(serving_chat(evil))
        port = stack.enter_context(reserved_port())
        address = f"http://127.0.0.1:{port}"
        await stack.enter_async_context(_process(command(port, good_url), folder, address + alive))
        heads: list[list[tuple[str, str]]] = []
        tap = await stack.enter_async_context(_tap(address, heads))
        yield Gateway(f"{tap}/v1", f"{address}/v1", provider, good_url, evil, evil_url, heads)


def litellm(folder: Path) -> AbstractAsyncContextManager[Gateway]:
    """Run LiteLLM's proxy with two models, ``cheap`` and ``dear``; clients need :data:`MASTER_KEY`."""
    require("litellm", LITELLM.exists(), f"LiteLLM's proxy is not installed ({LITELLM})")

    def command(port: int, good_url: str) -> Sequence[str]:
        config = folder / "config.yaml"  # JSON is YAML.
        models = [
            {
                "model_name": name,
                "litellm_params": {"model": f"openai/{name}", "api_base": good_url, "api_key": SERVER_KEY},
            }
            for name in ("cheap", "dear")
        ]
        general = {"master_key": MASTER_KEY}
        config.write_text(json.dumps({"model_list": models, "general_settings": general}), "utf-8")
        where = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        return [str(LITELLM), *where, "--num_workers", "1"]

    return _gateway(folder, "/health/liveliness", command)


def portkey(folder: Path) -> AbstractAsyncContextManager[Gateway]:
    """Run Portkey's gateway, to which each request names its provider."""
    node = shutil.which("node")
    there = node is not None and PORTKEY.exists()
    require("portkey", there, f"Portkey's gateway is not installed ({PORTKEY}), or node is not")
    return _gateway(folder, "/", lambda port, _: [str(node), str(PORTKEY), f"--port={port}", "--headless"])
