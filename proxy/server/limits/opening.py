"""Opens the counters of limits at the address that the configuration names."""

import time
from collections.abc import Callable

from proxy.base.errors import ConfigError, how_to_install
from proxy.server.limits.counters import Counters


def open_counters(url: str, now: Callable[[], float] = time.time) -> Counters:
    """Return the counters at a checked address: ``memory://``, or ``redis://…`` and its kin.

    ``now`` is a clock that all processes share, in seconds since the epoch.
    Raises :class:`~proxy.base.errors.ConfigError` if the Redis driver, an extra, is not installed.
    """
    if url == "memory://":
        return Counters()
    try:
        from proxy.server.limits.redis import RedisCounters
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        scheme = url.partition("://")[0]
        raise ConfigError(
            "limits.storage",
            f"{scheme}:// needs the redis library, which is not installed",
            how_to_install("redis"),
        ) from None
    return RedisCounters(url, now=now)
