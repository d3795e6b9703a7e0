"""Which client the proxy under test reaches its upstreams with: the one place that says so.

``TOOLRELAY_TEST_UPSTREAM_CLIENT`` names one of :data:`CLIENTS`.  A further client is one more row here,
and every test that starts a proxy over ``make_config`` can then be run against it.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["CLIENTS", "chosen_settings"]

CLIENTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"lean": {"http_client": "lean"}, "aiohttp": {"http_client": "aiohttp"}}
)
"""For each client the settings of ``[upstreams.*]`` that choose it."""


def chosen_settings() -> Mapping[str, Any]:
    """The settings of the client that this run is for; KeyError where there is none of that name."""
    return CLIENTS[os.environ.get("TOOLRELAY_TEST_UPSTREAM_CLIENT", "lean")]
