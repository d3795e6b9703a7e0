"""What the installed demo prints works as pasted, from an empty folder."""

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_process import clean_environment, run, serving
from fixture_loader import FIXTURES
from require import require
from responses_check import check_response_stream
from sse_check import check_chat_stream
from turn_encoding import read_again, told

from proxy.wires.registry.wires import built_in_wires

pytestmark = pytest.mark.slow

TOOLRELAY = Path(sys.executable).with_name("toolrelay")
ANSWER = (
    "The current time in Berlin is 2026-11-21T14:05:00+01:00. "
    "The temperature in Berlin is 7.4 degrees Celsius and the weather is light rain."
)
CHECKS: dict[str, Callable[[bytes], object]] = {
    "chat": lambda body: check_chat_stream(body, wants_usage=False, hidden=("core__",), forwarded=1),
    "responses": lambda body: check_response_stream(body, hidden=("core__",)),
}
"""Further checks of the streams of some dialects."""


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
    """The printed commands and program work as pasted, their runs are shown, and the record stays."""
    require("curl", shutil.which("curl") is not None, "curl is not installed")
    with serving([str(TOOLRELAY), "demo", "--port", "0", "--speed", "0"], folder, env) as demo:
        demo.read_until("Runs appear here")
        printed = demo.printed
        assert printed[0].startswith("web UI: http://127.0.0.1:")
        lines = [line for line in printed if line.startswith("curl -N ")]
        for wire, line in zip(built_in_wires().values(), lines, strict=True):
            body = run(["sh", "-c", line], folder, env).encode()
            assert told(read_again(wire, [body]))["TextDelta"] == ANSWER, line
            assert b"core__" not in body
            if check := CHECKS.get(wire.dialect.name):
                check(body)
        first, last = printed.index("from openai import OpenAI"), printed.index("Other questions to ask:")
        program = "\n".join(printed[first : last - 1]) + "\n"
        assert run([sys.executable, "-W", "error", "-c", program], folder, env).strip() == ANSWER
        # A prompt reads line by line and would fail on an indented or a blank line.
        prompt = run([sys.executable, "-q", "-i", "-c", ""], folder, env, stdin=program)
        assert ANSWER in prompt
        (called,) = [line for line in printed if line.startswith("curl ") and "/mcp " in line]
        assert '{\\"value\\": 42.1648128, \\"unit\\": \\"km\\"}' in run(["sh", "-c", called], folder, env)
        (asks,) = [line for line in printed if "code_execution_20260120" in line]
        answer = json.loads(run(["sh", "-c", asks], folder, env))
        kinds = ["server_tool_use", "code_execution_tool_result", "text"]
        assert [block["type"] for block in answer["content"]] == kinds
        assert '"fahrenheit":45.3' in answer["content"][1]["content"]["stdout"]
        assert "45.3 degrees Fahrenheit" in answer["content"][2]["text"]
        assert list(Path(env["TMPDIR"]).rglob("*.db"))
        status, out, err = demo.stop()
    assert (status, err) == (0, "")
    shown = [line for line in (*printed, *out.splitlines()) if line.startswith("[")]
    # One run for each command, the program and the prompt.
    assert len([line for line in shown if "completed: 2 turns, 2 tool calls" in line]) == len(lines) + 2
    assert any("mcp__units__convert" in line and "42.1648128" in line for line in shown)
    assert len(list(Path(env["TMPDIR"]).iterdir())) == 1
    assert list(folder.iterdir()) == []
    look = next(line.partition(" more: ")[2] for line in shown if " more: " in line)
    assert look.startswith(str(TOOLRELAY))
    assert "core__get_weather" in run(["sh", "-c", look], folder, env)
    # A replay has the same tools, although the demo has ended, and a program's container has the same id.
    after = shown[next(at for at, line in enumerate(shown) if "core__run_program" in line) :]
    program_look = next(line.partition(" more: ")[2] for line in after if " more: " in line)
    for command in (look, program_look):
        replayed = run(["sh", "-c", command.replace(" runs show ", " runs replay ")], folder, env)
        assert replayed.splitlines()[-1] == "no difference"
        assert "no longer offered" not in replayed


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_the_demo_asks_a_person(decision: str, folder: Path, env: dict[str, str]) -> None:
    """With the three printed lines, the note is written after an approval, and never without one."""
    require("curl", shutil.which("curl") is not None, "curl is not installed")
    with serving([str(TOOLRELAY), "demo", "--port", "0", "--speed", "0"], folder, env) as demo:
        demo.read_until("Runs appear here")
        start = next(at for at, line in enumerate(demo.printed) if line.startswith("answer=$(curl "))
        (notes,) = [part for part in demo.printed[start - 2].split() if "/notes.txt" in part]
        file = Path(notes.rstrip("."))
        asks, approves, goes_on = demo.printed[start : start + 3]
        there = 'test -e "$1" && echo "already there"'
        decides = approves.replace(" approvals approve ", f" approvals {decision} ")
        program = "\n".join([asks, there, decides, there, goes_on])
        said = run(["sh", "-c", program, "sh", str(file)], folder, env)
        assert "already there" not in said
        assert "demo__leave_note with" in said
        if decision == "approve":
            assert "I left the note for Ada: the build is green." in said
            assert file.read_text("utf-8") == "Ada: The build is green.\n"
        else:
            assert "I did not leave the note, because its call was not approved." in said
            assert not file.exists()
        demo.stop()


def test_runs_are_read_while_the_server_runs(folder: Path, env: dict[str, str]) -> None:
    """``runs list`` and ``runs show`` read the record of a server that still serves."""
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
        listed: dict[str, Any] = {"status": ""}
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
