"""The demo's tool with a side effect: it leaves notes in a file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from proxy.base.errors import ToolFailure
from proxy.toolbox.demo.notes import MODULE, MODULE_FILE, NOTES_FILE, note_tool
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import ArgumentsInvalid, CallContext
from proxy.tools.contract.spec import ToolEffect
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.providers.modules import load_module


async def leave(folder: Path, **arguments: Any) -> Any:
    provider = FunctionProvider("demo", [note_tool(folder)])
    (spec,) = await provider.list_tools()
    assert (spec.name, spec.effect) == ("demo__leave_note", ToolEffect.STATE_CHANGE)
    arguments = {"recipient": "Ada", "text": "hello", **arguments}
    return await provider.call_tool(spec, spec.validate(arguments), CallContext("r", "i", "c", "k"))


async def test_a_note_is_a_line_of_the_file(tmp_path: Path) -> None:
    """The tool appends each note as one line, even if the text has line breaks."""
    assert await leave(tmp_path, text="one\ntwo") == {"left_for": "Ada", "notes": 1}
    assert await leave(tmp_path, recipient="Grace", text="drei: ü") == {"left_for": "Grace", "notes": 2}
    assert (tmp_path / NOTES_FILE).read_text("utf-8") == "Ada: one two\nGrace: drei: ü\n"
    assert os.listdir(tmp_path) == [NOTES_FILE]


async def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    """If the file is full, the tool leaves it unchanged and the call fails with a clear message."""
    (tmp_path / NOTES_FILE).write_text("x" * 65_530)
    with pytest.raises(ToolFailure, match=r"no room.*notes\.txt"):
        await leave(tmp_path)
    assert (tmp_path / NOTES_FILE).stat().st_size == 65_530


@pytest.mark.parametrize("wrong", [{"text": ""}, {"recipient": "x" * 81}, {"place": "/etc"}])
async def test_arguments_have_bounds(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """The tool refuses arguments out of bounds and writes no file."""
    with pytest.raises(ArgumentsInvalid):
        await leave(tmp_path, **wrong)
    assert os.listdir(tmp_path) == []


async def test_it_is_the_tool_of_the_recordings(tmp_path: Path) -> None:
    """The tool's definition and result are those in the demo's recorded requests."""
    (tmp_path / MODULE_FILE).write_text(MODULE, "utf-8")
    provider = load_module(str(tmp_path / MODULE_FILE), base=Path.cwd(), capabilities=Capabilities())
    (spec,) = await provider.list_tools()
    folder = Path(__file__).parents[2] / "fixtures" / "demo" / "note"
    request = json.loads((folder / "turn-2" / "request.json").read_text("utf-8"))
    (tool,) = request["tools"]
    declared = tool["function"]
    assert (declared["name"], declared["description"]) == (spec.name, spec.description)
    assert declared["parameters"] == spec.parameters
    (call,) = request["messages"][1]["tool_calls"]
    result = json.loads(request["messages"][2]["content"])
    assert await leave(tmp_path, **json.loads(call["function"]["arguments"])) == result
