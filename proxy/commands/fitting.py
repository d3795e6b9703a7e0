"""Tables that fit the terminal: the most important columns stay, and numbers are never cut.

If the output is not a terminal, cells are separated by tabs and nothing is padded, so that ``cut`` and
``awk`` can read them.
"""

from collections.abc import Sequence

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from proxy.base.plain_text import printable

_GAP = 2


class Column(Struct, frozen=True):
    """One column of a table.

    ``rank`` decides which columns are left out if there is no room: the highest rank first, 0 never. A column
    with a ``least`` width may shrink down to it; its cells are then cut with an ellipsis. All others keep the
    width of their longest cell.
    """

    title: str
    rank: int = 0
    least: int = 0
    right: bool = False


def print_fitting(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    """Print rows under the titles of the columns that have room in the console's width."""
    if not console.is_terminal:
        for cells in ([Text(column.title) for column in columns], *rows):
            # Rich would replace the tabs with spaces.
            console.file.write("\t".join(printable(cell.plain) for cell in cells) + "\n")
        return
    wanted = [
        max(len(column.title), *(row[place].cell_len for row in rows)) for place, column in enumerate(columns)
    ]
    widths = _widths(columns, wanted, console.width)
    titles = [Text(column.title, style="bold") for column in columns]
    for cells in (titles, *rows):
        console.print(_line(columns, widths, cells), no_wrap=True, overflow="crop")


def _widths(columns: Sequence[Column], wanted: Sequence[int], room: int) -> dict[int, int]:
    """Return the columns that stay, by their index, with their widths."""
    kept = list(range(len(columns)))
    while _width([_least(columns[place], wanted[place]) for place in kept]) > room:
        place = max(kept, key=lambda place: columns[place].rank)
        if columns[place].rank == 0:
            break
        kept.remove(place)
    widths = {place: _least(columns[place], wanted[place]) for place in kept}
    left = room - _width(list(widths.values()))
    for place in sorted(kept, key=lambda place: columns[place].rank):
        more = min(max(left, 0), wanted[place] - widths[place])
        widths[place] += more
        left -= more
    return widths


def _least(column: Column, wanted: int) -> int:
    return min(wanted, max(column.least, len(column.title))) if column.least else wanted


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _line(columns: Sequence[Column], widths: dict[int, int], cells: Sequence[Text]) -> Text:
    """Build one row, without spaces at its end."""
    parts = []
    for place, width in widths.items():
        cell = cells[place].copy()
        cell.truncate(width, overflow="ellipsis")
        if columns[place].right:
            cell.pad_left(width - cell.cell_len)
        else:
            cell.pad_right(width - cell.cell_len)
        parts.append(cell)
    line = Text(" " * _GAP).join(parts)
    line.rstrip()
    return line
