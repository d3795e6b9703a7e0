"""Log one line if a provider refuses the operator's key, and name the setting of the key.

The client sees the refusal in the provider's own answer, but does not know where the key came from.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

REFUSALS: Final = frozenset({401, 403})
"""The statuses that mean that a key is not valid (401), or lacks a permission (403)."""

_AGAIN_S: Final = 600.0
"""Seconds after a 403 in which no other 403 of that upstream is logged; a 403 may concern only one model."""


class RefusedKeys:
    """Logs refused keys.

    ``settings`` maps each upstream to the setting of its key; upstreams without an entry are not logged.
    """

    def __init__(self, settings: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.upstreams")
        self._quiet_until: dict[str, float] = {}
        self.waiting: set[str] = set()
        """The upstreams whose key was refused and has not worked since."""

    def refused(self, upstream: str, status: int) -> None:
        """Note that an upstream answered with one of :data:`REFUSALS`, and log it if it is new."""
        setting = self._settings.get(upstream)
        if setting is None or upstream in self.waiting:
            return
        self.waiting.add(upstream)
        now = self._clock()
        if status != 401:
            if now < self._quiet_until.get(upstream, now):
                return
            self._quiet_until[upstream] = now + _AGAIN_S
        what = "does not accept" if status == 401 else "does not authorize"
        self._log.warning(
            "provider_key_refused",
            upstream=upstream,
            status=status,
            setting=setting,
            hint=f"the provider {what} the key of {setting}; toolrelay does not log this again until the "
            "key has worked",
        )

    def worked(self, upstream: str) -> None:
        """Note that an upstream answered with success, so that the next refusal is logged."""
        self.waiting.discard(upstream)
