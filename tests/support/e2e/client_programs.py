"""The programs of docs/how-to/clients.md, and how a test runs them."""

import asyncio
import re
from pathlib import Path

from waiting import LATE_S

PAGE = (Path(__file__).resolve().parents[3] / "docs/how-to/clients.md").read_text("utf-8")
SECTION = PAGE.partition("\n## Clients that are made for Azure")[0]
SNIPPETS = dict(re.findall(r"([A-Z][\w ]+):\n\n```\w+\n(.*?)```$", SECTION, re.MULTILINE | re.DOTALL))


async def run(command: list[str], env: dict[str, str], folder: Path) -> str:
    """Return what a program prints; it must exit with status 0."""
    process = await asyncio.create_subprocess_exec(
        *command,
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
