"""The table of cases in the README names the tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TABLE = (HERE / "README.md").read_text("utf-8")


@cache
def docstrings_of(name: str) -> dict[str, str]:
    """Return the tests of the file with this name, with their docstrings."""
    (path,) = HERE.parent.rglob(name)
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions if node.name.startswith("test_")}


def named_in(row: str) -> list[tuple[str, str]]:
    """Return (file, test) for every test that a row names; ``::name`` alone belongs to the file before it."""
    found, file = [], ""
    for path, name in re.findall(r"`((?:test_\w+\.py)?)(?:::(\w+))?`", row):
        file = path or file
        if file and name:
            found.append((file, name))
    return found


@pytest.mark.parametrize("number", range(1, 46))
def test_every_case_has_its_tests(number: int) -> None:
    """Each case is in the table with existing tests; those of this suite name the case in their docstring."""
    rows = [line for line in TABLE.splitlines() if re.match(rf"\| C{number:02}\b", line)]
    assert rows
    named = [pair for row in rows for pair in named_in(row)]
    assert named
    for file, name in named:
        assert name in docstrings_of(file), f"{file}::{name} is no test"
    own = [(file, name) for file, name in named if file.startswith("test_faults_")]
    assert own or number == 45
    for file, name in own:
        if name not in ("test_soak",):
            assert f"C{number:02}" in docstrings_of(file)[name], f"{name} does not name C{number:02}"


def test_traps_are_held() -> None:
    """Each row of traps names tests that exist."""
    rows = TABLE.partition("## Traps")[2].splitlines()
    named = [pair for row in rows for pair in named_in(row)]
    assert len(named) >= 5
    assert all(name in docstrings_of(file) for file, name in named)


def test_every_test_of_a_case_is_in_the_table() -> None:
    """A test whose docstring names a case is in the table's row for this case."""
    for path in HERE.glob("test_faults_*.py"):
        for name, docstring in docstrings_of(path.name).items():
            for number in re.findall(r"\bC(\d\d)\b", docstring.partition(":")[0]):
                rows = [line for line in TABLE.splitlines() if line.startswith(f"| C{number}")]
                assert any(f"::{name}`" in row for row in rows), f"C{number}: {name} is missing"
