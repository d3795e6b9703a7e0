"""Folders for sockets: who can enter them, and how the folder of a killed process is removed."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from import_paths import PYTHON_PATH

from proxy.base.errors import ConfigError
from proxy.net.socket_folder import SocketFolder

OWNER = """
import sys
from proxy.net.socket_folder import SocketFolder
folder = SocketFolder("toolrelay-test-", "a.sock")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(name="short")
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a short path, since the path of a socket in pytest's own may be too long."""
    with TemporaryDirectory(prefix="t-", dir="/tmp") as name:
        monkeypatch.setattr("tempfile.tempdir", name)
        yield Path(name)


def folder(name: str = "a.sock") -> SocketFolder:
    """A folder of this process."""
    return SocketFolder("toolrelay-test-", name)


def test_nobody_else_can_enter_a_folder(short: Path) -> None:
    """The folder has mode 0700, so that no other user can enter it, and ``remove`` deletes it."""
    made = folder()
    assert made.path.parent == short
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert made.socket == made.path / "a.sock"
    made.remove()
    assert list(short.iterdir()) == []


def test_a_path_that_is_too_long_is_not_taken(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If TMPDIR is too long for a socket, a shorter folder is used; a name that fits nowhere is an error."""
    deep = short / ("a" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    made = folder()
    assert len(os.fsencode(made.socket)) <= 100
    made.remove()
    with pytest.raises(ConfigError, match="TMPDIR"):
        folder("a" * 100)


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(short: Path) -> None:
    """A process removes the folder of a killed process, and keeps the folders of live ones."""
    environment = {**os.environ, "TMPDIR": str(short), "PYTHONPATH": PYTHON_PATH}
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
        assert sorted(short.iterdir()) == sorted([others, mine.path])
        again = folder()
        assert mine.path.exists()
        alive.kill()
    mine.remove()
    again.remove()


def test_a_folder_that_is_just_being_created_stays(short: Path) -> None:
    """A new folder without a lock stays, as it may still get one; an old one is removed."""
    new, old = short / "toolrelay-test-aaaaaaaa", short / "toolrelay-test-bbbbbbbb"
    for each in (new, old):
        each.mkdir()
    os.utime(old, (1.0, 1.0))
    mine = folder()
    assert sorted(short.iterdir()) == sorted([new, mine.path])


def test_what_only_looks_like_a_folder_stays(short: Path) -> None:
    """Files, links and folders with another kind of name stay, since the proxy did not make them."""
    target = short / "target"
    target.mkdir()
    os.utime(target, (1.0, 1.0))
    (short / "toolrelay-test-cccccccc").symlink_to(target)
    (short / "toolrelay-test-dddddddd").write_text("a file")
    longer = short / "toolrelay-test-eeeeeeee-and-more"
    longer.mkdir()
    os.utime(longer, (1.0, 1.0))
    mine = folder()
    assert {path.name for path in short.iterdir()} >= {
        "target",
        "toolrelay-test-cccccccc",
        "toolrelay-test-dddddddd",
        longer.name,
        mine.path.name,
    }


def test_a_folder_that_cannot_be_locked_is_not_taken(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file system has no locks, the error names TMPDIR, and no folder is left behind."""

    def refused(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("proxy.net.socket_folder.fcntl.flock", refused)
    with pytest.raises(ConfigError, match="TMPDIR"):
        folder()
    assert list(short.iterdir()) == []
