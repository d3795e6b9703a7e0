"""``toolrelay mcp import`` turns files of other programs into a configuration, without their secrets."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import Here

from proxy.config.load import find_faults

KEY = {"OPENAI_API_KEY": "sk-x"}
SECRET = "ghp_0123456789abcdefghijklmnop"


def imported(here: Here, folder: Path, said: Any, name: str = "mcp.json") -> str:
    """Return what the command prints, after a check that it loads as a configuration."""
    (folder / name).write_text(said if isinstance(said, str) else json.dumps(said))
    done = here("mcp", "import", name)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout
    made = folder / "made.toml"
    made.write_text(done.stdout)
    names = {line.split()[2] for line in done.stdout.splitlines() if line.startswith("# Set ")}
    env = {**KEY, **dict.fromkeys([*names, "TOKEN"], "value")}
    assert find_faults(made, env)[1] == []
    return done.stdout


def test_claude_desktop(here: Here, tmp_path: Path) -> None:
    """A secret becomes an environment variable; other values stay as they are."""
    servers = {
        "My GitHub!": {"command": "npx", "args": ["-y", "gh"], "env": {"GH_TOKEN": SECRET, "DEBUG": "1"}}
    }
    text = imported(here, tmp_path, {"mcpServers": servers})
    assert "[mcp.servers.my-github]" in text
    assert 'args = ["-y", "gh"]' in text
    assert 'env = {"GH_TOKEN" = "env:MY_GITHUB_GH_TOKEN", "DEBUG" = "1"}' in text


def test_claude_code_and_cursor(here: Here, tmp_path: Path) -> None:
    """Addresses and headers are imported, and ``${NAME}`` becomes ``env:NAME``."""
    servers = {"issues": {"type": "http", "url": "https://x.example/mcp", "headers": {"X-Team": "${TOKEN}"}}}
    text = imported(here, tmp_path, {"mcpServers": servers})
    assert 'url = "https://x.example/mcp"' in text
    assert 'headers = {"X-Team" = "env:TOKEN"}' in text


def test_secrets_of_arguments_and_addresses_are_not_printed(here: Here, tmp_path: Path) -> None:
    """A secret in arguments or a URL is left out, and a comment says where it was and where to pass it."""
    servers = {
        "a": {
            "command": "npx",
            "args": ["gh", "--token", SECRET, f"--header=Authorization: Bearer {SECRET}"],
        },
        "b": {"url": f"https://x.example/mcp?key={SECRET}"},
    }
    text = imported(here, tmp_path, {"mcpServers": servers})
    assert (
        "# args of the file may contain a secret. It is not printed, and others could see it: pass it in env"
        in (text)
    )
    assert "# url of the file may contain a secret. It is not printed" in text
    assert 'args = ["gh", "--token", "<hidden>"' in text


def test_vs_code(here: Here, tmp_path: Path) -> None:
    """A value that VS Code would ask for becomes an environment variable."""
    said = {
        "inputs": [{"type": "promptString", "id": "key", "password": True}],
        "servers": {"db": {"command": "db-mcp", "env": {"KEY": "${input:key}"}}},
    }
    text = imported(here, tmp_path, said)
    assert "what key asks for" in text
    assert "env:DB_KEY" in text


def test_codex_and_gemini(here: Here, tmp_path: Path) -> None:
    """Codex's TOML and Gemini's ``httpUrl`` are imported; a field without a counterpart is named."""
    codex = (
        '[mcp_servers.docs]\nurl = "https://x.example/mcp"\nbearer_token_env_var = "TOKEN"\n'
        'enabled_tools = ["a"]\ntool_timeout_sec = 5\n'
    )
    text = imported(here, tmp_path, codex, "config.toml")
    assert 'headers = {"authorization" = "env:DOCS_AUTHORIZATION"}' in text
    assert "# Set DOCS_AUTHORIZATION to its value from the file, with TOKEN filled in" in text
    assert 'tools = ["a"]' in text
    assert "timeout_s = 5" in text
    gemini = {"mcpServers": {"web": {"httpUrl": "https://x.example/mcp", "trust": True}}}
    text = imported(here, tmp_path, gemini)
    assert "# trust of the file has no counterpart here" in text


def test_what_is_disabled_stays_off(here: Here, tmp_path: Path) -> None:
    """A disabled server is imported as a comment."""
    servers = {"a": {"command": "x", "disabled": True}, "b": {"command": "y"}}
    text = imported(here, tmp_path, {"mcpServers": servers})
    assert "# [mcp.servers.a]\n# command" in text
    assert "\n[mcp.servers.b]\ncommand" in text


def test_comments_and_odd_characters(here: Here, tmp_path: Path) -> None:
    """Comments and trailing commas are accepted; strings keep comment marks, line breaks and quotes."""
    text = """{
      // The servers.
      "servers": {"a": {"command": "x", "args": ["// no comment, ]", "a\\nb", "\\"q\\""], /* the last */ }, },
    }"""
    made = tomllib.loads(imported(here, tmp_path, text))
    assert made["mcp"]["servers"]["a"]["args"] == ["// no comment, ]", "a\nb", '"q"']


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{", "is not valid JSON"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "a: its args is not a list"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": {}}}}}', "a: its env.A is not a string"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": "${workspaceFolder}"}}}}', "${workspaceFolder}"),
        ('{"mcpServers": {"a": {"command": "x", "envFile": ".env"}}}', "envFile is not supported"),
        ("[]", "has no servers"),
        ('{"mcpServers": {"a": 3}}', "a: it is not a table"),
        ('{"mcpServers": {"a": {}}}', "a: it has neither command nor url"),
        ('{"mcpServers": {"a": {"type": "sse", "url": "https://x.example"}}}', "older HTTP+SSE transport"),
        ('{"mcpServers": {"!": {"command": "x"}}}', "no letters or digits"),
        ('{"mcpServers": {"a": {"url": "wss://x.example/mcp"}}}', "a: it uses a WebSocket"),
    ],
)
def test_what_cannot_be_imported_is_told(here: Here, tmp_path: Path, said: str, words: str) -> None:
    """If a file cannot be imported, the error says why."""
    (tmp_path / "mcp.json").write_text(said)
    done = here("mcp", "import", "mcp.json")
    assert done.returncode == 1
    assert words in done.stderr
