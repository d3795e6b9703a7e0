"""``toolrelay runs replay``: a recorded run once more, with every tool result as it was.

Offline the model's own words come from the record, and what is tried is this configuration: policy,
schemas, budgets.  Against another upstream the client's recorded request is sent there.  Both go through
the server as ``serve`` makes it, with a record in memory; no tool runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from rich.table import Table

from proxy.commands.common import console, say, text
from proxy.commands.runs.frozen import FrozenProvider, FrozenResults, FrozenUpstream, RecordedRun, take_apart
from proxy.commands.runs.runs import Record, find_run, log_content_read, to_line
from proxy.errors import ConfigError
from proxy.plain_text import counted
from proxy.server.app import App, Overrides, Services, create_app
from proxy.server.config.load import Config
from proxy.server.config.settings import AuthConfig, ServerConfig, StoreConfig, UpstreamConfig
from proxy.server.serving.runner import EdgeRunner
from proxy.store.base import RunDetail, RunFilter
from proxy.upstreams.base import Upstream

__all__ = ["replay_run"]

_GRACE_S = 30.0
"""Seconds past the budget of a run in which its answer must have come."""

_MAX_TEXT = 4000


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What came of the second run; ``refused`` is the status of an answer that no run was made for."""

    detail: RunDetail | None
    said: RecordedRun | None
    unmatched: Sequence[str]
    withheld: Mapping[str, str]
    refused: str = ""


async def replay_run(config: Config, run_id: str, *, online: bool, model: str | None, as_json: bool) -> bool:
    """Run a recorded run again and print the difference; ``False`` where the upstream gave no answer.

    With ``online`` the configuration's default upstream is asked, as ``model`` if one is named; without
    it the record answers for the model.  Raises ConfigError where the record has too little.
    """
    async with Record(config) as store:
        detail = await find_run(store, run_id)
    log_content_read("runs replay", run_id=detail.run.id, sent=online)
    recorded = take_apart(detail)
    missing = _missing(detail, recorded, online=online)
    if detail.run.status == "running":
        raise ConfigError("ID", "this run has not ended yet", "Wait until it has ended")
    if (recorded.request is None) if online else bool(recorded.unknown or not detail.turns):
        raise ConfigError(
            "ID", f"the store has too little of this run to replay it: {'; '.join(missing)}", _remedy(online)
        )
    attempt = await _run_again(config, detail, recorded, online=online, model=model)
    report = _compare(detail, recorded, attempt)
    if as_json:
        facts = {"run_id": detail.run.id, "online": online, "missing": missing}
        say(
            to_line(
                facts | {"unmatched": list(attempt.unmatched), "same": not report.differs, **report.json()}
            )
        )
    else:
        _print(report, attempt, missing, online=online)
    if not online:
        return True
    return attempt.detail is not None and attempt.detail.run.status in (detail.run.status, "completed")


def _remedy(online: bool) -> str:
    keep = 'store.content = "all" keeps the requests of later runs'
    return keep if online else f'store.content = "tools" keeps runs with tool calls; {keep}'


def _missing(detail: RunDetail, recorded: RecordedRun, *, online: bool) -> list[str]:
    """What of this replay is not as it was, because the record does not have it."""
    found = [f"what the model said in turn {number} ({why})" for number, why in recorded.unknown.items()]
    if not detail.turns:
        found.append("any turn of the model")
    if online and recorded.request is None:
        found.append('the client\'s request (kept only by store.content = "all", up to 4 MiB)')
    if online and recorded.request is not None and orjson.loads(recorded.request).get("previous_response_id"):
        found.append("the response that the request continues")
    if recorded.masked:
        found.append("private tool arguments (they are masked; a tool's schema may refuse the mask)")
    return found


# --- the second run --------------------------------------------------------------------------------


async def _run_again(
    config: Config, detail: RunDetail, recorded: RecordedRun, *, online: bool, model: str | None
) -> _Attempt:
    results = FrozenResults(recorded.calls)
    again = config.model_copy(
        update={
            "server": ServerConfig(port=0),
            "store": StoreConfig(url="memory:", content="all"),
            "auth": AuthConfig(mode="open"),
            "keys": {},
            "upstreams": _upstreams(config, detail, online=online),
        }
    )

    def frozen(origin: Upstream) -> Upstream:
        return FrozenUpstream(origin, detail.run.model, detail.turns, recorded)

    overrides = Overrides(
        wrap_upstream=None if online else frozen,
        wrap_provider=lambda provider: FrozenProvider(provider, results),
        connect=False,
    )
    app = await create_app(again, overrides=overrides)
    services = app.services
    selection = services.catalog.select(services.policy)
    available = {spec.name for spec in selection.offered}
    withheld = {
        name: selection.withheld.get(name, "no tool of this name is loaded")
        for name in detail.run.offered
        if name not in available
    }
    offered = ",".join(name for name in detail.run.offered if name in available) or "none"

    async def ask(address: str) -> str:
        if online and recorded.request is not None:
            path = services.paths.get(detail.run.wire, "")
            body = _request(recorded.request, model)
        else:
            path, body = services.paths["chat"], _placeholder(detail, recorded)
        return await _post(f"{address}{path}", body, offered, again.tools.request_timeout_s + _GRACE_S)

    refused = await _served(app, ask)
    return await _outcome(services, results, withheld, refused)


async def _outcome(
    services: Services, results: FrozenResults, withheld: Mapping[str, str], refused: str
) -> _Attempt:
    """Read the second run from its record, which is in memory and outlives the server's end."""
    runs = await services.store.list_runs(RunFilter(limit=1))
    detail = await services.store.get_run(runs[0].id) if runs else None
    said = take_apart(detail) if detail is not None else None
    return _Attempt(detail, said, list(results.unmatched), withheld, "" if detail is not None else refused)


def _upstreams(config: Config, detail: RunDetail, *, online: bool) -> dict[str, UpstreamConfig]:
    """The one upstream that is asked, whatever models it is said to serve."""
    if online:
        name = config.default_upstream
        return {name: config.upstreams[name].model_copy(update={"models": ("*",)})}
    # The address is never used: what the record says takes its place.
    return {
        detail.run.upstream or "record": UpstreamConfig(
            base_url="http://record.invalid/v1", api_key=None, retries=0
        )
    }


def _request(recorded: bytes, model: str | None) -> bytes:
    """The client's request as it was, for another model where one is named."""
    return recorded if model is None else orjson.dumps({**orjson.loads(recorded), "model": model})


def _placeholder(detail: RunDetail, recorded: RecordedRun) -> bytes:
    """A request in the place of the client's: nobody reads it but the frozen upstream, which does not.

    It declares the client's tools that the model called, so that their calls go to the client again.
    """
    messages = [{"role": "user", "content": "(replay)"}]
    asked = {"model": detail.run.model or "recorded", "messages": messages}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in recorded.client_tools
        if name not in detail.run.offered
    ]
    return orjson.dumps({**asked, "tools": tools} if tools else asked)


async def _served(app: App, ask: Callable[[str], Any]) -> str:
    """Serve on a free loopback port while ``ask`` runs with the address."""
    runner = EdgeRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        return str(await ask(f"http://127.0.0.1:{port}"))
    finally:
        await runner.cleanup()


async def _post(url: str, body: bytes, offered: str, timeout_s: float) -> str:
    """Send the request and read its answer to the end; empty for a success, else what came instead."""
    headers = {
        "Content-Type": "application/json",
        "x-toolrelay-tools": offered,
        "x-toolrelay-history": "off",
    }
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, data=body, headers=headers) as response,
        ):
            said = await response.read()
    except (TimeoutError, aiohttp.ClientError) as error:
        return f"no whole answer ({type(error).__name__})"
    return "" if response.status < 400 else f"{response.status} {said[:500].decode('utf-8', 'replace')}"


# --- the difference --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Report:
    """What can be compared, as (name, before, now); each value is plain JSON."""

    lines: Sequence[tuple[str, Any, Any]]

    @property
    def differs(self) -> bool:
        return any(before != now for _, before, now in self.lines)

    def json(self) -> dict[str, Any]:
        return {
            "recorded": {name: before for name, before, _ in self.lines},
            "replayed": {name: now for name, _, now in self.lines},
            "differences": [name for name, before, now in self.lines if before != now],
        }


def _compare(detail: RunDetail, recorded: RecordedRun, attempt: _Attempt) -> _Report:
    now, run = attempt.detail, attempt.detail.run if attempt.detail else None
    lines: list[tuple[str, Any, Any]] = [
        ("status", detail.run.status, run.status if run else attempt.refused or "no run"),
        ("finish", detail.run.finish_reason, run.finish_reason if run else None),
        ("error", detail.run.error_code, run.error_code if run else None),
        ("turns", detail.run.turns, run.turns if run else 0),
        ("tools_offered", list(detail.run.offered), list(run.offered) if run else []),
        ("tools_called", _called(detail), _called(now) if now else []),
    ]
    if recorded.text is not None:
        lines.append(("text", recorded.text, attempt.said.text if attempt.said else None))
    return _Report(lines)


def _called(detail: RunDetail) -> list[str]:
    """Each call with its redacted arguments and what came of it."""
    return [
        f"turn {row.turn}: {row.tool} {to_line(row.arguments_redacted)} -> {row.error_code or row.status}"
        for row in detail.invocations
    ]


def _print(report: _Report, attempt: _Attempt, missing: Sequence[str], *, online: bool) -> None:
    say(
        "asked the upstream; used the recorded tool results"
        if online
        else "offline; used the recorded model answers and tool results"
    )
    for words in missing:
        say(f"not in the store: {words}")
    for name, rule in attempt.withheld.items():
        console().print(text(f"no longer offered: {name} ({rule})"))
    for tool in attempt.unmatched:
        console().print(text(f"no recorded result matches a call of {tool}; the model was told so"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "", "recorded", "replayed"):
        table.add_column(heading, overflow="fold")
    for name, before, now in report.lines:
        if isinstance(before, list) and isinstance(now, list):
            for at in range(max(len(before), len(now), 1)):
                pair = [listed[at] if at < len(listed) else None for listed in (before, now)]
                table.add_row(*_row(name if at == 0 else "", *pair))
        else:
            table.add_row(*_row(name, before, now))
    console().print(table)
    count = len(report.json()["differences"])
    say(f"{counted(count, 'difference')}" if count else "no difference")


def _row(name: str, before: Any, now: Any) -> list[Any]:
    style = "" if before == now else "yellow"
    sign = "" if before == now else "≠"
    shown = [text("-" if value is None else str(value)[:_MAX_TEXT], style) for value in (before, now)]
    return [text(name.replace("_", " "), "bold"), text(sign, style), *shown]
