"""``core__get_weather`` over real HTTP against a server with the errors that Open-Meteo documents."""

from datetime import UTC, datetime
from typing import Any

import pytest
from local_service import Answer, Service, local_service

from proxy.base.errors import ToolFailure
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.core import core_provider
from proxy.tools.contract.provider import CallContext

CLOCK = FixedClock(datetime(2026, 11, 21, 13, 6, tzinfo=UTC))
PLACE = Answer({"results": [{"name": "Rome", "latitude": 41.9, "longitude": 12.5}], "generationtime_ms": 1.1})
NOW = Answer({"latitude": 41.9, "longitude": 12.5, "current": {"temperature_2m": 7.4, "weather_code": 61}})
WEATHER = {"location": "Rome", "temperature_c": 7.4, "conditions": "light rain"}
BUSY = "s3cret: Minutely API request limit exceeded. Please try again in one minute."


def refusal(status: int, reason: str = "s3cret", **headers: str) -> Answer:
    """An error in the form of https://open-meteo.com/en/docs#errors."""
    return Answer(
        {"error": True, "reason": reason}, status, {k.replace("_", "-"): v for k, v in headers.items()}
    )


async def weather(service: Service, location: str = "Rome") -> Any:
    """Call the tool for a location against that server and return the result."""
    provider = core_provider(
        CLOCK,
        service.pool.client,
        geocoding_url=f"{service.url}/geo",
        forecast_url=f"{service.url}/now",
    )
    spec = next(spec for spec in await provider.list_tools() if spec.name == "core__get_weather")
    return await provider.call_tool(
        spec, spec.validate({"location": location}), CallContext("run", "inv", "caller", "call")
    )


REFUSALS = [
    (
        refusal(400, "Parameter 'latitude' s3cret"),
        "does not take these arguments",
        "invalid_arguments",
        False,
    ),
    (refusal(429, BUSY), "too many requests; try again later", "execution_failed", True),
    (refusal(502), "not available; try again later", "execution_failed", True),
    (refusal(404), "refused the request", "execution_failed", False),
    (Answer(b"<html>s3cret</html>", 429), "too many requests", "execution_failed", True),
]


@pytest.mark.parametrize(("refused", "said", "code", "transient"), REFUSALS)
@pytest.mark.parametrize("before", [(), (PLACE,)], ids=["geocoding", "forecast"])
async def test_refusals(
    before: tuple[Answer, ...], refused: Answer, said: str, code: str, transient: bool
) -> None:
    """Rule T3: the tool has its own message for each error of either API and never repeats the API's."""
    async with local_service(*before, refused) as service:
        with pytest.raises(ToolFailure, match=f"the weather service .*{said}") as caught:
            await weather(service)
    assert (caught.value.code, caught.value.transient) == (code, transient)
    assert "s3cret" not in caught.value.message
    assert service.waits == ([0.25] if refused.status == 429 else [])
    assert len(service.asked) == len(before) + 1 + len(service.waits)


@pytest.mark.parametrize(
    ("headers", "waits"), [({}, [0.25]), ({"Retry_After": "1"}, [1.0]), ({"Retry_After": "0"}, [0.0])]
)
async def test_too_many_requests_are_asked_again(headers: dict[str, Any], waits: list[float]) -> None:
    """After a 429 the tool repeats the request, after the Retry-After or else after 0.25 seconds."""
    async with local_service(PLACE, refusal(429, BUSY, **headers), NOW) as service:
        assert await weather(service) == WEATHER
    assert service.waits == waits
    assert [asked.path for asked in service.asked] == ["/geo", "/now", "/now"]
    assert service.asked[1].query == service.asked[2].query


async def test_a_long_limit_is_not_waited_for() -> None:
    """If the rate limit ends only much later, the call fails at once and the tool does not retry."""
    async with local_service(refusal(429, BUSY, Retry_After="60")) as service:
        with pytest.raises(ToolFailure, match="too many requests"):
            await weather(service)
    assert (len(service.asked), service.waits) == (1, [])


def place(name: str, admin1: str | None, country: str | None, code: str) -> dict[str, Any]:
    """One hit in the form of https://open-meteo.com/en/docs/geocoding-api."""
    found = {"id": 1, "name": name, "latitude": 1.0, "longitude": 2.0, "feature_code": "PPL"}
    return {**found, "country_code": code, "admin1": admin1, "country": country, "timezone": "Etc/UTC"}


US = "United States"
SPRINGFIELDS = [
    place("Springfield", "Missouri", US, "US"),
    place("Springfield", "Massachusetts", US, "US"),
    place("Springfield", "Illinois", US, "US"),
    place("Springfield", "Ontario", "Canada", "CA"),
    place("Springfield", "England", "United Kingdom", "GB"),
    place("Springfield", None, None, "NZ"),
]


@pytest.mark.parametrize(
    ("location", "where"),
    [
        ("Springfield, Illinois", "Springfield, Illinois, United States"),
        ("Springfield, IL, USA", "Springfield, Illinois, United States"),
        ("Springfield,MA", "Springfield, Massachusetts, United States"),
        ("springfield , united states", "Springfield, Missouri, United States"),
        ("Springfield, U.S.", "Springfield, Missouri, United States"),
        ("Springfield, Elsewhere, Canada", "Springfield, Ontario, Canada"),
        ("Springfield, UK", "Springfield, England, United Kingdom"),
        ("Springfield, NZ", "Springfield"),
        ("Springfield,", "Springfield"),
    ],
)
async def test_a_city_with_where_it_is(location: str, where: str) -> None:
    """For "Paris, France" the tool searches for "Paris" alone and chooses the hit in France."""
    async with local_service(Answer({"results": SPRINGFIELDS}), NOW) as service:
        assert (await weather(service, location))["location"] == where
    asked = service.asked[0].query
    assert (asked["name"].casefold(), asked["count"]) == (
        "springfield",
        "1" if location.endswith(",") else "100",
    )


@pytest.mark.parametrize("location", ["Springfield, Atlantis", "Springfield, XY", "Springfield, nois"])
async def test_a_city_that_is_not_there(location: str) -> None:
    """If no hit lies in the place named, the result says so and how to ask again, without any weather."""
    async with local_service(Answer({"results": SPRINGFIELDS})) as service:
        result = await weather(service, location)
    assert result == {
        "found": False,
        "message": "no place of this name is known there; try the name of the city alone",
    }


@pytest.mark.parametrize("location", [", France", "x" * 201, "Rome" + ", x" * 100])
async def test_what_can_be_no_city_is_not_asked_for(location: str) -> None:
    """The tool refuses a location without a name, or one that is too long, and sends no request."""
    async with local_service() as service:
        with pytest.raises(ToolFailure, match="give the name of a city"):
            await weather(service, location)
    assert service.asked == []
