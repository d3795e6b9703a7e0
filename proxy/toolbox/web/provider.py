"""The provider ``web``: ``web__fetch_page`` and ``web__search``, each as far as it is configured."""

from collections.abc import Callable, Sequence
from typing import Any

from proxy.toolbox.web.fetch_page import PageReader, fetch_tool
from proxy.toolbox.web.search import search_tool
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.providers.function import FunctionProvider


def web_provider(
    capabilities: Capabilities,
    *,
    hosts: Sequence[str] = (),
    reader: PageReader | None = None,
    engine: str = "",
    engine_url: str = "",
) -> FunctionProvider:
    """Build the provider ``web``.

    It fetches pages of ``hosts``: ``docs.example.com``, ``*.example.com``, ``*``; without any there is no
    ``web__fetch_page``. It searches with the ``engine`` of that name at ``engine_url`` (empty: its own
    address); without an engine there is no ``web__search``. Raises
    :class:`~proxy.base.errors.ConfigError` if the library that reads pages is not installed.
    """
    tools: list[Callable[..., Any]] = []
    if hosts:
        tools.append(fetch_tool(hosts, reader or PageReader()))
    if engine:
        tools.append(search_tool(engine, engine_url))
    return FunctionProvider("web", tools, capabilities)
