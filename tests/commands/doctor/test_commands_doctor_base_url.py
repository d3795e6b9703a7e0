"""``serve`` and ``check --probe`` find an address without ``/v1``; the probe also corrects ``wires``."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from chat_script import DONE, content, finish, role, usage
from command_line import HINT
from in_process import serving_app
from ollama_script import done
from proxy_process import serving, write_config
from waiting import PATIENCE_S


@asynccontextmanager
async def model_server() -> AsyncIterator[tuple[str, list[str]]]:
    """Yield the address of a server whose API is below /v1, like Ollama's, and the paths of its requests."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path != "/v1/models":
            return web.Response(status=404, text="404 page not found")
        return web.json_response({"object": "list", "data": [{"id": "small-1"}]})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with serving_app(app) as address:
        yield address, asked


async def test_the_start_says_what_to_write(tmp_path: Path) -> None:
    """If the address lacks ``/v1``, the start prints one warning with the right value, and serves."""
    async with model_server() as (url, asked):
        write_config(tmp_path, url)
        async with serving(tmp_path) as proxy:
            warning = (await proxy.says("warning: upstreams.default.base_url"))[0]
            assert warning
            line = next(line for line in proxy.log if "base_url" in line)
            assert f'Set upstreams.default.base_url = "{url}/v1"' in line
            assert (await proxy.ask(method="GET", path="/healthz")).status == 200
        assert asked == ["/models", "/v1/models"]


async def test_probing_names_a_refused_key_once(tmp_path: Path) -> None:
    """If the upstream refuses the key, check --probe prints one line with the setting, and no log line."""

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=401)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", refuse)
    async with serving_app(app) as address:
        (tmp_path / "toolrelay.toml").write_text(
            f'[upstreams.mine]\nbase_url = "{address}/v1"\napi_key = "env:MINE"\n'
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "check", "--probe"),
            cwd=tmp_path,
            env={**os.environ, "MINE": "sk-not-this-one"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S):
            printed, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().splitlines() == [
        "toolrelay: upstreams.mine: the upstream refuses the key (status 401). "
        "Correct upstreams.mine.api_key (env:MINE)"
    ]
    assert b"refuse" not in printed


async def test_an_address_with_a_version_is_asked_nothing(tmp_path: Path) -> None:
    """If the address contains its version, the start sends no request to the upstream."""
    async with model_server() as (url, asked):
        write_config(tmp_path, f"{url}/v1")
        async with serving(tmp_path) as proxy:
            assert (await proxy.ask(method="GET", path="/v1/models")).status == 200
        assert asked == ["/v1/models"]


@pytest.mark.parametrize("models", ["", 'models = ["small-1"]\n'])
async def test_probing_says_it_too(tmp_path: Path, models: str) -> None:
    """check --probe names setting and value, even with a configured model, and sends no chat request."""
    async with model_server() as (url, asked):
        text = f'[upstreams.mine]\nbase_url = "{url}"\napi_key = ""\n{models}'
        (tmp_path / "toolrelay.toml").write_text(text)
        command = [sys.executable, "-m", "proxy", "check", "--probe"]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE_S):
            _, errors = await process.communicate()
    line, hint = errors.decode().splitlines()
    assert hint == f"{HINT}upstreams.mine.base_url"
    assert process.returncode == 1
    assert line.startswith("toolrelay: upstreams.mine.base_url: no API answers at")
    assert f'"{url}/v1"' in line
    assert asked == ["/models", "/v1/models"]


@asynccontextmanager
async def ollama_server(*, chat: bool) -> AsyncIterator[str]:
    """A server with Ollama's own API, and with Chat below ``/v1`` if ``chat`` is true."""
    answers = {"/api/tags": b'{"models":[{"name":"small-1"}]}', "/api/chat": done(content="ok")}
    if chat:
        answers["/v1/models"] = b'{"object":"list","data":[{"id":"small-1"}]}'
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        answers["/v1/chat/completions"] = json.dumps({"choices": [choice]}).encode()

    streamed = b"".join([role(), content("ok"), finish(), usage(1, 1), DONE])

    async def answer(request: web.Request) -> web.Response:
        body = answers.get(request.path)
        if request.path == "/v1/chat/completions" and (await request.json()).get("stream"):
            return web.Response(body=streamed, content_type="text/event-stream")
        return web.Response(body=body or b"404", status=404 if body is None else 200)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with serving_app(app) as address:
        yield address


@pytest.mark.parametrize(
    ("chat", "path", "wires", "status", "words"),
    [
        (True, "/v1", '["chat"]', 0, '[upstreams.mine]\nwires = ["chat", "ollama"]\n'),
        (True, "/v1", '["chat", "ollama"]', 0, ""),
        (False, "", '["ollama"]', 0, ""),
        (True, "/v1", '["anthropic"]', 1, 'wires = ["chat", "ollama"]\n'),
        (False, "/v1", '["ollama"]', 0, ""),
    ],
)
async def test_probing_prints_the_wires_to_write(
    tmp_path: Path, chat: bool, path: str, wires: str, status: int, words: str
) -> None:
    """If ``wires`` does not fit, check --probe prints the right value; Ollama's API is beside ``/v1``."""
    async with ollama_server(chat=chat) as url:
        (tmp_path / "toolrelay.toml").write_text(
            f'[upstreams.mine]\nbase_url = "{url}{path}"\napi_key = ""\nwires = {wires}\n'
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "check", "--probe"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S):
            output, errors = await process.communicate()
    assert process.returncode == status, errors.decode()
    assert words in output.decode()
    assert ("Write into toolrelay.toml" in output.decode()) is bool(words)
