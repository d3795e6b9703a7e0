"""Real MCP servers of PyPI, each in an environment of its own.

Where they are installed says ``TOOLRELAY_TEST_MCP``, a folder with ``time``, ``git`` and ``fetch``; by
default they are looked for where ``.ci/run`` puts them.
"""

import os
from pathlib import Path

from require import require

__all__ = ["LOOPBACK_ONLY", "python_server"]

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = Path(os.environ.get("TOOLRELAY_TEST_MCP") or ROOT / ".venv-ci-mcp")

LOOPBACK_ONLY = ROOT / "tests" / "e2e" / "mcp" / "loopback.cjs"
"""Makes a program of Node that would listen on all interfaces listen on loopback; for ``--require``."""


def python_server(name: str) -> str:
    """The command of ``mcp-server-NAME``; skips the test where it is not installed."""
    program = INSTALLED / name / "bin" / f"mcp-server-{name}"
    require("mcp-servers", program.exists(), f"{program} is not there: .ci/run installs mcp-server-{name}")
    return str(program)
