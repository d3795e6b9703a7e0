"""The npm packages with which tests read answers, installed once in a folder outside of the project."""

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "e2e" / "node"
INSTALL_S = 600
RUN_S = 120


def installed_packages(npm: str) -> tuple[Path | None, str]:
    """Return a folder with the ``node_modules`` of package.json, or the reason why it cannot be made."""
    wanted = (SCRIPTS / "package.json").read_bytes()
    digest = hashlib.sha256(wanted).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"toolrelay-e2e-node-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} belongs to somebody else"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.copy(SCRIPTS / "package.json", folder)
            command = [
                npm,
                "install",
                "--no-package-lock",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                "--fetch-retries=5",
            ]
            try:
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
                )
            except subprocess.TimeoutExpired:
                return None, f"npm install took over {INSTALL_S} s"
            if done.returncode != 0:
                return None, done.stderr.strip()[-300:]
            (folder / "done").touch()
    return folder, ""


async def run_node(script: Path, question: dict[str, Any]) -> Any:
    """Run a script and return its answer; it must exit with 0 and print nothing to stderr."""
    process = await asyncio.create_subprocess_exec(
        "node",
        script.name,
        cwd=script.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "NODE_OPTIONS": "", "NO_COLOR": "1"},
    )
    try:
        async with asyncio.timeout(RUN_S):
            out, err = await process.communicate(json.dumps(question).encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert err.decode() == ""
    assert process.returncode == 0
    return json.loads(out)
