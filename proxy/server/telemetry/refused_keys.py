"""What is logged where a provider refuses the operator's key: one line that names the setting.

A client learns of the refusal from the provider's own answer; what it cannot know is where the key came from.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

__all__ = ["REFUSALS", "RefusedKeys"]

REFUSALS: Final = frozenset({401, 403})
"""What says that a key is not valid (401), or may not do this (403)."""

_AGAIN_S: Final = 600.0
"""After a 403, which may be about one model alone: how long no other one of that upstream is logged."""


class RefusedKeys:
    """``settings`` names for each upstream where its key comes from; one that is not there gets none."""

    def __init__(self, settings: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.upstreams")
        self._quiet_until: dict[str, float] = {}
        self.waiting: set[str] = set()
        """Upstreams whose key was refused, and has not worked since."""

    def refused(self, upstream: str, status: int) -> None:
        """An upstream answered with one of :data:`REFUSALS`."""
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
        """An upstream answered with a success: the next refusal is news."""
        self.waiting.discard(upstream)
