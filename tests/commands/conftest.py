"""A fixture that runs the command in this process, which is faster than a process of its own."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command_line import Here
from logged import logging_put_back

from proxy.commands.cli import run


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Here]:
    """``here("runs", "list", env={...})`` runs in ``tmp_path`` with no setting of this environment."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("TOOLRELAY_") or name in ("OPENAI_API_KEY", "ENABLE_TOOLS"):
            monkeypatch.delenv(name)

    def call(*arguments: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            capsys.readouterr()
            code = run(arguments)
            printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    with logging_put_back():
        yield call
