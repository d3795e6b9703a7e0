"""Every snippet of the README and of docs/ is read by what it is for."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from documents import DOCS, Snippet, snippets
from require import require
from waiting import LATE_S, PATIENCE_S

from proxy.server.config.load import load_config

SECRET = "0123456789abcdef" * 4
"""In place of a file that a snippet names."""


@pytest.mark.parametrize("snippet", snippets("bash"), ids=str)
def test_a_shell_reads_it(snippet: Snippet) -> None:
    """A shell snippet is one that a shell can read."""
    shell = shutil.which("bash") or shutil.which("sh")
    assert shell is not None
    subprocess.run([shell, "-n"], input=snippet.text, text=True, check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("snippet", snippets("python"), ids=str)
def test_python_compiles_it(snippet: Snippet) -> None:
    """A Python snippet compiles."""
    compile(snippet.text, str(snippet), "exec")


@pytest.mark.parametrize("snippet", snippets("json"), ids=str)
def test_it_is_json(snippet: Snippet) -> None:
    """A JSON snippet is JSON."""
    json.loads(snippet.text)


def test_node_reads_javascript(tmp_path: Path) -> None:
    """A JavaScript snippet is a module that Node can read."""
    node = shutil.which("node")
    require("node", node is not None, "node is not installed")
    assert node is not None
    for number, snippet in enumerate(snippets("javascript")):
        path = tmp_path / f"snippet{number}.mjs"
        path.write_text(snippet.text, encoding="utf-8")
        subprocess.run([node, "--check", path], check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("snippet", snippets("toml"), ids=str)
def test_a_configuration_loads(snippet: Snippet, tmp_path: Path) -> None:
    """A TOML snippet is a configuration that this version takes; each of its settings exists."""
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
    """The tutorial's test of the tutorial's tool runs as pasted, and goes well."""
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
