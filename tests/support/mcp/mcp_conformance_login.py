"""The client that the conformance suite runs for its login scenarios: the command line with a browser.

The suite gives the address of its server as the last argument, and the scenario with its data in the
environment. The browser, which ``BROWSER`` defines, only follows redirects.
"""

import io
import json
import os
import re
import secrets
import shlex
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proxy.commands.cli import run

BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"
DOCUMENT = "https://conformance-test.local/client-metadata.json"
MACHINE = "auth/client-credentials"
CALLING = ("auth/basic-cimd", "auth/scope-")
"""Scenarios that need calls of the tools; for the others it is enough that the tools are listed."""
MOST_LOGINS = 4


def issuer_of(url: str) -> str:
    """Return the authorization server of the server at ``url``; who registered a client there knows it."""
    where = urlsplit(url)
    document = f"{where.scheme}://{where.netloc}/.well-known/oauth-protected-resource{where.path}"
    with urllib.request.urlopen(document) as answer:
        return str(json.load(answer)["authorization_servers"][0])


def configuration(url: str, scenario: str, context: Mapping[str, Any]) -> str:
    """Return the configuration file for a scenario."""
    grant = "client_credentials" if scenario.startswith(MACHINE) else "authorization_code"
    lines = {"grant": grant}
    lines |= {key: context[key] for key in ("client_id",) if key in context}
    if "client_secret" in context:
        lines |= {"client_secret": "env:CLIENT_SECRET", "issuer": issuer_of(url)}
    if scenario == "auth/basic-cimd":
        lines["client_metadata_url"] = DOCUMENT
    written = "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())
    return f"""
[upstreams.default]
base_url = "replay:"
[store]
url = "sqlite:///record.db"
seal_key = "env:SEAL_KEY"
[policy]
allow = ["mcp__suite__*"]
[mcp]
networks = ["127.0.0.0/8", "::1/128"]
[mcp.servers.suite]
url = {json.dumps(url)}
connection = "suite"
[credentials.suite]
{written}
"""


def main(url: str) -> int:
    """Log in, allow the tools, call each, and log in again for a missing scope; return the exit status."""
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with tempfile.TemporaryDirectory() as folder:
        browser = Path(folder, "browser.py")
        browser.write_text(BROWSER)
        Path(folder, "toolrelay.toml").write_text(configuration(url, scenario, context))
        environment = {
            "BROWSER": shlex.join([sys.executable, str(browser), "%s"]),
            "SEAL_KEY": secrets.token_hex(32),
            "CLIENT_SECRET": str(context.get("client_secret", "")),
        }

        os.environ.update(environment)
        os.chdir(folder)

        def toolrelay(*arguments: str) -> str:
            """Run a command and return its output."""
            out = io.StringIO()
            with redirect_stdout(out), redirect_stderr(out):
                run(arguments)
            print(f"$ toolrelay {shlex.join(arguments)}\n{out.getvalue()}", flush=True)
            return out.getvalue()

        if not scenario.startswith(MACHINE):
            toolrelay("credentials", "login", "suite")
        for _ in range(MOST_LOGINS):
            said = toolrelay("tools", "allow", "mcp__suite__*", "--yes")
            tools = re.findall(r"mcp__suite__[\w-]+", said) if scenario.startswith(CALLING) else []
            for tool in dict.fromkeys(tools):
                said += toolrelay("tools", "call", tool, "{}")
            lacking = re.search(r"the server asks for the scope ([^;]+);", said)
            if lacking is None:
                break
            scopes = [word for scope in lacking[1].split() for word in ("--scope", scope)]
            toolrelay("credentials", "login", "suite", *scopes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
