"""The names of the tests, for documents that name the tests of a promise."""

from functools import cache

from all_tests import all_tests


@cache
def names_of_tests() -> frozenset[str]:
    """Return the names of all tests."""
    return frozenset(test.name for test in all_tests())


def cells_of(line: str) -> list[str]:
    """Return the cells of a row of a Markdown table; for any other line and for a separator, none."""
    cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
    return [] if not cells or set(cells[0]) == {"-"} else cells
