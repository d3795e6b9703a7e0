"""Makes the pictures of the web UI in ``docs/images``, light and dark, from the demo.

Run it in the project's folder, with the helpers of the tests on the path. It needs Chromium:

    PYTHONPATH=$(.venv/bin/python tests/support/project/import_paths.py) \\
        .venv/bin/python tests/support/ui/ui_pictures.py
"""

import asyncio
import json
import re
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ui_browser import Tab, opened

from proxy.commands.demo import NOTE

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "docs" / "images"
WIDE, TALL = 1280, 800
QUESTIONS = (
    "Write one sentence about rivers.",
    "What is the weather in Berlin?",
    "What time is it in Berlin right now?",
    "What time is it in Berlin, and what is the weather there?",
)
FONT = '"Inter", "Liberation Sans", Arial, sans-serif'
"""The font of the pictures, because a machine without a desktop may lack good system fonts."""

ASK = """fetch("/ui/api/play/v1/chat/completions", {
  method: "POST",
  headers: {"Content-Type": "application/json", "x-toolrelay-ui": "1", "x-toolrelay-trace": "events"},
  body: JSON.stringify({model: MODEL, stream: true, messages: [{role: "user", content: QUESTION}]}),
}).then((response) => response.text())"""


@asynccontextmanager
async def demo() -> AsyncIterator[str]:
    """Run a demo and yield the link that signs in."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as home:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "demo", "--port", str(port), "--speed", "0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"HOME": home, "PATH": "/usr/bin:/bin", "TMPDIR": home},
            cwd=ROOT,
        )
        assert process.stdout is not None
        try:
            while line := (await process.stdout.readline()).decode():
                found = re.search(r"(http://\S+/ui/#login=\S+)", line)
                if found:
                    yield found[1]
                    break
        finally:
            process.terminate()
            await process.communicate()


async def page(tab: Tab, name: str, *acts: str, ready: str) -> None:
    """Click through ``acts``, wait until the page is ready, and take its pictures."""
    for act in acts:
        await tab.until(f"(() => {{ const e = {act}; e?.click(); return e }})()")
    await tab.until(ready)
    await tab.run(f"document.documentElement.style.setProperty('--sans', {json.dumps(FONT)})")
    await tab.run("document.activeElement.blur()")
    for theme in ("light", "dark"):
        await tab.scheme(theme)
        await tab.shot(IMAGES / f"ui-{name}-{theme}.png")


async def main() -> None:
    """Take all pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    async with demo() as link, opened(link) as tab:
        address = link.partition("/#")[0]
        await tab.size(WIDE, TALL)
        await tab.has("The first tool call is one click away")
        await page(tab, "welcome", ready="document.querySelector('.hello')")
        model = await tab.run("fetch('/ui/api/session').then((r) => r.json()).then((s) => s.demo.model)")
        for question in QUESTIONS:
            ask = ASK.replace("MODEL", json.dumps(model)).replace("QUESTION", json.dumps(question))
            await tab.run(ask)
        await tab.goto(f"{address}/runs")
        await page(tab, "runs", ready="document.querySelectorAll('.list .item').length >= 3")
        row = "document.querySelector('.list .item a')"
        pin = "[...document.querySelectorAll('.call-row button')].at(-1)"
        await page(tab, "run", row, pin, ready="!document.querySelector('.pin').hidden")
        wire = "[...document.querySelectorAll('a.btn')].find((a) => a.innerText.includes('Wire'))"
        await page(tab, "wire", wire, ready="document.querySelector('.wire-row')")
        await tab.goto(f"{address}/play")
        await tab.until("document.querySelector('.suggest .btn')")
        await page(
            tab,
            "playground",
            "document.querySelector('.suggest .btn')",
            ready="document.querySelector('.turn .after a')",
        )
        await tab.run(ASK.replace("MODEL", json.dumps(model)).replace("QUESTION", json.dumps(NOTE[0])))
        await tab.goto(f"{address}/approvals")
        await page(tab, "approvals", ready="document.querySelector('.ask')")
        await tab.goto(f"{address}/tools")
        await page(tab, "tools", ready="document.querySelectorAll('tbody tr').length > 2")
        assert tab.problems == [], tab.problems


if __name__ == "__main__":
    asyncio.run(main())
