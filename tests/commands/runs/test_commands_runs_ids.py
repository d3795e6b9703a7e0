"""Every command that takes a run id accepts a beginning of it that fits only one run."""

from pathlib import Path

import pytest
from command_line import Here
from recorded_runs import fill, run

ALIKE = ["run_ab12", "run_ab34", "run_cd56"]


@pytest.fixture
def record(tmp_path: Path, here: Here) -> Here:
    """A record of three runs, two of which begin alike."""
    fill(tmp_path / "toolrelay.db", [run(name) for name in ALIKE])
    return here


@pytest.mark.parametrize("name", ["run_cd56", "run_cd", "cd56", "cd", " cd5 "])
@pytest.mark.parametrize(
    "command", [["show"], ["replay"], ["purge", "--run"]], ids=["show", "replay", "purge"]
)
def test_a_beginning_that_fits_one(record: Here, command: list[str], name: str) -> None:
    """A beginning that matches one run names it, with and without ``run_``."""
    done = record("runs", *command, name)
    assert "no run has the id" not in done.stderr
    assert "several" not in done.stderr
    if command == ["show"]:
        assert "run_cd56" in done.stdout
    if command[0] == "purge":
        assert "deleted 1 run" in done.stdout
        assert "run_cd56" not in record("runs").stdout


@pytest.mark.parametrize("name", ["run_ab", "ab", "a", "run_", "run"])
@pytest.mark.parametrize(
    "command", [["show"], ["replay"], ["purge", "--run"]], ids=["show", "replay", "purge"]
)
def test_a_beginning_that_fits_several(record: Here, command: list[str], name: str) -> None:
    """If several runs match, the error names them with their start times, and nothing is done."""
    done = record("runs", *command, name)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "several runs begin with" in line]
    assert "run_ab12 (2025-10-09 " in line
    assert "run_ab34" in line
    assert ("run_cd56" in line) is (name in ("run", "run_"))
    assert len([line for line in record("runs", "--json").stdout.splitlines() if line]) == 3


@pytest.mark.parametrize("name", ["x", "", "run_ab12x", "%", "12"])
def test_what_begins_none(record: Here, name: str) -> None:
    """A pattern, the middle of an id or other text matches no run."""
    done = record("runs", "show", name)
    assert done.returncode == 1
    assert "no run has the id" in done.stderr


def test_many_that_fit(tmp_path: Path, here: Here) -> None:
    """If many runs match, the error names eight and says that there are more."""
    fill(tmp_path / "toolrelay.db", [run(f"run_a{number:02}") for number in range(20)])
    line = here("runs", "show", "a").stderr
    assert line.count("run_a") == 8
    assert " and more" in line
