"""Replay runs for the web UI: offline, with the tools that the server has loaded, in a thread."""

import asyncio
from typing import Any, Final

from proxy.app.replaying.replay import MakeApp, replay_again
from proxy.base.errors import ConfigError, ToolRelayError
from proxy.config.load import Config
from proxy.records.rows import KeptWire
from proxy.store.base import RunDetail, Store
from proxy.tools.access.catalog import Registry

_LONGEST_S: Final = 20.0


class OfflineReplay:
    """Runs a recorded run again, without asking a model, running a tool or writing to the server's record."""

    def __init__(self, make_app: MakeApp, config: Config, registry: Registry, store: Store) -> None:
        """Create the replayer.

        ``make_app`` makes the server of a replay, ``registry`` holds the tools that are served now, and
        ``store`` holds the bytes of runs.
        """
        self._make_app = make_app
        self._config = config
        self._registry = registry
        self._store = store

    async def __call__(self, detail: RunDetail) -> dict[str, Any]:
        """Return the differences as JSON values; raises :class:`~proxy.base.errors.ToolRelayError`,
        TimeoutError."""
        wire = await self._store.find_wire(detail.run.id)
        # The thread has an event loop of its own, so other requests do not wait for the replay.
        return await asyncio.to_thread(lambda: asyncio.run(self._replayed(detail, wire)))

    async def _replayed(self, detail: RunDetail, wire: KeptWire | None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_LONGEST_S):
                done = await replay_again(
                    self._make_app, self._config, detail, tools=self._registry.current, wire=wire
                )
        except ConfigError as error:
            raise ToolRelayError(". ".join(part for part in (error.problem, error.remedy) if part)) from None
        return {
            "same": not done.report.differs,
            "notes": done.notes(),
            "differences": [
                {"where": name, "was": before, "is": now}
                for name, before, now in done.report.lines
                if before != now
            ],
        }
