"""Who notes the bytes of a run, on both sides of the wire."""

from typing import Protocol

from proxy.relay.base import ClientStream
from proxy.relay.run.job import Job

__all__ = ["NoTapes", "Tape", "Tapes"]


class Tape(Protocol):
    """Notes the bytes of one run.  Nothing here waits or raises."""

    @property
    def client(self) -> ClientStream:
        """The client's response, whose bytes are noted on their way."""
        ...

    def finish(self) -> None:
        """The run is over: keep what was noted."""
        ...


class Tapes(Protocol):
    """Decides which runs are noted.  One for the process."""

    def begin(self, job: Job, client: ClientStream) -> Tape | None:
        """Begin to note a run, until its tape is finished; ``None`` for a run that is not noted."""
        ...


class NoTapes:
    """Notes no run."""

    def begin(self, job: Job, client: ClientStream) -> Tape | None:
        """``None``."""
        return None
