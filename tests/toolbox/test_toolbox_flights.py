"""``flights__search_flights`` against a local server that answers as Duffel documents."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from duffel_bodies import airline, airport, error, offer, offers, segment, trip_slice
from local_service import Answer, Asked, Connection, Service, local_service, use

from proxy.base.errors import ToolFailure
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.flights import flights_provider
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import ArgumentsInvalid, CallContext
from proxy.tools.contract.redaction import redact_output
from proxy.tools.contract.spec import ToolEffect
from proxy.tools.providers.function import FunctionProvider

CLOCK = FixedClock(datetime(2026, 11, 21, 13, 6, tzinfo=UTC))
TRIP = {"origin": "LHR", "destination": "JFK", "departure_date": "2027-03-01"}


def flights(service: Service, **settings: Any) -> FunctionProvider:
    """The provider of the tool with the local server's URL."""
    return flights_provider(service.capabilities(CLOCK), base_url=service.url, **settings)


async def search(*answers: Any, **arguments: Any) -> Any:
    """Run one search against a server with these answers and return the result."""
    async with local_service(*answers) as service:
        return await use(flights(service), {**TRIP, **arguments})


async def test_the_tool_as_it_is_loaded() -> None:
    """Rules T4 and T8: the tool has the expected arguments and effect, and loads without a connection."""
    (spec,) = await flights_provider(Capabilities(clock=CLOCK)).list_tools()
    assert spec.name == "flights__search_flights"
    assert spec.effect is ToolEffect.READ_ONLY
    assert (spec.connection, spec.cache_ttl_s, spec.egress) == ("duffel", 1800, False)
    properties = spec.parameters["properties"]
    assert list(properties) == [
        "origin",
        "destination",
        "departure_date",
        "return_date",
        "adults",
        "cabin_class",
        "max_connections",
    ]
    assert spec.parameters["required"] == ["origin", "destination", "departure_date"]
    assert {name: field.get("default") for name, field in properties.items() if "default" in field} == {
        "return_date": None,
        "adults": 1,
        "cabin_class": "economy",
        "max_connections": 2,
    }
    assert properties["cabin_class"]["enum"] == ["economy", "premium_economy", "business", "first"]


async def test_unconnected() -> None:
    """Rule T6: if the connection is not set up, the call fails with a message that names it."""
    with pytest.raises(ToolFailure, match='"duffel" is not set up'):
        await use(flights_provider(Capabilities(clock=CLOCK)), TRIP)


async def test_one_way() -> None:
    """The tool sends one request as Duffel documents it and returns every field of its contract."""
    async with local_service(Answer(offers(offer()), 201)) as service:
        result = await use(flights(service), {**TRIP, "origin": "lhr"})
    assert service.asked == [
        Asked(
            "POST",
            "/air/offer_requests",
            {"return_offers": "true", "supplier_timeout": "6000"},
            service.asked[0].headers,
            {
                "data": {
                    "slices": [{"origin": "LHR", "destination": "JFK", "departure_date": "2027-03-01"}],
                    "passengers": [{"type": "adult"}],
                    "cabin_class": "economy",
                    "max_connections": 2,
                }
            },
        )
    ]
    sent = service.asked[0].headers
    assert sent["duffel-version"] == "v2"
    assert sent["authorization"] == "Bearer s3cret-token"
    assert sent["accept"] == "application/json"
    assert result == [
        {
            "id": "off_00009htYpSCXrwaB9DnUm0",
            "airline": "BA",
            "airline_name": "British Airways",
            "flight_number": "BA0117",
            "origin": {"code": "LHR", "name": "Heathrow Airport"},
            "destination": {"code": "JFK", "name": "John F. Kennedy International Airport"},
            "departure": {"date": "2027-03-01", "time": "09:25", "datetime": "2027-03-01T09:25:00"},
            "arrival": {"date": "2027-03-01", "time": "12:20", "datetime": "2027-03-01T12:20:00"},
            "duration_minutes": 475,
            "stops": 0,
            "direct": True,
            "price": {"amount": "250.50", "currency": "GBP"},
            "tax": {"amount": "40.80", "currency": "GBP"},
            "total": {"amount": "291.30", "currency": "GBP"},
            "expires_at": "2026-11-21T13:25:00Z",
        }
    ]


async def test_return_trip() -> None:
    """A return trip asks for both directions; the top level shows the outward one with its stops."""
    there = trip_slice(
        segment("LHR", "DUB", "2027-03-01T06:00:00", "2027-03-01T07:20:00"),
        segment("DUB", "JFK", "2027-03-01T09:00:00", "2027-03-01T11:40:00", stops=[{"id": "sto_1"}]),
        duration="P0DT10H40M",
    )
    back = trip_slice(
        segment("JFK", "LHR", "2027-03-08T22:00:00", "2027-03-09T10:00:00"), duration="P1DT1H1M"
    )
    async with local_service(Answer(offers(offer(there, back)), 201)) as service:
        (found,) = await use(
            flights(service),
            {**TRIP, "return_date": "2027-03-08", "adults": 2, "cabin_class": "first", "max_connections": 1},
        )
    assert service.asked[0].body["data"] == {
        "slices": [
            {"origin": "LHR", "destination": "JFK", "departure_date": "2027-03-01"},
            {"origin": "JFK", "destination": "LHR", "departure_date": "2027-03-08"},
        ],
        "passengers": [{"type": "adult"}, {"type": "adult"}],
        "cabin_class": "first",
        "max_connections": 1,
    }
    assert (found["stops"], found["direct"], found["duration_minutes"]) == (2, False, 640)
    assert (found["origin"]["code"], found["destination"]["code"]) == ("LHR", "JFK")
    assert [(one["origin"]["code"], one["destination"]["code"]) for one in found["slices"]] == [
        ("LHR", "JFK"),
        ("JFK", "LHR"),
    ]
    assert found["slices"][1]["duration_minutes"] == 25 * 60 + 1
    assert found["slices"][1]["arrival"]["date"] == "2027-03-09"
    assert set(found["slices"][0]) <= set(found)


async def test_no_offers() -> None:
    """A search without offers gives an empty list; if all offers have expired, the list has only a note."""
    assert await search(Answer(offers(), 201)) == []
    assert await search(Answer(offers(offer(expires_at="2026-11-21T13:05:59Z")), 201)) == [
        {"note": "1 of 1 offers are left out: 1 expired"}
    ]


async def test_what_duffel_leaves_open() -> None:
    """Values that Duffel leaves out are null; a missing duration is computed if the zones are known."""
    there = trip_slice(
        segment("LHR", "JFK", "2027-03-01T09:25:00", "2027-03-01T12:20:00"),
        duration=None,
    )
    there["segments"][0] |= {
        "marketing_carrier": airline(None, "Nobody Air"),
        "marketing_carrier_flight_number": "12",
    }
    (found,) = await search(
        Answer(
            offers(offer(there, tax_amount=None, tax_currency=None, owner=airline(None, "Nobody Air"))), 201
        )
    )
    assert found["tax"] is None
    assert (found["airline"], found["airline_name"], found["flight_number"]) == (None, "Nobody Air", "12")
    assert found["duration_minutes"] == 7 * 60 + 55
    there["segments"][0]["origin"] = airport("LHR", time_zone="Mars/Base")
    there["segments"][0]["marketing_carrier_flight_number"] = None
    (found,) = await search(Answer(offers(offer(there)), 201))
    assert (found["duration_minutes"], found["flight_number"]) == (None, None)


async def test_cheapest_first_and_bounded() -> None:
    """The tool sorts offers by price as a number and shows the 50 cheapest."""
    many = [offer(id=f"off_{price}", total_amount=f"{price}.00") for price in range(130, 70, -1)]
    async with local_service(Answer(offers(*many), 201)) as service:
        context = CallContext("run", "inv", "caller", "call", max_result_bytes=1 << 20)
        *shown, note = await use(flights(service), TRIP, context)
    assert [one["id"] for one in shown] == [f"off_{price}" for price in range(71, 121)]
    assert note == {"note": "10 of 60 offers are left out: 10 dearer, as 50 are shown at most"}


@pytest.mark.parametrize("max_bytes", [256, 3000, 20000])
async def test_what_does_not_fit_is_told(max_bytes: int) -> None:
    """Rule T7: the tool shows as many offers as fit in the result, and a note counts those left out."""
    prices = range(130, 70, -1)
    many: list[object] = [offer(id=f"off_{price}", total_amount=f"{price}.00") for price in prices]
    many += [offer(expires_at="2026-11-21T13:05:59Z"), offer(total_amount="s3cret"), None]
    async with local_service(Answer(offers(*many), 201)) as service:
        context = CallContext("run", "inv", "caller", "call", max_result_bytes=max_bytes)
        result = await use(flights(service), TRIP, context)
    *shown, note = result
    assert [one["id"] for one in shown] == [f"off_{price}" for price in range(71, 71 + len(shown))]
    assert note == {
        "note": f"{63 - len(shown)} of 63 offers are left out: 10 dearer, as 50 are shown at most; "
        f"{50 - len(shown)} dearer, for want of room in the result; 1 expired; "
        "2 in an unexpected form"
    }
    size, one_more = len(orjson.dumps(result)), len(orjson.dumps(shown[0])) + 1
    if max_bytes == 256:
        assert len(shown) == 1, "one is always shown"
    else:
        assert size <= max_bytes < size + one_more + 10
    (spec,) = await flights_provider(Capabilities(clock=CLOCK)).list_tools()
    assert spec.redaction is not None
    assert redact_output([note], spec.redaction) == [note]


async def test_never_cached_past_an_offer() -> None:
    """The cache keeps a result only until the first of its offers expires."""
    first = offer(expires_at="2026-11-21T13:10:00Z")
    async with local_service(Answer(offers(offer(), first, offer()), 201)) as service:
        context = CallContext("run", "inv", "caller", "call")
        await use(flights(service), TRIP, context)
    assert context.signals.cache.until == datetime(2026, 11, 21, 13, 10, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "broken",
    [
        {"total_amount": "s3cret"},
        {"total_amount": "NaN"},
        {"total_currency": "s3cret"},
        {"expires_at": "2026-11-21T13:25:00"},
        {"slices": []},
        {"slices": [trip_slice(segment("LHR", "JFK", "s3cret", "2027-03-01T12:20:00"))]},
        {"owner": None},
        {"id": "x" * 300},
    ],
)
async def test_an_offer_that_makes_no_sense(broken: dict[str, Any]) -> None:
    """The tool leaves out an invalid offer; if all offers are invalid, the search fails and quotes none."""
    found, note = await search(Answer(offers(offer(**broken), offer()), 201))
    assert found["id"] == offer()["id"]
    assert note == {"note": "1 of 2 offers are left out: 1 in an unexpected form"}
    with pytest.raises(ToolFailure, match="unexpected form") as caught:
        await search(Answer(offers(offer(**broken)), 201))
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize("body", [None, [], {}, {"data": None}, {"data": {"offers": {}}}, b"", b"<html>"])
async def test_an_answer_that_makes_no_sense(body: object) -> None:
    """A response body of another form is a failure, not an empty list."""
    with pytest.raises(ToolFailure, match=r"unexpected form|not JSON"):
        await search(Answer(body, 201))


@pytest.mark.parametrize(
    ("status", "kind", "code", "source", "said", "as_code"),
    [
        (401, "authentication_error", "expired_access_token", None, "credentials", "execution_failed"),
        (403, "authentication_error", "insufficient_permissions", None, "credentials", "execution_failed"),
        (429, "rate_limit_error", "rate_limit_exceeded", None, "too many searches", "execution_failed"),
        (
            422,
            "validation_error",
            "validation_format",
            {"field": "origin", "pointer": "/slices/0/origin"},
            "does not take this origin",
            "invalid_arguments",
        ),
        (
            422,
            "validation_error",
            "validation_required",
            {"pointer": "/s3cret"},
            "these arguments",
            "invalid_arguments",
        ),
        (
            400,
            "invalid_request_error",
            "malformed_data_param",
            None,
            "these arguments",
            "invalid_arguments",
        ),
        (502, "airline_error", "airline_unknown", "iberia", "airline could not answer", "execution_failed"),
        (500, "api_error", "internal_server_error", None, "not available", "execution_failed"),
        (404, "invalid_request_error", "not_found", None, "refused the search", "execution_failed"),
        (418, "s3cret", "s3cret", None, "refused the search", "execution_failed"),
    ],
)
async def test_errors(
    status: int, kind: str, code: str, source: dict[str, Any] | str | None, said: str, as_code: str
) -> None:
    """The tool has its own message for each kind of error and never repeats Duffel's message."""
    with pytest.raises(ToolFailure, match=said) as caught:
        await search(Answer(error(status, kind, code, source), status))
    assert caught.value.code == as_code
    assert "s3cret" not in caught.value.message


async def test_errors_without_a_body() -> None:
    """If an error body is not in Duffel's form, the tool chooses its message by the HTTP status."""
    for body in (b"<html>s3cret</html>", b""):
        with pytest.raises(ToolFailure, match="status 504") as caught:
            await search(Answer(body, 504))
        assert "s3cret" not in caught.value.message
    with pytest.raises(ToolFailure, match="not available"):
        await search(Answer([1], 504))


async def test_rate_limit_is_tried_once_more() -> None:
    """The tool repeats a search once after a 429 and returns the offers."""
    refused = Answer(
        error(429, "rate_limit_error", "rate_limit_exceeded"),
        429,
        {
            "ratelimit-limit": "60",
            "ratelimit-remaining": "0",
            "ratelimit-reset": "Sat, 21 Nov 2020 13:07:00 GMT",
        },
    )
    async with local_service(refused, Answer(offers(offer()), 201)) as service:
        assert len(await use(flights(service), TRIP)) == 1
    assert len(service.asked) == 2
    assert service.waits == [0.0]


async def test_a_long_rate_limit_is_not_waited_for() -> None:
    """If the rate limit resets only much later, the call fails at once and the tool does not retry."""
    refused = Answer(
        error(429, "rate_limit_error", "rate_limit_exceeded"),
        429,
        {"ratelimit-remaining": "0", "ratelimit-reset": "Fri, 31 Dec 9999 23:59:59 GMT"},
    )
    async with local_service(refused) as service:
        with pytest.raises(ToolFailure, match="too many searches"):
            await use(flights(service), TRIP)
    assert (len(service.asked), service.waits) == (1, [])


async def test_a_search_is_asked_again_after_503() -> None:
    """A search has no side effect, so the tool retries its POST after a 503 without a Retry-After, too."""
    async with local_service(Answer([], 503), Answer(offers(offer()), 201)) as service:
        assert len(await use(flights(service), TRIP)) == 1
    assert [asked.method for asked in service.asked] == ["POST", "POST"]
    assert service.waits == [0.25]


async def test_expired_token_is_renewed_once() -> None:
    """After a 401 the tool renews the token once and repeats the search; a second 401 is a failure."""
    refused = Answer(error(401, "authentication_error", "expired_access_token"), 401)
    async with local_service(
        refused, Answer(offers(offer()), 201), connection=Connection("old", "new")
    ) as service:
        assert len(await use(flights(service), TRIP)) == 1
    assert [one.headers["authorization"] for one in service.asked] == ["Bearer old", "Bearer new"]
    async with local_service(refused, connection=Connection("old", "new", "third")) as service:
        with pytest.raises(ToolFailure, match="credentials") as caught:
            await use(flights(service), TRIP)
    assert len(service.asked) == 2
    assert "new" not in caught.value.message


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"destination": "lhr"}, "the same"),
        ({"departure_date": "2026-11-19"}, "in the past"),
        ({"return_date": "2027-02-28"}, "before departure_date"),
    ],
)
async def test_trips_that_nobody_sells(changed: dict[str, Any], said: str) -> None:
    """The tool refuses an impossible trip and sends no request."""
    async with local_service(Answer(offers())) as service:
        with pytest.raises(ToolFailure, match=said) as caught:
            await use(flights(service), {**TRIP, **changed})
    assert caught.value.code == "invalid_arguments"
    assert service.asked == []


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": "LOND"},
        {"origin": "L1R"},
        {"departure_date": "01.03.2027"},
        {"departure_date": 20270301},
        {"adults": 0},
        {"adults": 10},
        {"cabin_class": "any"},
        {"max_connections": -1},
        {"children": 1},
    ],
)
async def test_arguments_are_strict(changed: dict[str, Any]) -> None:
    """Rule T3: values out of range, wrong types and unknown fields are refused."""
    with pytest.raises(ArgumentsInvalid):
        await use(flights_provider(Capabilities(clock=CLOCK)), {**TRIP, **changed})


@pytest.mark.parametrize(("timeout_s", "wait"), [(1, "2000"), (30, "18000"), (600, "60000")])
async def test_airlines_get_the_time_that_a_call_has(timeout_s: int, wait: str) -> None:
    """The supplier timeout sent to Duffel is a share of the tool's timeout, within Duffel's limits."""
    async with local_service(Answer(offers(), 201)) as service:
        await use(flights(service, timeout_s=timeout_s), TRIP)
    assert service.asked[0].query["supplier_timeout"] == wait


async def test_redaction_shows_flights_and_prices() -> None:
    """Rule T4: the record has the whole result: flights, times and prices are not private."""
    async with local_service(Answer(offers(offer()), 201)) as service:
        provider = flights(service)
        result = await use(provider, TRIP)
        (spec,) = await provider.list_tools()
    assert spec.redaction is not None
    assert redact_output(result, spec.redaction) == result
