"""What a person types who does not know the command yet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.commands.cli import run


@pytest.mark.parametrize("command", [[], ["serve"], ["keys"], ["keys", "create"], ["runs", "list"]])
def test_h_is_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """-h shows the same help as --help, for every command."""
    shown = []
    for option in ("-h", "--help"):
        assert run([*command, option]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "Usage" in shown[0]


@pytest.mark.parametrize(
    ("words", "offered"), [("toolrelay ser", "serve"), ("toolrelay serve --all", "--allow")]
)
def test_the_shell_completes(words: str, offered: str, tmp_path: Path) -> None:
    """The command answers the shell's question about what may follow."""
    env = {
        **os.environ,
        "_TOOLRELAY_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    program = Path(sys.executable).parent / "toolrelay"
    done = subprocess.run(
        [program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert offered in done.stdout.split()
