"""Answer ``/ui/api/runs``: the list, one run with everything that its page shows, and its exports."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import structlog
from aiohttp import web
from msgspec import Struct

from proxy.api.admin.admin import RUN_QUERY
from proxy.api.admin.json_output import detail_to_json, to_line
from proxy.api.admin.queries import json_answer, parse_query, read_bool
from proxy.base.errors import RequestError, ToolRelayError
from proxy.records.approvals import ApprovalFilter
from proxy.store.base import RunDetail, RunFilter
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.ui.error_help import help_with
from proxy.ui.remedies import Lines, remedy_of
from proxy.ui.requests import address_of, read_object
from proxy.ui.runs.capturing import Capturing
from proxy.ui.runs.comparing import comparison
from proxy.ui.runs.conversation import conversation_of
from proxy.ui.runs.copying import copied
from proxy.ui.runs.searching import SEARCH, RunSearch, read_wanted
from proxy.ui.runs.texts import read_texts
from proxy.ui.static_files import API_PREFIX
from proxy.ui.surface import UiRequest, not_permitted
from proxy.wires.crossing.codec import ConversationCodec

_MOST_APPROVALS: Final = 200
_MOST_TEXTS: Final = 100


class Budget(Struct, frozen=True):
    """A limit of runs; ``most`` is 0 for no limit. ``unit`` is empty for plain counts."""

    name: str
    most: float
    setting: str
    unit: str = ""


_OF_OWN: Final = frozenset({"", "conversation", "copy", "export"})
"""What people see of their own runs; the rest shows how the server is run."""

Replay = Callable[[RunDetail], Awaitable[dict[str, Any]]]
"""Replays a recorded run offline: no upstream is called and no tool runs. Returns the result as JSON values.

Raises :class:`~proxy.base.errors.ToolRelayError` if that is not possible, and TimeoutError."""


class OfferFacts(Struct, frozen=True):
    """Explains why a tool was offered or not, from the present tools, policy and settings."""

    registry: Registry
    policy: Policy
    lines: Lines

    def of(self, detail: RunDetail) -> list[dict[str, Any]]:
        """Return each tool of a run, with the rule and the change that would reverse it."""
        run = detail.run
        rows: list[dict[str, Any]] = []
        for tool in run.offered:
            spec = self.registry.current.get(tool)
            decision = self.policy.decide(spec) if spec is not None else None
            later = {turn.number: turn.withheld[tool] for turn in detail.turns if tool in turn.withheld}
            rows.append(
                {
                    "tool": tool,
                    "outcome": "offered",
                    "rule": decision.rule if decision is not None and decision.allowed else None,
                    "reason": None if spec is not None else "the tool is no longer loaded",
                    "withheld_from_turn": min(later, default=None),
                    "change": None,
                }
            )
        rows += [
            {
                "tool": tool,
                "outcome": "withheld",
                "rule": rule,
                "reason": rule,
                "withheld_from_turn": None,
                "change": remedy_of(rule, tool, run.upstream, self.lines),
            }
            for tool, rule in run.withheld.items()
        ]
        return sorted(rows, key=lambda row: str(row["tool"]))


class RunPages:
    """Answers ``/ui/api/runs``. ``budgets`` are the limits of every run."""

    def __init__(
        self,
        search: RunSearch,
        offer: OfferFacts,
        budgets: Sequence[Budget],
        *,
        paths: Mapping[str, str],
        codecs: Mapping[str, ConversationCodec],
        replay: Replay,
        wire: Capturing | None = None,
    ) -> None:
        """Create the handler.

        ``paths`` maps each dialect to its path, and ``codecs`` to what reads its requests. ``replay`` replays
        a run; ``wire`` returns the captured bytes of a run.
        """
        self._admin = search.admin
        self._rows = search.rows
        self._search = search
        self._offer = offer
        self._budgets = budgets
        self._paths = paths
        self._codecs = codecs
        self._replay = replay
        self._wire = wire
        self._replaying = asyncio.Lock()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.ui")

    async def answer(self, request: UiRequest) -> web.Response:
        """Return the list, a run, or a part of a run."""
        if not request.rest:
            request.allow("GET")
            return json_answer(await self._list(request))
        if request.rest == "texts":
            return await self._texts(request)
        run_id, _, what = request.rest.partition("/")
        if request.session.role != "admin" and what not in _OF_OWN:
            raise not_permitted()
        if what == "replay":
            request.allow("POST")
            return await self._replayed(request, await self._detail_of(request, run_id))
        request.allow("GET")
        if what == "":
            return await self._detail(request, run_id)
        if what == "conversation":
            return await self._conversation(request, await self._detail_of(request, run_id))
        if what == "copy":
            return await self._copy(request, await self._detail_of(request, run_id))
        if what == "export":
            return await self._export(request, await self._detail_of(request, run_id))
        if what == "fixture" and self._wire is not None:
            parse_query(request.target.query)
            detail = await self._detail_of(request, run_id)
            self._tell(request, detail, "fixture")
            return web.Response(
                body=await self._wire.fixture(detail.run),
                content_type="application/zip",
                headers={"Content-Disposition": f'attachment; filename="{detail.run.id}.zip"'},
            )
        if what == "wire" and self._wire is not None:
            parse_query(request.target.query)
            detail = await self._detail_of(request, run_id)
            self._tell(request, detail, "wire")
            return json_answer(await self._wire.wire(detail.run))
        raise request.unknown()

    async def _list(self, request: UiRequest) -> dict[str, Any]:
        query = dict(parse_query(request.target.query, *RUN_QUERY, *SEARCH))
        if request.session.role != "admin":
            query["key"] = request.session.user
        if (wanted := read_wanted(query)) is None:
            answer = await self._admin.runs({name: query[name] for name in query if name not in SEARCH})
            await self._rows.complete(answer["data"])
            return answer
        if wanted.words:
            facts = {"caller": request.session.caller, "request_id": request.facts.request_id}
            self._log.warning("content_searched", **facts)
        return await self._search.find(query, wanted)

    async def _texts(self, request: UiRequest) -> web.Response:
        """Return the questions and answers of the runs that the list shows."""
        request.allow("POST")
        parse_query(request.target.query)
        runs = (await read_object(request.edge_request, {"runs": dict})).get("runs", {})
        if len(runs) > _MOST_TEXTS or not all(isinstance(wire, str) for wire in runs.values()):
            raise RequestError(
                400, f"runs must map at most {_MOST_TEXTS} ids of runs to their dialects.", param="runs"
            )
        self._log.warning(
            "content_read",
            command=f"{API_PREFIX}runs/texts",
            caller=request.session.caller,
            request_id=request.facts.request_id,
            runs=len(runs),
        )
        if request.session.role != "admin":
            runs = {run_id: wire for run_id, wire in runs.items() if await self._is_own(request, run_id)}
        rows = await read_texts(self._search.store, self._codecs, runs)
        return json_answer({"object": "ui.texts", "data": rows})

    async def _is_own(self, request: UiRequest, run_id: str) -> bool:
        wanted = RunFilter(limit=1, caller=request.session.user, id_prefix=run_id)
        return any(run.id == run_id for run in await self._search.store.list_runs(wanted))

    async def compare(self, request: UiRequest) -> web.Response:
        """Answer ``/ui/api/compare``: two runs side by side."""
        request.allow("GET")
        query = parse_query(request.target.query, "a", "b")
        if request.rest:
            raise request.unknown()
        for name in ("a", "b"):
            if name not in query:
                raise RequestError(400, f"{name} must be the id of a run.", param=name)
        details = [await self._detail_of(request, query[name]) for name in ("a", "b")]
        shown = [await self._shown(detail, content=False) for detail in details]
        return json_answer(comparison(details[0], details[1], shown[0], shown[1]))

    async def _detail_of(self, request: UiRequest, run_id: str) -> RunDetail:
        detail = await self._admin.find(run_id)
        if detail is None or not request.session.sees(detail.run.caller):
            raise RequestError(404, "No run has this id, or it was deleted.", code="not_found")
        return detail

    async def _detail(self, request: UiRequest, run_id: str) -> web.Response:
        content = read_bool(parse_query(request.target.query, "content"), "content")
        detail = await self._detail_of(request, run_id)
        if content:
            self._tell(request, detail, "runs")
        shown = await self._shown(detail, content=content)
        if request.session.role != "admin":
            shown |= {"offer": [], "wire": None}
        return await asyncio.to_thread(json_answer, shown)

    async def _conversation(self, request: UiRequest, detail: RunDetail) -> web.Response:
        parse_query(request.target.query)
        if detail.messages:
            self._tell(request, detail, "conversation")
        codec = self._codecs.get(detail.run.wire)
        return await asyncio.to_thread(lambda: json_answer(conversation_of(detail, codec)))

    async def _approvals_of(self, detail: RunDetail) -> list[dict[str, Any]]:
        """Return the approvals that a run asked for, with the places of their calls."""
        decisions = self._admin.approvals.decisions
        asked = await decisions.list(ApprovalFilter(limit=_MOST_APPROVALS, run_id=detail.run.id))
        rows = [
            self._admin.approvals.shown(one, in_list=True) | {"turn": one.turn, "call_id": one.call_id}
            for one in asked
        ]
        return await self._rows.named(rows)

    async def _shown(self, detail: RunDetail, *, content: bool) -> dict[str, Any]:
        shown = await asyncio.to_thread(detail_to_json, detail, content=content)
        await self._rows.complete([shown["run"]])
        began = detail.run.started_at
        for turn in shown["turns"]:
            turn["offset_ms"] = _ms(turn["started_at"], began)
            turn["first_ms"] = _ms(turn["first_at"], turn["started_at"])
        for call in (*shown["invocations"], *shown["inner_calls"]):
            call["offset_ms"] = _ms(call["started_at"], began)
            call["description"] = self._admin.description_of(call)
        shown["approvals"] = await self._approvals_of(detail)
        shown["errors"] = help_with(
            [detail.run.error_code, *(call.error_code for call in (*detail.invocations, *detail.inner_calls))]
        )
        shown["offer"] = self._offer.of(detail)
        shown["budgets"] = self._used(detail)
        shown["wire"] = await self._wire.summary(detail.run.id) if self._wire is not None else None
        return shown

    def _used(self, detail: RunDetail) -> list[dict[str, Any]]:
        run = detail.run
        ended_at = run.ended_at
        used: dict[str, float | None] = {
            "turns": run.turns or len(detail.turns),
            "calls": run.tool_calls or len(detail.invocations),
            "tokens": run.total_tokens,
            "cost": None if run.cost is None else run.cost / 1e9,
            "time": None if ended_at is None else max(0.0, ended_at - run.started_at),
        }
        return [
            {
                "name": budget.name,
                "used": used.get(budget.name),
                "max": budget.most,
                "unit": budget.unit or None,
                "setting": budget.setting,
                "spent": run.spent == budget.setting,
            }
            for budget in self._budgets
            if budget.most
        ]

    async def _copy(self, request: UiRequest, detail: RunDetail) -> web.Response:
        form = parse_query(request.target.query, "as").get("as", "curl")
        if form not in ("curl", "python"):
            raise RequestError(400, "as must be curl or python.", param="as")
        self._tell(request, detail, "copy")
        return json_answer(copied(detail, form, address_of(request.edge_request), self._paths))

    async def _export(self, request: UiRequest, detail: RunDetail) -> web.Response:
        content = read_bool(parse_query(request.target.query, "content"), "content")
        if content:
            self._tell(request, detail, "export")
        line = await asyncio.to_thread(lambda: to_line(detail_to_json(detail, content=content)))
        return web.Response(
            body=line.encode("ascii") + b"\n",
            content_type="application/json",
            headers={"Content-Disposition": f'attachment; filename="{detail.run.id}.jsonl"'},
        )

    async def _replayed(self, request: UiRequest, detail: RunDetail) -> web.Response:
        if self._replaying.locked():
            raise _cannot("another replay is under way; try again in a moment")
        self._tell(request, detail, "replay")
        async with self._replaying:
            try:
                outcome = await self._replay(detail)
            except ToolRelayError as error:
                raise _cannot(str(error)) from None
            except TimeoutError:
                raise _cannot(
                    "it took too long. To replay it on the server: toolrelay runs replay ID"
                ) from None
        return json_answer({"object": "ui.replay", "run_id": detail.run.id, **outcome})

    def _tell(self, request: UiRequest, detail: RunDetail, what: str) -> None:
        """Log that content is read, before it is sent, so that all reading of content is logged."""
        self._log.warning(
            "content_read",
            command=f"{API_PREFIX}{what}",
            caller=request.session.caller,
            request_id=request.facts.request_id,
            run_id=detail.run.id,
            messages=len(detail.messages),
        )


def _cannot(why: str) -> RequestError:
    return RequestError(409, f"The run cannot be replayed: {why}.", code="cannot_replay")


def _ms(moment: float | None, since: float) -> float | None:
    return None if moment is None else max(0.0, round((moment - since) * 1000, 1))
