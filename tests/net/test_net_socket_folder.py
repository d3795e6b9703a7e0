"""Folders for sockets: who can enter them, and what is left of a process that was killed."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from import_paths import PYTHON_PATH

from proxy.errors import ConfigError
from proxy.net.socket_folder import SocketFolder

OWNER = """
import sys
from proxy.net.socket_folder import SocketFolder
folder = SocketFolder("toolrelay-test-", "a.sock")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a folder of its own for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def folder(name: str = "a.sock") -> SocketFolder:
    """A folder of this process."""
    return SocketFolder("toolrelay-test-", name)


def test_nobody_else_can_enter_a_folder(tmp_path: Path) -> None:
    """The mode of the folder closes it to other users."""
    made = folder()
    assert made.path.parent == tmp_path
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert made.socket == made.path / "a.sock"
    made.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_too_long_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own folder for temporary files serves then; a name that fits nowhere is an error."""
    deep = tmp_path / ("a" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    made = folder()
    assert len(os.fsencode(made.socket)) <= 100
    made.remove()
    with pytest.raises(ConfigError, match="TMPDIR"):
        folder("a" * 100)


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """That of a process that lives stays, whether it listens yet or not."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": PYTHON_PATH}
    owners = [
        subprocess.Popen(
            [sys.executable, "-c", OWNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    with owners[0] as killed, owners[1] as alive:
        assert killed.stdout is not None
        assert alive.stdout is not None
        theirs, others = (Path(owner.stdout.readline().strip()) for owner in (killed, alive) if owner.stdout)
        (theirs / "a.sock").touch()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        mine = folder()
        assert sorted(tmp_path.iterdir()) == sorted([others, mine.path])
        again = folder()
        assert mine.path.exists()
        alive.kill()
    mine.remove()
    again.remove()


def test_a_folder_that_is_just_being_created_stays(tmp_path: Path) -> None:
    """It has no lock yet; an old one without a lock will never have one."""
    new, old = tmp_path / "toolrelay-test-aaaaaaaa", tmp_path / "toolrelay-test-bbbbbbbb"
    for each in (new, old):
        each.mkdir()
    os.utime(old, (1.0, 1.0))
    mine = folder()
    assert sorted(tmp_path.iterdir()) == sorted([new, mine.path])


def test_what_only_looks_like_a_folder_stays(tmp_path: Path) -> None:
    """Files, links, and folders of another name are not the proxy's."""
    target = tmp_path / "target"
    target.mkdir()
    os.utime(target, (1.0, 1.0))
    (tmp_path / "toolrelay-test-cccccccc").symlink_to(target)
    (tmp_path / "toolrelay-test-dddddddd").write_text("a file")
    longer = tmp_path / "toolrelay-test-eeeeeeee-and-more"
    longer.mkdir()
    os.utime(longer, (1.0, 1.0))
    mine = folder()
    assert {path.name for path in tmp_path.iterdir()} >= {
        "target",
        "toolrelay-test-cccccccc",
        "toolrelay-test-dddddddd",
        longer.name,
        mine.path.name,
    }
