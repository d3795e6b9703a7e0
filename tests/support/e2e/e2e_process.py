"""Runs a command that serves as a user does: a new process, an empty folder, and no settings."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from waiting import LATE_S, PATIENCE_S

_STOP_S = PATIENCE_S


def clean_environment(home: Path) -> dict[str, str]:
    """Return an environment with PATH, a new home and a new folder for temporary files only."""
    temporary = home / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {"PATH": os.environ.get("PATH", ""), "HOME": str(home), "TMPDIR": str(temporary), "NO_COLOR": "1"}


@dataclass
class Server:
    """A running command, and the lines that it has printed so far."""

    process: "subprocess.Popen[str]"
    printed: list[str] = field(default_factory=list)

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read its output up to the line that matches; only the test's own timeout limits the wait."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        assert self.process.stderr is not None
        raise AssertionError(f"it ended without {pattern!r}: {self.process.stderr.read()}")

    def stop(self) -> tuple[int, str, str]:
        """Send SIGTERM; return the exit status, the rest of the output, and stderr."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=_STOP_S)
        return self.process.returncode, out, err


@contextmanager
def serving(command: Sequence[str], folder: Path, env: dict[str, str]) -> Iterator[Server]:
    """Start a command, and kill it at the end if it still runs."""
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Server(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run(
    command: Sequence[str], folder: Path, env: dict[str, str], *, timeout: float = LATE_S, stdin: str = ""
) -> str:
    """Run a command to its end and return its output; fail with its errors if the status is not 0."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]}: status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout
