"""The port through which the bytes of a run are noted, those of the client and of the upstream."""

from typing import Protocol

from proxy.relay.base import ClientStream
from proxy.relay.run.job import Job


class Tape(Protocol):
    """Notes the bytes of one run. Its methods neither wait nor raise."""

    @property
    def client(self) -> ClientStream:
        """The client's response; it notes the bytes that pass through it."""

    def finish(self) -> None:
        """Keep what was noted: the run is over."""


class Tapes(Protocol):
    """Decides which runs are noted. The process has one."""

    def begin(self, job: Job, client: ClientStream) -> Tape | None:
        """Begin to note a run, until its tape is finished; return ``None`` for a run that is not noted."""


class NoTapes:
    """Notes no run."""

    def begin(self, job: Job, client: ClientStream) -> Tape | None:
        """Return ``None``."""
        return None
