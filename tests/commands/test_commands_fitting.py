"""Tables fit the terminal, for any cells and any width."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from proxy.commands.fitting import Column, print_fitting

COLUMNS = (
    Column("id"),
    Column("name", rank=1, least=6),
    Column("note", rank=3, least=4),
    Column("count", rank=2, right=True),
)
words = st.text(st.characters(whitelist_categories=("L", "N")), max_size=30)


@given(
    st.lists(st.tuples(st.text("abcdef0123456789", min_size=8, max_size=8), words, words, words), min_size=1),
    st.integers(20, 120),
)
def test_a_table_fits_and_keeps_what_ranks_first(rows: list[tuple[str, str, str, str]], width: int) -> None:
    """No line is wider than the terminal, and each begins with its whole first cell."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_fitting(console, COLUMNS, [[Text(cell) for cell in row] for row in rows])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == len(rows) + 1
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.startswith(row[0]) for line, row in zip(lines[1:], rows, strict=True))
