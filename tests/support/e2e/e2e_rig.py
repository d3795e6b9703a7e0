"""The real application on a real socket, before upstreams that replay the recorded exchanges.

The recordings can be reached in two ways: ``replay`` is the upstream in the same process, and ``http`` is a
second server on a second socket with the same recordings. Both must give the same answers.
"""

import json
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
from fixture_loader import FIXTURES, Exchange
from in_process import serving_app, serving_proxy
from provider_rules.chat import PLAIN, REASONING
from provider_rules.judge import ADDED_BY_HTTP, refusal_now
from provider_rules.rule import fits
from replay_server import serve_replay

from proxy.app.app import Overrides, Services, create_app
from proxy.config.load import Config
from proxy.config.settings import (
    AuthConfig,
    LogConfig,
    PolicyConfig,
    StoreConfig,
    ToolsConfig,
    UpstreamConfig,
)
from proxy.records.rows import ToolInvocationRecord
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.demo.recorded import RecordedHttpClient
from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse
from proxy.upstreams.recorded.replay import ReplayUpstream
from proxy.wires.repairing import RepairHabit

CORE_TOOLS = ("core__get_current_time", "core__get_weather")
PATHS = ("replay", "http")
PINNED_CLOCK = "2026-11-21T14:05:00+01:00"

_WIRES: Final = ("chat", "responses", "anthropic", "ollama")
_PATH_OF = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "anthropic": "/messages",
    "ollama": "/api/chat",
}
_OWN_TIME = re.compile(rb'(?<="created_at":")[^"]*\.\d{6}Z')
"""The time in the proxy's own lines for Ollama's clients: in microseconds, while servers say nanoseconds."""
_SHORTEST_ID = 8
"""In characters: a replay does not replace shorter ids, since a body could contain them by chance."""


class _Spy:
    """An upstream that notes the bodies of its requests; OpenAI's rules judge those to OpenAI's models.

    Exchanges with other providers were recorded as these providers take them.
    """

    def __init__(self, inner: Upstream, seen: list[dict[str, Any]]) -> None:
        self._inner = inner
        self._seen = seen

    @property
    def name(self) -> str:
        return self._inner.name

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        if isinstance(request.body, bytes) and request.body:
            self._seen.append(json.loads(request.body))
            if fits(self._seen[-1].get("model", ""), (*PLAIN, *REASONING)):
                refusal_now(request.method, request.path, [*ADDED_BY_HTTP, *request.headers], request.body)
        return await self._inner.open(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass(frozen=True)
class Answer:
    """A client's answer: status, headers with lower-case names, and the bytes of the body.

    ``whole`` says that the body came to its end.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def run_id(self) -> str | None:
        """The id of the recorded run, if the request could use server tools."""
        return self.headers.get("x-toolrelay-run")


@dataclass
class Proxy:
    """A running application. ``upstream_requests`` are the bodies that its upstream got, in order."""

    base_url: str
    services: Services
    upstream_requests: list[dict[str, Any]] = field(default_factory=list)

    async def ask(
        self, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> Answer:
        """Send one request with a client that does not decode or check the answer."""
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(method, self._address_of(path), json=body, headers=headers) as response,
        ):
            pieces = []
            whole = True
            try:
                async for piece in response.content.iter_any():
                    pieces.append(piece)  # noqa: PERF401 (a comprehension would lose them on an error)
            except aiohttp.ClientPayloadError:
                whole = False
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, names, b"".join(pieces), whole)

    def _address_of(self, path: str) -> str:
        """Return the URL of a path; Ollama's begin at the root."""
        base = self.base_url.removesuffix("/v1") if path.startswith("/api/") else self.base_url
        return base + path

    async def play(self, fixture: Exchange) -> list[Answer]:
        """Send all requests of the exchange's client in order, and return their answers."""
        if not fixture.client_requests:
            return [await self.ask(fixture.meta["path"], method=fixture.meta["method"])]
        return [await self.ask(_PATH_OF[fixture.wire], body) for body in fixture.client_requests]

    async def invocations(self, run_id: str | None) -> list[ToolInvocationRecord]:
        """Return the recorded tool calls of a run."""
        if run_id is None:
            return []
        detail = await self.services.store.get_run(run_id)
        assert detail is not None, f"run {run_id} is not on record"
        return list(detail.invocations)


ProxyFor = Callable[..., Awaitable[Proxy]]
"""Starts a proxy with the arguments of :func:`proxy_for`, or returns a running one with equal arguments."""


@asynccontextmanager
async def proxy_for(
    way: str,
    *,
    allow: tuple[str, ...] = CORE_TOOLS,
    clock: str = PINNED_CLOCK,
    fixtures: Path = FIXTURES,
    tools: ToolsConfig | None = None,
    repair: RepairHabit = "auto",
    **sections: Any,
) -> AsyncIterator[Proxy]:
    """Run the application before the recordings, which it reaches in one of the ways of :data:`PATHS`."""
    seen: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="toolrelay-e2e-"))
        if way == "replay":
            base_url = f"replay:{fixtures}"
        else:
            recordings = _Spy(ReplayUpstream([fixtures]), seen)
            base_url = await stack.enter_async_context(serving_app(serve_replay(recordings))) + "/v1"
        config = Config(
            upstreams={
                "recorded": UpstreamConfig(base_url=base_url, api_key=None, wires=_WIRES, repair=repair)
            },
            tools=tools or ToolsConfig(),
            policy=PolicyConfig(allow=allow),
            store=StoreConfig(url=f"sqlite:///{Path(folder) / 'e2e.db'}"),
            log=LogConfig(level="error"),
            **{"auth": AuthConfig(mode="open"), **sections},
        )
        http = RecordedHttpClient(FIXTURES / "demo" / "http")
        overrides = Overrides(
            clock=FixedClock(datetime.fromisoformat(clock)),
            http=http.client,
            wrap_upstream=(lambda upstream: _Spy(upstream, seen)) if way == "replay" else None,
        )
        app = await create_app(config, overrides=overrides)
        client = await stack.enter_async_context(serving_proxy(app))
        yield Proxy(str(client.make_url("/v1")), app.services, seen)


def is_orchestrated(fixture: Exchange) -> bool:
    """Whether the first upstream request of the exchange has server tools."""
    first = fixture.turns[0].request or {}
    declared = [tool.get("function", tool).get("name", "") for tool in first.get("tools") or ()]
    return any(name.startswith("core__") for name in declared)


def fixtures_for(fixture: Exchange) -> Path:
    """Return the folder with the recordings that a replay needs to answer this exchange.

    These are all exchanges if server tools take part. Otherwise it is the exchange's own folder, because two
    recordings of one request with different server settings cannot be told apart.
    """
    return FIXTURES if is_orchestrated(fixture) else fixture.path


def is_defective(fixture: Exchange) -> bool:
    """Whether its streams lack what clients of the Responses API need, so that the proxy repairs them."""
    return (
        fixture.wire == "responses"
        and fixture.streams
        and b'"sequence_number"' not in (fixture.turns[0].sse or b"")
    )


def repair_for(fixture: Exchange) -> RepairHabit:
    """Return the ``repair`` setting with which the expected answers of the exchange were written.

    For defective streams the files show what happens without repair; ``test_e2e_repair.py`` has the rest.
    """
    return "off" if is_defective(fixture) else "auto"


def golden_file(fixture: Exchange, position: int) -> Path:
    """Return the file with the answer to the client's request number ``position``, counted from 0."""
    number = f"-{position + 1}" if position else ""
    kind = "sse" if fixture.streams and fixture.turns[0].status < 400 else "json"
    return fixture.path / "client" / f"response{number}.{kind}"


def invocation_rows(records: list[ToolInvocationRecord]) -> list[dict[str, Any]]:
    """Return the fields of the records that tests compare, in order: all but ids and times."""
    return [
        {
            "turn": record.turn,
            "tool": record.tool,
            "provider": record.provider,
            "effect": str(record.effect),
            "decision": record.decision,
            "status": record.status,
            "error_code": record.error_code,
            "arguments_redacted": record.arguments_redacted,
            "result_redacted": record.result_redacted,
            "result_bytes": record.result_bytes,
        }
        for record in sorted(records, key=lambda r: (r.turn, r.seq))
    ]


def with_ids_of(recorded: bytes, answer: bytes) -> bytes:
    """Replace the response ids of ``answer`` by those of ``recorded``, since each answer has new ones."""
    old, new = response_ids(recorded), response_ids(answer)
    assert len(old) == len(new), f"{len(new)} response ids where there should be {len(old)}"
    for known, fresh in zip(old, new, strict=True):
        assert fresh != known or len(known) < _SHORTEST_ID, "a repeated id overwrites a client's history"
        answer = answer.replace(fresh.encode(), known.encode())
    return answer


def of_any_run(body: bytes) -> bytes:
    """Replace the run's id and the proxy's own times in a body, which differ in each run."""
    body = re.sub(rb'"completed_at":\d+', b'"completed_at":0', body)
    body = re.sub(rb'"total_duration":\d+', b'"total_duration":0', body)
    body = _OWN_TIME.sub(b"0001-01-01T00:00:00Z", body)
    return re.sub(rb"run_[0-9a-f]{32}", b"run_" + b"0" * 32, body)


def response_ids(body: bytes) -> list[str]:
    """Return each id that a body gives its response, in order of first appearance."""
    lines = [line[5:] for line in re.split(rb"\r\n|\n|\r", body) if line.startswith(b"data:")]
    found: dict[str, None] = {}
    for text in lines or [body]:
        try:
            payload = json.loads(text)
        except ValueError:
            continue
        holders = (payload.get("response"), payload.get("message"), payload)
        holder = next(each for each in holders if isinstance(each, dict))
        if isinstance(holder.get("id"), str) and holder["id"]:
            found[holder["id"]] = None
    return list(found)
