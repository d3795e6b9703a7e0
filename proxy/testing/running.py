"""A thread that serves fixtures to the tests of its process."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from aiohttp import web

from proxy.base.errors import ConfigError
from proxy.testing.addresses import addresses
from proxy.testing.once import OnceUpstream
from proxy.testing.providers import Providers
from proxy.testing.server import provider_app
from proxy.upstreams.base import Upstream
from proxy.upstreams.recorded.replay import ReplayUpstream
from proxy.upstreams.recorded.scrubbing import Scrubbing

_T = TypeVar("_T")
_PATIENCE_S: Final = 30.0
"""Seconds for the thread to start or stop a server. Only a fault reaches it."""
_END_S: Final = 1.0
"""Seconds that answers have to end when the test of a server has ended."""


class ReplayThread:
    """Runs servers on an event loop of its own, so that clients of any kind can wait for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toolrelay-replay", daemon=True)

    def __enter__(self) -> "ReplayThread":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop of the thread, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)


async def _cancel_others() -> None:
    """End what connections have left behind: a task that its loop forgets is reported on standard error."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Replay:
    """A server of fixtures, as a test sees it.

    ``url`` is its root; ``openai``, ``anthropic`` and ``ollama`` are the addresses that the clients of these
    providers need. ``asked`` counts the requests that came. ``missed`` has one readable text for each request
    that no fixture answered. A test that expects a miss clears the list.
    """

    def __init__(
        self, folder: Path, *, speed: float, scrub: Sequence[str], record: Mapping[str, str] | None
    ) -> None:
        """``folder`` has the fixtures, see :class:`ReplayUpstream` for ``speed``.

        ``record`` is the environment that names the providers to ask for what the fixtures lack; with
        ``None`` nobody is asked. Raises :class:`~proxy.base.errors.ConfigError`.
        """
        if record is not None:
            folder.mkdir(parents=True, exist_ok=True)
        elif not folder.is_dir():
            raise _no_fixtures(folder)
        self.asked = 0
        self.missed: list[str] = []
        scrubbing = Scrubbing(scrub=scrub)
        known = ReplayUpstream(
            [folder],
            fresh_ids=False,
            pace=1 / speed if speed else 0.0,
            as_provider=True,
            clean=scrubbing.clean,
            missed=self.missed.append,
        )
        if record is None and not known.size:
            raise _no_fixtures(folder)
        self._upstream: Upstream = known
        if record is not None:
            self._upstream = OnceUpstream(Providers(record), known, folder, scrubbing)
        self._runner: web.AppRunner | None = None
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead the clients of all providers here."""
        return addresses(self.url)

    @property
    def openai(self) -> str:
        """The base URL for OpenAI's clients."""
        return self.environment["OPENAI_BASE_URL"]

    @property
    def anthropic(self) -> str:
        """The base URL for Anthropic's clients."""
        return self.environment["ANTHROPIC_BASE_URL"]

    @property
    def ollama(self) -> str:
        """The address for Ollama's clients."""
        return self.environment["OLLAMA_HOST"]

    async def start(self) -> None:
        """Serve on a free port of the loopback interface."""
        app = provider_app(self._upstream)
        app.on_response_prepare.append(self._note)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _note(self, request: web.Request, response: web.StreamResponse) -> None:
        self.asked += 1

    async def stop(self) -> None:
        """Stop serving, and write what was recorded."""
        if self._runner is not None:
            await self._runner.cleanup()
        await self._upstream.aclose()


def _no_fixtures(folder: Path) -> ConfigError:
    return ConfigError(
        str(folder), "there are no fixtures here", "Record them once: pytest --toolrelay-record"
    )
