"""A real DNS server that never answers; the system's resolver asks it in a namespace of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from import_paths import PYTHON_PATH
from require import require
from waiting import PATIENCE_S

_SETUP = "ip link set lo up && mount --bind {conf} /etc/resolv.conf && exec {python} {script} {kind}"


def in_namespace(folder: Path, kind: str) -> tuple[int, list[str], str]:
    """Run the script in its own namespaces, with a resolver that waits for minutes.

    Return its exit status, the lines that it said, and the end of its standard error.
    """
    probe = ["unshare", "-mn", "ip", "link"]
    allowed = (
        shutil.which("unshare") and not subprocess.run(probe, capture_output=True, check=False).returncode
    )
    require("namespaces", bool(allowed), "this needs unshare(1) and ip(8), as root")
    conf = folder / "resolv.conf"
    conf.write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:5\n")
    script = Path(__file__).with_name("silent_dns.py")
    command = _SETUP.format(conf=conf, python=sys.executable, script=script, kind=kind)
    done = subprocess.run(
        ["unshare", "-mn", "sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    )
    said = [line.removeprefix("said: ") for line in done.stdout.splitlines() if line.startswith("said: ")]
    return done.returncode, said, done.stderr[-2000:]


def test_a_silent_dns_server_stops_no_other_upstream(tmp_path: Path) -> None:
    """While eight requests wait for a name, requests to an address are answered; a stop waits for none."""
    status, said, errors = in_namespace(tmp_path, "upstreams")
    assert said == ["live 10 of 10, 8 of 8 wait", "1 look-up under way at the end"], errors
    assert status == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop")
def test_other_libraries_look_ups_stop_no_upstream(tmp_path: Path) -> None:
    """An upstream with an address is reached even if libuv's threads are all busy with look-ups."""
    _, said, errors = in_namespace(tmp_path, "others")
    assert said == ["live 10 of 10, 8 of 8 wait"], errors
