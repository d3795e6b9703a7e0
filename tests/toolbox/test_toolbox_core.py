"""The tools ``get_current_time`` and ``get_weather`` of the provider ``core``: schemas and results."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest
from aiohttp import web
from http_fakes import Answers
from hypothesis import given
from hypothesis import strategies as st
from pytest_aiohttp import AiohttpServer

from proxy.base.errors import ConfigError, ToolFailure
from proxy.toolbox.clock import FixedClock, SystemClock
from proxy.toolbox.core import core_provider
from proxy.toolbox.demo.recorded import RecordedHttpClient
from proxy.toolbox.weather import WEATHER_WORDS
from proxy.tools.access.egress import EgressPool
from proxy.tools.contract.provider import ArgumentsInvalid, CallContext
from proxy.tools.contract.spec import ToolEffect

FIXTURES = Path(__file__).parents[2] / "fixtures" / "demo" / "http"
AT = FixedClock(datetime.fromisoformat("2026-11-21T14:05:00.123456+01:00"))


async def use(name: str, arguments: dict[str, Any], http: Any = None, clock: Any = AT) -> Any:
    """Run one tool of a fresh provider."""
    provider = core_provider(clock, http or Answers().client)
    spec = {spec.name: spec for spec in await provider.list_tools()}[f"core__{name}"]
    return await provider.call_tool(spec, spec.validate(arguments), CallContext("r", "i", "c", "k"))


async def test_wire_schemas() -> None:
    """Rule T8: both tools send exactly this description and this schema to the model."""
    provider = core_provider(AT, Answers().client)
    tools = {spec.name: spec for spec in await provider.list_tools() if spec.name != "core__calculate"}
    assert {name: (spec.description, spec.parameters) for name, spec in tools.items()} == {
        "core__get_current_time": (
            "Get the current date and time in a time zone",
            {
                "type": "object",
                "properties": {
                    "timezone": {"type": "string", "description": "IANA time zone, e.g. Europe/Berlin"}
                },
                "required": ["timezone"],
                "additionalProperties": False,
            },
        ),
        "core__get_weather": (
            "Get the current weather for a city and, on demand, the forecast for the coming days",
            {
                "type": "object",
                "properties": {
                    "location": {"type": "string", "description": "City name"},
                    "days": {
                        "type": "integer",
                        "description": "Days of forecast, today included; 0 for the current weather only",
                        "default": 0,
                        "maximum": 7,
                        "minimum": 0,
                    },
                    "units": {
                        "type": "string",
                        "description": "metric for degrees Celsius, imperial for degrees Fahrenheit",
                        "enum": ["metric", "imperial"],
                        "default": "metric",
                    },
                },
                "required": ["location"],
                "additionalProperties": False,
            },
        ),
    }
    for spec in tools.values():
        assert spec.effect is ToolEffect.READ_ONLY
        assert not spec.egress
        assert json.dumps(spec.parameters).startswith('{"type": "object", "properties": ')


async def test_current_time() -> None:
    """Rule T6: the tool takes the time from its clock and returns it to the second, in the zone asked for."""
    assert await use("get_current_time", {"timezone": "Europe/Berlin"}) == {
        "timezone": "Europe/Berlin",
        "iso": "2026-11-21T14:05:00+01:00",
    }
    assert (await use("get_current_time", {"timezone": "UTC"}))["iso"] == "2026-11-21T13:05:00+00:00"
    assert (await use("get_current_time", {"timezone": "Asia/Kathmandu"}))["iso"].endswith("+05:45")


@pytest.mark.parametrize(
    "zone",
    [
        "Mars/Base",
        "",
        "../../etc/passwd",
        "/etc/localtime",
        "localtime",
        "right/UTC",
        "Europe",
        "x" * 5000,
        "\0",
    ],
)
async def test_unknown_time_zone(zone: str) -> None:
    """Rule T3: an unknown zone fails with a message that gives an example and does not repeat the zone."""
    with pytest.raises(ToolFailure, match="Europe/Berlin") as caught:
        await use("get_current_time", {"timezone": zone})
    assert caught.value.code == "invalid_arguments"
    assert len(zone) < 2 or zone == "Europe" or zone not in caught.value.message


@given(st.text(max_size=80))
async def test_any_time_zone_text(zone: str) -> None:
    """Any text as the zone gives a time or a ToolFailure, never another exception."""
    try:
        result = await use("get_current_time", {"timezone": zone})
    except ToolFailure as failure:
        result = {"timezone": failure.code, "iso": failure.message}
    assert result["timezone"] == "invalid_arguments" or result["iso"].startswith("2026-11-2")


def test_clocks() -> None:
    """The system clock tells the current time; a fixed clock tells the time it was given, with a zone."""
    assert abs((SystemClock().now(UTC) - datetime.now(UTC)).total_seconds()) < 60
    assert AT.now(ZoneInfo("Europe/Berlin")).isoformat() == "2026-11-21T14:05:00.123456+01:00"
    with pytest.raises(ValueError, match="zone"):
        FixedClock(datetime(2026, 11, 21))


PLACE = {"results": [{"name": "Rome", "latitude": 41.9, "longitude": 12.5, "country": "Italy"}]}


def forecast(temperature: Any = 19.0, code: Any = 2) -> dict[str, Any]:
    """A body of the forecast API with the current weather."""
    return {
        "current_units": {"temperature_2m": "°C"},
        "current": {"temperature_2m": temperature, "weather_code": code},
    }


async def test_weather_asks_twice() -> None:
    """The tool asks for the place first and then for its weather, with the documented parameters."""
    http = Answers(PLACE, forecast())
    result = await use("get_weather", {"location": " Rome "}, http.client)
    assert result == {"location": "Rome", "temperature_c": 19.0, "conditions": "partly cloudy"}
    assert http.asked == [
        (
            "https://geocoding-api.open-meteo.com/v1/search",
            {"name": "Rome", "count": 1, "language": "en", "format": "json"},
        ),
        (
            "https://api.open-meteo.com/v1/forecast",
            {"latitude": 41.9, "longitude": 12.5, "current": "temperature_2m,weather_code"},
        ),
    ]


def daily(**changed: Any) -> dict[str, Any]:
    """A body of the forecast API with the current weather and two days."""
    lists = {
        "time": ["2026-11-21", "2026-11-22"],
        "weather_code": [61, None],
        "temperature_2m_min": [3.1, 2.0],
        "temperature_2m_max": [8.4, None],
        "precipitation_probability_max": [80, None],
    }
    return {**forecast(), "timezone": "Europe/Rome", "daily": {**lists, **changed}}


async def test_forecast() -> None:
    """The tool asks for days in the place's zone and adds them to the current weather, gaps as null."""
    http = Answers(PLACE, daily())
    result = await use("get_weather", {"location": "Rome", "days": 2}, http.client)
    assert result == {
        "location": "Rome",
        "temperature_c": 19.0,
        "conditions": "partly cloudy",
        "forecast": [
            {
                "date": "2026-11-21",
                "conditions": "light rain",
                "temperature_min_c": 3.1,
                "temperature_max_c": 8.4,
                "precipitation_probability": 80,
            },
            {
                "date": "2026-11-22",
                "conditions": "unknown conditions",
                "temperature_min_c": 2.0,
                "temperature_max_c": None,
                "precipitation_probability": None,
            },
        ],
    }
    assert http.asked[1][1] == {
        "latitude": 41.9,
        "longitude": 12.5,
        "current": "temperature_2m,weather_code",
        "daily": "weather_code,temperature_2m_min,temperature_2m_max,precipitation_probability_max",
        "forecast_days": 2,
        "timezone": "auto",
    }


async def test_imperial_units() -> None:
    """For imperial units the tool asks the service for Fahrenheit and names the result's fields after it."""
    http = Answers(PLACE, {**daily(), **forecast(66.2)})
    result = await use("get_weather", {"location": "Rome", "days": 1, "units": "imperial"}, http.client)
    assert http.asked[1][1]["temperature_unit"] == "fahrenheit"
    assert result["temperature_f"] == 66.2
    assert "temperature_max_f" in result["forecast"][0]
    assert "_c" not in str([list(result), list(result["forecast"][0])])


@pytest.mark.parametrize(
    "changed",
    [
        {"time": ["2026-11-21"]},
        {"time": ["s3cret", "2026-11-22"]},
        {"weather_code": "s3cret"},
        {"temperature_2m_min": [float("nan"), 1.0]},
        {"precipitation_probability_max": [101, 1]},
        {name: [None] * 17 for name in daily()["daily"]},
    ],
)
async def test_forecast_is_untrusted(changed: dict[str, Any]) -> None:
    """Lists of unequal length, wrong types and numbers out of range fail the call and are not quoted."""
    with pytest.raises(ToolFailure, match="unexpected form") as caught:
        await use("get_weather", {"location": "Rome", "days": 2}, Answers(PLACE, daily(**changed)).client)
    assert "s3cret" not in caught.value.message


async def test_forecast_that_is_missing() -> None:
    """If the service leaves out the days asked for, the call fails instead of giving an empty forecast."""
    with pytest.raises(ToolFailure, match="unexpected form"):
        await use("get_weather", {"location": "Rome", "days": 2}, Answers(PLACE, forecast()).client)


@pytest.mark.parametrize("body", [{"generationtime_ms": 0.4}, {"results": []}])
async def test_unknown_place_is_a_result(body: dict[str, Any]) -> None:
    """An unknown place is a result that says so, and the tool asks for no forecast."""
    http = Answers(body)
    result = await use("get_weather", {"location": "Nowhereville"}, http.client)
    assert result["found"] is False
    assert "no place" in result["message"]
    assert len(http.asked) == 1


@pytest.mark.parametrize(
    "bodies",
    [
        (None,),
        ([],),
        ({"results": "s3cret"},),
        ({"results": [{"name": "Rome", "latitude": 91, "longitude": 0}]},),
        ({"results": [{"name": "x" * 5000, "latitude": 1, "longitude": 0}]},),
        (PLACE, {"error": True, "reason": "s3cret"}),
        (PLACE, forecast(temperature="s3cret")),
        (PLACE, forecast(temperature=float("nan"))),
        (PLACE, forecast(temperature=9999)),
        (PLACE, forecast(code=-1)),
    ],
)
async def test_upstream_body_is_untrusted(bodies: tuple[Any, ...]) -> None:
    """A response that is not of the documented form fails the call, and the message does not quote it."""
    with pytest.raises(ToolFailure, match="unexpected form") as caught:
        await use("get_weather", {"location": "Rome"}, Answers(*bodies).client)
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize("location", ["", "   ", "x" * 201])
async def test_location_must_be_a_name(location: str) -> None:
    """The tool refuses an empty or overlong location and sends no request."""
    http = Answers()
    with pytest.raises(ToolFailure):
        await use("get_weather", {"location": location}, http.client)
    assert http.asked == []


async def test_arguments_are_strict() -> None:
    """Rule T3: missing and unknown fields, wrong types and values out of range are refused."""
    wrong: list[dict[str, Any]] = [{}, {"location": 1}, {"location": "Rome", "unit": "metric"}]
    wrong += [
        {"location": "Rome", **one} for one in ({"units": "f"}, {"days": 8}, {"days": -1}, {"days": "2"})
    ]
    for arguments in wrong:
        with pytest.raises(ArgumentsInvalid):
            await use("get_weather", arguments)


async def test_every_documented_code_has_words() -> None:
    """Each WMO code that Open-Meteo documents has its own words; other codes are "unknown conditions"."""
    assert len(set(WEATHER_WORDS.values())) == len(WEATHER_WORDS) == 28
    result = await use("get_weather", {"location": "Rome"}, Answers(PLACE, forecast(code=42)).client)
    assert result["conditions"] == "unknown conditions"


async def test_recorded_answers() -> None:
    """The demo's recorded responses give the same result as in the demo's recorded conversation."""
    recorded = RecordedHttpClient(FIXTURES)
    for name in ("Berlin", "berlin"):
        assert await use("get_weather", {"location": name}, recorded.client) == {
            "location": "Berlin",
            "temperature_c": 7.4,
            "conditions": "light rain",
        }


async def test_recorded_miss_names_the_url() -> None:
    """A request without a recording fails with a message that names the URL but not the arguments."""
    with pytest.raises(ToolFailure, match=r"https://geocoding-api\.open-meteo\.com/v1/search") as caught:
        await use("get_weather", {"location": "Zqville"}, RecordedHttpClient(FIXTURES).client)
    assert "Zqville" not in caught.value.message


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"url": 1, "params": [], "body": 1}'])
def test_recorded_folder_is_checked(tmp_path: Path, text: str) -> None:
    """A folder without recorded exchanges, or with an invalid one, is a configuration error."""
    with pytest.raises(ConfigError, match="holds no recorded"):
        RecordedHttpClient(tmp_path)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a recorded"):
        RecordedHttpClient(tmp_path)


async def test_weather_over_real_http(aiohttp_server: AiohttpServer) -> None:
    """The tool works through the real HTTP client of the egress pool, with configured URLs."""
    hits: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        hits.append(request.path_qs)
        name = "geocoding" if request.path == "/geo" else "forecast"
        exchange = orjson.loads((FIXTURES / f"{name}-berlin.json").read_bytes())
        assert dict(request.query) == {key: str(value) for key, value in exchange["params"].items()}
        return web.json_response(exchange["body"])

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    server = await aiohttp_server(app)
    pool = EgressPool(allowed_networks=("127.0.0.0/8",), schemes=("http",))
    provider = core_provider(
        AT, pool.client, geocoding_url=str(server.make_url("/geo")), forecast_url=str(server.make_url("/now"))
    )
    spec = next(spec for spec in await provider.list_tools() if spec.name == "core__get_weather")
    try:
        result = await provider.call_tool(
            spec, spec.validate({"location": "Berlin"}), CallContext("r", "i", "c", "k")
        )
    finally:
        await pool.aclose()
    assert result == {"location": "Berlin", "temperature_c": 7.4, "conditions": "light rain"}
    assert len(hits) == 2
