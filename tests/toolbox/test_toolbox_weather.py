"""``core__get_weather`` against a server that refuses as Open-Meteo documents, over real HTTP."""

from datetime import UTC, datetime
from typing import Any

import pytest
from local_service import Answer, Service, local_service

from proxy.errors import ToolFailure
from proxy.toolbox.clock import FixedClock
from proxy.toolbox.core import core_provider
from proxy.tools.provider import CallContext

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


async def weather(service: Service) -> Any:
    """The weather in Rome, as that service tells it."""
    provider = core_provider(
        CLOCK,
        service.pool.client,
        geocoding_url=f"{service.url}/geo",
        forecast_url=f"{service.url}/now",
    )
    spec = next(spec for spec in await provider.list_tools() if spec.name == "core__get_weather")
    return await provider.call_tool(
        spec, spec.validate({"location": "Rome"}), CallContext("run", "inv", "caller", "call")
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
async def test_refusals(before, refused, said, code, transient):
    """Rule T3: each kind of refusal of either API has words of ours; its own are never repeated."""
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
async def test_too_many_requests_are_asked_again(headers, waits):
    """After a 429 the same question is put again, when the service says or after a moment."""
    async with local_service(PLACE, refusal(429, BUSY, **headers), NOW) as service:
        assert await weather(service) == WEATHER
    assert service.waits == waits
    assert [asked.path for asked in service.asked] == ["/geo", "/now", "/now"]
    assert service.asked[1].query == service.asked[2].query


async def test_a_long_limit_is_not_waited_for():
    """A limit that begins anew in a while is the model's to hear of: nothing is asked before that."""
    async with local_service(refusal(429, BUSY, Retry_After="60")) as service:
        with pytest.raises(ToolFailure, match="too many requests"):
            await weather(service)
    assert (len(service.asked), service.waits) == (1, [])
