"""The command ``serve`` behind forward proxies that its environment or its settings name."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from authority import Authority
from forward_proxies import ForwardProxy, tinyproxy
from in_process import serving_app
from proxy_process import serving

ASK = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = {
    "id": "c1",
    "object": "chat.completion",
    "created": 7,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
}


@asynccontextmanager
async def model(authority: Authority, name: str) -> AsyncIterator[int]:
    """Serve one answer of a model under a name of the authority; yield the port."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(ANSWER)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with serving_app(app, ssl=authority.server(name)) as address:
        yield int(address.rpartition(":")[2])


def configure(folder: Path, base_url: str, more: str = "") -> None:
    """Write a configuration whose upstream has a certificate of a private authority."""
    (folder / "toolrelay.toml").write_text(
        '[server]\nport = 0\n[auth]\nmode = "open"\n[network]\nca_file = "authority.pem"\n'
        f'[upstreams.main]\nbase_url = "{base_url}"\napi_key = ""\nretries = 0\n{more}'
    )


async def test_the_proxy_of_the_environment(tmp_path: Path) -> None:
    """HTTPS_PROXY with credentials is used, NO_PROXY excepts hosts, and no log line has the password."""
    authority = Authority(tmp_path)
    configure(tmp_path, "https://models.test:8443/v1")
    async with (
        model(authority, "models.test") as port,
        ForwardProxy({"models.test": port}, credentials="anna:hunter2hunter2") as proxy,
    ):
        env = {"HTTPS_PROXY": f"http://anna:hunter2hunter2@127.0.0.1:{proxy.port}", "NO_PROXY": "other.test"}
        async with serving(tmp_path, env=env) as running:
            answer = await running.ask(ASK)
            assert (answer.status, answer.json["choices"]) == (200, ANSWER["choices"])
            assert proxy.asked == ["models.test:8443"]
        assert "hunter2" not in "".join([*running.lines, *running.log])
        async with serving(tmp_path, env={**env, "NO_PROXY": "models.test"}) as running:
            answer = await running.ask(ASK)
            assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_unreachable")
        assert proxy.asked == ["models.test:8443"]


async def test_a_real_proxy(tmp_path: Path) -> None:
    """Through tinyproxy the model answers; without the right credentials the error names the setting."""
    authority = Authority(tmp_path)
    async with (
        model(authority, "localhost") as port,
        tinyproxy(tmp_path, "BasicAuth anna right-password") as proxy,
    ):
        configure(tmp_path, f"https://localhost:{port}/v1", 'proxy = "env:CORPORATE_PROXY"\n')
        for word, status in (("right-password", 200), ("wrong-password", 502)):
            env = {"CORPORATE_PROXY": f"http://anna:{word}@127.0.0.1:{proxy}"}
            async with serving(tmp_path, env=env) as running:
                answer = await running.ask(ASK)
                assert answer.status == status
                if status == 502:
                    assert (
                        "upstreams.main.proxy (env:CORPORATE_PROXY) refuses"
                        in answer.json["error"]["message"]
                    )
                    assert word not in "".join([answer.body.decode(), *running.lines, *running.log])
        # A proxy that lets nobody out but to another port.
        async with tinyproxy(tmp_path, "ConnectPort 1") as narrow:
            env = {"CORPORATE_PROXY": f"http://127.0.0.1:{narrow}"}
            async with serving(tmp_path, env=env) as running:
                answer = await running.ask(ASK)
                assert "does not connect to this host (status 403)" in answer.json["error"]["message"]
