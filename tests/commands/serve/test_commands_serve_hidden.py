"""Serving processes hide their memory from others of their user, and are still found by their port."""

import os
import signal
import socket
from pathlib import Path

import pytest

from proxy.commands.serve import port_holders
from proxy.commands.serve.port_holders import find_holders
from proxy.commands.serve.supervisor import supervisor_main, worker


class Ended(Exception):
    """What comes after the start is not part of the test."""


@pytest.mark.parametrize(
    ("module", "then"),
    [(worker, "run_async"), (supervisor_main, "read_handover")],
    ids=["worker", "supervisor"],
)
def test_serving_processes_hide_their_memory(
    module: object, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker and a supervisor hide their memory before they read a setting, and after they took a name."""
    done: list[str] = []

    def ends(*_: object) -> None:
        raise Ended

    monkeypatch.setattr(module, "set_process_name", lambda name: done.append("named"))
    monkeypatch.setattr(module, "hide_memory", lambda: done.append("hidden"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker, "_work", lambda fd: None)
    monkeypatch.setattr(module, then, ends)
    with pytest.raises(Ended):
        module.main(0)  # type: ignore[attr-defined]
    assert done == ["named", "hidden"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["toolrelay", "toolrelay-work", "bash"], ["toolrelay", "toolrelay-work"]),
        (["toolrelay", "toolrelay", "toolrelay-work"], []),
        (["bash"], []),
    ],
)
def test_a_hidden_process_is_found_by_its_name(
    names: list[str], found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no descriptors can be read, the socket is of the only toolrelay that runs, if it is this user's."""
    for number, name in enumerate(names, 1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")

    def refuse(process: Path) -> list[Path]:
        raise PermissionError(str(process))

    monkeypatch.setattr(port_holders, "_PROCESSES", tmp_path)
    monkeypatch.setattr(port_holders, "_descriptors", refuse)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert [holder.name for holder in find_holders(port)] == found
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert find_holders(port) == []
