"""Which tests there are, for documents that say which of them hold a promise."""

import ast
from functools import cache
from pathlib import Path

__all__ = ["cells_of", "names_of_tests"]

TESTS = Path(__file__).resolve().parent


@cache
def names_of_tests() -> frozenset[str]:
    """The names of all tests."""
    return frozenset(
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def cells_of(line: str) -> list[str]:
    """The cells of a line of a table in Markdown; none of another line, or of one that rules a table off."""
    cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
    return [] if not cells or set(cells[0]) == {"-"} else cells
