"""The relay plans and runs a request from a plain value, without HTTP and without a server."""

import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from fixture_loader import FIXTURES, exchange
from running_proxy import make_config

from proxy.app.app import Overrides, Services, create_runs, create_services
from proxy.base.errors import RequestError
from proxy.http.headers import Headers
from proxy.http.secrets import Secrets
from proxy.relay.ask import Access, Ask, Identity, RequestHead, RequestOptions, UpstreamPermissions
from proxy.relay.body import Body
from proxy.relay.offering.wanted import Wanted
from proxy.relay.routing.router import Route, Router
from proxy.relay.starting.runs import Runs
from proxy.toolbox.clock import FixedClock
from proxy.tools.access.catalog import Catalog, Selection
from proxy.tools.access.policy import Policy
from proxy.wires.chat.wire import ChatWire

TIME = "core__get_current_time"
RECORDED = exchange("openai.chat/text-then-call")
CLOCK = FixedClock(datetime.fromisoformat(str(RECORDED.meta["clock"])))


@dataclass
class Kept:
    """A :class:`~proxy.relay.base.ClientStream` that keeps what it is sent."""

    started: bool = False
    stopped_by_server: bool = False
    origin: str = ""
    status: int = 0
    sent: bytes = b""
    finished: bool = False
    told: dict[str, str] = field(default_factory=dict)

    def blank_out(self, secrets: Secrets | None) -> None:
        return

    def set_header(self, name: str, value: str) -> None:
        self.told[name] = value

    def start(self, status: int, headers: Headers) -> None:
        self.started, self.status = True, status

    def flush(self) -> None:
        return

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        self.sent += data
        return None

    async def write(self, data: bytes) -> None:
        self.push(data)

    def before_finish(self) -> Awaitable[None] | None:
        return None

    def finish(self) -> None:
        self.finished = True

    def abort(self) -> None:
        raise AssertionError("the answer was broken off")

    @property
    def text(self) -> str:
        """The text of the answer's events."""
        lines = [line.removeprefix("data: ") for line in self.sent.decode().splitlines() if line]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)


@dataclass(frozen=True)
class Mine:
    """What a caller may use: the policy's tools at every upstream."""

    policies: Mapping[str, Policy]
    selections: Mapping[str, Selection]
    acts: bool = False
    router: Router = field(default_factory=lambda: Router([]))


@asynccontextmanager
async def runs_of(**config: Any) -> AsyncIterator[tuple[Services, Runs]]:
    """Tools, a record in memory and an upstream that replays, without a server and without a socket."""
    overrides = Overrides(clock=CLOCK)
    settings = make_config(f"replay:{FIXTURES / 'openai.chat'}", allow=(TIME,), **config)
    services = await create_services(settings, overrides=overrides)
    try:
        yield services, create_runs(services, overrides, {}, [bytes(32)])
    finally:
        await services.aclose()


def permitted(services: Services) -> UpstreamPermissions:
    """Everything that the operator allows."""
    return Mine({"default": services.policy}, {"default": services.catalog.select(services.policy)})


PLAIN = RequestOptions()
"""The options of a request that chooses nothing."""


def ask_of(
    services: Services,
    permissions: UpstreamPermissions | None = None,
    options: RequestOptions = PLAIN,
) -> Ask:
    """The recorded client's request, as an ask of "the night shift"."""
    raw = json.dumps(RECORDED.client_request).encode()
    routes: Sequence[Route] = services.router().routes("gpt-4o-mini", "chat")
    return Ask(
        identity=Identity("run_1", "ask_1", "the night shift", "night", is_person=True),
        wire=ChatWire(),
        body=Body(raw, json.loads(raw)),
        head=RequestHead(),
        options=options,
        access=Access(permissions or permitted(services), routes),
    )


async def test_an_ask_is_run_with_its_tools() -> None:
    """The tool runs, its result goes to the model, and the record of the run names the caller."""
    client = Kept()
    async with runs_of() as (services, runs):
        plan = await runs.planner.next(runs.planner.begin(ask_of(services)))
        assert plan.job is not None
        await runs.orchestrator.run(plan.job, client)
        assert await services.store.wait_until_visible(20)
        detail = await services.store.get_run("run_1")
    assert client.text == "Let me look.\n\nIt is 14:05 in Berlin."
    assert (client.status, client.finished, TIME in client.sent.decode()) == (200, True, False)
    assert detail is not None
    assert (detail.run.status, detail.run.caller, detail.run.turns) == ("completed", "the night shift", 2)
    assert [(row.tool, row.status) for row in detail.invocations] == [(TIME, "success")]


async def test_what_no_tool_takes_part_in_is_handed_on_or_run_all_the_same() -> None:
    """Without tools the plan has no job; ``planner.job`` still makes one, which offers no tool."""
    async with runs_of(tools={"enabled": False}) as (services, runs):
        nothing = Mine({"default": services.policy}, {"default": Catalog([]).select(services.policy)})
        ask = ask_of(services, nothing)
        assert (await runs.planner.next(runs.planner.begin(ask))).job is None
        job = await runs.planner.job(runs.planner.begin(ask))
        assert (job.identity.run_id, job.identity.caller) == ("run_1", "the night shift")
        assert not job.tools.offer


async def test_an_ask_that_chooses_what_there_is_not_is_refused() -> None:
    """Rule E1: the planner refuses an ask that chooses a tool that does not exist."""
    async with runs_of() as (services, runs):
        ask = ask_of(services, options=RequestOptions(Wanted(names=("core__nothing",))))
        with pytest.raises(RequestError):
            await runs.planner.next(runs.planner.begin(ask))
