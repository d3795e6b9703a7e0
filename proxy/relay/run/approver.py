"""The port through which a run asks about calls that need an approval."""

from collections.abc import Sequence
from typing import Protocol

from proxy.events import ToolCall
from proxy.relay.run.job import Job

__all__ = ["Approver", "NobodyApproves"]


class Approver(Protocol):
    """Decides which calls of a turn may run though policy asks for an approval."""

    async def decide(self, job: Job, calls: Sequence[ToolCall]) -> frozenset[int]:
        """The indices (``ToolCall.index``) of the calls that are approved.

        ``calls`` are those of one turn that need an approval, by the ids of their tools.  A call that is
        not approved is refused as policy refuses it.
        """
        ...


class NobodyApproves:
    """Approves nothing: each call that needs an approval is refused (rule T2)."""

    async def decide(self, job: Job, calls: Sequence[ToolCall]) -> frozenset[int]:
        """No index."""
        return frozenset()
