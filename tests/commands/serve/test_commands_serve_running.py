"""The real command at work: demo, serve, check, tools, record and runs, over real sockets."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from closed_port import closed_port
from command_line import HINT, Here
from waiting import LATE_S, PATIENCE_S

from proxy.commands.demo import MODEL, QUESTIONS, show_event
from proxy.upstreams.recorded.replay import packaged_fixtures

TOOL = """
from proxy.tools.providers.function import tool
from proxy.tools.contract.spec import Redaction

@tool(description="Greets", effect="read_only", redaction=Redaction(output=("*",)))
def greet(name: str) -> dict:
    return {"greeting": f"hello {name}\\x1b[31m"}
"""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "SYSTEMROOT") if key in os.environ}
    return {**kept, "NO_COLOR": "1", **(extra or {})}


class Running:
    """A command that serves, what it printed so far, and its address."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self.address = self.read_until(r"listens on (http://\S+)/v1")[1]

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read standard output up to a line that matches; only the test's own timeout limits this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"it ended without {pattern!r}: {self.lines} {self.stderr()}")

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal; return the status, the rest of the output and the log."""
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=LATE_S)
        return self.process.returncode, out, errors


@contextmanager
def running(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", *arguments],
        cwd=folder,
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def answers(address: str, question: str) -> str:
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0)
    with (
        client,
        client.chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": question}]
        ) as stream,
    ):
        return stream.get_final_completion().choices[0].message.content or ""


def replay_config(folder: Path, more: str = "") -> None:
    (folder / "toolrelay.toml").write_text(
        f"[upstreams.recorded]\nbase_url = 'replay:{packaged_fixtures()}'\nwires = ['chat']\n"
        f"[auth]\nmode = 'open'\n{more}"
    )


def test_the_demo_from_an_empty_folder(tmp_path: Path) -> None:
    """The commands that the demo prints work as pasted, its questions are answered, and it shows the runs."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with running(tmp_path, "demo", "--port", "0", "--speed", "0", env={"TMPDIR": str(temporary)}) as demo:
        demo.read_until("Runs appear here")
        text = "\n".join(demo.lines)
        assert "2026-11-21T14:05:00+01:00" in text
        curl = next(line for line in demo.lines if line.startswith("curl "))
        told = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=LATE_S, check=True)
        assert told.stdout.count("data: [DONE]\n\n") == 1
        assert told.stdout.endswith("data: [DONE]\n\n")
        program = text[text.index("from openai import") : text.index("\n\nOther questions")]
        done = subprocess.run(
            [sys.executable, "-"], input=program, capture_output=True, text=True, timeout=LATE_S, check=True
        )
        assert "14:05:00" in done.stdout
        assert "7.4" in done.stdout
        for question, _ in QUESTIONS:
            assert question in text
        replies = [answers(demo.address, question) for question, _ in QUESTIONS]
        assert "14:05:00" in replies[1]
        assert "7.4" in replies[2]
        assert "river" in replies[3].lower()
        assert "https://en.wikipedia.org/wiki/Havel" in replies[4]
        status, out, errors = demo.stop(signal.SIGINT)
    assert status == 0
    assert "Traceback" not in errors
    shown = out.splitlines()
    assert sum("core__get_weather" in line and '"temperature_c": 7.4' in line for line in shown) == 4
    assert sum("core__get_current_time" in line for line in shown) == 4
    assert sum(QUESTIONS[0][0] in line for line in shown) == 3
    assert sum("completed: 2 turns, 2 tool calls" in line for line in shown) == 3
    # The demo leaves one private folder, so that its runs can be read; the next demo removes it.
    (kept,) = temporary.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700


def shown_by(line: str, folder: Path) -> str:
    """Run a printed command in another folder and return its output."""
    done = subprocess.run(
        ["sh", "-c", line.partition(" more: ")[2]],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=LATE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_prints_how_to_look_at_a_run(tmp_path: Path) -> None:
    """The printed command works in any folder, during and after the demo, until the next demo starts."""
    temporary, elsewhere = tmp_path / "a b", tmp_path / "elsewhere"
    for folder in (temporary, elsewhere):
        folder.mkdir()
    (elsewhere / "toolrelay.toml").write_text("[server]\nprot = 1\n")
    env = {"TMPDIR": str(temporary)}
    with running(tmp_path, "demo", "--port", "0", "--speed", "0", env=env) as demo:
        answers(demo.address, QUESTIONS[1][0])
        line = demo.read_until(r"^\[([0-9a-f]{8})\] more: ")
        assert "core__get_current_time" in shown_by(line.string, elsewhere)
        with running(tmp_path, "demo", "--port", "0", "--speed", "0", env=env) as other:
            assert other.stop()[0] == 0
        _, out, _ = demo.stop()
        assert "until the next demo starts" in out
    assert f"run_{line[1]}" in shown_by(line.string, elsewhere)
    with running(tmp_path, "demo", "--port", "0", "--speed", "0", env=env) as third:
        (left,) = temporary.glob("toolrelay-demo-*")
        third.stop()
    assert str(left) not in line.string


def test_the_demo_listens_to_nobody_elses_settings(tmp_path: Path) -> None:
    """The demo ignores the folder's configuration and TOOLRELAY_ variables."""
    (tmp_path / "toolrelay.toml").write_text("[server]\nprot = 1\n")
    env = {"TOOLRELAY_SERVER__PROT": "1", "TMPDIR": str(tmp_path)}
    with running(tmp_path, "demo", "--port", "0", "--speed", "0", env=env) as demo:
        assert demo.address.startswith("http://127.0.0.1:")
        assert demo.stop()[0] == 0


def test_serve_says_what_it_serves(tmp_path: Path) -> None:
    """serve prints its address, upstream and tools, and for a withheld tool a line that does allow it."""
    replay_config(tmp_path, "[policy]\nallow = ['core__get_c*']\n")
    with running(tmp_path, "serve", "--port", "0") as server:
        server.read_until("record: sqlite:////")
        status, out, errors = server.stop()
    text = "\n".join(server.lines)
    assert status == 0
    assert "stopping" in out
    assert "Traceback" not in errors
    assert "upstream recorded: replay:" in text
    assert "replays recordings" in text
    assert "tools loaded: core__calculate, core__get_current_time" in text
    assert "tools allowed: core__get_current_time" in text
    line = 'policy.allow = ["core__get_c*", "core__get_weather"]'
    assert f"not offered: core__get_weather: to allow it, set {line}" in text
    file = tmp_path / "toolrelay.toml"
    file.write_text(line + "\n" + file.read_text().partition("[policy]")[0])
    assert "tools allowed: core__get_current_time, core__get_weather" in _start(tmp_path)


def _start(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    with running(folder, "serve", "--port", "0", *arguments, env=env) as server:
        server.read_until("record: ")
        server.stop()
    return "\n".join(server.lines)


def test_tools_that_are_off(tmp_path: Path, here: Here) -> None:
    """With ENABLE_TOOLS=false, check says that requests pass through, and calls no tool withheld."""
    replay_config(tmp_path)
    done = here("check", env={"ENABLE_TOOLS": "false"})
    assert "passes every request through" in done.stdout
    assert "withheld" not in done.stdout


def test_serve_without_a_file(tmp_path: Path) -> None:
    """serve needs only a key in the environment, and does not print it."""
    text = _start(tmp_path, env={"OPENAI_API_KEY": "sk-never-shown"})
    assert "upstream default: https://api.openai.com/v1 (with a key)" in text
    assert "sk-never-shown" not in text


def test_serve_keeps_the_key_from_another_upstream(tmp_path: Path) -> None:
    """With --upstream, serve does not send the environment's key there, and prints how to send it."""
    with ExitStack() as stack:
        port = stack.enter_context(closed_port())
        url = f"http://127.0.0.1:{port}/v1"
        env = {"OPENAI_API_KEY": "sk-never-shown"}
        command = running(tmp_path, "serve", "--port", "0", "--upstream", url, env=env)
        server = stack.enter_context(command)
        server.read_until("record: ")
        assert server.process.stderr is not None
        warning = server.process.stderr.readline()
        status, _, _ = server.stop()
    text = "\n".join(server.lines)
    assert f"OPENAI_API_KEY is not sent to {url}" in text
    assert 'upstreams.default.api_key = "env:OPENAI_API_KEY"' in text
    assert warning.startswith(
        f"toolrelay: warning: upstreams.default: 127.0.0.1 port {port} cannot be reached"
    )
    assert status == 0


def test_check_lists_and_finds_nothing(tmp_path: Path, here: Here) -> None:
    """check prints tools, decisions and rules, and creates no record."""
    replay_config(tmp_path, "[policy]\nallow = ['core__*']\napprove = ['core__get_weather']\n")
    done = here("check")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"core__get_current_time +read_only +allowed +policy.allow has \"core__\*\"", done.stdout
    )
    assert re.search(r"core__get_weather +read_only +needs approval +policy.approve has", done.stdout)
    assert "asks first: core__get_weather" in done.stdout
    assert done.stdout.endswith("No faults found.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["toolrelay.toml"]


def test_check_says_who_is_asked_first(tmp_path: Path, here: Here) -> None:
    """For a model of several upstreams, check lists them in order, with the model's name at each."""
    (tmp_path / "toolrelay.toml").write_text(
        '[upstreams.first]\nbase_url = "replay:"\nwires = ["chat"]\n'
        '[upstreams.second]\nbase_url = "replay:"\nmodels = {"fast" = "small-1"}\n'
    )
    done = here("check")
    assert "fast: first (chat only), then second (as small-1)" in done.stdout
    assert "*:" not in done.stdout


def test_check_shows_bounds_and_tools_by_upstream(tmp_path: Path, here: Here) -> None:
    """check prints each argument limit, and the tools that an upstream's models are not offered."""
    (tmp_path / "toolrelay.toml").write_text(
        f"""
        [upstreams.narrow]
        base_url = "replay:{packaged_fixtures()}"
        tools = ["core__get_*"]
        [upstreams.worded]
        base_url = "replay:{packaged_fixtures()}"
        tools = "prompt"
        [policy]
        allow = ["core__calculate", "core__get_weather"]
        [policy.arguments."core__get_*"]
        days = {{max = 3}}
        units = {{enum = ["imperial"]}}
        """
    )
    done = here("check")
    lines = done.stdout.splitlines()
    assert 'argument limit of core__get_weather: days 3 or less (policy.arguments."core__get_*")' in lines
    assert (
        "argument limit of core__get_weather: units one of imperial, and the model must give it because "
        'the tool\'s default is not allowed (policy.arguments."core__get_*")'
    ) in lines
    assert not any(line.startswith("argument limit of core__get_current_time") for line in lines)
    assert "upstream narrow: its models are not offered core__calculate (upstreams.narrow.tools)" in lines
    assert not any("upstreams.worded.tools" in line for line in lines), "a way to offer tools is no pattern"
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ('"core__get_wether" = {days = {max = 3}}', '"core__get_wether": matches no loaded tool'),
        ('"core__get_weather" = {day = {max = 3}}', ".day: core__get_weather has no such argument"),
    ],
)
def test_a_bound_that_bounds_nothing_is_a_fault(tmp_path: Path, bound: str, words: str) -> None:
    """Rule E1: if an argument limit matches nothing, check names it and serve does not start."""
    (tmp_path / "toolrelay.toml").write_text(f"[policy.arguments]\n{bound}\n")
    # Any free port: a proxy may be running beside the tests.
    env = {"OPENAI_API_KEY": "sk-test", "TOOLRELAY_SERVER__PORT": "0"}
    for command in ("check", "serve"):
        done = subprocess.run(
            [sys.executable, "-m", "proxy", command],
            cwd=tmp_path,
            env=environment(env),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 1
        assert words in done.stderr


def test_check_probes(tmp_path: Path, here: Here) -> None:
    """check --probe prints what the upstream can do; a fault is one line and exit status 1."""
    replay_config(tmp_path)
    done = here("check", "--probe")
    assert done.returncode == 1
    assert re.search(rf"recorded +yes +1 +{MODEL}", done.stdout)
    assert done.stderr.startswith("toolrelay: upstreams.recorded: a chat request")
    assert len(done.stderr.splitlines()) == 1


def test_check_calls_an_unreachable_upstream_a_fault(tmp_path: Path, here: Here) -> None:
    """For check, an upstream that cannot be reached is a fault; for serve, it is a warning."""
    with closed_port() as port:
        (tmp_path / "toolrelay.toml").write_text(f"[upstreams.a]\nbase_url='http://127.0.0.1:{port}/v1'\n")
        done = here("check")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"toolrelay: upstreams.a: 127.0.0.1 port {port} cannot be reached (Connection refused)"
    ]


def test_a_tool_of_ones_own(tmp_path: Path, here: Here) -> None:
    """A tool file of one's own is listed, refused until policy allows it, then called and recorded."""
    (tmp_path / "my_tools.py").write_text(TOOL)
    replay_config(tmp_path, "[tools]\nmodules = ['my_tools.py']\n")
    listed = [json.loads(line) for line in here("tools", "list", "--json").stdout.splitlines()]
    mine = next(tool for tool in listed if tool["name"] == "my_tools__greet")
    assert mine["decision"] == "denied"
    assert mine["parameters"]["required"] == ["name"]
    assert "my_tools__greet" in here("tools").stdout
    assert not (tmp_path / "toolrelay.db").exists()
    refused = here("tools", "call", "my_tools__greet", '{"name": "you"}')
    assert refused.returncode == 1
    *_, said, hint = refused.stderr.splitlines()
    assert hint == f"{HINT}policy_denied"
    assert said.startswith("toolrelay: my_tools__greet: policy_denied")
    assert said.endswith('(policy.allow lacks "my_tools__greet")'), "an author is told what to change"
    unknown = here("tools", "call", "my_tools__gret", "{}").stderr
    assert 'there is no tool of this name. Did you mean "my_tools__greet"?' in unknown
    allowed = {"TOOLRELAY_POLICY__ALLOW": '["my_tools__*"]'}
    done = here("tools", "call", "my_tools__greet", '{"name": "you"}', env=allowed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"greeting": "hello you\x1b[31m"}
    assert "\x1b" not in done.stdout
    wrong = here("tools", "call", "my_tools__greet", '{"nam": "secretvalue"}', env=allowed)
    assert wrong.returncode == 1
    assert "invalid_arguments" in wrong.stderr
    assert "secretvalue" not in wrong.stderr
    runs = [json.loads(line) for line in here("runs", "list", "--json").stdout.splitlines()]
    assert [run["status"] for run in runs] == ["failed", "completed", "failed", "failed"]
    shown = here("runs", "show", runs[1]["id"])
    assert "my_tools__greet" in shown.stdout
    assert "\x1b" not in shown.stdout
    detail = json.loads(here("runs", "show", runs[1]["id"], "--json").stdout)
    assert detail["invocations"][0]["status"] == "success"


def test_an_author_sees_the_traceback(tmp_path: Path, here: Here) -> None:
    """tools call prints the tool's traceback to standard error only; the record does not contain it."""
    (tmp_path / "my_tools.py").write_text(
        TOOL.replace('return {"greeting"', 'raise KeyError(name) # {"greeting"')
    )
    replay_config(tmp_path, "[tools]\nmodules = ['my_tools.py']\n")
    allowed = {"TOOLRELAY_POLICY__ALLOW": '["my_tools__*"]'}
    done = here("tools", "call", "my_tools__greet", '{"name": "m\\u001be"}', env=allowed)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    start = lines.index("Traceback (most recent call last):")
    assert "my_tools.py" in lines[start + 1]
    assert any(line.startswith("KeyError: ") for line in lines)
    assert lines[-2] == "toolrelay: my_tools__greet: execution_failed: the tool failed"
    assert "\x1b" not in done.stderr
    assert "KeyError" not in done.stdout
    run = json.loads(here("runs", "list", "--json").stdout)
    assert "KeyError" not in here("runs", "show", run["id"], "--json").stdout


def test_serve_records_what_runs_shows(tmp_path: Path, here: Here) -> None:
    """A run with a server tool is recorded, and ``runs`` shows it."""
    replay_config(tmp_path, "[policy]\nallow = ['core__get_current_time']\n")
    with running(tmp_path, "serve", "--port", "0") as server:
        answers(server.address, QUESTIONS[1][0])
        assert server.stop()[0] == 0
    (run,) = [json.loads(line) for line in here("runs", "list", "--json").stdout.splitlines()]
    assert (run["status"], run["turns"], run["tool_calls"]) == ("completed", 2, 1)
    listed = here("runs").stdout
    assert run["id"] in listed
    shown = here("runs", "show", run["id"][:12]).stdout
    assert "turn 1" in shown
    assert "turn 2" in shown
    assert "core__get_current_time" in shown


def test_record_makes_fixtures_that_replay(tmp_path: Path) -> None:
    """record saves an exchange; a server that replays it gives the same answer."""
    replay_config(tmp_path)
    question = QUESTIONS[3][0]
    with running(tmp_path, "demo", "--port", "0", "--speed", "0") as origin:
        url = f"{origin.address}/v1"
        with running(tmp_path, "record", "--upstream", url, "--out", "saved", "--port", "0") as recorder:
            assert "what users ask" in "\n".join(recorder.lines)
            original = answers(recorder.address, question)
            assert recorder.stop()[0] == 0
    assert list((tmp_path / "saved").rglob("response.sse"))
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o700
    (tmp_path / "toolrelay.toml").write_text("[upstreams.saved]\nbase_url='replay:saved'\n")
    with running(tmp_path, "serve", "--open", "--port", "0") as again:
        assert answers(again.address, question) == original
    assert original


def test_a_request_line_in_the_log_carries_no_key(tmp_path: Path) -> None:
    """The log of requests contains no key of a header or a query."""
    replay_config(tmp_path)
    with running(tmp_path, "serve", "--port", "0") as server:
        request = urllib.request.Request(
            f"{server.address}/v1/models?key=sk-in-query", headers={"Authorization": "Bearer sk-in-header"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            assert response.status == 200
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{server.address}/v1/chat/completions", timeout=PATIENCE_S)
        _, _, log = server.stop()
    assert "/v1/models" in log
    assert "sk-in-" not in log


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        (
            "run_started",
            {"run_id": "run_0123456789", "preview": "hi\x1b[2J\n"},
            "[01234567] asked: hi\\x1b[2J\\n",
        ),
        (
            "tool_finished",
            {
                "run_id": "r",
                "name": "a__b",
                "ok": True,
                "ms": 1.6,
                "arguments_redacted": {"x": 1},
                "result_redacted": "ü",
            },
            '[r]   a__b {"x": 1} -> "ü" (2 ms)',
        ),
        (
            "tool_finished",
            {"run_id": "r", "name": "a__b", "ok": False, "ms": 0, "error_code": "timeout"},
            "[r]   a__b null -> timeout (0 ms)",
        ),
        (
            "run_finished",
            {"run_id": "r", "status": "completed", "turns": 2, "tool_calls": 1, "ms": 12.2},
            "[r] completed: 2 turns, 1 tool call, 12 ms",
        ),
        (
            "run_finished",
            {"run_id": "r", "status": "failed", "turns": 1, "tool_calls": 0, "ms": 3},
            "[r] failed: 1 turn, 0 tool calls, 3 ms",
        ),
        ("something_else", {}, ""),
    ],
)
def test_what_the_demo_shows_of_a_run(kind: str, data: dict[str, Any], line: str) -> None:
    """The demo prints each known event of a run on one line, with control characters escaped."""
    assert show_event(kind, data) == line
