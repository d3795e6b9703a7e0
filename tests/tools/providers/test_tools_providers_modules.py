"""A user's own module of tools: how it is loaded, and the messages about faulty modules."""

import sys
from pathlib import Path

import pytest

from proxy.base.errors import ConfigError
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import CallContext
from proxy.tools.providers.modules import load_module

MY_TOOLS = '''\
from typing import Annotated

from pydantic import Field

from proxy.tools import Redaction, tool


@tool(effect="read_only", redaction=Redaction(output=("total",)))
def add(a: Annotated[int, Field(description="A whole number")], b: int = 1) -> dict[str, int]:
    """Add two whole numbers."""
    return {"total": a + b}
'''


def write(folder: Path, text: str, name: str = "my_tools.py") -> Path:
    """Write a module into a folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


async def test_users_tool_in_under_15_lines(tmp_path: Path) -> None:
    """Rule T5: a tool of fewer than 15 lines loads from a relative path; its provider is the file's stem."""
    assert len(MY_TOOLS.splitlines()) < 15
    write(tmp_path, MY_TOOLS)
    provider = load_module("my_tools.py", base=tmp_path, capabilities=Capabilities())
    (spec,) = await provider.list_tools()
    assert (provider.name, spec.name) == ("my_tools", "my_tools__add")
    context = CallContext("run_1", "inv_1", "open", "call_1")
    assert await provider.call_tool(spec, spec.validate({"a": 2}), context) == {"total": 3}


async def test_annotations_as_text_and_two_files_of_one_name(tmp_path: Path) -> None:
    """Modules with postponed annotations load, and files of one name in two folders are not confused."""
    future = "from __future__ import annotations\n" + MY_TOOLS
    write(tmp_path, future, "a/my_tools.py")
    write(tmp_path, future.replace("def add", "def plus"), "b/my_tools.py")
    for folder, name in (("a", "add"), ("b", "plus"), ("a", "add")):
        provider = load_module(f"{folder}/my_tools.py", base=tmp_path, capabilities=Capabilities())
        assert [spec.name for spec in await provider.list_tools()] == [f"my_tools__{name}"]


async def test_dotted_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider of an importable module is named after the last part of its dotted name."""
    write(tmp_path, MY_TOOLS, "some_package_of_mine/adding.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    provider = load_module("some_package_of_mine.adding", base=tmp_path, capabilities=Capabilities())
    assert [spec.name for spec in await provider.list_tools()] == ["adding__add"]
    del sys.modules["some_package_of_mine.adding"], sys.modules["some_package_of_mine"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", '"my_tools.py" has no tools'),
        ("import json\n\njson.loads('{')\n", "JSONDecodeError on line 3: Expecting property name"),
        ("x = 1\ny = (\n", "SyntaxError on line 2"),
        ("import no_such_module\n", "ModuleNotFoundError on line 1: No module named 'no_such_module'"),
        ("import sys\nsys.exit('bye')\n", "SystemExit on line 2: bye"),
        (
            MY_TOOLS.replace(', redaction=Redaction(output=("total",))', ""),
            "tool my_tools__add: redaction_missing",
        ),
        (
            MY_TOOLS.replace("a: Annotated[int, Field(description=", "a: Annotated[Nope, Field(description="),
            "NameError",
        ),
    ],
)
def test_faulty_module_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    """Rule T4: the error about a faulty module is one line with the fault, without a traceback."""
    write(tmp_path, text)
    before = set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        load_module("my_tools.py", base=tmp_path, capabilities=Capabilities())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    if "cannot be imported" in str(caught.value):
        assert not [name for name in set(sys.modules) - before if "my_tools" in name]


def test_missing_file_and_module(tmp_path: Path) -> None:
    """A missing file is an error that says where it was looked for; a missing module is an error, too."""
    with pytest.raises(ConfigError, match=r"does not exist \(looked for .*my_tools.py\)"):
        load_module("my_tools.py", base=tmp_path, capabilities=Capabilities())
    with pytest.raises(ConfigError, match="ModuleNotFoundError"):
        load_module("no_such.module_here", base=tmp_path, capabilities=Capabilities())


def test_name_that_cannot_be_a_provider(tmp_path: Path) -> None:
    """Rule T5: a file whose stem is not allowed in a tool id is refused."""
    write(tmp_path, MY_TOOLS, "my tools.py")
    with pytest.raises(ConfigError, match="may contain letters"):
        load_module("my tools.py", base=tmp_path, capabilities=Capabilities())
