"""``/admin``: the record, the tools and the waiting approvals, for administrators.

No tool runs here. The only changes are decisions about approvals and revoked grants.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from typing import Any, Final

import structlog
from aiohttp import web
from msgspec.structs import replace

from proxy.api.admin.approvals import AdminApprovals, decider_of
from proxy.api.admin.json_output import detail_to_json, run_to_json
from proxy.api.admin.queries import json_answer, page, parse_query, read_bool, read_limit
from proxy.api.admin.run_filters import parse_filter
from proxy.api.admin.tool_output import server_to_json, tool_to_json
from proxy.api.reference.admin_openapi import admin_openapi
from proxy.api.reference.admin_paths import query_of
from proxy.base.errors import ConfigError, RequestError, StoreError
from proxy.base.hard_timeout import HardTimeout
from proxy.records.words import Words
from proxy.relay.approvals.rules import Decider
from proxy.server.auth.authenticate import Authenticator
from proxy.server.auth.key_names import recorded_caller
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target
from proxy.store.base import RunDetail, RunFilter, Store
from proxy.telemetry.hooks import RequestFacts
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.redaction import described
from proxy.tools.mcp.overview import ServerOverview

REPORT_S: Final = 10.0
"""The most seconds that an administrator waits for the record."""

Overviews = Callable[[], Awaitable[Sequence[ServerOverview]]]
"""Returns the present state of all MCP servers; raises :class:`~proxy.base.errors.StoreError`."""

_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
RUN_QUERY: Final = query_of("/admin/runs")
"""The query parameters of a list of runs."""


class Admin:
    """The handler of the administrators' paths.

    Each of them needs an administrator's key, on loopback too; the paths of approvals also accept an
    approver's.
    """

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        store: Store,
        registry: Registry,
        policy: Policy,
        tools_enabled: bool,
        declared: Container[str],
        servers: Overviews,
        approvals: AdminApprovals,
    ) -> None:
        self._authenticator = authenticator
        self._store = store
        self._registry = registry
        self._policy = policy
        self._tools_enabled = tools_enabled
        self._declared = declared
        self._servers = servers
        self.approvals = approvals
        self._hard_timeout = HardTimeout()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.admin")

    async def answer(self, request: EdgeRequest, facts: RequestFacts, target: Target) -> web.Response:
        """Answer a path at or below ``/admin``.

        Raises :class:`~proxy.base.errors.RequestError`: 401 or 403 for everybody but administrators, on every
        path. For administrators it raises 400, 404, 405, and 503 if the record cannot be read.
        """
        kind, slash, run_id = target.path.removeprefix("/admin").removeprefix("/").partition("/")
        decider = Decider("")
        if kind == "approvals":
            key = await self._authenticator.admit_approver(request, target)
            facts.caller, decider = key.caller.name, decider_of(key)
        else:
            facts.caller = (await self._authenticator.admit_admin(request, target)).name
        changes = _change_at(run_id) if kind == "approvals" and slash else ""
        allowed = ["GET", "HEAD", *([changes] if changes else [])]
        if request.method not in allowed:
            raise RequestError(
                405,
                f"{'This path accepts' if changes else 'The /admin paths accept'} only "
                f"{', '.join(allowed[:-1])} and {allowed[-1]}.",
                headers={"Allow": ", ".join(allowed)},
            )
        work: Coroutine[Any, Any, web.Response] | None = None
        if kind == "runs":
            work = self._record(facts, target, run_id if slash else None)
        elif kind == "mcp" and not slash:
            work = self._mcp(target)
        elif kind == "approvals":
            work = self._approvals(request, decider, target, run_id if slash else None)
        if work is not None:
            try:
                return await self._hard_timeout.run(work, REPORT_S)
            except (StoreError, TimeoutError):
                raise RequestError(
                    503,
                    "The store cannot be read now. Try again in a moment.",
                    type="server_error",
                    code="store_unavailable",
                ) from None
        if kind == "tools" and not slash:
            parse_query(target.query)
            return json_answer(self.tools())
        if kind == "openapi.json" and not slash:
            parse_query(target.query)
            return json_answer(admin_openapi())
        raise _unknown(target)

    async def _approvals(
        self, request: EdgeRequest, decider: Decider, target: Target, below: str | None
    ) -> web.Response:
        if below is not None:
            answer = await self.approvals.answer(request, below, target.query, decider, "api")
            if answer is None:
                raise _unknown(target)
            return json_answer(answer)
        query = parse_query(target.query, *query_of("/admin/approvals"))
        waiting = read_bool(query, "waiting")
        return json_answer(await self.approvals.list_approvals(query, decider, waiting=waiting))

    async def _record(self, facts: RequestFacts, target: Target, run_id: str | None) -> web.Response:
        if run_id is None:
            return json_answer(await self.runs(parse_query(target.query, *RUN_QUERY)))
        content = read_bool(parse_query(target.query, "content"), "content")
        detail = await self.find(run_id)
        if detail is None:
            raise _unknown(target)
        if content:
            # Logged before the content goes out, so that nobody reads it without an entry in the log.
            self._log.warning(
                "content_read",
                command="/admin/runs",
                caller=facts.caller,
                request_id=facts.request_id,
                run_id=run_id,
                messages=len(detail.messages),
            )
        # A run may be many megabytes: encoding it in a thread keeps the streams of other clients moving.
        return await asyncio.to_thread(json_answer, detail_to_json(detail, content=content))

    async def runs(self, query: Mapping[str, str], words: Words = ()) -> dict[str, Any]:
        """Return a page of runs, newest first. ``before`` is the last id of the previous page, and ``id`` is
        a prefix of the ids to list. Runs that are known to lack one of ``words`` are left out.

        Raises :class:`~proxy.base.errors.RequestError` (400) and :class:`~proxy.base.errors.StoreError`.
        """
        limit = read_limit(query.get("limit"))
        wanted = replace(
            _filter(query), limit=limit + 1, before=_before(query), id_prefix=_id_prefix(query), words=words
        )
        if wanted.caller is not None:
            caller = await recorded_caller(self._store, self._declared, wanted.caller)
            wanted = replace(wanted, caller=caller)
        runs = await self._store.list_runs(wanted)
        if not runs and wanted.before is not None and await self.find(wanted.before) is None:
            # Purged meanwhile: an empty page would look like the end of the list.
            raise RequestError(400, f"before: there is no run {wanted.before!r}.", param="before")
        return page([run_to_json(run) for run in runs[:limit]], more=len(runs) > limit)

    async def find(self, run_id: str) -> RunDetail | None:
        """Return the run with exactly this id; the store would also accept a prefix."""
        detail = await self._store.get_run(run_id) if _RUN_ID.match(run_id) else None
        return detail if detail is not None and detail.run.id == run_id else None

    async def _mcp(self, target: Target) -> web.Response:
        parse_query(target.query)
        return json_answer(await self.servers())

    async def servers(self) -> dict[str, Any]:
        """Return every MCP server with its tools, as their process last reported. Raises StoreError."""
        catalog = self._registry.current
        rows = [server_to_json(server, catalog, self._policy) for server in await self._servers()]
        return page(rows, more=False)

    def description_of(self, call: Mapping[str, Any]) -> str | None:
        """Return what a recorded call did, in the words of its tool.

        ``None`` if the tool has none, or has another definition now.
        """
        spec = self._registry.current.get(call["tool"])
        if spec is None or spec.digest != call["spec_digest"]:
            return None
        return described(spec, call["arguments_redacted"])

    def tools(self) -> dict[str, Any]:
        """Return every loaded tool; ``withheld`` says why models are not offered it, or is ``null`` if they
        are."""
        rows = []
        for spec in self._registry.current.tools():
            decision = self._policy.decide(spec)
            asks = decision.outcome == "needs_approval" and self.approvals.decisions.enabled
            withheld = None if decision.allowed or asks else decision.rule
            if not self._tools_enabled:
                withheld = "tools.enabled is false"
            rows.append(
                tool_to_json(spec, decision, self._registry.prices.of(spec.name)) | {"withheld": withheld}
            )
        return page(rows, more=False)


def _change_at(rest: str) -> str:
    """Return the method that changes something at a path below ``/admin/approvals``; empty if none does."""
    if rest == "grants":
        return ""
    return "DELETE" if rest.startswith("grants/") else "POST"


def _unknown(target: Target) -> RequestError:
    """Return the same error for an unknown path, an impossible run id and a run that does not exist."""
    return RequestError(404, f"There is no endpoint at {target.path[:100]}.", code="not_found")


def _before(query: Mapping[str, str]) -> str | None:
    before = query.get("before")
    if before is not None and not _RUN_ID.match(before):
        raise RequestError(400, "before must be the id of a run.", param="before")
    return before


def _id_prefix(query: Mapping[str, str]) -> str | None:
    id_prefix = query.get("id")
    if id_prefix is not None and not _RUN_ID.match(id_prefix):
        raise RequestError(400, "id must be a run's id, or the beginning of one.", param="id")
    return id_prefix


def _filter(query: Mapping[str, str]) -> RunFilter:
    try:
        return parse_filter(
            since=query.get("since"),
            until=query.get("until"),
            status=query.get("status"),
            model=query.get("model"),
            tool=query.get("tool"),
            key=query.get("key"),
            errors=read_bool(query, "errors"),
            agents=read_bool(query, "agents"),
        )
    except ConfigError as error:
        raise RequestError(400, f"{error}.", param=error.setting) from None
