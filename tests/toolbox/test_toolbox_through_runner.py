"""The tools that call a service, run by the runner: caching, redaction in the record, and policy."""

import json
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from duffel_bodies import error, offer, offers
from local_service import Answer, Connection, Service, local_service
from waiting import LATE_S

from proxy.base.events import ToolCall, ToolResult
from proxy.records.rows import NativeCall, ToolInvocationRecord
from proxy.toolbox.calendar import calendar_provider
from proxy.toolbox.flights import flights_provider
from proxy.toolbox.web.fetch_page import PageReader
from proxy.toolbox.web.provider import web_provider
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import ArgumentBound
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.runner import Runner

TRIP = {"origin": "LHR", "destination": "JFK", "departure_date": "2027-03-01"}
DAY = {"time_min": "2026-11-21T00:00:00Z", "time_max": "2026-11-22T00:00:00Z"}


class MovingClock:
    """A clock whose time the test sets."""

    def __init__(self) -> None:
        self.at = datetime(2026, 11, 21, 13, 6, tzinfo=UTC)

    def now(self, tz: tzinfo) -> datetime:
        """Return the time that the test has set."""
        return self.at.astimezone(tz)


class Log:
    """An invocation log that keeps the closed rows only."""

    def __init__(self) -> None:
        self.rows: list[ToolInvocationRecord] = []

    async def open_invocation(self, record: ToolInvocationRecord, *, durable: bool) -> None:
        """Do nothing."""

    def close_invocation(self, record: ToolInvocationRecord) -> None:
        """Keep the row."""
        self.rows.append(record)

    def put_native_call(self, record: NativeCall) -> None:
        """Do nothing."""


class Bench:
    """A runner with one provider; it makes each call in a new run."""

    def __init__(self, runner: Runner, log: Log) -> None:
        self._runner = runner
        self.log = log
        self._runs = 0

    async def call(
        self, name: str, arguments: dict[str, Any], caller: str = "ada", policy: Policy | None = None
    ) -> ToolResult:
        """Call a tool in a new run."""
        self._runs += 1
        context = RunContext(f"run_{self._runs}", 1, caller, f"req_{self._runs}")
        called = ToolCall("call_1", name, json.dumps(arguments), 0)
        return await self._runner.run(called, context, policy=policy)


async def bench(provider: Any, clock: MovingClock, **policy_of: Any) -> Bench:
    """Make a runner with one provider whose tools are all allowed."""
    log = Log()
    registry, policy = await Registry.load([provider]), Policy(allow=("*",), **policy_of)
    runner = Runner(registry, policy, log, None, clock, default_timeout_s=LATE_S)
    return Bench(runner, log)


def flights(service: Service, clock: MovingClock) -> Any:
    """The provider of the flight tool with the local server's URL."""
    return flights_provider(service.capabilities(clock), base_url=service.url)


async def test_equal_searches_are_one_and_die_with_an_offer() -> None:
    """The cache serves equal searches of one caller, but not after the first offer has expired."""
    clock = MovingClock()
    async with local_service(Answer(offers(offer()), 201)) as service:
        runner = await bench(flights(service, clock), clock)
        first = await runner.call("flights__search_flights", TRIP)
        assert json.loads(first.content)[0]["id"] == "off_00009htYpSCXrwaB9DnUm0"
        for same in (
            {},
            {"origin": "lhr", "destination": "Jfk"},
            {"cabin_class": "economy", "return_date": None, "adults": 1, "max_connections": 2},
        ):
            again = await runner.call("flights__search_flights", {**TRIP, **same})
            assert again.content == first.content
        assert len(service.asked) == 1
        for changed in (
            {"destination": "DUB"},
            {"departure_date": "2027-03-02"},
            {"cabin_class": "business"},
            {"adults": 2},
        ):
            assert (await runner.call("flights__search_flights", TRIP | changed)).ok
        assert (await runner.call("flights__search_flights", TRIP, caller="bob")).ok
        assert len(service.asked) == 6
        clock.at += timedelta(minutes=19, seconds=1)  # The offer ends at 13:25:00.123456.
        (left_out,) = json.loads((await runner.call("flights__search_flights", TRIP)).content)
        assert "1 expired" in left_out["note"]
        assert len(service.asked) == 7


async def test_failures_are_not_kept() -> None:
    """The cache does not keep a failed search, and neither result nor record repeats Duffel's message."""
    clock = MovingClock()
    failed = Answer(error(500, "api_error", "internal_server_error"), 500)
    async with local_service(failed, Answer(offers(offer()), 201)) as service:
        runner = await bench(flights(service, clock), clock)
        first = await runner.call("flights__search_flights", TRIP)
        assert (first.ok, first.error_code) == (False, "execution_failed")
        assert (await runner.call("flights__search_flights", TRIP)).ok
    assert [row.status for row in runner.log.rows] == ["error", "success"]
    assert "s3cret" not in first.content + str(runner.log.rows)


async def test_a_calendar_on_record() -> None:
    """Rule T4: the model gets the whole event; the record has only its id and times; neither has a token."""
    clock = MovingClock()
    event = {
        "id": "e1",
        "summary": "s3cret summary",
        "description": "s3cret description",
        "start": {"dateTime": "2026-11-21T10:00:00Z"},
        "end": {"dateTime": "2026-11-21T11:00:00Z"},
        "attendees": [{"email": "s3cret@example.com"}],
    }
    connection = Connection("s3cret-old", "s3cret-new")
    refused = Answer({"error": {"errors": [{"reason": "authError"}], "code": 401}}, 401)
    async with local_service(refused, Answer({"items": [event]}), connection=connection) as service:
        provider = calendar_provider(service.capabilities(clock), base_url=service.url)
        runner = await bench(provider, clock)
        result = await runner.call("calendar__list_events", DAY | {"calendar_id": "s3cret@example.com"})
        assert (await runner.call("calendar__list_events", DAY | {"calendar_id": "s3cret@example.com"})).ok
    assert len(service.asked) == 2
    assert json.loads(result.content)[0]["summary"] == "s3cret summary"
    assert "s3cret-" not in result.content
    row = runner.log.rows[0]
    assert row.result_redacted == [
        {"id": "e1", "start": event["start"], "end": event["end"], "created": None, "updated": None}
    ]
    assert row.arguments_redacted == DAY | {"calendar_id": "[private]"}
    assert "s3cret" not in str(runner.log.rows)


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "text/plain"])
async def test_a_page_on_record(kind: str) -> None:
    """Rule T4: the model gets the page's text; the record has only its URL and content type."""
    clock = MovingClock()
    async with local_service(Answer(b"<p>s3cret words", 200, {"Content-Type": kind})) as service:
        host, reader = service.url.removeprefix("http://"), PageReader(timeout_s=LATE_S)
        provider = web_provider(service.capabilities(clock), hosts=(host,), reader=reader)
        runner = await bench(provider, clock)
        result = await runner.call("web__fetch_page", {"url": service.url + "/p"})
    assert "s3cret words" in json.loads(result.content)["text"]
    assert runner.log.rows[0].result_redacted == {
        "url": service.url + "/p",
        "content_type": kind.partition(";")[0],
    }
    assert "s3cret" not in str(runner.log.rows)


@pytest.mark.parametrize(
    ("location", "reached"),
    [
        ("/3/other", True),
        ("../3/other", True),
        ("/admin", False),
        ("/3/../admin", False),
        ("/3/%2e%2e/admin", False),
        ("/3/..%2fadmin", False),
        ("/3/..;/admin", False),
    ],
)
async def test_a_bound_on_an_address_holds_for_redirects(location: str, reached: bool) -> None:
    """Rule T2: ``policy.arguments`` restricts the target of a redirect like the URL in the arguments."""
    away, page = (
        Answer(b"", 302, {"Location": location}),
        Answer(b"s3cret", 200, {"Content-Type": "text/plain"}),
    )
    async with local_service(away, page) as service:
        host = service.url.removeprefix("http://")
        bound = ArgumentBound(pattern=f"{service.url}/3/.*")
        clock = MovingClock()
        runner = await bench(
            web_provider(service.capabilities(clock), hosts=(host,)),
            clock,
            arguments={"web__*": {"url": bound}},
        )
        result = await runner.call("web__fetch_page", {"url": f"{service.url}/3/page"})
        assert result.ok is reached
        assert len(service.asked) == 1 + reached
        assert ("s3cret" in result.content) is reached
        for escape in ("/3/../admin", "/3/%2e%2e/admin", "/3/..%2fadmin", "/admin"):
            refused = await runner.call("web__fetch_page", {"url": service.url + escape})
            assert refused.error_code in ("invalid_arguments", "policy_denied")
        assert len(service.asked) == 1 + reached


async def test_a_kept_page_is_not_given_past_another_bound() -> None:
    """The cache does not serve a redirected page to a call whose policy forbids the redirect's target."""
    away, page = (
        Answer(b"", 302, {"Location": "/admin"}),
        Answer(b"s3cret", 200, {"Content-Type": "text/plain"}),
    )
    async with local_service(away, page, away) as service:
        clock = MovingClock()
        host = service.url.removeprefix("http://")
        runner = await bench(web_provider(service.capabilities(clock), hosts=(host,)), clock)
        arguments = {"url": f"{service.url}/3/page"}
        assert (await runner.call("web__fetch_page", arguments)).ok
        bound = ArgumentBound(pattern=f"{service.url}/3/.*")
        narrow = Policy(allow=("*",), arguments={"web__*": {"url": bound}})
        assert not (await runner.call("web__fetch_page", arguments, policy=narrow)).ok
