"""``toolrelay runs`` and ``toolrelay migrate``: the record, read and brought up to date."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from proxy.commands.common import console, say, text
from proxy.errors import ConfigError
from proxy.records import InvocationStatus, RunRecord, RunStatus, ToolInvocationRecord, TurnRecord
from proxy.server.config import Config
from proxy.store.base import RunDetail, RunFilter, Store
from proxy.store.factory import open_store, sqlite_path
from proxy.store.migrate import migrate_sqlite

__all__ = ["list_runs", "migrate", "show_run"]

_WIDTH = 40
"""Cells of the time line."""

_COLOURS: dict[RunStatus | InvocationStatus, str] = {
    "completed": "green",
    "success": "green",
    "failed": "red",
    "error": "red",
    "interrupted": "red",
    "cancelled": "yellow",
    "suspended": "yellow",
}


async def list_runs(config: Config, wanted: RunFilter, *, as_json: bool) -> None:
    """Print the newest runs, one line each."""
    async with _Record(config) as store:
        runs = await store.list_runs(wanted)
    if as_json:
        for run in runs:
            say(_json(asdict(run)))
        return
    if not runs:
        say("No runs on record yet." if wanted == RunFilter(limit=wanted.limit) else "No run fits.")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("run", "started (UTC)", "status", "model", "turns", "calls", "tokens", "seconds"):
        table.add_column(
            title, justify="right" if title in ("turns", "calls", "tokens", "seconds") else "left"
        )
    for run in runs:
        table.add_row(
            text(run.id),
            _moment(run.started_at),
            text(run.status, _COLOURS.get(run.status, "")),
            text(run.model),
            str(run.turns),
            str(run.tool_calls),
            str(run.total_tokens),
            _seconds(run.started_at, run.ended_at),
        )
    console().print(table)


async def show_run(config: Config, run_id: str, *, as_json: bool) -> None:
    """Print one run with its turns and tool calls; raises ConfigError where there is none."""
    async with _Record(config) as store:
        detail = await store.get_run(run_id)
    if detail is None:
        raise ConfigError("ID", f"no run fits {run_id[:80]!r}, or several do", "See: toolrelay runs list")
    if as_json:
        say(_json(_as_data(detail)))
    else:
        _draw(detail)


def migrate(config: Config) -> None:
    """Bring the record's file up to date; a file that holds something is copied first."""
    path = sqlite_path(config.store.url)
    if path is None:
        raise ConfigError("store.url", "a store in memory has nothing to migrate", "Name a file")
    if not path.parent.is_dir():
        raise ConfigError("store.url", f"the folder {path.parent} does not exist", "Create it first")
    report = migrate_sqlite(path)
    if report.copy is not None:
        say(f"kept a copy of the file as it was: {report.copy}")
    for name in report.applied:
        say(f"applied {name}")
    say(f"{path}: schema {report.after}" + ("" if report.applied else ", already up to date"))


class _Record:
    """The store of a configuration, opened for reading and closed again."""

    def __init__(self, config: Config) -> None:
        if config.store.url == "memory:":
            raise ConfigError("store.url", "memory: keeps no record to read", "Name a file: sqlite:///FILE")
        self._store: Store = open_store(config.store.url, must_exist=True)

    async def __aenter__(self) -> Store:
        await self._store.start()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.aclose()


def _as_data(detail: RunDetail) -> dict[str, Any]:
    """A run as JSON.  Content stays out: it is not part of the record (rule R3)."""
    return {
        "run": asdict(detail.run),
        "turns": [asdict(turn) for turn in detail.turns],
        "messages": [
            {
                "turn": message.turn,
                "seq": message.seq,
                "role": message.role,
                "tool_call_id": message.tool_call_id,
            }
            for message in detail.messages
        ],
        "invocations": [asdict(invocation) for invocation in detail.invocations],
    }


def _draw(detail: RunDetail) -> None:
    """A run for people: its facts, then turns and calls on one time line."""
    run, out = detail.run, console()
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name, value in _facts(run):
        facts.add_row(
            text(name, "dim"), text(value, _COLOURS.get(run.status, "") if name == "status" else "")
        )
    out.print(facts)
    end = max(
        [run.ended_at or run.started_at, *(turn.ended_at for turn in detail.turns)]
        + [invocation.ended_at or invocation.started_at for invocation in detail.invocations]
    )
    span = max(end - run.started_at, 0.001)
    table = Table(box=None, pad_edge=False)
    for title in ("at (s)", "ms", "time line", "what", "came to"):
        table.add_column(title, justify="right" if title in ("at (s)", "ms") else "left")
    for item in _in_order(detail.turns, detail.invocations):
        started, ended = item.started_at, item.ended_at if item.ended_at is not None else item.started_at
        bar = _bar((started - run.started_at) / span, (ended - run.started_at) / span)
        what, outcome, style = _describe(item)
        table.add_row(
            f"{started - run.started_at:.3f}",
            f"{(ended - started) * 1000:.0f}",
            text(bar, "cyan" if isinstance(item, TurnRecord) else "magenta"),
            text(what),
            text(outcome, style),
        )
    out.print()
    out.print(table)


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    tokens = f"{run.input_tokens} in, {run.output_tokens} out, {run.total_tokens} together"
    facts = [
        ("run", run.id),
        ("request", run.request_id),
        ("status", run.status + (f" ({run.error_code})" if run.error_code else "")),
        ("started", f"{_moment(run.started_at)} UTC"),
        ("seconds", _seconds(run.started_at, run.ended_at)),
        ("model", f"{run.model} at {run.upstream} over {run.wire}, {'streamed' if run.stream else 'whole'}"),
        ("caller", run.caller),
        ("finish reason", run.finish_reason or "-"),
        ("turns and calls", f"{run.turns} and {run.tool_calls}"),
        ("tokens", tokens),
        ("tools offered", ", ".join(run.offered) or "none"),
    ]
    facts.extend((f"withheld {name}", rule) for name, rule in run.withheld.items())
    return facts


def _in_order(
    turns: Sequence[TurnRecord], invocations: Sequence[ToolInvocationRecord]
) -> list[TurnRecord | ToolInvocationRecord]:
    items: list[TurnRecord | ToolInvocationRecord] = [*turns, *invocations]
    return sorted(items, key=lambda item: (item.started_at, isinstance(item, ToolInvocationRecord)))


def _describe(item: TurnRecord | ToolInvocationRecord) -> tuple[str, str, str]:
    """What happened, what it came to, and the colour of that."""
    if isinstance(item, TurnRecord):
        outcome = item.error_code or item.finish_reason or "-"
        return (
            f"turn {item.number}: {item.total_tokens} tokens, {item.tool_calls} calls",
            outcome,
            "red" if item.error_code else "",
        )
    arguments = _json(item.arguments_redacted) if item.arguments_redacted is not None else ""
    result = _json(item.result_redacted) if item.result_redacted is not None else ""
    outcome = f"{item.status}{f' ({item.error_code})' if item.error_code else ''} {result}"
    return f"{item.tool} {arguments}", outcome.rstrip(), _COLOURS.get(item.status, "")


def _bar(start: float, end: float) -> str:
    """A piece of the time line: at least one cell, however short the time."""
    first = min(int(max(start, 0.0) * _WIDTH), _WIDTH - 1)
    last = max(min(round(min(end, 1.0) * _WIDTH), _WIDTH), first + 1)
    return "·" * first + "█" * (last - first) + "·" * (_WIDTH - last)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _seconds(started: float, ended: float | None) -> str:
    return "-" if ended is None else f"{ended - started:.3f}"


def _json(value: Any) -> str:
    """JSON on one line and in ASCII, so that a terminal shows it and obeys none of it."""
    return json.dumps(value, default=str)
