"""Every row of the tables about MCP servers names tests that exist."""

import re
from functools import cache
from pathlib import Path

import pytest
from named_tests import cells_of, names_of_tests

README = Path(__file__).resolve().parent / "tools/mcp/README.md"


@cache
def rows() -> dict[str, str]:
    """The rows of the tables: section and first cell, and the cell that names tests."""
    found: dict[str, str] = {}
    section = ""
    for line in README.read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        cells = cells_of(line)
        if cells and cells[2:] != ["held by"]:
            assert len(cells) == 3, f"three cells: {line}"
            assert f"{section}: {cells[0]}" not in found, f"a row stands once: {line}"
            found[f"{section}: {cells[0]}"] = cells[2]
    return found


@pytest.mark.parametrize("what", rows() or ["no row"])
def test_each_row_is_held_by_tests_that_exist(what: str) -> None:
    """Each row names at least one test, and each test that it names exists."""
    named = re.findall(r"`(\w+)`", rows()[what])
    assert named, f"no test is named for {what!r}"
    assert [name for name in named if name not in names_of_tests()] == []


def test_every_section_has_rows() -> None:
    """Each section has at least three rows, so that a lost table is noticed."""
    counts = dict.fromkeys(("Attacks", "Malformed answers", "Bounds", "Results", "Names"), 0)
    for what in rows():
        section = what.partition(":")[0]
        counts[section] = counts.get(section, 0) + 1
    assert min(counts.values()) >= 3, counts
    assert counts["Attacks"] > 10
