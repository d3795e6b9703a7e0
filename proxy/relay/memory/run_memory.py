"""What runs keep between requests."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.relay.memory.history import History
from proxy.relay.memory.idempotency import Idempotency
from proxy.relay.memory.references import ItemReferences
from proxy.relay.memory.refusals import RefusalCache
from proxy.relay.memory.threads import Threads

if TYPE_CHECKING:  # What asks people stands above what keeps turns for them.
    from proxy.relay.approvals.approvals import Approvals

__all__ = ["RunMemory"]


@dataclass(frozen=True, slots=True)
class RunMemory:
    """What planning and running share of earlier requests; one for the process.

    ``history`` holds hidden turns, ``items`` finds what a request names by its id, ``threads`` what
    strangers' text a conversation has, ``refusals`` what models do not take, ``idempotency`` the effects
    that a repeated request must not cause again.  ``commits`` waits for the record before a client is told
    to go on.  ``approvals`` are calls that wait for a person.
    """

    history: History
    items: ItemReferences
    threads: Threads
    refusals: RefusalCache
    idempotency: Idempotency
    commits: CommitWaiter
    approvals: "Approvals"
