"""``core__get_weather``: the current weather of a place, from Open-Meteo.

Two public calls without a key: the geocoding API turns a name into coordinates, the forecast API
says what it is like there.  Fields and codes are those of https://open-meteo.com/en/docs and
https://open-meteo.com/en/docs/geocoding-api; everything else in the answers is ignored.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from yarl import URL

from proxy.errors import ToolFailure
from proxy.tools.capabilities import HttpClient
from proxy.tools.function import tool
from proxy.tools.spec import Redaction

__all__ = ["FORECAST_URL", "GEOCODING_URL", "WEATHER_WORDS", "weather_tool"]

GEOCODING_URL = "https://geocoding-api.open-meteo.com/v1/search"
FORECAST_URL = "https://api.open-meteo.com/v1/forecast"

WEATHER_WORDS: Mapping[int, str] = MappingProxyType(
    {
        0: "clear sky",
        1: "mainly clear",
        2: "partly cloudy",
        3: "overcast",
        45: "fog",
        48: "freezing fog",
        51: "light drizzle",
        53: "drizzle",
        55: "heavy drizzle",
        56: "light freezing drizzle",
        57: "freezing drizzle",
        61: "light rain",
        63: "rain",
        65: "heavy rain",
        66: "light freezing rain",
        67: "freezing rain",
        71: "light snow",
        73: "snow",
        75: "heavy snow",
        77: "snow grains",
        80: "light rain showers",
        81: "rain showers",
        82: "violent rain showers",
        85: "light snow showers",
        86: "heavy snow showers",
        95: "thunderstorm",
        96: "thunderstorm with light hail",
        99: "thunderstorm with heavy hail",
    }
)
"""The WMO weather codes (table 4677) that Open-Meteo uses, in words."""


class _Place(BaseModel):
    """One hit of the geocoding API."""

    model_config = ConfigDict(extra="ignore")
    name: Annotated[str, Field(max_length=200)]
    latitude: Annotated[FiniteFloat, Field(ge=-90, le=90)]
    longitude: Annotated[FiniteFloat, Field(ge=-180, le=180)]


class _Places(BaseModel):
    """An answer of the geocoding API; one without hits has no ``results`` at all."""

    model_config = ConfigDict(extra="ignore")
    results: Annotated[list[_Place], Field(max_length=100)] = []


class _Current(BaseModel):
    """The ``current`` object of the forecast API, as far as it was asked for."""

    model_config = ConfigDict(extra="ignore")
    temperature_2m: Annotated[FiniteFloat, Field(ge=-150, le=100)]
    weather_code: Annotated[int, Field(ge=0, le=99)]


class _Forecast(BaseModel):
    """An answer of the forecast API."""

    model_config = ConfigDict(extra="ignore")
    current: _Current


def weather_tool(geocoding_url: str = GEOCODING_URL, forecast_url: str = FORECAST_URL) -> Callable[..., Any]:
    """The weather tool for one pair of addresses; it may reach their hosts and no other."""

    @tool(
        name="get_weather",
        description="Get the current weather for a city",
        effect="read_only",
        redaction=Redaction(output=("location", "temperature_c", "conditions", "found")),
        hosts=(_host(geocoding_url), _host(forecast_url)),
    )
    async def get_weather(
        location: Annotated[str, Field(description="City name")], http: HttpClient
    ) -> dict[str, Any]:
        """Return ``{"location", "temperature_c", "conditions"}``, degrees Celsius; or what was not found."""
        name = location.strip()
        if not 0 < len(name) <= 200:
            raise ToolFailure("give the name of a city", code="invalid_arguments")
        query: dict[str, str | int | float] = {"name": name, "count": 1, "language": "en", "format": "json"}
        places = _checked(_Places, await http.get_json(geocoding_url, query)).results
        if not places:
            return {
                "found": False,
                "message": "no place of this name is known; try the name of a larger city",
            }
        place = places[0]
        query = {
            "latitude": place.latitude,
            "longitude": place.longitude,
            "current": "temperature_2m,weather_code",
        }
        current = _checked(_Forecast, await http.get_json(forecast_url, query)).current
        return {
            "location": place.name,
            "temperature_c": current.temperature_2m,
            "conditions": WEATHER_WORDS.get(current.weather_code, "unknown conditions"),
        }

    return get_weather


_Model = TypeVar("_Model", bound=BaseModel)


def _checked(model: type[_Model], body: Any) -> _Model:
    """An answer from outside as its model, or a failure that quotes none of it."""
    try:
        return model.model_validate(body)
    except ValidationError:
        raise ToolFailure("the weather service answered in a form that is not understood") from None


def _host(url: str) -> str:
    """The entry of a tool's host list that fits a URL."""
    parsed = URL(url)
    host = parsed.host or ""
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"
