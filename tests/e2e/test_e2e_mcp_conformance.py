"""The official conformance suite of MCP: our client against its servers, and its client at ``/mcp``.

Each of its scenarios is in one of three lists: those that pass, those that do not apply, and those that are
known to fail. The last two say why. A scenario that is in none, as after an update, fails a test.
"""

import asyncio
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import mcp_conformance_client
import mcp_conformance_login
import pytest
from import_paths import PYTHON_PATH
from mcp_real import conformance_suite
from mcp_renaming import renaming
from running_proxy import make_config, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RUN_S = 280
CLIENT_MS = 240_000
"""The suite's timeout for a client; it is long, as the command line starts several processes."""

CLIENT = ("initialize", "tools_call", "sse-retry")
"""Scenarios for the process that talks to MCP servers."""

LOGINS = (
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
    "auth/resource-mismatch",
    "auth/offline-access-scope",
    "auth/offline-access-not-supported",
    "auth/client-credentials-basic",
)
"""Scenarios for ``toolrelay credentials login``, ``tools allow`` and ``tools call``."""

SERVER = (
    "server-initialize",
    "ping",
    "tools-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)
"""Scenarios for ``/mcp``."""

TOOLS = {
    "tools-call-simple-text": "test_simple_text",
    "tools-call-image": "test_image_content",
    "tools-call-error": "test_error_handling",
    "json-schema-2020-12": "json_schema_2020_12_tool",
}
"""Scenarios for ``/mcp``, each with the tool that it calls, from ``suite_tools``."""

_NO_ELICITATION = "servers cannot ask a client anything: no such capability is declared, and none is offered"
_NO_RESOURCES = "resources are not served"
_NO_PROMPTS = "prompts are not served"
_NO_LOGGING = "the log of the proxy is the operator's; nothing of it is sent to clients"
_NO_SUCH_RESULT = "tools of ours return text, images and links"
_NO_RESOURCE_METADATA = "a login needs the resource metadata that servers have since revision 2025-06-18"

NOT_APPLICABLE: Mapping[str, str] = {
    "elicitation-sep1034-client-defaults": _NO_ELICITATION,
    "elicitation-sep1034-defaults": _NO_ELICITATION,
    "elicitation-sep1330-enums": _NO_ELICITATION,
    "tools-call-elicitation": _NO_ELICITATION,
    "tools-call-sampling": _NO_ELICITATION,
    "tools-call-with-logging": _NO_LOGGING,
    "logging-set-level": _NO_LOGGING,
    "completion-complete": "neither prompts nor resources are served, so there is nothing to complete",
    "tools-call-audio": _NO_SUCH_RESULT,
    "tools-call-embedded-resource": _NO_SUCH_RESULT,
    "tools-call-mixed-content": _NO_SUCH_RESULT,
    "tools-call-with-progress": "only tools of MCP servers report progress, at most four times a second; see "
    "test_a_client_of_mcp_is_told_of_progress_if_it_asks",
    "server-sse-polling": "streams cannot be resumed; a call that is repeated gets the result of the first",
    "resources-list": _NO_RESOURCES,
    "resources-read-text": _NO_RESOURCES,
    "resources-read-binary": _NO_RESOURCES,
    "resources-templates-read": _NO_RESOURCES,
    "resources-subscribe": _NO_RESOURCES,
    "resources-unsubscribe": _NO_RESOURCES,
    "prompts-list": _NO_PROMPTS,
    "prompts-get-simple": _NO_PROMPTS,
    "prompts-get-with-args": _NO_PROMPTS,
    "prompts-get-embedded-resource": _NO_PROMPTS,
    "prompts-get-with-image": _NO_PROMPTS,
    "auth/cross-app-access-complete-flow": "an extension for companies' own identity providers, not built",
}

KNOWN_TO_FAIL: Mapping[str, str] = {
    "auth/client-credentials-jwt": "clients authenticate by a secret; signed assertions are not built",
    "auth/2025-03-26-oauth-metadata-backcompat": _NO_RESOURCE_METADATA,
    "auth/2025-03-26-oauth-endpoint-fallback": _NO_RESOURCE_METADATA,
}


async def run_suite(*arguments: str, folder: Path) -> tuple[int, str]:
    """Run the suite; return its exit status and output."""
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
    return process.returncode or 0, out.decode()


async def suite(*arguments: str, folder: Path) -> str:
    """Run a scenario, which must pass with at least one check and no failure; return the output."""
    status, said = await run_suite(*arguments, folder=folder)
    result = re.search(r"Passed: (\d+)/(\d+), (\d+) failed", said)
    assert result is not None, said
    passed, of, failed = (int(number) for number in result.groups())
    assert (failed, passed) == (0, of), said
    assert passed, said
    assert status == 0, said
    return said


def command(program: str) -> str:
    """Return the command line of a client, with the path for its imports."""
    return f"env PYTHONPATH={shlex.quote(PYTHON_PATH)} {shlex.join([sys.executable, program])}"


async def test_every_scenario_is_accounted_for(tmp_path: Path) -> None:
    """Each scenario of the suite is in exactly one list, and each listed scenario exists."""
    _, said = await run_suite("list", folder=tmp_path)
    there = re.findall(r"^  - (\S+) \[", said, re.MULTILINE)
    passing = (*CLIENT, *LOGINS, *SERVER, *TOOLS)
    accounted = [*passing, *NOT_APPLICABLE, *KNOWN_TO_FAIL]
    assert len(accounted) == len(set(accounted))
    assert set(there) == set(accounted)


@pytest.mark.parametrize("scenario", CLIENT)
async def test_our_client(tmp_path: Path, scenario: str) -> None:
    """The process for MCP servers connects, calls a tool and resumes a broken stream."""
    program = command(mcp_conformance_client.__file__)
    await suite("client", "--command", program, "--scenario", scenario, folder=tmp_path)


@pytest.mark.parametrize("scenario", LOGINS)
async def test_our_logins(tmp_path: Path, scenario: str) -> None:
    """Our commands log in with discovery, PKCE, scopes and tokens as the suite demands, and call a tool."""
    program = command(mcp_conformance_login.__file__)
    options = ("--timeout", str(CLIENT_MS))
    await suite("client", *options, "--command", program, "--scenario", scenario, folder=tmp_path)


@pytest.mark.parametrize("scenario", SERVER)
async def test_its_client(tmp_path: Path, scenario: str) -> None:
    """``/mcp`` answers the suite's client as specified, and refuses a foreign host name."""
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


@pytest.mark.parametrize("scenario", TOOLS)
async def test_its_client_calls_tools(tmp_path: Path, scenario: str) -> None:
    """``/mcp`` lists the proxy's own tools with schemas, and returns texts, images and errors."""
    config = make_config(
        "http://127.0.0.1:9",
        allow=("suite_tools__*",),
        modules=("suite_tools",),
        auth={"mode": "open"},
        mcp={"serve": True},
    )
    names = frozenset(TOOLS.values())
    async with (
        running(config) as proxy,
        renaming(f"http://127.0.0.1:{proxy.port}/mcp", "suite_tools__", names) as url,
    ):
        await suite("server", "--url", url, "--scenario", scenario, folder=tmp_path)
