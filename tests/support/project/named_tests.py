"""Which tests there are, for documents that say which of them hold a promise."""

from functools import cache

from all_tests import all_tests

__all__ = ["cells_of", "names_of_tests"]


@cache
def names_of_tests() -> frozenset[str]:
    """The names of all tests."""
    return frozenset(test.name for test in all_tests())


def cells_of(line: str) -> list[str]:
    """The cells of a line of a table in Markdown; none of another line, or of one that rules a table off."""
    cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
    return [] if not cells or set(cells[0]) == {"-"} else cells
