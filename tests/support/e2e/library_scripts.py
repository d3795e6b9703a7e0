"""Runs scripts with clients' libraries of PyPI, in the environment that is made for them.

``TOOLRELAY_TEST_CLIENTS`` is a Python in whose environment ``clients/requirements.txt`` is installed.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e_process import clean_environment
from require import require
from waiting import LATE_S

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ.get("TOOLRELAY_TEST_CLIENTS") or ROOT / ".venv-ci-clients/bin/python")
HAS_CLIENTS = PYTHON.exists()


async def ask_python(script: str, question: Mapping[str, Any], folder: Path) -> Any:
    """Run a script in the environment of the clients, and return its answer."""
    require("clients", HAS_CLIENTS, f"{PYTHON} is not there: .ci/run installs clients/requirements.txt")
    process = await asyncio.create_subprocess_exec(
        *(str(PYTHON), str(ROOT / "tests/e2e/clients" / script)),
        env=clean_environment(folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(json.dumps(question).encode()), LATE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    return json.loads(out)
