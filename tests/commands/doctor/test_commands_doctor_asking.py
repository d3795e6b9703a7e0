"""``toolrelay doctor`` asks before it sends, changes only its own settings, and stops at an interrupt."""

import asyncio
import io
import signal
import sys
from pathlib import Path

import pytest
from command_line import Here
from raw_upstream import HANG, RawUpstream
from waiting import PATIENCE_S, until

from proxy.commands.doctor.doctor import Diagnosis

ROOT = Path(__file__).resolve().parents[3]
CONFIG = """\
# The recordings.
[upstreams.default]
base_url = "replay:"  # no model is asked
wires = ["chat"]  # so far

[tools]
enabled = true
"""


class Typed(io.StringIO):
    """Standard input of a terminal at which somebody typed a text."""

    def isatty(self) -> bool:
        """Say that this is a terminal."""
        return True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The configuration of the current folder."""
    path = tmp_path / "toolrelay.toml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize(("answer", "status"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_somebody_at_a_terminal_is_asked(
    here: Here, file: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    """At a terminal, doctor sends requests only after the answer yes."""
    monkeypatch.setattr(sys, "stdin", Typed(answer))
    done = here("doctor", "--upstream", "default")
    assert done.returncode == status, done.stderr
    assert ("streaming" in done.stdout) == (status == 0)


def test_what_is_written_leaves_all_else_as_it_was(
    here: Here, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--write changes one line and keeps all others; the file still loads, and no record is created."""

    async def found(*asked: object) -> Diagnosis:
        return Diagnosis("m", (), settings={"wires": ["chat", "responses"]})

    monkeypatch.setattr("proxy.commands.doctor.doctor.diagnose", found)
    done = here("doctor", "--upstream", "default", "--yes", "--write")
    assert done.returncode == 0, done.stderr
    after = file.read_text()
    assert "wrote 1 settings of upstreams.default into toolrelay.toml" in done.stderr
    before, written = CONFIG.splitlines(), after.splitlines()
    (changed,) = [place for place, line in enumerate(written) if line != before[place]]
    assert before[changed] == 'wires = ["chat"]  # so far'
    assert written[changed] != before[changed]
    assert written[changed].startswith('wires = ["chat", ')
    assert written[changed].endswith("]  # so far")
    assert here("check").returncode == 0
    assert not list(file.parent.glob("*.db"))


async def test_ctrl_c_stops_it_cleanly(file: Path) -> None:
    """At SIGINT, doctor exits with status 130 and leaves the configuration as it was."""
    async with RawUpstream([HANG]) as upstream:
        before = f'[upstreams.default]\nbase_url = "{upstream.url}"\napi_key = ""\n'
        await asyncio.to_thread(file.write_text, before)
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "proxy",
                "doctor",
                "--config",
                str(file),
                "--model",
                "m",
                "--yes",
                "--write",
            ),
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        await until(lambda: len(upstream.requests) > 0)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            _, said = await process.communicate()
        assert process.returncode == 130
        assert b"stopped; no file was changed" in said
        assert b"Traceback" not in said
        assert await asyncio.to_thread(file.read_text) == before
