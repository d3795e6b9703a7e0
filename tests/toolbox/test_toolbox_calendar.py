"""``calendar__list_events`` against a local server that answers as Google documents."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pytest
from local_service import Answer, Asked, Connection, Service, local_service, use

from proxy.base.errors import ToolFailure
from proxy.toolbox.calendar import calendar_provider
from proxy.toolbox.clock import FixedClock
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.redaction import redact_arguments, redact_output
from proxy.tools.contract.spec import ToolEffect
from proxy.tools.providers.function import FunctionProvider

CLOCK = FixedClock(datetime(2026, 11, 21, tzinfo=UTC))
DAY = {"time_min": "2026-11-21T00:00:00+01:00", "time_max": "2026-11-22T00:00:00+01:00"}


def event(number: int = 1, **changed: Any) -> dict[str, Any]:
    """An event with every field that Google documents for an ordinary one."""
    return {
        "kind": "calendar#event",
        "etag": '"3181161784712000"',
        "id": f"event{number}",
        "status": "confirmed",
        "htmlLink": "https://www.google.com/calendar/event?eid=abc",
        "created": "2026-11-01T08:00:00.000Z",
        "updated": "2026-11-02T09:30:00.000Z",
        "summary": f"Meeting {number}",
        "description": "<b>Agenda</b>",
        "location": "Room 1",
        "creator": {"email": "ada@example.com", "self": True},
        "organizer": {"email": "ada@example.com", "self": True},
        "start": {"dateTime": "2026-11-21T10:00:00+01:00", "timeZone": "Europe/Berlin"},
        "end": {"dateTime": "2026-11-21T11:00:00+01:00", "timeZone": "Europe/Berlin"},
        "iCalUID": f"event{number}@google.com",
        "sequence": 0,
        "attendees": [
            {"email": "ada@example.com", "organizer": True, "self": True, "responseStatus": "accepted"},
            {"email": "bob@example.com", "displayName": "Bob", "responseStatus": "needsAction"},
        ],
        "reminders": {"useDefault": True},
        "eventType": "default",
        **changed,
    }


def page(*items: Any, token: str | None = None) -> dict[str, Any]:
    """A page of events, with a token if another page follows."""
    body: dict[str, Any] = {
        "kind": "calendar#events",
        "etag": '"p33g9nqh"',
        "summary": "ada@example.com",
        "description": "",
        "updated": "2026-11-20T10:00:00.000Z",
        "timeZone": "Europe/Berlin",
        "accessRole": "owner",
        "defaultReminders": [{"method": "popup", "minutes": 10}],
        "items": list(items),
    }
    return body | (
        {"nextSyncToken": "CPDAlvWDx70CEPDAlvWDx70CGAU="} if token is None else {"nextPageToken": token}
    )


def error(code: int, reason: str, domain: str = "global") -> dict[str, Any]:
    """An error body of Google with messages that the tool must not repeat."""
    one = {"domain": domain, "reason": reason, "message": "s3cret message"}
    return {"error": {"errors": [one], "code": code, "message": "s3cret message"}}


def calendar(service: Service) -> FunctionProvider:
    """The provider of the tool with the local server's URL."""
    return calendar_provider(service.capabilities(CLOCK), base_url=f"{service.url}/calendar/v3")


async def list_events(*answers: Any, **arguments: Any) -> Any:
    """Call the tool once against a server with these answers and return the result."""
    async with local_service(*answers) as service:
        return await use(calendar(service), {**DAY, **arguments})


async def test_the_tool_as_it_is_loaded() -> None:
    """Rules T4 and T8: the tool has the expected arguments, effect and cache time, and untrusted output."""
    (spec,) = await calendar_provider(Capabilities(clock=CLOCK)).list_tools()
    assert spec.name == "calendar__list_events"
    assert spec.effect is ToolEffect.READ_ONLY
    assert spec.untrusted_output
    assert (spec.connection, spec.cache_ttl_s) == ("google_calendar", 300)
    properties = spec.parameters["properties"]
    assert list(properties) == ["calendar_id", "time_min", "time_max", "max_results", "single_events"]
    assert spec.parameters["required"] == ["time_min", "time_max"]
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    assert defaults == {"calendar_id": "primary", "max_results": 25, "single_events": False}
    assert properties["max_results"]["maximum"] == 2500
    with pytest.raises(ToolFailure, match='"google_calendar" is not set up'):
        await use(calendar_provider(Capabilities(clock=CLOCK)), DAY)


async def test_one_page() -> None:
    """The tool sends one request as Google documents it and returns only the fields of its contract."""
    async with local_service(Answer(page(event()))) as service:
        result = await use(calendar(service), DAY)
    (asked,) = service.asked
    assert asked == Asked(
        "GET",
        "/calendar/v3/calendars/primary/events",
        {
            "timeMin": "2026-11-21T00:00:00+01:00",
            "timeMax": "2026-11-22T00:00:00+01:00",
            "maxResults": "25",
            "singleEvents": "false",
            "fields": asked.query["fields"],
        },
        asked.headers,
        None,
    )
    assert asked.headers["authorization"] == "Bearer s3cret-token"
    assert result == [
        {
            "id": "event1",
            "summary": "Meeting 1",
            "description": "<b>Agenda</b>",
            "location": "Room 1",
            "start": {"dateTime": "2026-11-21T10:00:00+01:00"},
            "end": {"dateTime": "2026-11-21T11:00:00+01:00"},
            "created": "2026-11-01T08:00:00.000Z",
            "updated": "2026-11-02T09:30:00.000Z",
            "attendees": [{"email": "ada@example.com"}, {"email": "bob@example.com"}],
        }
    ]
    for field in result[0]:
        assert field in asked.query["fields"]


async def test_bare_and_whole_day_events() -> None:
    """Fields that an event lacks are null, and an all-day event has dates instead of times."""
    bare = {
        "id": "x",
        "status": "tentative",
        "start": {"date": "2026-11-21"},
        "end": {"date": "2026-11-22"},
        "attendees": [{"displayName": "A room"}],
    }
    (found,) = await list_events(Answer(page(bare)))
    assert found == {
        "id": "x",
        "summary": None,
        "description": None,
        "location": None,
        "start": {"date": "2026-11-21"},
        "end": {"date": "2026-11-22"},
        "created": None,
        "updated": None,
        "attendees": [],
    }


async def test_pages_are_followed() -> None:
    """The tool follows page tokens until a page has none, and goes on after an empty page."""
    answers = [
        Answer(page(event(1), token="a/b=")),
        Answer(page(token="c")),
        Answer(page(event(2), event(3))),
    ]
    async with local_service(*answers) as service:
        result = await use(calendar(service), {**DAY, "single_events": True, "max_results": 2500})
    assert [one["id"] for one in result] == ["event1", "event2", "event3"]
    assert [one.query.pop("pageToken", None) for one in service.asked] == [None, "a/b=", "c"]
    assert service.asked[0].query == service.asked[1].query == service.asked[2].query
    assert service.asked[0].query["orderBy"] == "startTime"
    assert service.asked[0].query["singleEvents"] == "true"
    assert service.asked[0].query["maxResults"] == "250"


async def test_no_more_than_asked_for() -> None:
    """The tool stops at ``max_results`` events, even in the middle of a page."""
    answers = [Answer(page(event(1), event(2), token="more")), Answer(page(event(3), event(4), token="more"))]
    async with local_service(*answers) as service:
        result = await use(calendar(service), {**DAY, "max_results": 3})
    assert [one["id"] for one in result] == ["event1", "event2", "event3"]
    assert len(service.asked) == 2


async def test_cancelled_events_are_dropped() -> None:
    """The tool skips cancelled events, does not count them, and reads the next page instead."""
    gone = {"kind": "calendar#event", "id": "gone", "status": "cancelled", "recurringEventId": "r"}
    answers = [Answer(page(gone, event(1), token="more")), Answer(page(gone, event(2)))]
    assert [one["id"] for one in await list_events(*answers, max_results=2)] == ["event1", "event2"]


async def test_no_events() -> None:
    """A calendar without events gives an empty list."""
    assert await list_events(Answer(page())) == []


@pytest.mark.parametrize("first", [[], [event(1), event(2)]], ids=["nothing yet", "some events"])
async def test_pages_without_end(first: list[dict[str, Any]]) -> None:
    """If the pages never end, the tool stops after 50 and fails instead of returning a partial list."""
    answers = [Answer(page(*first, token="again")), Answer(page(token="again"))]
    async with local_service(*answers) as service:
        with pytest.raises(ToolFailure, match="ask for a shorter time") as caught:
            await use(calendar(service), DAY)
    assert caught.value.code == "result_too_large"
    assert not caught.value.transient
    assert len(service.asked) == 50


async def test_as_many_pages_as_are_read() -> None:
    """The tool returns a list that ends, or reaches ``max_results``, on the 50th page."""
    before = [Answer(page(event(n), token="more")) for n in range(49)]
    for last, most in ((page(event(49)), 2500), (page(event(49), token="more"), 50)):
        result = await list_events(*before, Answer(last), max_results=most)
        assert [one["id"] for one in result] == [f"event{n}" for n in range(50)]


@pytest.mark.parametrize(
    "calendar_id",
    ["ada@example.com", "en.german#holiday@group.v.calendar.google.com", "%2e%2e", "a?b&c=d", "a b", "ü"],
)
async def test_calendar_ids_stay_one_part_of_the_path(calendar_id: str) -> None:
    """The tool encodes the calendar id as one path segment, so the id cannot change the rest of the URL."""
    async with local_service(Answer(page())) as service:
        await use(calendar(service), {**DAY, "calendar_id": calendar_id})
    (asked,) = service.asked
    *before, part, after = asked.path.split("/")
    assert (before, unquote(part), after) == (["", "calendar", "v3", "calendars"], calendar_id, "events")
    assert set(asked.query) == {"timeMin", "timeMax", "maxResults", "singleEvents", "fields"}


@pytest.mark.parametrize("calendar_id", [".", "..", "...", "../x", "a/b", "a\\b"])
async def test_steps_are_no_calendar(calendar_id: str) -> None:
    """The tool refuses an id of dots or with a slash or backslash, and sends no request."""
    async with local_service(Answer(page())) as service:
        with pytest.raises(ToolFailure, match="calendar_id"):
            await use(calendar(service), {**DAY, "calendar_id": calendar_id})
    assert service.asked == []


@pytest.mark.parametrize(
    ("status", "reason", "said", "code", "transient"),
    [
        (400, "timeRangeEmpty", "does not take these arguments", "invalid_arguments", False),
        (403, "forbidden", "may not read this calendar", "execution_failed", False),
        (403, "insufficientPermissions", "may not read this calendar", "execution_failed", False),
        (403, "rateLimitExceeded", "too many requests", "execution_failed", True),
        (403, "userRateLimitExceeded", "too many requests", "execution_failed", True),
        (403, "quotaExceeded", "too many requests", "execution_failed", True),
        (404, "notFound", "no calendar of this id", "execution_failed", False),
        (410, "deleted", "is gone", "execution_failed", False),
        (410, "updatedMinTooLongAgo", "is gone", "execution_failed", False),
        (429, "rateLimitExceeded", "too many requests", "execution_failed", True),
        (500, "backendError", "not available", "execution_failed", True),
        (409, "duplicate", "status 409", "execution_failed", False),
    ],
)
async def test_errors(status: int, reason: str, said: str, code: str, transient: bool) -> None:
    """The tool has its own message for each documented error and never repeats Google's message."""
    with pytest.raises(ToolFailure, match=said) as caught:
        await list_events(Answer(error(status, reason), status))
    assert (caught.value.code, caught.value.transient) == (code, transient)
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    "body", [b"<html>s3cret</html>", b"", {"error": "s3cret"}, [1], {"error": {"errors": [1]}}]
)
async def test_errors_of_another_form(body: bytes | dict[str, Any] | list[int]) -> None:
    """If an error body has another form, the tool chooses its message by the HTTP status alone."""
    with pytest.raises(ToolFailure, match="no calendar of this id") as caught:
        await list_events(Answer(body, 404))
    assert "s3cret" not in caught.value.message


async def test_an_error_on_a_later_page() -> None:
    """If a later page fails, the call fails; the tool does not return a partial list."""
    with pytest.raises(ToolFailure, match="not available"):
        await list_events(Answer(page(event(), token="more")), Answer(error(500, "backendError"), 500))


async def test_401_leads_to_one_refresh() -> None:
    """After a 401 the tool renews the token once and repeats the request; a second 401 is a failure."""
    refused = Answer(error(401, "authError"), 401)
    connection = Connection("old", "new")
    async with local_service(refused, Answer(page(event())), connection=connection) as service:
        assert len(await use(calendar(service), DAY)) == 1
    assert [one.headers["authorization"] for one in service.asked] == ["Bearer old", "Bearer new"]
    assert connection.renewals == 1
    async with local_service(refused, connection=Connection("old", "new", "third")) as service:
        with pytest.raises(ToolFailure, match="credentials") as caught:
            await use(calendar(service), DAY)
    assert len(service.asked) == 2
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"items": {}},
        {"items": [1]},
        {"items": [{}]},
        {"items": [event(start={})]},
        {"items": [event(start={"dateTime": "x", "date": "y"})]},
        {"items": [event(summary=["s3cret"])]},
        {"items": [event(id="x" * 2000)]},
        {"items": [], "nextPageToken": 7},
        b"s3cret",
    ],
)
async def test_an_answer_that_makes_no_sense(body: object) -> None:
    """A response body of another form is a failure, not an empty list."""
    with pytest.raises(ToolFailure, match=r"unexpected form|not JSON") as caught:
        await list_events(Answer(body))
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"time_min": "2026-11-21T00:00:00"}, "offset"),
        ({"time_min": "tomorrow"}, "time_min"),
        ({"time_min": 1795219200}, "time_min"),
        ({"calendar_id": ""}, "calendar_id"),
        ({"max_results": 0}, "max_results"),
        ({"max_results": 2501}, "max_results"),
        ({"single_events": "yes"}, "single_events"),
        ({"q": "x"}, "unknown field"),
    ],
)
async def test_arguments_are_strict(changed: dict[str, Any], said: str) -> None:
    """Rule T3: times without an offset, numbers out of range and unknown fields are refused."""
    with pytest.raises(ArgumentsInvalid, match=said):
        await use(calendar_provider(Capabilities(clock=CLOCK)), {**DAY, **changed})


@pytest.mark.parametrize("time_min", [DAY["time_max"], "2026-11-22T00:00:00Z"])
async def test_the_span_is_not_empty(time_min: str) -> None:
    """A time_min that is not before time_max is refused."""
    with pytest.raises(ToolFailure, match="before time_max") as caught:
        await use(calendar_provider(Capabilities(clock=CLOCK)), {**DAY, "time_min": time_min})
    assert caught.value.code == "invalid_arguments"


async def test_the_record_shows_ids_and_times() -> None:
    """Rule T4: the record has ids and times of events, but no texts, attendees or calendar id."""
    async with local_service(Answer(page(event()))) as service:
        provider = calendar(service)
        result = await use(provider, DAY)
        (spec,) = await provider.list_tools()
    assert spec.redaction is not None
    assert redact_output(result, spec.redaction) == [
        {
            "id": "event1",
            "start": {"dateTime": "2026-11-21T10:00:00+01:00"},
            "end": {"dateTime": "2026-11-21T11:00:00+01:00"},
            "created": "2026-11-01T08:00:00.000Z",
            "updated": "2026-11-02T09:30:00.000Z",
        }
    ]
    shown = redact_arguments({**DAY, "calendar_id": "ada@example.com"}, spec.redaction)
    assert shown == {**DAY, "calendar_id": "[private]"}
