"""Both kinds of runs that go on without their client, as one value."""

from dataclasses import dataclass

from proxy.server.detached.background import BackgroundRuns
from proxy.server.detached.resumable import ResumableRuns

__all__ = ["DetachedRuns"]


@dataclass(frozen=True, slots=True)
class DetachedRuns:
    """Responses in the background, and streams that can be resumed."""

    background: BackgroundRuns
    resumable: ResumableRuns
