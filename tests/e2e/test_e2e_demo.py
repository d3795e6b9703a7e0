"""The installed command from an empty folder: what the demo prints is pasted, and does what it says."""

import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from e2e_process import clean_environment, run, serving
from fixture_loader import FIXTURES
from require import require
from responses_check import check_response_stream
from sse_check import check_chat_stream

pytestmark = pytest.mark.slow

TOOLRELAY = Path(sys.executable).with_name("toolrelay")
ANSWER = (
    "The current time in Berlin is 2026-11-21T14:05:00+01:00. "
    "The temperature in Berlin is 7.4 degrees Celsius and the weather is light rain."
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder to start from."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return empty


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A new user's environment."""
    return clean_environment(tmp_path / "home")


def test_the_demo_as_a_newcomer_meets_it(folder: Path, env: dict[str, str]) -> None:
    """The printed curl line and program answer as pasted, both runs show, and SIGTERM leaves nothing."""
    require("curl", shutil.which("curl") is not None, "curl is not installed")
    with serving([str(TOOLRELAY), "demo", "--port", "0"], folder, env) as demo:
        demo.read_until("Each run shows here")
        printed = demo.printed
        curl, responses = [line for line in printed if line.startswith("curl ")]
        body = run(["sh", "-c", curl], folder, env).encode()
        read = check_chat_stream(body, wants_usage=False, hidden=("core__",), forwarded=1)
        assert read.text == ANSWER
        body = run(["sh", "-c", responses], folder, env).encode()
        # The upstream of the recording opens without numbers.
        assert "7.4 degrees" in check_response_stream(body, hidden=("core__",), unnumbered=2).text
        first, last = printed.index("from openai import OpenAI"), printed.index("Other questions it knows:")
        program = "\n".join(printed[first : last - 1]) + "\n"
        assert run([sys.executable, "-W", "error", "-c", program], folder, env).strip() == ANSWER
        # A prompt takes the lines one by one, and would stumble over an indented or a blank one.
        prompt = run([sys.executable, "-q", "-i", "-c", ""], folder, env, stdin=program)
        assert ANSWER in prompt
        assert list(Path(env["TMPDIR"]).rglob("*.db"))
        status, out, err = demo.stop()
    assert (status, err) == (0, "")
    shown = [line for line in (*printed, *out.splitlines()) if line.startswith("[")]
    assert len([line for line in shown if "completed: 2 turns, 2 tool calls" in line]) == 3
    assert len([line for line in shown if "completed: 2 turns, 1 tool call," in line]) == 1
    assert list(Path(env["TMPDIR"]).iterdir()) == []
    assert list(folder.iterdir()) == []


def test_runs_are_read_while_the_server_runs(folder: Path, env: dict[str, str]) -> None:
    """``runs list`` and ``runs show`` read the record of a server that goes on serving."""
    require("curl", shutil.which("curl") is not None, "curl is not installed")
    (folder / "toolrelay.toml").write_text(
        f'[upstreams.recorded]\nbase_url = "replay:{FIXTURES / "demo"}"\n'
        '[policy]\nallow = ["core__get_current_time"]\n'
        "[server]\nport = 0\n"
    )
    request = (FIXTURES / "demo/time/client/request.json").read_text("utf-8")
    with serving([str(TOOLRELAY), "serve", "--open"], folder, env) as server:
        address = server.read_until(r"listens on (\S+)/v1")[1]
        curl = ["curl", "-sSN", f"{address}/v1/chat/completions", "-H", "content-type: application/json"]
        body = run([*curl, "-d", "@-"], folder, env, stdin=request).encode()
        check_chat_stream(body, wants_usage=True, hidden=("core__",), forwarded=1)
        listed = {"status": ""}
        # The record is written beside the answer, so the last row may come a moment later.
        while listed["status"] != "completed":
            lines = run([str(TOOLRELAY), "runs", "list", "--json"], folder, env).splitlines()
            assert len(lines) <= 1
            listed = json.loads(lines[0]) if lines else listed
        shown = json.loads(run([str(TOOLRELAY), "runs", "show", listed["id"], "--json"], folder, env))
        drawn = run([str(TOOLRELAY), "runs", "show", listed["id"][:12]], folder, env)
        status, _, err = server.stop()
    assert status == 0
    assert "Traceback" not in err
    assert (listed["status"], listed["turns"], listed["tool_calls"]) == ("completed", 2, 1)
    assert listed["offered"] == ["core__get_current_time"]
    (call,) = shown["invocations"]
    assert (call["tool"], call["status"]) == ("core__get_current_time", "success")
    assert call["arguments_redacted"] == {"timezone": "Europe/Berlin"}
    assert "core__get_current_time" in drawn
    record = folder / "toolrelay.db"
    assert record.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(record) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
