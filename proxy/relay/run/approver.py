"""The port through which a run asks about calls that need an approval."""

from collections.abc import Sequence
from typing import Protocol

from proxy.base.events import ToolCall
from proxy.relay.run.job import Job


class Approver(Protocol):
    """Decides which calls of a turn may run although the policy asks for an approval."""

    async def decide(self, job: Job, calls: Sequence[ToolCall]) -> frozenset[int]:
        """Return the indices (``ToolCall.index``) of the approved calls.

        ``calls`` are the calls of one turn that need an approval; each has the id of its tool as its name.
        The policy refuses a call that is not approved.
        """


class NobodyApproves:
    """Approves nothing: each call that needs an approval is refused (rule T2)."""

    async def decide(self, job: Job, calls: Sequence[ToolCall]) -> frozenset[int]:
        """Return no index."""
        return frozenset()
