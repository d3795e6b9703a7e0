"""Group the two kinds of runs that continue without their client."""

from msgspec import Struct

from proxy.api.detached.background import BackgroundRuns
from proxy.api.detached.background_reader import BackgroundReader
from proxy.api.detached.resumable import ResumableRuns
from proxy.server.auth.tickets import Tickets


class DetachedRuns(Struct, frozen=True):
    """The background responses and the resumable streams; ``tickets`` find the callers of background
    responses."""

    background: BackgroundRuns
    reader: BackgroundReader
    resumable: ResumableRuns
    tickets: Tickets
