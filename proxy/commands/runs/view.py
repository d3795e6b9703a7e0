"""How runs look: a list, one run with its time line and what of it stayed here.

Takes records, knows no database.  What clients, models and upstreams chose is untrusted here too.
Content (messages) is shown only where it is asked for: the record is for every operator, what
people wrote is not.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from proxy.plain_text import counted, safe_cell
from proxy.records import MessageRecord, RunRecord, ToolEffect, ToolInvocationRecord, TurnRecord
from proxy.relay.routing.prices import cost_text
from proxy.server.api.json_views import costs_text, reported, tokens_text
from proxy.server.api.withheld import withheld
from proxy.store.base import RunDetail

__all__ = ["moment", "render_detail", "render_list", "shown_caller"]

_BAR_CELLS: Final = 32
_NAME_LIMIT: Final = 64
_JSON_LIMIT: Final = 300
_CONTENT_LIMIT: Final = 2000
_SHAPE_SHOWN: Final = 8
_STATUS_STYLES: Final = {
    "running": "cyan",
    "completed": "green",
    "suspended": "yellow",
    "failed": "red",
    "cancelled": "magenta",
    "interrupted": "red",
    "started": "cyan",
    "success": "green",
    "error": "red",
}


@dataclass(frozen=True, slots=True)
class _Span:
    """One line of the time line; ``ended_at`` is ``None`` for what never came to an end."""

    started_at: float
    ended_at: float | None
    label: Text
    status: Text
    note: Text
    style: str


def shown_caller(caller: str, names: Mapping[str, str]) -> str:
    """A caller with the name of its key, where ``names`` has it by the key's id."""
    key, slash, person = caller.partition("/")
    return f"{names.get(key, key)}{slash}{person}"


def render_list(console: Console, runs: Sequence[RunRecord], names: Mapping[str, str] | None = None) -> None:
    """Print runs as a table, in the order given; ``names`` are those of keys by their ids."""
    if not runs:
        console.print("No runs.", highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", no_wrap=True)
    for heading in ("started (UTC)", "status", "model", "caller"):
        table.add_column(heading, overflow="ellipsis", no_wrap=True)
    for heading in ("turns", "tools", "tokens", "cost", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("end", "shape"):
        table.add_column(heading, overflow="ellipsis", no_wrap=True)
    for run in runs:
        table.add_row(
            safe_cell(run.id, limit=_NAME_LIMIT),
            moment(run.started_at),
            _status(run.status),
            safe_cell(run.model, limit=_NAME_LIMIT),
            safe_cell(shown_caller(run.caller, names or {}), limit=_NAME_LIMIT),
            str(run.turns),
            str(run.tool_calls),
            tokens_text(run.total_tokens, run),
            costs_text(run),
            _length(run.started_at, run.ended_at),
            _end(run),
            safe_cell(run.shape[:_SHAPE_SHOWN] or "-", "dim"),
        )
    console.print(table)


def render_detail(console: Console, detail: RunDetail, *, content: bool = False) -> None:
    """Print one run: its facts, its tools offered and withheld, its time line, what the client did not get.

    With ``content`` the messages that the record kept follow in full, up to a bound for each.
    """
    run = detail.run
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("run", safe_cell(run.id)),
        ("request", safe_cell(run.request_id)),
        ("caller", safe_cell(run.caller)),
        ("model", safe_cell(run.model)),
        ("upstream", _joined(run.upstream, f"{run.wire}, {'streamed' if run.stream else 'in one piece'}")),
        ("status", _status(run.status)),
        ("end", _end(run)),
        ("budget", Text(f"{run.spent} is spent" if run.spent else "-")),
        ("started", Text(f"{moment(run.started_at)} UTC")),
        ("time", Text(_length(run.started_at, run.ended_at))),
        ("tokens", Text(_tokens(run))),
        ("cost", Text(_cost(run))),
        ("shape", safe_cell(run.shape or "not on record")),
    ):
        facts.add_row(Text(name, style="bold"), value)
    console.print(facts)
    _print_tools(console, detail)
    _print_time_line(console, detail)
    _print_kept_back(console, detail)
    _print_messages(console, detail.messages, content=content)
    if content and detail.native_calls:
        _print_native_calls(console, detail)


def _tokens(run: RunRecord) -> str:
    """What a run used, as far as the upstream said so."""
    if not reported(run):
        return "- (the upstream reported none)"
    words = f"{run.input_tokens} in, {run.output_tokens} out, {run.total_tokens} in all"
    return f"{words}, without {counted(run.unreported, 'unreported turn')}" if run.unreported else words


def _cost(run: RunRecord) -> str:
    """What a run cost, as far as that is known."""
    if run.cost is None:
        return "no price for this model"
    return costs_text(run) if reported(run) else _tokens(run)


def _print_tools(console: Console, detail: RunDetail) -> None:
    """What the run offered and what not; of what it offered, what it withheld from some turn on."""
    table = Table.grid(padding=(0, 2))
    for name in detail.run.offered:
        table.add_row(Text("offered", style="green"), safe_cell(name, limit=_NAME_LIMIT), "")
    for name, rule in sorted(detail.run.withheld.items()):
        table.add_row(Text("withheld", style="yellow"), safe_cell(name, limit=_NAME_LIMIT), safe_cell(rule))
    before: Mapping[str, str] = {}
    for turn in detail.turns:
        for name, rule in sorted(turn.withheld.items() - before.items()):
            since = Text(f"from turn {turn.number} on: ") + safe_cell(rule)
            table.add_row(Text("withheld", style="yellow"), safe_cell(name, limit=_NAME_LIMIT), since)
        before = turn.withheld
    console.print()
    console.print(Text("Tools", style="bold"))
    if table.row_count:
        console.print(Padding(table, (0, 0, 0, 2)))
    else:
        console.print("  none offered, none withheld", highlight=False)


def _print_time_line(console: Console, detail: RunDetail) -> None:
    spans = list(_spans(detail))
    console.print()
    console.print(Text("Time line", style="bold"))
    if not spans:
        console.print("  nothing on record", highlight=False)
        return
    begin = min(detail.run.started_at, *(span.started_at for span in spans))
    ends = [span.ended_at if span.ended_at is not None else span.started_at for span in spans]
    end = max(begin, detail.run.ended_at or begin, *ends)
    table = Table.grid(padding=(0, 1))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for _ in range(3):
        table.add_column(overflow="fold")
    for span in spans:
        bar = Text(_bar(span, begin, end), style=span.style)
        offset = Text(f"+{max(0.0, span.started_at - begin):.3f}", style="dim")
        table.add_row(
            offset, bar, _length(span.started_at, span.ended_at), span.label, span.status, span.note
        )
    console.print(Padding(table, (0, 0, 0, 2)))


def _spans(detail: RunDetail) -> Iterator[_Span]:
    """Turns in order, each followed by the tools it called; tools of no known turn come last."""
    left = list(detail.invocations)
    for turn in detail.turns:
        yield _turn_span(turn)
        for row in [row for row in left if row.turn == turn.number]:
            left.remove(row)
            yield _invocation_span(row)
    for row in left:
        yield _invocation_span(row)


def _turn_span(turn: TurnRecord) -> _Span:
    status = (
        safe_cell(turn.error_code, "red", _NAME_LIMIT)
        if turn.error_code is not None
        else safe_cell(turn.finish_reason or "no finish reason", limit=_NAME_LIMIT)
    )
    paid = f", cost {cost_text(turn.cost)}" if turn.cost is not None else ""
    known = turn.total_tokens is not None
    used = f"{turn.input_tokens} in, {turn.output_tokens} out" if known else "tokens -"
    note = Text(f"{used}{paid}", style="dim")
    return _Span(turn.started_at, turn.ended_at, Text(f"turn {turn.number}"), status, note, "blue")


def _invocation_span(row: ToolInvocationRecord) -> _Span:
    label = Text("  ") + safe_cell(row.tool, limit=_NAME_LIMIT)
    status = _status(row.status)
    if row.error_code is not None:
        status = status + Text(" ") + safe_cell(row.error_code, "red", _NAME_LIMIT)
    note = Text(f"{row.effect.value}, {row.result_bytes} bytes, ", style="dim") + safe_cell(
        row.decision, "dim"
    )
    for sign, value in ((" ← ", row.arguments_redacted), (" → ", row.result_redacted)):
        if value is not None:
            note = note + Text(sign) + safe_cell(_compact(value), limit=_JSON_LIMIT)
    style = "yellow" if row.effect is not ToolEffect.READ_ONLY else "green"
    return _Span(row.started_at, row.ended_at, label, status, note, style)


def _print_kept_back(console: Console, detail: RunDetail) -> None:
    """What happened and the client did not get, and why; tools that were withheld stand above."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for what, why in withheld(detail):
        table.add_row(Text(what), Text(why, style="dim"))
    console.print()
    console.print(Text("Kept from the client", style="bold"))
    if table.row_count:
        console.print(Padding(table, (0, 0, 0, 2)))
    else:
        console.print("  nothing: it has all that the model said", highlight=False)


def _print_messages(console: Console, messages: Sequence[MessageRecord], *, content: bool) -> None:
    console.print()
    if not messages:
        console.print("No content is kept of this run.", highlight=False)
        return
    if not content:
        kept = f"{counted(len(messages), 'message')} {'is' if len(messages) == 1 else 'are'} kept"
        console.print(f"{kept}; --content shows what they say.", highlight=False)
        return
    console.print(Text("Messages", style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for message in messages:
        parts = [
            text
            for text in (message.content, message.content_json, message.tool_calls, message.function_call)
            if text
        ]
        table.add_row(
            Text(f"turn {message.turn}", style="dim"),
            safe_cell(message.role, "bold", _NAME_LIMIT),
            safe_cell(" ".join(parts), limit=_CONTENT_LIMIT),
        )
    console.print(Padding(table, (0, 0, 0, 2)))


def _print_native_calls(console: Console, detail: RunDetail) -> None:
    """Each call of a server tool as the upstream sent it, in the order of the calls."""
    payloads = {call.invocation_id: call.payload for call in detail.native_calls}
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in detail.invocations:
        if row.id in payloads:
            table.add_row(
                Text(f"turn {row.turn}", style="dim"),
                safe_cell(row.tool, "bold", _NAME_LIMIT),
                safe_cell(payloads[row.id], limit=_CONTENT_LIMIT),
            )
    console.print()
    console.print(Text("Calls as the upstream sent them", style="bold"))
    console.print(Padding(table, (0, 0, 0, 2)))


def _bar(span: _Span, begin: float, end: float) -> str:
    """The span's place between begin and end; one that never ended runs on as dots."""
    whole = max(end - begin, 1e-9)
    first = min(max(int((span.started_at - begin) / whole * _BAR_CELLS), 0), _BAR_CELLS - 1)
    if span.ended_at is None:
        return " " * first + "·" * (_BAR_CELLS - first)
    last = min(max(int((span.ended_at - begin) / whole * _BAR_CELLS), first + 1), _BAR_CELLS)
    return (" " * first + "━" * (last - first)).ljust(_BAR_CELLS)


def _end(run: RunRecord) -> Text:
    if run.error_code is not None:
        return safe_cell(run.error_code, "red", _NAME_LIMIT)
    return safe_cell(run.finish_reason or "-", limit=_NAME_LIMIT)


def _status(status: str) -> Text:
    return safe_cell(status, _STATUS_STYLES.get(status, ""), _NAME_LIMIT)


def _joined(untrusted: str, ours: str) -> Text:
    return safe_cell(untrusted, limit=_NAME_LIMIT) + Text(f" ({ours})")


def _compact(value: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, separators=(",", ":"), default=lambda other: type(other).__name__
    )


def moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a clock that was far out
        return f"{seconds:g}"


def _length(started_at: float, ended_at: float | None) -> str:
    if ended_at is None:
        return "open"
    seconds = max(0.0, ended_at - started_at)
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
