"""Text output of runs: a list, or one run with its time line and what the client did not get.

The functions take records and do not depend on a database. Text from clients, models and upstreams is
untrusted here too. Content (messages) is shown only on request: every operator may see the record, but not
what people wrote.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from proxy.api.admin.json_output import costs_text, reported, tokens_text
from proxy.api.admin.run_meaning import meaning_of_run, memory_to_json, withheld
from proxy.base.events import RUN_PROGRAM
from proxy.base.plain_text import counted, safe_cell
from proxy.commands.fitting import Column, print_fitting
from proxy.records.rows import MessageRecord, RunRecord, ToolEffect, ToolInvocationRecord, TurnRecord
from proxy.relay.routing.prices import cost_text
from proxy.store.base import RunDetail

_BAR_CELLS: Final = 32
_WIDE: Final = 120
"""The width of a terminal in columns from which on a time line has room for all facts of a turn."""

_NAME_LIMIT: Final = 64
_JSON_LIMIT: Final = 300
_CONTENT_LIMIT: Final = 2000
_DIGITS_SHOWN: Final = 8
_SHORTEST_ID: Final = 8
_AHEAD_S: Final = 60.0
_LIST: Final = (
    Column("run"),
    Column("started"),
    Column("status"),
    Column("model", rank=1, least=12),
    Column("caller", rank=4, least=8),
    Column("turns", rank=6, right=True),
    Column("tools", rank=3, right=True),
    Column("tokens", rank=5, right=True),
    Column("cost", rank=2, right=True),
    Column("time", right=True),
    Column("end", rank=7, least=10),
    Column("prompt", rank=8),
)
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


class _Span(Struct, frozen=True):
    """One line of the time line; ``ended_at`` is ``None`` if the end is not recorded."""

    started_at: float
    ended_at: float | None
    label: Text
    status: Text
    note: Text
    style: str


def shown_caller(caller: str, names: Mapping[str, str]) -> str:
    """Replace the id of the key in a caller with its name, if ``names`` contains it."""
    key, slash, person = caller.partition("/")
    return f"{names.get(key, key)}{slash}{person}"


def render_list(
    console: Console,
    runs: Sequence[RunRecord],
    names: Mapping[str, str] | None = None,
    now: float | None = None,
) -> None:
    """Print runs as a table, in the given order; ``names`` maps ids of keys to their names.

    On a terminal, ids are shortened to what ``runs show`` accepts, and times are relative to ``now``.
    """
    if not runs:
        console.print("No runs.", highlight=False)
        return
    ids = _short_ids(runs) if console.is_terminal else {run.id: run.id for run in runs}
    present = time.time() if now is None else now

    def started(run: RunRecord) -> str:
        # A start in the future, by a clock ahead of this one, is shown as an absolute time.
        relative = console.is_terminal and run.started_at <= present + _AHEAD_S
        return _ago(present - run.started_at) if relative else moment(run.started_at)

    rows = [
        (
            safe_cell(ids[run.id], limit=_NAME_LIMIT),
            Text(started(run)),
            _status(run.status),
            safe_cell(run.model or "-", limit=_NAME_LIMIT),
            safe_cell(shown_caller(run.caller, names or {}), limit=_NAME_LIMIT),
            Text(str(run.turns)),
            Text(str(run.tool_calls)),
            Text(tokens_text(run.total_tokens, run)),
            Text(costs_text(run)),
            Text(_length(run.started_at, run.ended_at)),
            _end(run),
            safe_cell(run.prompt_hash[:_DIGITS_SHOWN] or "-", "dim"),
        )
        for run in runs
    ]
    print_fitting(console, _LIST, rows)


def _short_ids(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return ids without ``run_``, cut as short as they remain different, to at least eight characters."""
    bare = [run.id.removeprefix("run_") for run in runs]
    length = _SHORTEST_ID
    while len({run_id[:length] for run_id in bare}) < len(set(bare)):
        length += 1
    return {run.id: run_id[:length] for run, run_id in zip(runs, bare, strict=True)}


def _ago(seconds: float) -> str:
    """Format how long ago something was, in the largest unit that fits."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{max(0, int(seconds))} s ago"


def render_detail(console: Console, detail: RunDetail, *, content: bool = False) -> None:
    """Print one run: its facts, its tools, its time line, its memory, and what the client did not get.

    With ``content``, the recorded messages follow, each up to a maximum length.
    """
    run = detail.run
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("run", safe_cell(run.id)),
        ("request", safe_cell(run.request_id)),
        *(
            (
                (
                    "program" if run.agent == RUN_PROGRAM else "agent",
                    safe_cell(f"{run.agent}, called in {run.parent_run}", limit=2 * _NAME_LIMIT),
                ),
                ("agent version", safe_cell(run.agent_version or "-")),
            )
            if run.parent_run
            else ()
        ),
        *((("takes over", safe_cell(run.takes_over)),) if run.takes_over else ()),
        *((("taken over by", safe_cell(detail.taken_over_by)),) if detail.taken_over_by else ()),
        ("caller", safe_cell(run.caller)),
        ("model", safe_cell(run.model or "-")),
        (
            "upstream",
            _joined(run.upstream or "-", f"{run.wire}, {'streamed' if run.stream else 'one JSON response'}"),
        ),
        ("status", _status(run.status) + Text(": ") + safe_cell(meaning_of_run(detail), "dim", _JSON_LIMIT)),
        ("end", _end(run)),
        ("budget", safe_cell(f"{run.spent} is used up" if run.spent else "-")),
        ("started", Text(f"{moment(run.started_at)} UTC")),
        ("time", Text(_length(run.started_at, run.ended_at))),
        ("tokens", Text(_tokens(run))),
        ("cost", Text(_cost(run))),
        *((("with agents", Text(_with_agents(detail))),) if detail.children else ()),
        ("prompt", safe_cell(run.prompt_hash or "not in the store")),
        ("left out", safe_cell(", ".join(run.left_out) or "-")),
    ):
        facts.add_row(Text(name, style="bold"), value)
    console.print(facts)
    _print_tools(console, detail)
    _print_time_line(console, detail)
    _print_memory(console, detail)
    _print_kept_back(console, detail)
    _print_messages(console, detail.messages, content=content)
    if content and detail.native_calls:
        _print_native_calls(console, detail)


def _tokens(run: RunRecord) -> str:
    """Format the tokens of a run, as far as the upstream reported them."""
    if not reported(run):
        return "- (the upstream reported none)"
    text = f"{run.input_tokens} in, {run.output_tokens} out, {run.total_tokens} in total"
    return f"{text}, without {counted(run.unreported, 'unreported turn')}" if run.unreported else text


def _cost(run: RunRecord) -> str:
    """Format the cost of a run, as far as it is known."""
    if run.cost is None:
        return "no price for this model"
    return costs_text(run) if reported(run) else _tokens(run)


def _with_agents(detail: RunDetail) -> str:
    """Format what a run and the runs of its agents used together."""
    runs = (detail.run, *detail.children)
    parts = [counted(sum(run.turns for run in runs), "turn")]
    parts.append(counted(sum(run.tool_calls for run in runs), "tool call"))
    parts.append(f"{sum(run.total_tokens for run in runs)} tokens")
    costs = [run.cost for run in runs if run.cost is not None]
    return ", ".join([*parts, *([f"cost {cost_text(sum(costs))}"] if costs else ())])


def _print_tools(console: Console, detail: RunDetail) -> None:
    """Print the tools that the run offered or withheld, and those that it withheld from some turn on."""
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
        console.print("  nothing in the store", highlight=False)
        return
    begin = min(detail.run.started_at, *(span.started_at for span in spans))
    ends = [span.ended_at if span.ended_at is not None else span.started_at for span in spans]
    end = max(begin, detail.run.ended_at or begin, *ends)
    if console.width < _WIDE:
        _print_narrow(console, spans, begin, end)
        return
    table = Table.grid(padding=(0, 1))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for _ in range(3):
        table.add_column(overflow="fold")
    for span in spans:
        bar = Text(_bar(span, begin, end, _BAR_CELLS), style=span.style)
        offset = Text(f"+{max(0.0, span.started_at - begin):.3f}", style="dim")
        table.add_row(
            offset, bar, _length(span.started_at, span.ended_at), span.label, span.status, span.note
        )
    console.print(Padding(table, (0, 0, 0, 2)))


def _print_narrow(console: Console, spans: Sequence[_Span], begin: float, end: float) -> None:
    """Print the time line on a narrow terminal: the usage is below each line."""
    for span in spans:
        line = Text(f"  +{max(0.0, span.started_at - begin):.3f} ", style="dim")
        line += Text(_bar(span, begin, end, _BAR_CELLS // 2), style=span.style)
        line += Text(f" {_length(span.started_at, span.ended_at):>8} ") + span.label + Text(" ") + span.status
        console.print(line, overflow="fold")
        console.print(Padding(span.note, (0, 0, 0, 6)), overflow="fold")


def _spans(detail: RunDetail) -> Iterator[_Span]:
    """Yield turns in order, each followed by its tool calls; calls without a recorded turn come last.

    The call of an agent is followed by the agent's run, that of a program by the program's run and calls.
    """
    left = list(detail.invocations)
    for turn in detail.turns:
        yield _turn_span(turn)
        for row in [row for row in left if row.turn == turn.number]:
            left.remove(row)
            yield from _call_spans(row, detail)
    for row in left:
        yield from _call_spans(row, detail)


def _call_spans(row: ToolInvocationRecord, detail: RunDetail) -> Iterator[_Span]:
    yield _invocation_span(row)
    for run in (run for run in detail.children if run.parent_call == row.id):
        yield _agent_span(run)
        for inner in (inner for inner in detail.inner_calls if inner.run_id == run.id):
            yield _invocation_span(inner, depth=3)


def _agent_span(run: RunRecord) -> _Span:
    """Return an agent's or a program's run as one line; ``runs show`` with its id shows its own time line."""
    kind = "program" if run.agent == RUN_PROGRAM else run.model or "-"
    label = Text("    ") + safe_cell(f"{run.id} ({kind})", limit=2 * _NAME_LIMIT)
    used = [counted(run.turns, "turn"), counted(run.tool_calls, "tool call")]
    used.append(f"{tokens_text(run.total_tokens, run)} tokens")
    if run.cost is not None:
        used.append(f"cost {costs_text(run)}")
    if run.spent:
        used.append(f"{run.spent} is used up")
    return _Span(
        run.started_at, run.ended_at, label, _status(run.status), safe_cell(", ".join(used), "dim"), "cyan"
    )


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


def _invocation_span(row: ToolInvocationRecord, depth: int = 1) -> _Span:
    label = Text("  " * depth) + safe_cell(row.tool, limit=_NAME_LIMIT)
    status = _status(row.status)
    if row.error_code is not None:
        status = status + Text(" ") + safe_cell(row.error_code, "red", _NAME_LIMIT)
    paid = f"cost {cost_text(row.cost)}, " if row.cost is not None else ""
    note = Text(f"{row.effect.value}, {row.result_bytes} bytes, {paid}", style="dim") + safe_cell(
        row.decision, "dim"
    )
    for sign, value in ((" ← ", row.arguments_redacted), (" → ", row.result_redacted)):
        if value is not None:
            note = note + Text(sign) + safe_cell(_compact(value), limit=_JSON_LIMIT)
    style = "yellow" if row.effect is not ToolEffect.READ_ONLY else "green"
    return _Span(row.started_at, row.ended_at, label, status, note, style)


def _print_kept_back(console: Console, detail: RunDetail) -> None:
    """Print what the client did not get, and why; withheld tools are printed above."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for what, why in withheld(detail):
        table.add_row(safe_cell(what), safe_cell(why, "dim", _JSON_LIMIT))
    console.print()
    console.print(Text("Kept from the client", style="bold"))
    if table.row_count:
        console.print(Padding(table, (0, 0, 0, 2)))
    else:
        console.print("  nothing: the client got everything that the model said", highlight=False)


def _print_memory(console: Console, detail: RunDetail) -> None:
    """Print which hidden turns were put back, why others were not, and the runs before and after this one."""
    memory = memory_to_json(detail)
    if memory is None:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in memory["put_back"]:
        table.add_row(Text("put back", style="green"), _put_back(row))
    for row in memory["outcomes"]:
        style = "green" if row["put_back"] else "yellow"
        label = Text(f"{row['outcome'].replace('_', ' ')} ({row['count']})", style=style)
        table.add_row(label, safe_cell(row["meaning"], "dim", _JSON_LIMIT))
    if memory["given_bytes"]:
        text = f"{memory['given_bytes']} bytes: the turn that waits for its results, encrypted"
        table.add_row(Text("given to the client"), safe_cell(text, "dim", _JSON_LIMIT))
    if memory["continues"]:
        table.add_row(Text("goes on from"), safe_cell(memory["continues"]))
    for row in memory["continued_by"]:
        table.add_row(Text("continued by"), safe_cell(row["run"]) + Text(" ") + _status(row["status"]))
    console.print()
    console.print(Text("Memory", style="bold"))
    console.print(Padding(table, (0, 0, 0, 2)))


def _put_back(row: Mapping[str, Any]) -> Text:
    what = {
        "answer": "behind an answer",
        "calls": "beside the client's calls",
        "carried": "beside the client's calls, carried by the client",
        "response": "a response",
    }
    text = (
        f" ({what.get(row['kind'], 'unknown')}, {row['bytes']} bytes{', loosely' if row['loosely'] else ''})"
    )
    return safe_cell(row["run"]) + Text(text, style="dim")


def _print_messages(console: Console, messages: Sequence[MessageRecord], *, content: bool) -> None:
    console.print()
    if not messages:
        console.print("The store keeps no content of this run.", highlight=False)
        return
    if not content:
        kept = f"The store keeps {counted(len(messages), 'message')}"
        console.print(f"{kept}; show them with --content.", highlight=False)
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
    """Print each server tool call as the upstream sent it, in the order of the calls."""
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


def _bar(span: _Span, begin: float, end: float, cells: int) -> str:
    """Draw the span between ``begin`` and ``end`` as a bar of ``cells`` characters; one without an end
    continues as dots."""
    whole = max(end - begin, 1e-9)
    first = min(max(int((span.started_at - begin) / whole * cells), 0), cells - 1)
    if span.ended_at is None:
        return " " * first + "·" * (cells - first)
    last = min(max(int((span.ended_at - begin) / whole * cells), first + 1), cells)
    return (" " * first + "━" * (last - first)).ljust(cells)


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
    except (ValueError, OverflowError, OSError):  # A clock was far out.
        return f"{seconds:g}"


def _length(started_at: float, ended_at: float | None) -> str:
    if ended_at is None:
        return "open"
    seconds = max(0.0, ended_at - started_at)
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
