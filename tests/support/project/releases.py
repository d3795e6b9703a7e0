"""The code of earlier releases, from the history of this folder."""

import subprocess
from pathlib import Path

import pytest

from proxy.store.sql.migrate import OLDEST_BESIDE, find_migrations, load_migrations

ROOT = Path(__file__).parents[3]
POSTGRES_STEPS = load_migrations(find_migrations("postgres"))


def _git(*words: str) -> bytes:
    """Return what Git prints about this folder; nothing if it has no history."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False).stdout


def release(folder: Path, most: int) -> Path:
    """Unpack the newest commit with a schema of at most ``most``; skip the test without the history."""
    now = [f"{step.name}.sql" for step in POSTGRES_STEPS]
    for commit in _git("rev-list", "--max-count=40", "HEAD", "--", "migrations/postgres").decode().split():
        names = _git("ls-tree", "--name-only", f"{commit}:migrations/postgres").decode().split()
        if names and names == now[: len(names)] and len(names) <= most:
            folder.mkdir()
            packed = _git("archive", commit, "proxy", "migrations")
            subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
            return folder
    pytest.skip("the history of this folder is missing, or too short for the earlier version")


def previous_release(folder: Path) -> Path:
    """Unpack the release before this one; skip the test if that may not run beside this one."""
    if len(POSTGRES_STEPS) - 1 < OLDEST_BESIDE:
        pytest.skip("the previous release may not run beside this one")
    return release(folder, len(POSTGRES_STEPS) - 1)
