"""``toolrelay usage``: shows what runs used, from the record."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from proxy.api.admin.json_output import costs_text, reported, reported_cost, tokens_text, usage_group
from proxy.commands.common import console, say, say_json, text
from proxy.commands.fitting import Column, print_fitting
from proxy.commands.runs.runs import opened_runs
from proxy.commands.runs.text_output import shown_caller
from proxy.config.load import Config
from proxy.relay.routing.prices import cost_number
from proxy.server.auth.key_names import named_callers
from proxy.store.base import UsageFilter, UsageKey, UsageRow

_OF_RUNS = (
    *("requests", "runs", "turns", "tool_calls", "errors"),
    *("input_tokens", "output_tokens", "total_tokens", "cost"),
)
_TOKENS = ("input_tokens", "output_tokens", "total_tokens")
_RANKS = {
    "runs": 6,
    "turns": 4,
    "tool_calls": 2,
    "input_tokens": 5,
    "output_tokens": 5,
    "tool_p50_s": 3,
    "tool_seconds": 4,
}
"""How soon a column is left out if there is no room; see :class:`~proxy.commands.fitting.Column`."""

_OF_TOOLS = ("runs", "tool_calls", "errors", "tool_seconds", "tool_p50_s", "tool_p95_s")


async def show_usage(
    config: Config, by: tuple[UsageKey, ...], since: float | None, until: float | None, *, as_json: bool
) -> None:
    """Print a line for each group. Groups by tool have no tokens, because tokens belong to models."""
    async with opened_runs(config) as store:
        rows = await store.usage(UsageFilter(by, since, until))
        names = named_callers((await store.read_keys()).keys)
    columns = _OF_TOOLS if "tool" in by else _OF_RUNS
    if as_json:
        for row in rows:
            values = {name: getattr(row, name) for name in columns}
            if "turns" in values:
                values |= {} if reported(row) else dict.fromkeys(_TOKENS)
                values["unreported"] = row.unreported
            if "cost" in values:
                values |= {"cost": cost_number(reported_cost(row)), "currency": config.billing.currency}
            say_json(usage_group(by, row) | values)
    elif rows:
        _print_rows(by, columns, rows, names, config.billing.currency)
    else:
        say("No tool calls." if "tool" in by else "No requests.")


def _print_rows(
    by: Sequence[UsageKey],
    columns: Sequence[str],
    rows: Sequence[UsageRow],
    names: Mapping[str, str],
    currency: str,
) -> None:
    """Print a line for each group, with the columns that have room."""
    shown = [
        (
            *(
                text(shown_caller(str(value), names) or "-" if key in ("key", "caller") else value or "-")
                for key, value in usage_group(by, row).items()
            ),
            *(Text(_shown(row, name)) for name in columns),
        )
        for row in rows
    ]
    groups = [Column(key, least=12) for key in by]
    titles = {"cost": f"cost {currency}"}
    numbers = [
        Column(titles.get(name, name.replace("_", " ")), rank=_RANKS.get(name, 0), right=True)
        for name in columns
    ]
    print_fitting(console(), [*groups, *numbers], shown)


def _shown(row: UsageRow, name: str) -> str:
    """Format one number of a group."""
    if name == "cost":
        return costs_text(row)
    value = getattr(row, name)
    return tokens_text(value, row) if name in _TOKENS else _number(value)


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
