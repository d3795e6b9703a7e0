"""The examples work: the thin client in a real browser, and each configuration as it is."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from chat_script import DONE, call, content, finish, role
from client_keys import ALICE, declared
from e2e_browser import chromium
from in_process import serving_app
from raw_upstream import RawUpstream, chunked
from require import require
from running_proxy import make_config, running
from ui_browser import opened

from proxy.config.load import load_config

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
THIN = EXAMPLES / "thin-browser"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
READ = """(async () => {
  const { readAnswer } = await import("/toolrelay-events.js");
  const bytes = new TextEncoder().encode(BODY);
  const stream = new ReadableStream({ start(out) {
    for (const one of bytes) out.enqueue(Uint8Array.of(one));
    out.close();
  } });
  const found = [];
  for await (const event of readAnswer(new Response(stream))) found.push(event);
  return found;
})()"""
"""A script that reads a stream which comes byte by byte."""
MOST_SCRIPT = 2048
MOST_LINES = 65


@asynccontextmanager
async def serving_example() -> AsyncIterator[str]:
    """Serve the thin client's folder on an origin of its own; yield the address."""
    app = web.Application()
    app.router.add_static("/", THIN)
    async with serving_app(app, shutdown_timeout=0.1) as address:
        yield address.replace("127.0.0.1", "localhost")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_thin_client_streams_with_a_token() -> None:
    """A page of another origin streams with a minted token, shows text as text, and names server tools."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    turns = [
        chunked(
            role(), call("c1", "core__get_current_time", '{"timezone": "UTC"}'), finish("tool_calls"), DONE
        ),
        chunked(role(), content("It is noon. "), content(HOSTILE), finish(), DONE),
    ]
    async with serving_example() as page, RawUpstream(*turns) as upstream:
        config = make_config(
            upstream.url,
            keys={"site": declared(ALICE, mint=True, trace_max="events")},
            server={"cors_origins": (page,)},
            tools={"trace_max": "events"},
        )
        async with running(config) as proxy, aiohttp.ClientSession() as client:
            address = f"http://127.0.0.1:{proxy.port}"
            asked = client.post(
                f"{address}/v1/toolrelay/tokens",
                json={"subject": "user-17"},
                headers={"Authorization": f"Bearer {ALICE}"},
            )
            async with asked as response:
                token = (await response.json())["token"]
            async with opened(f"{page}/index.html#proxy={address}&model=m&token={token}") as tab:
                await tab.until("document.querySelector('button')")
                assert await tab.run("location.hash") == ""
                await tab.run("document.querySelector('button').click()")
                await tab.has("It is noon. <img src=x")
                await tab.until("document.querySelector('.tool').innerText.includes('✓')")
                assert "core__get_current_time" in await tab.run("document.querySelector('.tool').innerText")
                assert await tab.run("document.images.length") == 0
                assert await tab.run("document.title") == "A thin client"
                assert tab.problems == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("chat", ['data: {"choices":[{"delta":{"content":"x"}}]}', "data: [DONE]"]),
        ("responses", ['data: {"type":"response.output_text.delta","delta":"x"}']),
        ("messages", ['data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}']),
        ("ollama", ['{"message":{"content":"x"}}']),
    ],
)
async def test_the_reader_takes_every_dialect(name: str, lines: list[str]) -> None:
    """The script reads the text of each dialect's stream, even if it comes byte by byte."""
    require("chromium", chromium() is not None, "no Chromium is installed")
    body = "\n\n".join(lines) + "\n\n"
    script = READ.replace("BODY", json.dumps(body))
    async with serving_example() as page, opened(f"{page}/index.html") as tab:
        assert await tab.run(script) == [{"type": "text", "text": "x"}], name


def test_the_thin_client_is_thin() -> None:
    """The page has at most 65 lines, its script 2 KB, and neither makes markup of text."""
    assert len((THIN / "toolrelay-events.js").read_bytes()) <= MOST_SCRIPT
    assert len((THIN / "index.html").read_text("utf-8").splitlines()) <= MOST_LINES
    texts = [path.read_text("utf-8") for path in THIN.iterdir()]
    assert not any("innerHTML" in text or "eval(" in text for text in texts)


COMPOSED = [
    path for path in sorted(EXAMPLES.glob("*/toolrelay.toml")) if (path.parent / "compose.yaml").exists()
]


def test_the_example_of_masking_is_valid() -> None:
    """Its configuration loads as it is, and names the module beside it."""
    path = EXAMPLES / "masking" / "toolrelay.toml"
    config = load_config(path, {"OPENAI_API_KEY": "sk-0123456789abcdef"})
    assert [path.parent / module for module in config.hooks.modules] == [path.parent / "masking.py"]


@pytest.mark.parametrize("path", COMPOSED, ids=lambda path: path.parent.name)
def test_each_configuration_is_valid(path: Path) -> None:
    """Each configuration loads as it is, with variables that its compose file passes."""
    env: dict[str, Any] = {
        "OPENAI_API_KEY": "sk-0123456789abcdef",
        "WEBUI_KEY": "w0123456789" * 4,
        "LIBRECHAT_KEY": "l0123456789" * 4,
    }
    config = load_config(path, env)
    assert config.auth.end_user.startswith("header:")
    composed = (path.parent / "compose.yaml").read_text("utf-8")
    assert "./toolrelay.toml:/data/toolrelay.toml:ro" in composed
    assert all(name in composed for name in config.keys)
