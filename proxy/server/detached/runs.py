"""The two kinds of runs that go on without their client."""

from dataclasses import dataclass

from proxy.server.auth.tickets import Tickets
from proxy.server.detached.background import BackgroundRuns
from proxy.server.detached.background_reader import BackgroundReader
from proxy.server.detached.shared_resumable import SharedResumableRuns

__all__ = ["DetachedRuns"]


@dataclass(frozen=True, slots=True)
class DetachedRuns:
    """Background responses, and streams that can be resumed; ``tickets`` find the callers of the former."""

    background: BackgroundRuns
    reader: BackgroundReader
    resumable: SharedResumableRuns
    tickets: Tickets
