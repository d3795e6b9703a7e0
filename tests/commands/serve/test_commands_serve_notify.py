"""The signs that a service manager gets."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from proxy.commands.serve.notify import READY, STOPPING, notify_manager


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a socket, or with one that nobody reads, nothing happens."""
    for address in ("", "relative", str(tmp_path / "nobody"), "@toolrelay-nobody"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify_manager(READY)
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify_manager(READY)


def test_systemd_learns_when_the_server_is_ready_and_stops(tmp_path: Path) -> None:
    """``serve`` sends ``READY=1`` once it serves, and ``STOPPING=1`` when it is told to end."""
    (tmp_path / "toolrelay.toml").write_text(
        "[server]\nport = 0\ndrain_s = 0\n"
        '[upstreams.default]\nbase_url = "http://127.0.0.1:9/v1"\napi_key = ""\n'
        '[auth]\nmode = "open"\n[store]\nurl = "memory:"\n'
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy", "serve"],
            cwd=tmp_path,
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert manager.recv(100).decode() == READY
            process.terminate()
            assert manager.recv(100).decode() == STOPPING
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
