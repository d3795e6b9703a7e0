"""``flights__search_flights``: available flights and their prices, from Duffel.

It makes one call of https://duffel.com/docs/api/offer-requests/create-offer-request with ``return_offers``.
Nothing is booked: an offer request only asks airlines for prices, so it counts as reading. Offers have the
fields of https://duffel.com/docs/api/offers/schema; other fields are ignored.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
from msgspec import Struct
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NaiveDatetime,
    StringConstraints,
    ValidationError,
)

from proxy.base.errors import ToolFailure
from proxy.toolbox.services import checked
from proxy.tools.access.hosts import host_entry
from proxy.tools.contract.capabilities import (
    CacheControl,
    Capabilities,
    Clock,
    HttpClient,
    HttpFailure,
    QueryParams,
)
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider, tool

DUFFEL_URL = "https://api.duffel.com"
CONNECTION = "duffel"

_VERSION = "v2"
_SERVICE = "the flight service"
_CACHE_S = 1800.0
_MAX_OFFERS = 50
_LEAST_WAIT_MS, _MOST_WAIT_MS = 2000, 60000
_AIRLINES_SHARE = 0.6
_FIRST_ZONE = timezone(timedelta(hours=-12))
"""The zone where a day ends last: a day that is past there is past everywhere."""

_T = TypeVar("_T")
_Line = Annotated[str, Field(max_length=200)]
_Amount = Annotated[Decimal, Field(max_digits=15, allow_inf_nan=False)]
_Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
_Few = Annotated[list[_T], Field(max_length=16)]


class _Reading(BaseModel):
    """Part of an answer; fields that are not named here are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Airline(_Reading):
    """An airline; a few have no code."""

    iata_code: _Line | None = None
    name: _Line


class _Airport(_Reading):
    """The origin or destination of a slice or segment."""

    iata_code: _Line
    name: _Line
    time_zone: _Line | None = None


class _Segment(_Reading):
    """One flight; its times are local, without a zone."""

    origin: _Airport
    destination: _Airport
    departing_at: NaiveDatetime
    arriving_at: NaiveDatetime
    marketing_carrier: _Airline
    marketing_carrier_flight_number: _Line | None = None
    stops: _Few[dict[str, Any]] = []


class _Slice(_Reading):
    """One direction of a journey."""

    origin: _Airport
    destination: _Airport
    duration: timedelta | None = None
    segments: Annotated[list[_Segment], Field(min_length=1, max_length=16)]


class _Offer(_Reading):
    """A journey and its price."""

    id: _Line
    owner: _Airline
    expires_at: AwareDatetime
    slices: Annotated[list[_Slice], Field(min_length=1, max_length=2)]
    base_amount: _Amount | None = None
    base_currency: _Currency | None = None
    tax_amount: _Amount | None = None
    tax_currency: _Currency | None = None
    total_amount: _Amount
    total_currency: _Currency


class _Offers(_Reading):
    """The fields of an offer request that are read. Offers are checked one by one."""

    offers: Annotated[list[Any], Field(max_length=20000)]


class _Answer(_Reading):
    """The object in which Duffel sends an answer."""

    data: _Offers


class _Error(_Reading):
    """One error from Duffel; its messages are ignored."""

    type: str = ""
    code: str = ""
    source: Any = None


class _Errors(_Reading):
    """The errors in an answer from Duffel."""

    errors: list[_Error] = []


_ERROR_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "authentication_error": "the flight service does not take the credentials it was given",
        "rate_limit_error": "the flight service has had too many searches; try again in a minute",
        "airline_error": "an airline could not answer; try again, or search other dates",
        "invalid_state_error": "the flight service cannot search for this now",
    }
)

_Code = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{3}$", to_upper=True)]
_Cabin = Literal["economy", "premium_economy", "business", "first"]

_REDACTION = Redaction(
    output=tuple(
        f"*.{field}"
        for field in (
            "note",
            *("id", "airline", "airline_name", "flight_number", "origin", "destination"),
            *("departure", "arrival", "duration_minutes", "stops", "direct", "slices"),
            *("price", "tax", "total", "expires_at"),
        )
    )
)


def flights_provider(
    capabilities: Capabilities, *, base_url: str = DUFFEL_URL, timeout_s: float = 10.0
) -> FunctionProvider:
    """Build the provider ``flights``. It needs a clock and the connection ``duffel``.

    ``base_url`` is the address of Duffel's API. ``timeout_s`` is the time limit of a call. Airlines that
    need more than 0.6 of it are left out of an answer, so that the offers of the others arrive in time.
    """
    return FunctionProvider("flights", [_search_tool(base_url, timeout_s)], capabilities)


def _search_tool(base_url: str, timeout_s: float) -> Callable[..., Any]:
    """Build the tool for one address."""
    url = f"{base_url.rstrip('/')}/air/offer_requests"
    wait_ms = int(min(max(_AIRLINES_SHARE * timeout_s * 1000, _LEAST_WAIT_MS), _MOST_WAIT_MS))

    @tool(
        name="search_flights",
        description=(
            "Search flights with prices, one way or return. Gives a list of offers, cheapest first, "
            "50 at most; times are local to the airport. Where offers were found that are not in the list, "
            "its last element is a note that says how many and why"
        ),
        effect="read_only",
        redaction=_REDACTION,
        hosts=(host_entry(base_url),),
        connection=CONNECTION,
        cache_ttl_s=_CACHE_S,
        timeout_s=timeout_s,
    )
    async def search_flights(
        http: HttpClient,
        clock: Clock,
        cache: CacheControl,
        context: CallContext,
        origin: Annotated[_Code, Field(description="IATA code of the airport or city, e.g. BER")],
        destination: Annotated[_Code, Field(description="IATA code of the airport or city, e.g. LHR")],
        departure_date: Annotated[date, Field(description="YYYY-MM-DD")],
        return_date: Annotated[date | None, Field(description="YYYY-MM-DD, for a return trip")] = None,
        adults: Annotated[int, Field(description="Number of adults", ge=1, le=9)] = 1,
        cabin_class: Annotated[_Cabin, Field(description="Cabin to travel in")] = "economy",
        max_connections: Annotated[
            int, Field(description="Most changes of plane in one direction; 0 for direct flights", ge=0, le=3)
        ] = 2,
    ) -> list[dict[str, Any]]:
        """Return a list with one object for each offer, as :func:`_shown` makes it.

        Where offers were left out, ``{"note": "..."}`` comes last and says how many of them and why.
        Amounts are decimal text. The fields of the journey are those of the outward direction; a
        return trip has both in ``slices``. ``stops`` counts changes and technical stops.
        """
        trip = [(origin, destination, departure_date)]
        if return_date is not None:
            trip.append((destination, origin, return_date))
        _check_trip(trip, clock)
        body = _request(trip, adults, cabin_class, max_connections)
        params: QueryParams = {"return_offers": "true", "supplier_timeout": wait_ms}
        try:
            answer = await http.post_json(url, body, params, {"Duffel-Version": _VERSION})
        except HttpFailure as failure:
            raise _explained(failure) from None
        # Thousands of offers are possible, which are too many to read on the event loop.
        usable = await asyncio.to_thread(_usable, answer, clock.now(UTC))
        for offer in usable.offers:
            cache.expire_at(offer.expires_at)
        return _fitting(usable, context.max_result_bytes)

    return search_flights


def _request(
    trip: list[tuple[str, str, date]], adults: int, cabin_class: str, max_connections: int
) -> dict[str, Any]:
    """Build an offer request in Duffel's form."""
    slices = [
        {"origin": start, "destination": end, "departure_date": day.isoformat()} for start, end, day in trip
    ]
    return {
        "data": {
            "slices": slices,
            "passengers": [{"type": "adult"}] * adults,
            "cabin_class": cabin_class,
            "max_connections": max_connections,
        }
    }


def _check_trip(trip: list[tuple[str, str, date]], clock: Clock) -> None:
    """Refuse a trip that no airline can sell, before Duffel is asked."""
    start, end, day = trip[0]
    if start == end:
        raise ToolFailure("origin and destination are the same", code="invalid_arguments")
    if day < clock.now(_FIRST_ZONE).date():
        raise ToolFailure("departure_date is in the past", code="invalid_arguments")
    if trip[-1][2] < day:
        raise ToolFailure("return_date is before departure_date", code="invalid_arguments")


class _Found(Struct, frozen=True):
    """The cheapest offers of an answer, and the numbers of the others by reason."""

    offers: list[_Offer]
    expired: int
    unread: int
    dearer: int

    def note(self, shown: int) -> list[dict[str, str]]:
        """Build a note about the offers that are left out if the first ``shown`` are shown; empty if none
        are."""
        crowded = len(self.offers) - shown
        reasons = [
            f"{count} {reason}"
            for count, reason in (
                (self.dearer, f"dearer, as {_MAX_OFFERS} are shown at most"),
                (crowded, "dearer, for want of room in the result"),
                (self.expired, "expired"),
                (self.unread, "in an unexpected form"),
            )
            if count
        ]
        left_out = crowded + self.dearer + self.expired + self.unread
        if not left_out:
            return []
        return [{"note": f"{left_out} of {shown + left_out} offers are left out: {'; '.join(reasons)}"}]


def _usable(answer: Any, now: datetime) -> _Found:
    """Return the cheapest offers that have not expired; leave out malformed ones.

    Raises :class:`~proxy.base.errors.ToolFailure` if all of them are malformed.
    """
    listed = checked(_Answer, answer, _SERVICE).data.offers
    offers = []
    for item in listed:
        try:
            offers.append(_Offer.model_validate(item))
        except ValidationError:
            continue
    if listed and not offers:
        raise ToolFailure(f"{_SERVICE} answered in an unexpected form")
    live = sorted((offer for offer in offers if offer.expires_at > now), key=lambda offer: offer.total_amount)
    cheapest = live[:_MAX_OFFERS]
    return _Found(
        cheapest,
        expired=len(offers) - len(live),
        unread=len(listed) - len(offers),
        dearer=len(live) - len(cheapest),
    )


def _fitting(usable: _Found, max_bytes: int) -> list[dict[str, Any]]:
    """Return as many offers as a result may hold, at least one, and a note about the others.

    A list that ends early and says so is still a valid list; one that is cut in its middle is not.
    """
    shown = [_shown(offer) for offer in usable.offers]
    sizes = [len(orjson.dumps(offer)) + 1 for offer in shown]
    count = len(shown)
    while count > 1 and 2 + sum(sizes[:count]) + len(orjson.dumps(usable.note(count))) > max_bytes:
        count -= 1
    return [*shown[:count], *usable.note(count)]


def _shown(offer: _Offer) -> dict[str, Any]:
    """Return one offer as the model sees it."""
    shown = {
        "id": offer.id,
        "airline": offer.owner.iata_code,
        "airline_name": offer.owner.name,
        **_direction(offer.slices[0]),
        "price": _money(offer.base_amount, offer.base_currency),
        "tax": _money(offer.tax_amount, offer.tax_currency),
        "total": _money(offer.total_amount, offer.total_currency),
        "expires_at": offer.expires_at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    if len(offer.slices) > 1:
        shown["slices"] = [_direction(leg) for leg in offer.slices]
    return shown


def _direction(leg: _Slice) -> dict[str, Any]:
    """Return one direction of a journey as the model sees it."""
    first, last = leg.segments[0], leg.segments[-1]
    stops = len(leg.segments) - 1 + sum(len(segment.stops) for segment in leg.segments)
    number = first.marketing_carrier_flight_number
    return {
        "flight_number": f"{first.marketing_carrier.iata_code or ''}{number}" if number else None,
        "origin": {"code": first.origin.iata_code, "name": first.origin.name},
        "destination": {"code": last.destination.iata_code, "name": last.destination.name},
        "departure": _moment(first.departing_at),
        "arrival": _moment(last.arriving_at),
        "duration_minutes": _minutes(leg),
        "stops": stops,
        "direct": stops == 0,
    }


def _moment(at: datetime) -> dict[str, str]:
    """Return a local time in the three forms that people ask for."""
    return {"date": at.date().isoformat(), "time": at.strftime("%H:%M"), "datetime": at.isoformat()}


def _minutes(leg: _Slice) -> int | None:
    """Return the minutes of a direction: Duffel's own value, or the difference of the local times."""
    if leg.duration is not None:
        return int(leg.duration.total_seconds() // 60)
    first, last = leg.segments[0], leg.segments[-1]
    try:
        left = first.departing_at.replace(tzinfo=ZoneInfo(first.origin.time_zone or ""))
        arrived = last.arriving_at.replace(tzinfo=ZoneInfo(last.destination.time_zone or ""))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
    return int((arrived.astimezone(UTC) - left.astimezone(UTC)).total_seconds() // 60)


def _money(amount: Decimal | None, currency: str | None) -> dict[str, str] | None:
    """Return an amount and its currency; ``None`` if the airline does not give them."""
    return None if amount is None or currency is None else {"amount": f"{amount:f}", "currency": currency}


def _explained(failure: HttpFailure) -> ToolFailure:
    """Turn a failed request into a failure with the proxy's own words; Duffel's words are untrusted."""
    if failure.json is None:
        return failure  # This is not Duffel's answer: no connection, no credentials, a gateway's page.
    try:
        error = next(iter(_Errors.model_validate(failure.json).errors), _Error())
    except ValidationError:
        error = _Error()
    status = failure.status or 0
    if error.type in ("validation_error", "invalid_request_error") and status in (400, 422):
        return ToolFailure(_at_fault(error.source), code="invalid_arguments")
    if status in (401, 403):
        return ToolFailure(_ERROR_WORDS["authentication_error"])
    text = _ERROR_WORDS.get("rate_limit_error" if status == 429 else error.type)
    if text is not None:
        return ToolFailure(text, transient=failure.transient)
    if status >= 500:
        return ToolFailure("the flight service is not available; try again later", transient=True)
    return ToolFailure("the flight service refused the search")


def _at_fault(source: Any) -> str:
    """Name the argument that a validation error is about; use only the name of the field."""
    pointer = source.get("pointer") if isinstance(source, dict) else None
    named = source.get("field") if isinstance(source, dict) else None
    names = {str(pointer).rpartition("/")[2], str(named)}
    for field in ("origin", "destination", "departure_date", "cabin_class", "max_connections", "passengers"):
        if field in names:
            return f"the flight service does not take this {field}"
    return "the flight service does not take these arguments"
