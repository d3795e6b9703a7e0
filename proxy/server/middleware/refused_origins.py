"""Logs the web pages that were refused, for an operator who wants to allow one of them."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from pydantic_core import PydanticCustomError

from proxy.config.addresses import check_origins
from proxy.server.messages.heads.pending_heads import OncePerMinute

_MOST: Final = 16
"""The most origins with log lines of their own: anybody can invent any number of them."""

_LONGEST: Final = 200


class RefusedOrigins:
    """The log of refused origins: at most one line a minute for each, with the setting that would allow it.

    Origins beyond the first sixteen share one line a minute, until one of the sixteen is silent for a minute.
    """

    def __init__(self, listed: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._listed = tuple(listed)
        self._clock = clock
        self._known: dict[str, tuple[float, OncePerMinute]] = {}
        self._others = OncePerMinute(clock)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")

    def refused(self, origin: str) -> None:
        """Count a refused request of a page of this origin."""
        origin = origin[:_LONGEST]
        count = self._counter(origin).counted()
        if count:
            self._log.warning("origin_refused", origin=origin, count=count, hint=self._hint(origin))

    def _counter(self, origin: str) -> OncePerMinute:
        now = self._clock()
        known = self._known.get(origin)
        if known is None and len(self._known) >= _MOST:
            self._known = {name: entry for name, entry in self._known.items() if now - entry[0] < 60}
            if len(self._known) >= _MOST:
                return self._others
        counter = known[1] if known else OncePerMinute(self._clock)
        self._known[origin] = (now, counter)
        return counter

    def _hint(self, origin: str) -> str:
        try:
            check_origins((*self._listed, origin))
        except PydanticCustomError:
            # An origin that no browser sends for a page with an origin of its own cannot be listed.
            return "server.cors_origins cannot list this origin; serve the page over http or https"
        listed = json.dumps([*self._listed, origin])
        return f"to allow pages of this origin, set server.cors_origins = {listed}"
