"""Run a recorded run again with its recorded tool results, and report what differs.

Offline, the model's messages come from the record, so the replay tests the configuration: policy, schemas and
budgets. If the bytes of the run were kept, the replay sends the client's request again and compares bytes.
The upstream then answers with its recorded bytes, and ids and times have their recorded values. Online, the
replay sends the client's recorded request to another upstream. In all cases the request goes through the
server that ``serve`` makes, with a record in memory, and no tool runs.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import aiohttp
import orjson
import structlog
from aiohttp import web
from msgspec import Struct

from proxy.api.admin.json_output import to_line
from proxy.api.taping.tape import MAX_BYTES, Taped, read_tape
from proxy.app.compose.overrides import Overrides
from proxy.app.compose.services import Services
from proxy.app.replaying.exact import TO_CLIENT, TapedAnswers, compare_bytes, wire_of
from proxy.app.replaying.frozen import (
    FrozenProvider,
    FrozenResults,
    FrozenUpstream,
    LoadedTools,
    RecordedRun,
    parse_run,
)
from proxy.base.errors import ConfigError
from proxy.base.events import PROXY_TOOLS, RUN_PROGRAM
from proxy.config.load import Config
from proxy.config.sections.operation import UiConfig
from proxy.config.settings import (
    AuthConfig,
    LimitsConfig,
    ServerConfig,
    StoreConfig,
    TelemetryConfig,
    ToolsConfig,
    UpstreamConfig,
)
from proxy.http.own_headers import HISTORY, TOOLS, TRACE
from proxy.records.rows import KeptWire
from proxy.server.connections.application import Application
from proxy.server.connections.runner import EdgeRunner
from proxy.store.base import RunDetail, RunFilter
from proxy.telemetry.log.setup import REPLAY
from proxy.tools.access.catalog import Catalog
from proxy.upstreams.base import Upstream
from proxy.wires.registry.requests import continued_by

_GRACE_S: Final = 30.0
"""Seconds to wait for an answer beyond the time limit of requests."""

_DRAIN_S: Final = 1.0
"""Seconds that a replay's server waits for effects when it stops; no tool runs, so there are none."""


class ReplayApp(Application, Protocol):
    """A server that exposes its services."""

    @property
    def services(self) -> Services: ...


MakeApp = Callable[[Config, Overrides], Awaitable[ReplayApp]]
"""Makes a server from a configuration and overrides."""


class _Attempt(Struct, frozen=True):
    """The outcome of the second run.

    ``refused`` describes the response if the server answered without a run.
    """

    detail: RunDetail | None
    said: RecordedRun | None
    unmatched: Sequence[str]
    withheld: Mapping[str, str]
    refused: str = ""
    taped: Taped | None = None


class Replayed(Struct, frozen=True):
    """The outcome of a replay.

    ``status`` is the status of the second run, or ``None`` if there was none. ``missing`` lists what the
    replay lacks because it is not on record. ``withheld`` maps each tool that is no longer offered to the
    rule that withholds it. ``unmatched`` lists the tools of calls without a recorded result.
    ``not_compared`` is the reason why bytes are not compared, or empty if they are.
    """

    report: "Report"
    status: str | None
    missing: Sequence[str]
    withheld: Mapping[str, str]
    unmatched: Sequence[str]
    not_compared: str = ""

    @property
    def same_bytes(self) -> bool | None:
        """Whether the client got the same bytes; ``None`` if bytes were not compared."""
        compared = [(was, now) for name, was, now in self.report.lines if name == TO_CLIENT]
        return compared[0][0] == compared[0][1] if compared else None

    def notes(self) -> list[str]:
        """Return what a reader should know before trusting the comparison."""
        return [
            *(f"not in the store: {part}" for part in self.missing),
            *(f"no longer offered: {name} ({rule})" for name, rule in self.withheld.items()),
            *(
                f"no recorded result matches a call of {tool}; the model was told so"
                for tool in self.unmatched
            ),
            *([f"bytes are not compared: {self.not_compared}"] if self.not_compared else []),
        ]


async def replay_again(
    make_app: MakeApp,
    config: Config,
    detail: RunDetail,
    *,
    online: bool = False,
    model: str | None = None,
    tools: Catalog | None = None,
    wire: KeptWire | None = None,
) -> Replayed:
    """Run a recorded run again, with the server that ``make_app`` makes, and compare the two runs.

    With ``online``, the replay asks the configuration's default upstream, with the model ``model`` if it is
    set. Otherwise the record answers for the model. ``tools`` replaces the tools that the configuration
    would load. ``wire`` holds the bytes of the run, if they were kept. Raises ConfigError if the run cannot
    be replayed, for example because the record has too little.
    """
    recorded = parse_run(detail)
    if detail.run.status == "running":
        raise ConfigError("ID", "this run has not ended yet", "Wait until it has ended")
    taped = None if wire is None or online else read_tape(wire.payload)
    if nothing := _asked_nothing(detail, taped):
        raise ConfigError("ID", nothing)
    why = _not_exact(detail, taped)
    exact = taped if not why else None
    missing = [] if exact is not None else _missing(detail, recorded, online=online)
    lacks = (recorded.request is None) if online else bool(recorded.unknown or not detail.turns)
    if lacks and exact is None:
        raise ConfigError(
            "ID", f"the store has too little of this run to replay it: {'; '.join(missing)}", _remedy(online)
        )
    kind = Kind(online, model, tools, exact)
    with structlog.contextvars.bound_contextvars(**{REPLAY: detail.run.id}):
        attempt = await _run_again(make_app, config, detail, recorded, kind)
    return Replayed(
        report=_compare(detail, recorded, attempt, exact),
        status=attempt.detail.run.status if attempt.detail is not None else None,
        missing=missing,
        withheld=attempt.withheld,
        unmatched=attempt.unmatched,
        not_compared="" if online else why,
    )


class Kind(Struct, frozen=True):
    """How a run is replayed; see :func:`replay_again`. ``exact`` holds the run's bytes if all were kept."""

    online: bool
    model: str | None
    tools: Catalog | None
    exact: Taped | None


def _asked_nothing(detail: RunDetail, taped: Taped | None) -> str:
    """Return why there is nothing to replay, or an empty string if a model was asked."""
    if detail.run.agent == RUN_PROGRAM:
        return "this is the run of a program; replay the run that called it"
    if not detail.turns and not detail.run.model:
        return "this run is a direct call of a tool: no model was asked, so there is nothing to replay"
    if detail.run.status == "suspended" and taped is not None and not taped.cut and not wire_of(taped):
        return "this run only said that a call still waits: no model was asked, so there is nothing to replay"
    return ""


def _not_exact(detail: RunDetail, taped: Taped | None) -> str:
    """Return why a run cannot be replayed from its bytes, or an empty string if it can."""
    if taped is None:
        return 'the bytes of this run were not kept; store.content = "all" keeps those of later runs'
    if taped.cut:
        return f"this run had more bytes than the {MAX_BYTES >> 20} MiB that are kept of a run"
    if taped.drawn is None:
        return "this run made more ids than are kept of a run"
    if detail.run.parent_run:
        return "this is the run of an agent; replay the run that called it"
    if detail.run.status in ("cancelled", "interrupted"):
        return "the run was cut off before its end"
    asked = orjson.loads(taped.body("client.request"))
    if detail.run.wire != "ollama" and bool(asked.get("stream")) != detail.run.stream:
        return "the request came over a WebSocket"
    return "" if wire_of(taped) else "no upstream was asked"


def _remedy(online: bool) -> str:
    keep = 'store.content = "all" keeps the requests of later runs'
    return keep if online else f'store.content = "tools" keeps runs with tool calls; {keep}'


def _missing(detail: RunDetail, recorded: RecordedRun, *, online: bool) -> list[str]:
    """Return what this replay lacks because it is not on record."""
    missing = [f"what the model said in turn {number} ({why})" for number, why in recorded.unknown.items()]
    if not detail.turns:
        missing.append("any turn of the model")
    if online and recorded.request is None:
        missing.append('the client\'s request (kept only by store.content = "all", up to 4 MiB)')
    if online and recorded.request is not None and continued_by(orjson.loads(recorded.request)):
        missing.append("the response that the request continues")
    if recorded.masked:
        missing.append("private tool arguments (they are masked; a tool's schema may refuse the mask)")
    return missing


# --- the second run --------------------------------------------------------------------------------


async def _run_again(
    make_app: MakeApp, config: Config, detail: RunDetail, recorded: RecordedRun, kind: Kind
) -> _Attempt:
    results, exact, online = FrozenResults(recorded.calls), kind.exact, kind.online
    # A replay is not counted, limited or traced, and it notifies nobody.
    again = config.model_copy(
        update={
            "server": ServerConfig(port=0, drain_s=_DRAIN_S),
            "store": StoreConfig(url="memory:", content="all"),
            "auth": AuthConfig(mode="open"),
            "limits": LimitsConfig(),
            "telemetry": TelemetryConfig(metrics=False),
            "ui": UiConfig(enabled=False),
            "keys": {},
            "approvals": config.approvals.model_copy(update={"webhook": ""}),
            "tools": _tools(config, recorded, kind),
            "upstreams": _upstreams(config, detail, kind),
        }
    )

    def frozen(origin: Upstream) -> Upstream:
        if exact is not None:
            return TapedAnswers(origin, exact)
        return FrozenUpstream(origin, detail.run.model, detail.turns, recorded)

    overrides = Overrides(
        wrap_upstream=None if online else frozen,
        wrap_provider=lambda provider: FrozenProvider(provider, results),
        fetch_credentials=False,
        providers=None if kind.tools is None else LoadedTools.of(kind.tools),
        replayed_values=exact.drawn if exact is not None else None,
    )
    app = await make_app(again, overrides)
    services = app.services
    withheld = _withheld(services, detail)
    # The proxy adds its own tools by itself, and no client names them.
    unnamed = {*withheld, *PROXY_TOOLS}
    offered = ",".join(name for name in detail.run.offered if name not in unnamed) or "none"

    async def ask(address: str) -> str:
        path, headers = services.paths.get(detail.run.wire, ""), {TOOLS: offered}
        if exact is not None:
            body = exact.body("client.request")
            headers[TRACE] = detail.run.trace or "silent"
        elif online and recorded.request is not None:
            body = (
                recorded.request
                if kind.model is None
                else orjson.dumps({**orjson.loads(recorded.request), "model": kind.model})
            )
        else:
            path, body = services.paths["chat"], _placeholder(detail, recorded)
        return await _post(f"{address}{path}", body, headers, again.tools.request_timeout_s + _GRACE_S)

    async with served_on_loopback(app) as address:
        refused = await ask(address)
    return await _outcome(services, results, withheld, refused)


def _withheld(services: Services, detail: RunDetail) -> dict[str, str]:
    """Return the tools of a run that are no longer offered, each with the rule that withholds it."""
    selection = services.catalog.select(services.policy, asks=services.approvals.enabled)
    available = {spec.name for spec in selection.offered}
    available.update(name for name in PROXY_TOOLS if services.catalog.get(name) is not None)
    return {
        name: selection.withheld.get(name, "no tool of this name is loaded")
        for name in detail.run.offered
        if name not in available
    }


async def _outcome(
    services: Services, results: FrozenResults, withheld: Mapping[str, str], refused: str
) -> _Attempt:
    """Read the second run from its record, which is in memory and remains after the server has stopped."""
    runs = await services.store.list_runs(RunFilter(limit=1))
    detail = await services.store.get_run(runs[0].id) if runs else None
    if detail is None:
        return _Attempt(None, None, list(results.unmatched), withheld, refused)
    wire = await services.store.find_wire(detail.run.id)
    taped = read_tape(wire.payload) if wire is not None else None
    return _Attempt(detail, parse_run(detail), list(results.unmatched), withheld, taped=taped)


def _upstreams(config: Config, detail: RunDetail, kind: Kind) -> dict[str, UpstreamConfig]:
    """Return the configuration of the one upstream of the replay, which accepts the run's model."""
    if kind.online:
        name = config.default_upstream
        return {name: config.upstreams[name].model_copy(update={"models": ("*",)})}
    # The address is never used, because the record answers.
    name = detail.run.upstream or "record"
    nobody = UpstreamConfig(base_url="http://record.invalid/v1", api_key=None, retries=0)
    if kind.exact is None:
        return {name: nobody}
    # Keep the other settings of this upstream, but not its address, key and dialects.
    known = config.upstreams.get(name, nobody)
    renamed = {"models": known.models if isinstance(known.models, dict) else ("*",)}
    address = {"base_url": nobody.base_url, "api_key": None, "wires": (wire_of(kind.exact),)}
    return {name: known.model_copy(update={**address, **renamed})}


def _tools(config: Config, recorded: RecordedRun, kind: Kind) -> ToolsConfig:
    """Return today's budgets, with the request's own limit on calls, and allow every kind of trace."""
    changes: dict[str, Any] = {"trace_max": "events"}
    if kind.exact is None and not kind.online and recorded.request is not None:
        # The placeholder request does not contain this limit.
        most = orjson.loads(recorded.request).get("max_tool_calls")
        if isinstance(most, int) and 0 < most < config.tools.max_calls:
            changes["max_calls"] = most
    return config.tools.model_copy(update=changes)


def _placeholder(detail: RunDetail, recorded: RecordedRun) -> bytes:
    """Build a request in place of the client's; only its tools matter, because the upstream ignores it.

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


@asynccontextmanager
async def served_on_loopback(app: Application) -> AsyncIterator[str]:
    """Serve on a free loopback port during the block, which gets the address."""
    runner = EdgeRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _post(url: str, body: bytes, more: Mapping[str, str], timeout_s: float) -> str:
    """Send the request and read the whole answer; return an empty string on success, else what went wrong."""
    headers = {"Content-Type": "application/json", HISTORY: "off", **more}
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, data=body, headers=headers) as response,
        ):
            answer_body = await response.read()
    except (TimeoutError, aiohttp.ClientError) as error:
        return f"no whole answer ({type(error).__name__})"
    return (
        "" if response.status < 400 else f"{response.status} {answer_body[:500].decode('utf-8', 'replace')}"
    )


# --- the difference --------------------------------------------------------------------------------


class Report(Struct, frozen=True):
    """The compared values as (name, before, now); each value is plain JSON."""

    lines: Sequence[tuple[str, Any, Any]]

    @property
    def differs(self) -> bool:
        """Whether any value differs."""
        return any(before != now for _, before, now in self.lines)

    def json(self) -> dict[str, Any]:
        """Return the values of both runs by name, and the names of those that differ."""
        return {
            "recorded": {name: before for name, before, _ in self.lines},
            "replayed": {name: now for name, _, now in self.lines},
            "differences": [name for name, before, now in self.lines if before != now],
        }


def _compare(detail: RunDetail, recorded: RecordedRun, attempt: _Attempt, exact: Taped | None) -> Report:
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
    if exact is not None:
        # The replay's record lacks the hidden turns of earlier requests, so they are not put back.
        ids = (detail.run.id, run.id if run is not None else "no run")
        lines += compare_bytes(
            exact, attempt.taped, ids, requests=not (detail.run.memory or {}).get("put_back")
        )
    return Report(lines)


def _called(detail: RunDetail) -> list[str]:
    """Return one line for each call, with its redacted arguments and its outcome."""
    return [
        f"turn {row.turn}: {row.tool} {to_line(row.arguments_redacted)} -> {row.error_code or row.status}"
        for row in detail.invocations
    ]
