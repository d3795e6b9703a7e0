"""``toolrelay runs replay``: shows the result of :mod:`proxy.app.replaying.replay` on a terminal."""

from typing import Any, Final

from rich.table import Table

from proxy.app.app import App, Overrides, create_app
from proxy.app.replaying.replay import Replayed, replay_again
from proxy.base.plain_text import counted
from proxy.commands.common import console, say, say_json, text
from proxy.commands.runs.runs import find_run, log_content_read, opened_runs
from proxy.config.load import Config

_MAX_TEXT: Final = 4000


async def _make_app(config: Config, overrides: Overrides) -> App:
    return await create_app(config, overrides=overrides)


async def replay_run(config: Config, run_id: str, *, online: bool, model: str | None, as_json: bool) -> bool:
    """Run a recorded run again and print the difference.

    Return ``False`` if the upstream gave no answer, or the client would get different bytes.

    With ``online``, the configuration's default upstream answers, as ``model`` if given. Otherwise the record
    replaces the model. Raises ConfigError if the record lacks what is needed.
    """
    async with opened_runs(config) as store:
        detail = await find_run(store, run_id)
        wire = None if online else await store.find_wire(detail.run.id)
    log_content_read("runs replay", run_id=detail.run.id, sent=online)
    done = await replay_again(_make_app, config, detail, online=online, model=model, wire=wire)
    report = done.report
    if as_json:
        facts = {"run_id": detail.run.id, "online": online, "missing": list(done.missing)}
        same = {"unmatched": list(done.unmatched), "same": not report.differs, "bytes": _bytes(done)}
        say_json(facts | same | report.json())
    else:
        _print(done, online=online)
    if not online:
        return done.same_bytes is not False
    return done.status in (detail.run.status, "completed")


def _bytes(done: Replayed) -> dict[str, Any]:
    """Return whether the client would get the same bytes; ``null`` with a reason if that is unknown."""
    return {"same": done.same_bytes, "not_compared": done.not_compared or None}


def _print(done: Replayed, *, online: bool) -> None:
    say(
        "asked the upstream; used the recorded tool results"
        if online
        else "offline; used the recorded model answers and tool results"
        if done.same_bytes is None
        else "offline; used the recorded bytes of the upstream, tool results, ids and times"
    )
    for note in done.notes():
        console().print(text(note))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "", "recorded", "replayed"):
        table.add_column(heading, overflow="fold")
    for name, before, now in done.report.lines:
        if isinstance(before, list) and isinstance(now, list):
            for index in range(max(len(before), len(now), 1)):
                pair = [listed[index] if index < len(listed) else None for listed in (before, now)]
                table.add_row(*_row(name if index == 0 else "", *pair))
        else:
            table.add_row(*_row(name, before, now))
    console().print(table)
    count = len(done.report.json()["differences"])
    say(f"{counted(count, 'difference')}" if count else "no difference")


def _row(name: str, before: Any, now: Any) -> list[Any]:
    style = "" if before == now else "yellow"
    sign = "" if before == now else "≠"
    shown = [text("-" if value is None else str(value)[:_MAX_TEXT], style) for value in (before, now)]
    return [text(name.replace("_", " "), "bold"), text(sign, style), *shown]
