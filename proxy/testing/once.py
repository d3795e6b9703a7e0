"""An upstream that asks a provider only for what no fixture answers."""

from pathlib import Path

from proxy.upstreams.base import Upstream, UpstreamRequest, UpstreamResponse
from proxy.upstreams.recorded.fixtures import load_turns
from proxy.upstreams.recorded.recorder import ClientExchanges, RecordingUpstream
from proxy.upstreams.recorded.replay import ReplayUpstream
from proxy.upstreams.recorded.scrubbing import Scrubbing

_PASSING = frozenset({401, 403, 407, 408, 409, 425, 429})
"""Statuses that say nothing about the request itself: it is asked again."""


class OnceUpstream:
    """Answers from fixtures; asks ``inner`` for what they lack, and keeps its answers as fixtures."""

    def __init__(
        self,
        inner: Upstream,
        known: ReplayUpstream,
        folder: Path,
        scrubbing: Scrubbing,
        clients: ClientExchanges | None = None,
    ) -> None:
        """``known`` has the fixtures of ``folder``; see :class:`RecordingUpstream` for the rest."""
        self._known = known
        self._recorder = RecordingUpstream(
            inner, folder, scrubbing=scrubbing, clients=clients, saved=self._learn, keeps=_lasts
        )

    @property
    def name(self) -> str:
        """The name of the upstream that is asked."""
        return self._recorder.name

    async def open(self, request: UpstreamRequest) -> UpstreamResponse:
        """Answer from a fixture, else ask the upstream."""
        await self._recorder.written()  # The answer to the last request may answer this one.
        found = await self._known.find(request)
        return found if found is not None else await self._recorder.open(request)

    async def aclose(self) -> None:
        """Close the upstream after all exchanges are written."""
        await self._recorder.aclose()

    def _learn(self, folder: Path, number: int) -> None:
        for turn in load_turns([folder]):
            if turn.number == number:
                self._known.add(turn)


def _lasts(status: int) -> bool:
    return status < 500 and status not in _PASSING
