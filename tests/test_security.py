"""Every promise in SECURITY.md's tables names tests that exist."""

import re
from functools import cache
from pathlib import Path

import pytest
from named_tests import cells_of, names_of_tests

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ("Every crossing", "Every count")


@cache
def rows() -> dict[str, str]:
    """The rows of SECURITY.md's tables of crossings and counts: what each is about, and its last cell."""
    found: dict[str, str] = {}
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    for section in SECTIONS:
        body = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
        table = ""
        for line in body.splitlines():
            if line.startswith("**"):
                table = f" {line.strip('*')}"
            cells = cells_of(line)
            if len(cells) > 1 and cells[0] != "what":
                assert len(cells) == 3, f"three cells: {line}"
                what = f"{section}{table}: {cells[0]}"
                assert what not in found, f"a row stands once: {what}"
                found[what] = cells[2]
    return found


@pytest.mark.parametrize("what", rows() or ["no row"])
def test_each_row_names_tests_that_exist(what: str) -> None:
    """Each row names at least one test, and each test that it names exists."""
    named = re.findall(r"`(\w+)`", rows()[what])
    assert named, f"no test is named for {what!r}"
    assert [name for name in named if name not in names_of_tests()] == []
    assert all(name.startswith("test_") for name in named)


def test_both_tables_are_there() -> None:
    """Each section has more than ten rows, so that a lost table is noticed."""
    for section in SECTIONS:
        assert sum(what.startswith(section) for what in rows()) > 10, section
