"""``calendar__list_events``: the events of a Google calendar.

Source: ``events.list`` of https://developers.google.com/workspace/calendar/api/v3/reference/events/list, page
by page. The sender of an invitation writes its text, so the output is untrusted, and the record shows only
ids and times.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from proxy.base.errors import ToolFailure
from proxy.toolbox.services import checked
from proxy.tools.access.hosts import host_entry
from proxy.tools.contract.capabilities import Capabilities, HttpClient, HttpFailure, QueryParams
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider, tool

GOOGLE_CALENDAR_URL = "https://www.googleapis.com/calendar/v3"
CONNECTION = "google_calendar"

_SERVICE = "the calendar service"
_CACHE_S = 300.0
_PAGE = 250
_MAX_PAGES = 50
_FIELDS = (
    "nextPageToken,items(id,status,summary,description,location,start,end,created,updated,attendees/email)"
)
_RATE_REASONS = frozenset(
    {
        "calendarUsageLimitsExceeded",
        "dailyLimitExceeded",
        "quotaExceeded",
        "rateLimitExceeded",
        "userRateLimitExceeded",
    }
)
"""Reasons of a 403 that have nothing to do with permissions."""


class _Reading(BaseModel):
    """Part of an answer; fields that are not named here are ignored."""

    model_config = ConfigDict(extra="ignore")


class _When(_Reading):
    """A start or end: a point in time, or a day for an event that lasts all day."""

    dateTime: Annotated[str, Field(max_length=64)] | None = None
    date: Annotated[str, Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def _either(self) -> "_When":
        if (self.dateTime is None) == (self.date is None):
            raise ValueError("a time has either dateTime or date")
        return self

    def shown(self) -> dict[str, str | None]:
        """Return the field that is set."""
        return {"date": self.date} if self.dateTime is None else {"dateTime": self.dateTime}


class _Attendee(_Reading):
    """A person who was invited."""

    email: str | None = None


class _Event(_Reading):
    """An event that is not cancelled."""

    id: Annotated[str, Field(max_length=1100)]
    summary: str | None = None
    description: str | None = None
    location: str | None = None
    start: _When
    end: _When
    created: str | None = None
    updated: str | None = None
    attendees: list[_Attendee] = []

    def shown(self) -> dict[str, Any]:
        """Return the event as the model sees it; missing values are ``None``."""
        return {
            "id": self.id,
            "summary": self.summary,
            "description": self.description,
            "location": self.location,
            "start": self.start.shown(),
            "end": self.end.shown(),
            "created": self.created,
            "updated": self.updated,
            "attendees": [{"email": attendee.email} for attendee in self.attendees if attendee.email],
        }


class _Item(_Reading):
    """Any entry in a list of events; a cancelled one has little more than its id."""

    status: str | None = None


class _Page(_Reading):
    """One page of events."""

    items: Annotated[list[dict[str, Any]], Field(max_length=10000)] = []
    nextPageToken: Annotated[str, Field(max_length=4096)] | None = None


class _Reason(_Reading):
    """One reason of an error."""

    reason: str = ""


class _Error(_Reading):
    """An error; its messages are ignored."""

    errors: list[_Reason] = []


class _Failed(_Reading):
    """The object in which Google sends an error."""

    error: _Error


def _with_zone(moment: datetime) -> datetime:
    """Return ``moment`` if it has an offset; raise ValueError otherwise."""
    if moment.tzinfo is None:
        raise ValueError("needs an offset, as in 2030-01-31T00:00:00Z or 2030-01-31T00:00:00+01:00")
    return moment


_Moment = Annotated[datetime, AfterValidator(_with_zone)]


def calendar_provider(capabilities: Capabilities, *, base_url: str = GOOGLE_CALENDAR_URL) -> FunctionProvider:
    """Build the provider ``calendar``. It needs the connection ``google_calendar``.

    ``base_url`` is the address of version 3 of Google's Calendar API.
    """
    return FunctionProvider("calendar", [_list_tool(base_url.rstrip("/"))], capabilities)


def _list_tool(base_url: str) -> Callable[..., Any]:
    """Build the tool for one address."""

    @tool(
        name="list_events",
        description="List the events of a calendar between two moments",
        effect="read_only",
        redaction=Redaction(
            output=("*.id", "*.start", "*.end", "*.created", "*.updated"),
            private_arguments=("calendar_id",),  # Most ids are a person's mail address.
        ),
        hosts=(host_entry(base_url),),
        connection=CONNECTION,
        cache_ttl_s=_CACHE_S,
        untrusted_output=True,
    )
    async def list_events(
        *,
        http: HttpClient,
        calendar_id: Annotated[
            str, Field(description="The calendar; primary is the user's own", min_length=1, max_length=256)
        ] = "primary",
        time_min: Annotated[_Moment, Field(description="ISO 8601 with offset; events that end after it")],
        time_max: Annotated[_Moment, Field(description="ISO 8601 with offset; events that start before it")],
        max_results: Annotated[int, Field(description="Most events to list", ge=1, le=2500)] = 25,
        single_events: Annotated[
            bool, Field(description="true lists each occurrence of a recurring event, by start time")
        ] = False,
    ) -> list[dict[str, Any]]:
        """Return ``[{"id", "summary", "description", "location", "start", "end", "created",
        "updated", "attendees"}]``.

        ``start`` and ``end`` are ``{"dateTime"}``, or ``{"date"}`` for an event that lasts all day.
        """
        if time_min >= time_max:
            raise ToolFailure("time_min must be before time_max", code="invalid_arguments")
        if not calendar_id.strip(".") or "/" in calendar_id or "\\" in calendar_id:
            # No calendar has such an id, and in a URL it would change the path.
            raise ToolFailure("calendar_id is not the id of a calendar", code="invalid_arguments")
        url = f"{base_url}/calendars/{quote(calendar_id, safe='')}/events"
        query: dict[str, str | int | float] = {
            "timeMin": time_min.isoformat(),
            "timeMax": time_max.isoformat(),
            "maxResults": min(max_results, _PAGE),
            "singleEvents": "true" if single_events else "false",
            "fields": _FIELDS,
        }
        if single_events:
            query["orderBy"] = "startTime"
        return [event.shown() for event in await _read_pages(http, url, query, max_results)]

    return list_events


async def _read_pages(http: HttpClient, url: str, query: QueryParams, max_results: int) -> list[_Event]:
    """Read the first events that are not cancelled, page after page.

    Raises :class:`ToolFailure` if there are more pages than the limit: a part of the events
    would look like all of them.
    """
    events: list[_Event] = []
    token: str | None = None
    for _ in range(_MAX_PAGES):
        try:
            body = await http.get_json(url, {**query, "pageToken": token} if token else query)
        except HttpFailure as failure:
            raise _explained(failure) from None
        page = checked(_Page, body, _SERVICE)
        for item in page.items:
            # Cancelled occurrences come with recurring events, whatever the value of showDeleted is.
            if checked(_Item, item, _SERVICE).status != "cancelled":
                events.append(checked(_Event, item, _SERVICE))
            if len(events) == max_results:
                return events
        token = page.nextPageToken
        if not token:
            return events
    raise ToolFailure(
        "the calendar has too many events between these moments; ask for a shorter time",
        code="result_too_large",
    )


def _explained(failure: HttpFailure) -> ToolFailure:
    """Turn a failed request into a failure with the proxy's own words, by its status and Google's reasons.

    https://developers.google.com/workspace/calendar/api/guides/errors
    """
    status = failure.status
    reasons = _reasons(failure.json)
    if status == 429 or (status == 403 and reasons & _RATE_REASONS):
        return ToolFailure("the calendar service has had too many requests; try again later", transient=True)
    texts = {
        400: "the calendar service does not take these arguments",
        403: "the account that is connected may not read this calendar",
        404: "there is no calendar of this id, or the account that is connected cannot see it",
        410: "this calendar is gone: it was deleted, or can no longer be read from this moment on",
    }
    if status == 401 and failure.json is not None:
        return ToolFailure("the calendar service refused its credentials")
    if status is not None and status in texts:
        return ToolFailure(texts[status], code="invalid_arguments" if status == 400 else "execution_failed")
    if status is not None and status >= 500:
        return ToolFailure("the calendar service is not available; try again later", transient=True)
    return failure


def _reasons(body: Any) -> set[str]:
    """Return Google's error codes, without its messages."""
    try:
        return {error.reason for error in _Failed.model_validate(body).error.errors}
    except ValidationError:
        return set()
