"""``toolrelay mcp add``: one command and one question from nothing to a tool that models are offered."""

import tomllib
from pathlib import Path

import pytest
from command_line import Here
from mcp_script import scripted, tool_definition

from proxy.commands.mcp import adding

OK = {"result": {"content": [{"type": "text", "text": "fine"}]}}
READS = {"readOnlyHint": True}


def target(folder: Path) -> list[str]:
    """The command of a scripted server with a tool that reads and one that writes."""
    tools = [tool_definition("read", "Reads.\u202e", annotations=READS), tool_definition("write")]
    server = scripted(folder, tools, {"read": OK}, name="files")
    return ["--", server.command, *server.args]


def test_one_command_adds_shows_and_allows(here: Here, tmp_path: Path) -> None:
    """After ``mcp add --yes`` in an empty folder the tools are shown, allowed, offered and callable."""
    done = here("mcp", "add", "files", "--yes", "--read-only", "read", *target(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Reads.\\u202e" in done.stdout
    assert "allowed: mcp__files__read, mcp__files__write" in done.stdout
    made = tomllib.loads((tmp_path / "toolrelay.toml").read_text())
    assert made["mcp"]["servers"]["files"]["effects"] == {"read": "read_only"}
    assert made["policy"]["allow"][0] == "mcp__files__*"
    called = here("tools", "call", "mcp__files__read", "{}")
    assert called.stdout.strip() == "fine", called.stderr
    again = here("mcp", "add", "files", "--yes", *target(tmp_path))
    assert "already has this server" in again.stderr


def test_nothing_is_added_without_a_yes(here: Here, tmp_path: Path) -> None:
    """Without an answer, and for a server that does not start, the folder stays as it was."""
    done = here("mcp", "add", "files", *target(tmp_path))
    assert done.returncode == 1
    assert "nothing was added; there is no terminal to ask at: add --yes" in done.stderr
    away = here("mcp", "add", "files", "--yes", "--", "/nothing/there")
    assert "files: not connected, so nothing was added" in away.stderr
    assert not list(tmp_path.glob("*toolrelay*"))


def test_a_person_is_asked_once_and_sees_what_is_proposed(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a terminal what the server declares read-only is proposed as such, and one answer adds all."""
    asked: list[str] = []

    def confirmed(question: str) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(adding, "confirmed", confirmed)
    path = tmp_path / "toolrelay.toml"
    path.write_text('# Mine.\n[policy]\nmax_argument_bytes = 99\nallow = ["core__*"]  # kept\n[store]\n')
    path.chmod(0o640)
    done = here("mcp", "add", "files", *target(tmp_path))
    assert done.returncode == 0, done.stderr
    assert asked == ["Add files to toolrelay.toml, and allow its 2 tools?"]
    assert 'read_only (mcp.servers.files.effects."read"; the server declares it read-only)' in done.stdout
    text = path.read_text()
    assert text.startswith(
        '# Mine.\n[policy]\nmax_argument_bytes = 99\nallow = ["mcp__files__*", "core__*"]  # kept\n'
    )
    assert tomllib.loads(text)["mcp"]["servers"]["files"]["effects"] == {"read": "read_only"}
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("before", "name", "said", "words"),
    [
        ("", "Files", ["x"], "'Files' is not a valid server name"),
        ("", "files", ["a 'b"], "COMMAND: cannot be split into words"),
        ("", "files", [""], "COMMAND: cannot be split into words"),
        ("", "files", ["wss://x.example/mcp"], "is the address of a WebSocket"),
        ("", "files", ["http://127.0.0.1:9/mcp"], "is not encrypted"),
        ("mcp = {serve = false}\n", "files", ["x"], "toolrelay.toml"),
        ('policy = {allow = ["core__*"]}\n', "files", ["x"], "toolrelay.toml"),
    ],
)
def test_what_cannot_be_added_is_told(
    here: Here, tmp_path: Path, before: str, name: str, said: list[str], words: str
) -> None:
    """A wrong name or address, and a file that cannot be changed safely, are told, and nothing is written."""
    path = tmp_path / "toolrelay.toml"
    path.write_text(before)
    done = here("mcp", "add", name, "--yes", "--", *said)
    assert done.returncode == 1
    assert words in done.stderr
    assert ".toolrelay.toml." not in done.stderr, "no message names the draft"
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
