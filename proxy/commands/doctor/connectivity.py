"""Checks that the servers named by a configuration can be reached."""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from proxy.app.compose.upstreams import proxy_of
from proxy.commands.common import say_error
from proxy.commands.doctor.probing.probe import lacks_v1, lists_of, v1_fault
from proxy.config.load import Config
from proxy.upstreams.base import Upstream

REACH_S = 3.0
"""Seconds within which a server must accept a connection to count as reachable."""

_ASK_S = 10.0
"""Seconds within which an upstream must show where its API is."""

_VERSION = re.compile(r"/v\d")
_PORTS = {"http": 80, "https": 443, **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), 6379)}


def places_of(config: Config) -> dict[str, str]:
    """Return the servers that a configuration names, by setting: the upstreams or the proxies on the way to
    them, and the storage of limits."""
    places: dict[str, str] = {}
    for name, upstream in config.upstreams.items():
        proxy = proxy_of(name, upstream, config.network)
        if proxy is None:
            places[f"upstreams.{name}"] = upstream.base_url
        else:
            places[f"the proxy of {proxy.setting}"] = proxy.url
    return {**places, "limits.storage": config.limits.storage_url}


async def find_unreachable(places: dict[str, str]) -> list[str]:
    """Return a line for each server of :func:`places_of` that accepts no connection. Sends nothing."""
    lines = await asyncio.gather(*(_reach(setting, url) for setting, url in places.items()))
    return [line for line in lines if line]


async def _reach(setting: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        return ""
    port = parts.port or _PORTS[parts.scheme]
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except TimeoutError:
        return f"{setting}: {parts.hostname} port {port} accepted no connection within {REACH_S:.0f} s"
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return f"{setting}: {parts.hostname} port {port} cannot be reached ({reason})"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def warn_of_upstreams(config: Config, upstreams: Mapping[str, Upstream]) -> None:
    """Warn about servers that cannot be reached. They are no faults, because a server may start later.

    A request is sent only to an upstream whose address lacks the version that most API addresses have.
    """
    for line in await find_unreachable(places_of(config)):
        say_error(f"warning: {line}")
    for line in await asyncio.gather(*(_look_below_v1(config, *each) for each in upstreams.items())):
        if line:
            say_error(f"warning: {line}")


async def _look_below_v1(config: Config, name: str, upstream: Upstream) -> str:
    base_url = config.upstreams[name].base_url
    parts = urlsplit(base_url)
    if (
        parts.scheme not in ("http", "https")
        or _VERSION.search(parts.path)
        # The paths of this dialect do not begin below the upstream's address.
        or lists_of(config.upstreams[name].wires).rooted
    ):
        return ""
    return v1_fault(name, base_url) if await lacks_v1(upstream, timeout_s=_ASK_S) else ""
