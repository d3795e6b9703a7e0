"""The clock of the database, by which all processes that share a record agree, whatever their machines say.

A process asks for the time now and then, and counts on from the answer with its machine's monotonic clock. So
reading the time costs no query, and a machine whose clock is set moves no lease, token or repeat.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from proxy.base.errors import ConfigError
from proxy.store.postgres.db import Connection

_log = logging.getLogger(__name__)

NOW: Final = "extract(epoch FROM clock_timestamp())::double precision"
"""SQL for the time of the database, in seconds since the epoch."""

_WARN_S: Final = 2.0
_LONGEST_TRIP_S: Final = 1.0
"""The answer to a question that took longer says too little about the time; it counts only as the first."""


class DatabaseClock:
    """The time of the database in seconds since the epoch; before the first answer that of this machine.

    ``skew_s`` is how many seconds this machine's clock is ahead of the database's, less what the round trip
    leaves uncertain.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self.skew_s = 0.0
        self._local = local
        self._offset = local() - time.monotonic()
        self._known = False

    def __call__(self) -> float:
        return time.monotonic() + self._offset

    async def ask(self, connection: Connection, query: str = f"SELECT {NOW}", *values: Any) -> None:
        """Set the clock by the answer to ``query``, one row with the time; raises the driver's errors."""
        asked_at = time.monotonic()
        said: float = await connection.fetchval(query, *values)
        trip_s = time.monotonic() - asked_at
        if self._known and trip_s > _LONGEST_TRIP_S:
            return
        self._known = True
        self._offset = said - (asked_at + trip_s / 2)
        ahead = self._local() - self()
        self.skew_s = max(abs(ahead) - trip_s / 2, 0.0) * (1 if ahead > 0 else -1)


def check_skew(skew_s: float, most_s: float) -> None:
    """Raise :class:`ConfigError` if the clocks differ by more than ``most_s`` seconds (0: no bound)."""
    if most_s and abs(skew_s) > most_s:
        raise ConfigError(
            "store.max_clock_skew_s",
            f"{_words(skew_s)}, and {most_s:g} s are allowed",
            "Synchronize the clocks of both machines (NTP)",
        )
    tell_skew(skew_s)


def tell_skew(skew_s: float) -> None:
    """Log a difference of the clocks that people would see in the times of logs and of Redis's windows."""
    if abs(skew_s) > _WARN_S:
        _log.warning("%s; synchronize the clocks of both machines (NTP)", _words(skew_s))


def _words(skew_s: float) -> str:
    way = "ahead of" if skew_s > 0 else "behind"
    return f"this machine's clock is {abs(skew_s):.1f} s {way} PostgreSQL's"
