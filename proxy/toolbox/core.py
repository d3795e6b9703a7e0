"""The provider ``core``: the tools that need no account."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from proxy.toolbox.calculator import calculate
from proxy.toolbox.clock import get_current_time
from proxy.toolbox.read_result import read_result_tool
from proxy.toolbox.search_tools import search_tools_tool
from proxy.toolbox.weather import FORECAST_URL, GEOCODING_URL, weather_tool
from proxy.tools.contract.capabilities import Capabilities, Clock, HttpSource
from proxy.tools.contract.results.paging import PagedResults
from proxy.tools.programs.programs import Programs
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.searching.listing import Searches


class CoreLinks(Struct, frozen=True):
    """What connects tools of this provider to the runs that call them."""

    searches: Searches = field(default_factory=Searches)
    programs: Programs = field(default_factory=Programs)


def core_provider(
    clock: Clock,
    http: HttpSource,
    *,
    geocoding_url: str = GEOCODING_URL,
    forecast_url: str = FORECAST_URL,
    paged_results: PagedResults | None = None,
    searches: Searches | None = None,
    run_program: Callable[..., Any] | None = None,
) -> FunctionProvider:
    """Build ``core__calculate``, ``core__get_current_time``, ``core__get_weather``, ``core__read_result``.

    The runner keeps results that are too large in ``paged_results``; without it there is no
    ``core__read_result``. Without ``searches`` there is no ``core__search_tools``; ``run_program`` is the
    tool that runs programs (:func:`~proxy.toolbox.run_program.run_program_tool`), if there is one.
    ``http`` makes the client for a tool's own hosts: ``EgressPool(...).client`` or
    ``RecordedHttpClient(...).client``.
    """
    pages = [read_result_tool(paged_results)] if paged_results is not None else []
    finders = [search_tools_tool(searches)] if searches is not None else []
    programs = [run_program] if run_program is not None else []
    return FunctionProvider(
        "core",
        [calculate, get_current_time, weather_tool(geocoding_url, forecast_url), *pages, *finders, *programs],
        Capabilities(clock=clock, http=http),
    )
