"""The plugin for pytest, in test suites of their own: replay, misses, recording, and what it costs others."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from documents import DOCS, snippets
from fixture_maker import chat_reply, write_fixture
from waiting import LATE_S

PLUGIN = "proxy.testing.plugin"
HI = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}]}
ASKING = """
import openai, pytest

def ask(text="Hi"):
    with openai.OpenAI() as client:
        answer = client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": text}]
        )
        return answer.choices[0].message.content
"""
KEY = "sk-proj-0123456789abcdefghij"


def run_tests(folder: Path, source: str, *options: str, **environment: str) -> tuple[int, str]:
    """Run a file of tests in a process of its own; return the exit status and the output."""
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").touch()
    # With CI or BUILD_NUMBER in the environment, pytest's summary repeats each message as a whole.
    alone = ("OPENAI", "COV_", "PYTEST", "CI", "BUILD_NUMBER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(alone)}
    # Loaded by its name, since an environment may have been made before the package had the plugin.
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        timeout=LATE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_tests_are_answered_by_their_own_fixtures(tmp_path: Path) -> None:
    """A test finds the folder of its name, or that of its marker, and needs no key."""
    for name in ("test_one", "shared/two"):
        write_fixture(tmp_path / "recorded" / name / "x", HI, chat_reply(f"From {name}."))
    source = f"""{ASKING}
@pytest.mark.parametrize("n", [1, 2])
def test_one(toolrelay_replay, n):
    assert ask() == "From test_one."

@pytest.mark.toolrelay("shared/two")
def test_two(toolrelay_replay):
    assert ask() == "From shared/two."
    assert toolrelay_replay.openai.endswith("/v1")

def test_environment_ends_with_the_test():
    import os
    assert "OPENAI_BASE_URL" not in os.environ
"""
    status, said = run_tests(tmp_path, source, "--strict-markers", "-W", "error")
    assert status == 0, said
    assert "4 passed" in said


def test_the_ten_lines_of_the_tutorial_pass(tmp_path: Path) -> None:
    """The tutorial's test has ten lines, and passes as pasted with a fixture of its name."""
    (snippet,) = snippets("python", (DOCS / "tutorials" / "record-and-replay.md",))
    assert len(snippet.text.rstrip("\n").split("\n")) == 10
    ask = {
        "model": "gpt-4o-mini",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    write_fixture(tmp_path / "recorded" / "capital" / "x", ask, chat_reply("It is Paris."))
    status, said = run_tests(tmp_path, snippet.text, "--strict-markers")
    assert status == 0, said
    assert "1 passed" in said


def test_tests_in_several_processes(tmp_path: Path) -> None:
    """With pytest-xdist each process has a server of its own, and asynchronous clients work."""
    write_fixture(tmp_path / "recorded" / "hi" / "x", HI, chat_reply("Hello."))
    source = f"""{ASKING}
import asyncio
pytestmark = pytest.mark.toolrelay("hi")

@pytest.mark.parametrize("n", range(8))
def test_waiting(toolrelay_replay, n):
    assert ask() == "Hello."

async def ask_async():
    async with openai.AsyncOpenAI() as client:
        answer = await client.chat.completions.create(
            model="gpt-4o-mini", messages=[{{"role": "user", "content": "Hi"}}]
        )
        return answer.choices[0].message.content

def test_async(toolrelay_replay):
    assert asyncio.run(ask_async()) == "Hello."
"""
    status, said = run_tests(tmp_path, source, "-p", "xdist", "-n", "2")
    assert status == 0, said
    assert "9 passed" in said


def test_a_miss_fails_the_test_with_the_difference(tmp_path: Path) -> None:
    """Also if the test swallows the client's error; a miss that the test clears does not count."""
    write_fixture(tmp_path / "recorded" / "hi" / "x", HI, chat_reply("Hello."))
    source = f"""{ASKING}
pytestmark = pytest.mark.toolrelay("hi")

def test_raises(toolrelay_replay):
    ask("Bye")

def test_swallows(toolrelay_replay):
    with pytest.raises(openai.NotFoundError):
        ask("Bye")

def test_expects(toolrelay_replay):
    with pytest.raises(openai.NotFoundError):
        ask("Bye")
    assert "no fixture answers" in toolrelay_replay.missed.pop()

def test_fails_for_another_reason(toolrelay_replay):
    assert ask() == "Good morning."
"""
    status, said = run_tests(tmp_path, source)
    assert status == 1, said
    assert "3 failed, 1 passed" in said
    assert said.count("[-Hi-]{+Bye+}") == 2
    assert "Good morning." in said


def test_a_test_without_fixtures_is_told_how_to_record_them(tmp_path: Path) -> None:
    """A missing folder is an error that names the option."""
    status, said = run_tests(tmp_path, f"{ASKING}\ndef test_one(toolrelay_replay):\n    ask()\n")
    assert status == 1
    assert "pytest --toolrelay-record" in said


@contextmanager
def provider(status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """A provider of Chat in this process, and what it was asked: the key and the body."""
    seen: list[Any] = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, self.headers["authorization"], orjson.loads(body)))
            said = orjson.dumps(chat_reply(f"Hello, {self.headers['authorization']}."))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
        server.shutdown()


def test_recording_asks_once_and_saves_no_secret(tmp_path: Path) -> None:
    """The provider is asked with the user's key, once; the key and what ``scrub`` names are not saved."""
    source = f"""{ASKING}
def test_one(toolrelay_replay):
    for _ in range(2):
        assert ask("Hi, I am acct_hunter22, {KEY}.").startswith("Hello")
"""
    ini = "[pytest]\ntoolrelay_scrub =\n    acct_*\n"
    with provider() as (url, seen):
        (tmp_path / "pytest.ini").write_text(ini)
        status, said = run_tests(
            tmp_path, source, "--toolrelay-record", OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY
        )
        assert status == 0, said
        again, said_again = run_tests(
            tmp_path, source, "--toolrelay-record", OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY
        )
        assert again == 0, said_again
    (asked,) = seen
    assert asked[:2] == ("/v1/chat/completions", f"Bearer {KEY}")
    assert KEY in asked[2]["messages"][0]["content"]
    files = [file for file in (tmp_path / "recorded" / "test_one").rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"meta.toml", "request.json", "response.json", "response.toml"}
    for file in files:
        assert KEY not in file.read_text()
        assert "hunter22" not in file.read_text()
    status, said = run_tests(tmp_path, source)
    assert status == 0, said


def test_a_refused_key_is_not_recorded(tmp_path: Path) -> None:
    """An answer that says nothing about the request, such as 401, does not become a fixture."""
    source = f"{ASKING}\ndef test_one(toolrelay_replay):\n    ask()\n"
    with provider(status=401) as (url, _):
        status, said = run_tests(
            tmp_path, source, "--toolrelay-record", OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY
        )
    assert status == 1, said
    assert not list((tmp_path / "recorded").rglob("meta.toml"))


def test_a_suite_that_does_not_use_it_loads_nothing(tmp_path: Path) -> None:
    """The plugin imports no other module of the package, and no library, until a test asks for a replay."""
    source = """
import sys

def test_loaded():
    loaded = {name for name in sys.modules if name.partition(".")[0] == "proxy"}
    assert loaded == {"proxy", "proxy.testing", "proxy.testing.plugin"}
    unneeded = {"aiohttp", "orjson", "msgspec", "pydantic", "structlog", "asyncio", "httptools"}
    assert not unneeded & sys.modules.keys()
"""
    status, said = run_tests(tmp_path, source)
    assert status == 0, said


@pytest.mark.parametrize("name", ["../outside", "/etc"])
def test_a_marker_names_a_folder_of_the_tests(tmp_path: Path, name: str) -> None:
    """A folder without fixtures answers nothing, wherever it is."""
    source = f"{ASKING}\n@pytest.mark.toolrelay({name!r})\ndef test_one(toolrelay_replay):\n    ask()\n"
    status, said = run_tests(tmp_path, source)
    assert status == 1
    assert "no fixture answers" in said or "there are no fixtures here" in said


def test_a_miss_is_shown_whatever_the_test_makes_of_it(tmp_path: Path) -> None:
    """Also if the test is given up or skipped because its client failed."""
    write_fixture(tmp_path / "recorded" / "hi" / "x", HI, chat_reply("Hello."))
    source = f"""{ASKING}
pytestmark = pytest.mark.toolrelay(name="hi")

@pytest.mark.parametrize("end", [pytest.skip, pytest.fail])
def test_gives_up(toolrelay_replay, end):
    try:
        ask("Bye")
    except openai.APIError:
        end("The provider does not answer.")
"""
    status, said = run_tests(tmp_path, source)
    assert status == 1, said
    assert "2 failed" in said
    assert said.count("[-Hi-]{+Bye+}") == 2


def test_a_client_that_goes_elsewhere_is_explained(tmp_path: Path) -> None:
    """A failed test that asked nothing here is told where clients find the address."""
    write_fixture(tmp_path / "recorded" / "hi" / "x", HI, chat_reply("Hello."))
    source = f"""{ASKING}
pytestmark = pytest.mark.toolrelay("hi")

@pytest.fixture(scope="session")
def early():
    with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0) as client:
        yield client

def test_early(early, toolrelay_replay):
    early.models.list()

def test_late(toolrelay_replay):
    assert ask() == "Good morning."
"""
    status, said = run_tests(tmp_path, source)
    assert status == 1, said
    assert said.count("No request reached toolrelay_replay. Make clients in the test") == 1


@pytest.mark.parametrize(
    ("marker", "ini", "expected"),
    [
        ('"hi"', "toolrelay_speed = fast", "toolrelay_speed: is 'fast'"),
        ('"hi"', "toolrelay_speed = -1", "toolrelay_speed: is '-1'"),
        ('folder="hi"', "", "takes the name of one folder"),
        ("1", "", "takes the name of one folder"),
        ('"empty"', "", "pytest --toolrelay-record"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, marker: str, ini: str, expected: str) -> None:
    """A wrong setting or marker, and a folder that a failed recording left empty."""
    write_fixture(tmp_path / "recorded" / "hi" / "x", HI, chat_reply("Hello."))
    (tmp_path / "recorded" / "empty").mkdir()
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    source = f"{ASKING}\n@pytest.mark.toolrelay({marker})\ndef test_one(toolrelay_replay):\n    ask()\n"
    status, said = run_tests(tmp_path, source)
    assert status == 1, said
    assert expected in said
    assert "Traceback" not in said


@pytest.mark.parametrize("address", ["api.example/v1", "https://api.example/v1?version=2"])
def test_an_address_that_cannot_be_asked_is_named(tmp_path: Path, address: str) -> None:
    """A recording says which variable is wrong."""
    source = f"{ASKING}\ndef test_one(toolrelay_replay):\n    ask()\n"
    environment = {"OPENAI_BASE_URL": address, "OPENAI_API_KEY": KEY, "OLLAMA_HOST": ":11434"}
    status, said = run_tests(tmp_path, source, "--toolrelay-record", **environment)
    assert status == 1, said
    assert "OPENAI_BASE_URL" in said
    assert "Traceback" not in said
