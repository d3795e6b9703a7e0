"""The official conformance suite of MCP: our client against its servers, and its client at ``/mcp``.

Left out are scenarios of what is not there (elicitation, sampling, resources, prompts, completion, logging),
those of tools that a server has to offer under names of the suite's own, and those of logins.
"""

import asyncio
import re
import shlex
import sys
from pathlib import Path

import mcp_conformance_client
import pytest
from mcp_real import conformance_suite
from running_proxy import make_config, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RUN_S = 120


async def suite(*arguments: str, folder: Path) -> str:
    """What the suite says of a scenario, which has to pass with nothing failed and at least one check."""
    process = await asyncio.create_subprocess_exec(
        *conformance_suite(),
        *arguments,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RUN_S):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = out.decode()
    result = re.search(r"Passed: (\d+)/(\d+), (\d+) failed", said)
    assert result is not None, said
    passed, of, failed = (int(number) for number in result.groups())
    assert (failed, passed) == (0, of), said
    assert passed, said
    assert process.returncode == 0, said
    return said


@pytest.mark.parametrize("scenario", ["initialize", "tools_call", "sse-retry"])
async def test_our_client(tmp_path: Path, scenario: str) -> None:
    """The process of the MCP servers connects, calls, and takes a broken stream up again."""
    folder = Path(mcp_conformance_client.__file__).parent
    paths = f"{folder.parent}:{folder}"
    program = shlex.join([sys.executable, mcp_conformance_client.__file__])
    command = f"env PYTHONPATH={shlex.quote(paths)} {program}"
    await suite("client", "--command", command, "--scenario", scenario, folder=tmp_path)


@pytest.mark.parametrize(
    "scenario",
    ["server-initialize", "ping", "tools-list", "server-sse-multiple-streams", "dns-rebinding-protection"],
)
async def test_its_client(tmp_path: Path, scenario: str) -> None:
    """``/mcp`` answers it as the specification says, and no page that a foreign name leads here."""
    config = make_config(
        "http://127.0.0.1:9",
        allow=("probe_tools__*",),
        modules=("probe_tools",),
        auth={"mode": "open"},
        mcp={"serve": True},
    )
    async with running(config) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/mcp"
        await suite("server", "--url", url, "--scenario", scenario, folder=tmp_path)
