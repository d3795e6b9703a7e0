"""What the demo serves with and without the library for MCP."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.demo import (
    CONVERT,
    LEAVE_NOTE,
    TOOLS,
    approval_lines,
    demo_config,
    mcp_lines,
    program_lines,
)
from proxy.upstreams.recorded.replay import packaged_fixtures


def test_without_the_library_the_demo_has_no_mcp_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the MCP library, the demo configures no MCP server and prints how to install the library."""
    found: Any = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "mcp" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    config = demo_config(1, packaged_fixtures(), tmp_path)
    assert config.mcp.servers == {}
    assert tuple(config.policy.allow) == (*TOOLS, LEAVE_NOTE)
    (line,) = mcp_lines("http://127.0.0.1:1", serves=False)
    assert line.endswith("pip install '.[mcp]'")


def test_with_the_library_one_tool_of_it_is_allowed(tmp_path: Path) -> None:
    """With the MCP library, the demo has one MCP server and allows one tool of it."""
    config = demo_config(1, packaged_fixtures(), tmp_path)
    assert list(config.mcp.servers) == ["units"]
    assert tuple(config.policy.allow) == (*TOOLS, LEAVE_NOTE, CONVERT)
    *_, line = mcp_lines("http://127.0.0.1:1", serves=True)
    assert line.startswith("curl http://127.0.0.1:1/mcp ")


def test_one_tool_asks_a_person_first(tmp_path: Path) -> None:
    """One tool needs an approval; the printed lines name the notes file and the approve command."""
    config = demo_config(1, packaged_fixtures(), tmp_path)
    assert tuple(config.policy.approve) == (LEAVE_NOTE,)
    text = "\n".join(approval_lines("http://127.0.0.1:1", tmp_path))
    assert str(tmp_path / "notes.txt") in text
    assert f"approvals approve --config {tmp_path / 'toolrelay.toml'} " in text


def test_without_the_interpreter_the_demo_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the interpreter no programs run; with it, the printed command declares code execution."""
    found: Any = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "pydantic_monty" else found(name, package)

    assert demo_config(1, packaged_fixtures(), tmp_path).tools.programs == "auto"
    assert "code_execution_20260120" in program_lines("http://127.0.0.1:1", runs=True)[-1]
    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert demo_config(1, packaged_fixtures(), tmp_path).tools.programs == "off"
    (line,) = program_lines("http://127.0.0.1:1", runs=False)
    assert line.endswith("pip install '.[programs]'")
