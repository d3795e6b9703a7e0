"""Opens the counters of limits at their configured address."""

from proxy.errors import ConfigError, how_to_install
from proxy.server.limits.memory import MemoryCounters
from proxy.server.limits.rules import Counters

__all__ = ["open_counters"]


def open_counters(url: str) -> Counters:
    """Return the counters at a checked address: ``memory://``, ``redis://…`` or ``rediss://…``.

    Raises :class:`~proxy.errors.ConfigError` if the Redis driver, an extra, is not installed.
    """
    if url == "memory://":
        return MemoryCounters()
    try:
        from proxy.server.limits.redis import RedisCounters
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise ConfigError(
            "limits.storage",
            "redis:// needs the redis library, which is not installed",
            how_to_install("redis"),
        ) from None
    return RedisCounters(url)
