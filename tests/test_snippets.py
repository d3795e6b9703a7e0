"""Every snippet of the README and of docs/ is accepted by the program that it is for."""

import asyncio
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from agents_rig import Asked, Models, Turn
from approvals_rig import ID
from documents import DOCS, Snippet, snippets
from raw_upstream import RawUpstream
from require import require
from running_proxy import make_config, running
from typer.main import get_command
from waiting import LATE_S, PATIENCE_S

from proxy.app.app import Overrides
from proxy.base.events import RUN_PROGRAM
from proxy.commands.cli import app
from proxy.commands.demo import MODEL, RECORDED_AT
from proxy.config.load import load_config
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.demo.recorded import RecordedHttpClient
from proxy.upstreams.recorded.replay import packaged_fixtures

WEATHER = "What is the weather in Berlin?"
SECRET = "0123456789abcdef" * 4
"""The content of a file that a snippet names."""


@pytest.mark.parametrize("snippet", snippets("bash"), ids=str)
def test_a_shell_reads_it(snippet: Snippet) -> None:
    """A shell can parse each shell snippet."""
    shell = shutil.which("bash") or shutil.which("sh")
    assert shell is not None
    subprocess.run([shell, "-n"], input=snippet.text, text=True, check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("snippet", snippets("python"), ids=str)
def test_python_compiles_it(snippet: Snippet) -> None:
    """A Python snippet compiles."""
    compile(snippet.text, str(snippet), "exec")


@pytest.mark.parametrize("snippet", snippets("json"), ids=str)
def test_it_is_json(snippet: Snippet) -> None:
    """A JSON snippet is valid JSON."""
    json.loads(snippet.text)


def test_node_reads_javascript(tmp_path: Path) -> None:
    """Node can parse each JavaScript snippet as a module."""
    node = shutil.which("node")
    require("node", node is not None, "node is not installed")
    assert node is not None
    for number, snippet in enumerate(snippets("javascript")):
        path = tmp_path / f"snippet{number}.mjs"
        path.write_text(snippet.text, encoding="utf-8")
        subprocess.run([node, "--check", path], check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("snippet", snippets("toml"), ids=str)
def test_a_configuration_loads(snippet: Snippet, tmp_path: Path) -> None:
    """A TOML snippet loads as a configuration of this version, so each of its settings exists."""
    written = tomllib.loads(snippet.text)
    if snippet.mark.startswith("only parsed: "):
        return
    path = tmp_path / "snippet.toml"
    (tmp_path / "secret").write_text(SECRET)
    for name in re.findall(r'"file:(\w[\w./-]*)"', snippet.text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"type": "object"}')
    text = re.sub(r"file:/[\w/.-]+", f"file:{tmp_path / 'secret'}", snippet.text)
    path.write_text(text, encoding="utf-8")
    names = ("OPENAI_API_KEY", *re.findall(r"env:([A-Z_0-9]+)", snippet.text))
    secrets = {name: f"{number:02x}" + SECRET[2:] for number, name in enumerate(dict.fromkeys(names))}
    config = load_config(path, secrets)
    assert list(config.policy.allow) == written.get("policy", {}).get("allow", [])
    assert list(config.prices) == list(written.get("prices", {}))


def test_test_of_ones_own_passes(tmp_path: Path) -> None:
    """The tutorial's test of the tutorial's tool passes as pasted."""
    pages = (DOCS / "tutorials/first-tool.md",)
    for name, mark in (("my_tools", "@tool"), ("test_my_tools", "ToolTester(")):
        code = next(snippet.text for snippet in snippets("python", pages) if mark in snippet.text)
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_tools.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LATE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("snippet", snippets("yaml"), ids=str)
def test_it_is_yaml(snippet: Snippet) -> None:
    """A YAML snippet is valid YAML, and a configuration inside of it is valid TOML."""
    require("yaml", importlib.util.find_spec("yaml") is not None, "the extra docs is not installed")
    import yaml

    for document in yaml.safe_load_all(snippet.text):
        for name, text in document.get("data", {}).items() if document.get("kind") == "ConfigMap" else ():
            assert name == "toolrelay.toml"
            tomllib.loads(text)


@pytest.mark.parametrize("snippet", snippets("nginx"), ids=str)
def test_nginx_takes_it(snippet: Snippet, tmp_path: Path) -> None:
    """nginx accepts each snippet for it."""
    program = _found("nginx")
    servers = snippet.text if snippet.text.startswith("upstream ") else ""
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off;\n"
        "map $http_upgrade $connection_upgrade { default upgrade; '' ''; }\n"
        + "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
        + f"client_body_temp_path {tmp_path}/body;\n"
        f"{servers}server {{ listen unix:{tmp_path}/socket;\n{'' if servers else snippet.text}}} }}\n"
    )
    command = [program, "-t", "-q", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    subprocess.run(command, check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("snippet", snippets("haproxy"), ids=str)
def test_haproxy_takes_it(snippet: Snippet, tmp_path: Path) -> None:
    """HAProxy accepts each snippet for it, with a socket in place of the certificate."""
    program = _found("haproxy")
    text = re.sub(r"bind :443 ssl crt \S+", f"bind unix@{tmp_path}/socket", snippet.text)
    head = "defaults\n  mode http\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
    (tmp_path / "haproxy.cfg").write_text(head + text)
    subprocess.run([program, "-c", "-q", "-f", tmp_path / "haproxy.cfg"], check=True, timeout=PATIENCE_S)


def _found(name: str) -> str:
    # Debian installs them where only root looks.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    require(name, found is not None, f"{name} is not installed")
    return found or ""


def _calls() -> list[tuple[Snippet, list[str]]]:
    """Every call of ``toolrelay`` in a shell snippet, as its arguments."""
    calls = []
    for snippet in snippets("bash"):
        for line in snippet.text.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\||;(?!')", line):
                words = shlex.split(part, comments=True) if part.count("'") % 2 == 0 else part.split()
                names = [
                    number for number, word in enumerate(words) if word.rpartition("/")[2] == "toolrelay"
                ]
                if names and "docker" not in words[0] and words[0] not in ("claude", "git"):
                    calls.append((snippet, words[names[0] + 1 :]))
    return calls


def test_each_command_and_option_exists() -> None:
    """Each call of ``toolrelay`` in a snippet names a command that exists, and options that it has."""
    calls = _calls()
    assert len(calls) >= 25
    for snippet, words in calls:
        command: Any = get_command(app)
        rest = list(words)
        while getattr(command, "commands", None) is not None and rest and not rest[0].startswith("-"):
            if rest[0] not in command.commands:
                break
            command = command.commands[rest.pop(0)]
        if getattr(command, "commands", None) is not None:
            # A group whose default command is ``list``.
            command = command.commands.get("list", command)
        options = {name for parameter in command.params for name in parameter.opts}
        # What follows "--" belongs to another program.
        for word in takewhile(lambda each: each != "--", rest):
            if word.startswith("--"):
                assert word.partition("=")[0] in options, f"{snippet}: {' '.join(words)}"


async def test_the_events_of_a_call_are_those_of_the_page() -> None:
    """The page on trace levels shows the events of a call as a client gets them, apart from times and ids."""
    (shown,) = snippets("text", (DOCS / "concepts/trace-levels.md",))
    ask = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": WEATHER}]}
    assert json.dumps(ask) in snippets("bash", (shown.page,))[0].text
    upstream = {"name": "demo", "base_url": f"replay:{packaged_fixtures()}", "wires": ("chat",)}
    tools = {"trace_max": "events"}
    config = make_config(upstream, policy={"allow": ("core__*",)}, auth={"mode": "open"}, tools=tools)
    services = RecordedHttpClient(packaged_fixtures() / "http")
    async with running(config, Overrides(http=services.client)) as proxy:
        answer = await proxy.ask(ask, headers={"x-toolrelay-trace": "events"})
    events = [event for event in answer.body.decode().split("\n\n") if "x_toolrelay" in event]
    assert [_timeless(event) for event in events] == [
        _timeless(event) for event in shown.text.strip().split("\n\n")
    ]


def _timeless(event: str) -> str:
    """Return an event without its id and the time that the call has taken."""
    return re.sub(r'"id":"[^"]+"|"ms":[\d.]+', "", event)


async def test_each_curl_line_of_the_demo_is_answered() -> None:
    """The demo answers each curl line for its model, with the tool calls only if the line asks for them."""
    lines = [
        snippet for snippet in snippets("bash") if "curl" in snippet.text and f'"{MODEL}"' in snippet.text
    ]
    assert len(lines) >= 3
    upstream = {"name": "demo", "base_url": f"replay:{packaged_fixtures()}", "wires": ("chat",)}
    config = make_config(upstream, policy={"allow": ("core__*",)}, auth={"mode": "open"})
    async with running(config) as proxy:
        for snippet in lines:
            words = shlex.split(snippet.text.replace("\\\n", " "))
            words += ["--silent", "--show-error", "--include", "--max-time", str(LATE_S)]
            command = [word.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}") for word in words]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            out, _ = await process.communicate()
            assert out.startswith(b"HTTP/1.1 200"), snippet
            assert b"data: [DONE]" in out, snippet
            assert (b"core__get_weather" in out) == ("x-toolrelay-trace: status" in snippet.text), snippet


PROGRAMS = (DOCS / "tutorials/programs.md",)


async def test_the_tutorial_of_programs_prints_what_it_shows(tmp_path: Path) -> None:
    """The first script of the tutorial works as pasted, against the demo's recorded model."""
    ask, (shown,) = snippets("python", PROGRAMS)[0], snippets("text", PROGRAMS)
    upstream = {"name": "demo", "base_url": f"replay:{packaged_fixtures()}", "wires": ("chat",)}
    config = make_config(upstream, policy={"allow": ("core__*",)}, tools={"programs": "auto"})
    services = RecordedHttpClient(packaged_fixtures() / "http")
    overrides = Overrides(http=services.client, clock=FixedClock(RECORDED_AT))
    async with running(config, overrides) as proxy:
        code = ask.text.replace("127.0.0.1:8080", f"127.0.0.1:{proxy.port}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
        )
        out, _ = await process.communicate()
    assert out.decode().strip() == shown.text.strip()


async def test_the_program_of_the_tutorial_runs_over_its_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tutorial's tools load, and its program waits for the order's approval and goes on."""
    _, shop, program = snippets("python", PROGRAMS)
    (settings,) = snippets("toml", PROGRAMS)
    written = tomllib.loads(settings.text)
    (tmp_path / "shop.py").write_text(shop.text)
    monkeypatch.chdir(tmp_path)

    def say(asked: Asked) -> Turn:
        results = asked.results
        return Turn(results[-1]) if results else Turn(calls=[(RUN_PROGRAM, {"code": program.text})])

    async with RawUpstream(Models({"m": say})) as upstream:
        config = make_config(
            upstream.url,
            allow=written["policy"]["allow"],
            policy={"approve": tuple(written["policy"]["approve"])},
            modules=written["tools"]["modules"],
            tools={"programs": written["tools"]["programs"]},
            approvals={},
        )
        async with running(config) as proxy:
            question = {"role": "user", "content": "Order what is sold out."}
            notice = (await proxy.ask({"model": "m", "messages": [question]})).json
            said = notice["choices"][0]["message"]
            (approval,) = set(ID.findall(said["content"]))
            more = [question, said, {"role": "user", "content": "Go on."}]
            header = {"x-toolrelay-approve": approval}
            done = (await proxy.ask({"model": "m", "messages": more}, header)).json
    told = json.loads(done["choices"][0]["message"]["content"])
    assert told["printed"].strip() in PROGRAMS[0].read_text("utf-8")
    assert told["printed"] == "milk {'ordered': 10}\n"
