"""The provider ``core``: the tools that need no account."""

from proxy.toolbox.calculator import calculate
from proxy.toolbox.clock import get_current_time
from proxy.toolbox.weather import FORECAST_URL, GEOCODING_URL, weather_tool
from proxy.tools.capabilities import Capabilities, Clock, HttpSource
from proxy.tools.function import FunctionProvider

__all__ = ["core_provider"]


def core_provider(
    clock: Clock,
    http: HttpSource,
    *,
    geocoding_url: str = GEOCODING_URL,
    forecast_url: str = FORECAST_URL,
) -> FunctionProvider:
    """``core__calculate``, ``core__get_current_time`` and ``core__get_weather``.

    ``http`` makes the client for a tool's own hosts: ``EgressPool(...).client`` or
    ``RecordedHttpClient(...).client``.
    """
    return FunctionProvider(
        "core",
        [calculate, get_current_time, weather_tool(geocoding_url, forecast_url)],
        Capabilities(clock=clock, http=http),
    )
