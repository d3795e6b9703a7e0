"""``core__get_weather``: the weather of a place now and in the coming days, from Open-Meteo.

It makes two public calls without a key. The geocoding API turns a name into coordinates, and the forecast
API returns the weather there. Fields and codes are those of https://open-meteo.com/en/docs and
https://open-meteo.com/en/docs/geocoding-api; everything else in the answers is ignored.
"""

from collections.abc import Callable, Mapping
from datetime import date
from operator import itemgetter
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from proxy.base.errors import ToolFailure
from proxy.toolbox.services import checked
from proxy.tools.access.hosts import host_entry
from proxy.tools.contract.capabilities import HttpClient, HttpFailure, QueryParams
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool

GEOCODING_URL = "https://geocoding-api.open-meteo.com/v1/search"
FORECAST_URL = "https://api.open-meteo.com/v1/forecast"

_MAX_DAYS = 16
_MOST_HITS = 100  # The most that the geocoding API gives.
_MOST_HINTS = 4
_LONGEST_SHORT = 3
_LONGEST_NAME = 200
_SERVICE = "the weather service"

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


_T = TypeVar("_T")
_Days = Annotated[list[_T], Field(max_length=_MAX_DAYS)]
_Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
_Code = Annotated[int, Field(ge=0, le=99)]
_Temperature = Annotated[FiniteFloat, Field(ge=-240, le=212)]  # In either unit.


class _Place(BaseModel):
    """One result of the geocoding API."""

    model_config = ConfigDict(extra="ignore")
    name: _Name
    latitude: Annotated[FiniteFloat, Field(ge=-90, le=90)]
    longitude: Annotated[FiniteFloat, Field(ge=-180, le=180)]
    country: _Name | None = None
    country_code: _Name | None = None
    admin1: _Name | None = None
    admin2: _Name | None = None

    def fits(self, hint: str) -> bool:
        """Return whether a word next to a city's name can mean this place's region: France, FR, CA, USA."""
        hint = "".join(hint.casefold().split()).replace(".", "")
        known = [self.country, self.country_code, self.admin1, self.admin2]
        names = ["".join(name.casefold().split()) for name in known if name]
        return hint in names or (len(hint) <= _LONGEST_SHORT and any(_is_short(hint, name) for name in names))

    @property
    def in_full(self) -> str:
        """The name with region and country."""
        return ", ".join(part for part in (self.name, self.admin1, self.country) if part)


class _Places(BaseModel):
    """An answer of the geocoding API; one without places has no ``results``."""

    model_config = ConfigDict(extra="ignore")
    results: Annotated[list[_Place], Field(max_length=_MOST_HITS)] = []


class _Current(BaseModel):
    """The requested fields of the ``current`` object of the forecast API."""

    model_config = ConfigDict(extra="ignore")
    temperature_2m: _Temperature
    weather_code: _Code


class _Daily(BaseModel):
    """The ``daily`` object of the forecast API: one list for each value, one element for each day.

    A value that the forecast's model does not have is ``null``.
    """

    model_config = ConfigDict(extra="ignore")
    time: _Days[date]
    weather_code: _Days[_Code | None]
    temperature_2m_min: _Days[_Temperature | None]
    temperature_2m_max: _Days[_Temperature | None]
    precipitation_probability_max: _Days[Annotated[int, Field(ge=0, le=100)] | None]

    @model_validator(mode="after")
    def _alike(self) -> "_Daily":
        lengths = {len(values) for _, values in self}
        if len(lengths) != 1:
            raise ValueError("the days of a forecast differ in number")
        return self

    def days(self, unit: str) -> list[dict[str, Any]]:
        """Return one object for each day; the names of the temperatures contain their unit."""
        return [
            {
                "date": self.time[at].isoformat(),
                "conditions": _condition(self.weather_code[at]),
                f"temperature_min_{unit}": self.temperature_2m_min[at],
                f"temperature_max_{unit}": self.temperature_2m_max[at],
                "precipitation_probability": self.precipitation_probability_max[at],
            }
            for at in range(len(self.time))
        ]


class _Forecast(BaseModel):
    """An answer of the forecast API; ``daily`` is present if it was requested."""

    model_config = ConfigDict(extra="ignore")
    current: _Current
    daily: _Daily | None = None


def weather_tool(geocoding_url: str = GEOCODING_URL, forecast_url: str = FORECAST_URL) -> Callable[..., Any]:
    """Build the weather tool for one pair of addresses; it may reach only their hosts."""

    @tool(
        name="get_weather",
        description="Get the current weather for a city and, on demand, the forecast for the coming days",
        effect="read_only",
        redaction=Redaction(
            output=("location", "temperature_c", "temperature_f", "conditions", "forecast", "found")
        ),
        hosts=(host_entry(geocoding_url), host_entry(forecast_url)),
    )
    async def get_weather(
        http: HttpClient,
        location: Annotated[str, Field(description="City name")],
        days: Annotated[
            int,
            Field(description="Days of forecast, today included; 0 for the current weather only", ge=0, le=7),
        ] = 0,
        units: Annotated[
            Literal["metric", "imperial"],
            Field(description="metric for degrees Celsius, imperial for degrees Fahrenheit"),
        ] = "metric",
    ) -> dict[str, Any]:
        """Return ``{"location", "temperature_c", "conditions"}``; or what was not found.

        Imperial units give ``temperature_f``. ``days`` adds ``forecast``, a list of ``{"date",
        "conditions", "temperature_min_c", "temperature_max_c", "precipitation_probability"}``, the
        last one in percent; dates are those of the place, unknown values ``None``.
        """
        if len(location.strip()) > _LONGEST_NAME:
            raise ToolFailure("give the name of a city", code="invalid_arguments")
        city, *parts = [part.strip() for part in location.split(",")]
        hints = [part for part in parts if part][:_MOST_HINTS]
        place = await _find(http, geocoding_url, city, hints)
        if place is None:
            problem = "no place of this name is known; try the name of a larger city"
            if hints:
                problem = "no place of this name is known there; try the name of the city alone"
            return {"found": False, "message": problem}
        query = _query(place, days, units)
        forecast = checked(_Forecast, await _ask(http, forecast_url, query), _SERVICE)
        unit = "c" if units == "metric" else "f"
        result = {
            "location": place.in_full if hints else place.name,
            f"temperature_{unit}": forecast.current.temperature_2m,
            "conditions": _condition(forecast.current.weather_code),
        }
        if days:
            if forecast.daily is None:
                raise ToolFailure(f"{_SERVICE} answered in an unexpected form")
            result["forecast"] = forecast.daily.days(unit)
        return result

    return get_weather


async def _find(http: HttpClient, geocoding_url: str, city: str, hints: list[str]) -> _Place | None:
    """Return the best-known place with a name, or ``None``.

    With hints, it is the place that most hints fit, and at least one must fit. The service looks for names
    alone: it does not know "Paris, France".
    """
    if not city:
        raise ToolFailure("give the name of a city", code="invalid_arguments")
    count = _MOST_HITS if hints else 1
    query: dict[str, str | int | float] = {"name": city, "count": count, "language": "en", "format": "json"}
    places = checked(_Places, await _ask(http, geocoding_url, query), _SERVICE).results
    if not hints:
        return places[0] if places else None
    fitting = [(sum(map(place.fits, hints)), place) for place in places]
    most, best = max(fitting, key=itemgetter(0), default=(0, None))  # The first of equally good places.
    return best if most else None


def _is_short(hint: str, name: str) -> bool:
    """Return whether a hint is short for a name: its first letter, then others of its letters in order."""
    letters = iter(name)
    return name[:1] == hint[:1] and all(letter in letters for letter in hint)


async def _ask(http: HttpClient, url: str, query: QueryParams) -> Any:
    """Return the JSON of an answer; raise a failure with the proxy's own words.

    Open-Meteo's ``reason`` is untrusted.
    """
    try:
        return await http.get_json(url, query)
    except HttpFailure as failure:
        raise _explained(failure) from None


def _explained(failure: HttpFailure) -> ToolFailure:
    """Turn a failed request into a failure that a model can use."""
    match failure.status:
        case None:
            return failure  # There was no answer, and the client's failure says why.
        case 400:
            return ToolFailure(f"{_SERVICE} does not take these arguments", code="invalid_arguments")
        case 429:
            text = f"{_SERVICE} has had too many requests; try again later"
        case status if status >= 500:
            text = f"{_SERVICE} is not available; try again later"
        case _:
            text = f"{_SERVICE} refused the request"
    return ToolFailure(text, transient=failure.transient)


def _query(place: _Place, days: int, units: str) -> dict[str, str | int | float]:
    """Build the parameters of the forecast API, without those that have its default value."""
    query: dict[str, str | int | float] = {
        "latitude": place.latitude,
        "longitude": place.longitude,
        "current": "temperature_2m,weather_code",
    }
    if units == "imperial":
        query["temperature_unit"] = "fahrenheit"
    if days:
        query["daily"] = "weather_code,temperature_2m_min,temperature_2m_max,precipitation_probability_max"
        query["forecast_days"] = days
        query["timezone"] = "auto"  # Without it days are those of Greenwich.
    return query


def _condition(code: int | None) -> str:
    """Return a weather code in words."""
    return WEATHER_WORDS.get(-1 if code is None else code, "unknown conditions")
