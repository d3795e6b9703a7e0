"""Tables and a plot of the measurements."""

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from statistics import median

from bench.measure import DELAY_STREAMS, Row, Table

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 420, 70, 50, 30, 210


def show_table(table: Table, title: str, bases: Sequence[str]) -> str:
    """Build a Markdown table: the median of the rounds, the spread, and the ratio to each of ``bases``."""
    columns = list(dict.fromkeys(name for row in table.rows.values() for name in row.values))
    bases = [base for base in bases if base in columns]
    lines = [
        f"### {title}",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in table.rows.values():
        cells = [_cell(row, column, bases) for column in columns]
        lines.append(f"| {row.name} ({row.unit}) | " + " | ".join(cells) + " |")
    ratios = ", ".join(f"× {base}" for base in bases)
    lines += ["", f"Median over rounds [least–most]; then {ratios}." if bases else "Median [least–most]."]
    return "\n".join(lines)


def ratios(row: Row, column: str, base: str) -> list[float]:
    """Return the ratio to ``base`` for each round; a slow minute slows both."""
    pairs = zip(row.values.get(column, ()), row.values.get(base, ()), strict=False)
    return [value / other for value, other in pairs if other > 0]


def _cell(row: Row, column: str, bases: Sequence[str]) -> str:
    values = row.values.get(column)
    if not values:
        return ""
    text = f"**{_figure(median(values))}**"
    if len(values) > 1:
        text += f" [{_figure(min(values))}–{_figure(max(values))}]"
    for base in bases:
        found = ratios(row, column, base)
        if base != column and found:
            text += f" ×{_figure(median(found))}"
    return text


def _figure(value: float) -> str:
    """Format a number with three significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def plot_delays(table: Table) -> str:
    """Draw the delay of a chunk over the number of streams, as SVG: median solid, 99th percentile dashed."""
    series: dict[str, dict[str, list[float]]] = {}
    for part in ("p50", "p99"):
        for streams in DELAY_STREAMS:
            row = table.rows.get(f"chunk's delay, {streams} streams, {part}")
            for name, values in (row.values if row is not None else {}).items():
                series.setdefault(name, {}).setdefault(part, []).append(median(values))
    top = max((value for parts in series.values() for line in parts.values() for value in line), default=1.0)
    bottom = min(
        (value for parts in series.values() for line in parts.values() for value in line), default=0.1
    )
    low, high = log10(max(bottom, 1e-3) / 1.5), log10(top * 1.5)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">Delay of a chunk over open streams (ms, both logarithmic)'
        "</text>",
        *_axes(low, high),
    ]
    for place, (name, lines) in enumerate(series.items()):
        parts += _series(place, name, lines, low, high)
    return "\n".join([*parts, "</svg>", ""])


def _x(streams: int) -> float:
    first, last = log10(DELAY_STREAMS[0]), log10(DELAY_STREAMS[-1])
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (log10(streams) - first) / (last - first)


def _y(value: float, low: float, high: float) -> float:
    share = (log10(max(value, 1e-3)) - low) / (high - low)
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share


def _axes(low: float, high: float) -> list[str]:
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [f'<path d="M{_LEFT},{_TOP}V{floor}H{right}" fill="none" stroke="black"/>']
    parts += [
        f'<text x="{_x(streams):.1f}" y="{floor + 20}" text-anchor="middle">{streams}</text>'
        for streams in DELAY_STREAMS
    ]
    for power in range(-3, 5):
        for digit in (1, 2, 5):
            value = digit * 10.0**power
            if low <= log10(value) <= high:
                y = _y(value, low, high)
                parts.append(f'<path d="M{_LEFT},{y:.1f}H{right}" stroke="#ddd"/>')
                parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    return parts


def _series(
    place: int, name: str, lines: Mapping[str, Sequence[float]], low: float, high: float
) -> list[str]:
    colour = _COLOURS[place % len(_COLOURS)]
    y = _TOP + 12 + 20 * place
    parts = [
        f'<path d="M{_WIDTH - _RIGHT + 15},{y}h24" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{_WIDTH - _RIGHT + 46}" y="{y + 4}">{escape(name)}</text>',
    ]
    for part, values in lines.items():
        points = " ".join(
            f"{_x(streams):.1f},{_y(value, low, high):.1f}"
            for streams, value in zip(DELAY_STREAMS, values, strict=False)
        )
        dashes = ' stroke-dasharray="5 4"' if part == "p99" else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
    return parts
