"""Reads the names and docstrings of this project's tests from their files."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[2]


class NamedTest(NamedTuple):
    """A test: the name of its file, its own name, and its docstring, which is empty if it has none."""

    file: str
    name: str
    says: str


@cache
def all_tests() -> tuple[NamedTest, ...]:
    """Return every test function, at the top level of a file or in a class."""
    return tuple(
        NamedTest(path.name, node.name, ast.get_docstring(node) or "")
        for path in sorted(TESTS.rglob("test_*.py"))
        for node in _functions_of(ast.parse(path.read_text("utf-8")))
        if node.name.startswith("test_")
    )


def _functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module and the methods of its classes."""
    inner = [node for kind in tree.body if isinstance(kind, ast.ClassDef) for node in kind.body]
    for node in [*tree.body, *inner]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
