"""The table of what a request waits for names only deadlines and tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def rows() -> list[list[str]]:
    """The cells of the table, row by row."""
    text = (ROOT / "docs" / "deadlines.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_there_is_a_table() -> None:
    """The page has a table with at least 15 rows of five cells."""
    assert len(rows()) >= 15
    assert all(len(row) == 5 for row in rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[1][:30]}")
def test_each_deadline_and_each_test_is_there(row: list[str]) -> None:
    """Each constant in the table is defined, each setting is documented, and each test exists."""
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "proxy").rglob("*.py"))
    settings = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    for name in re.findall(r"`(_?[A-Z_]+_S)`", row[2] + row[3]):
        assert re.search(rf"^{name}(: Final(\[.*\])?)? = ", code, re.MULTILINE), name
    for name in re.findall(r"`([a-z]+\.[a-z_]+_s)`", row[2]):
        assert f"| `{name}` |" in settings, name
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", row[4])
    assert named or "tests/faults" in row[4]
    for file, function in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert not function or f"def {function}(" in path.read_text("utf-8"), function
