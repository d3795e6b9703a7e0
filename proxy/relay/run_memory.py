"""The memory that runs share between requests."""

from typing import TYPE_CHECKING

from msgspec import Struct

from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.relay.memory.hidden.history import History
from proxy.relay.memory.idempotency import Idempotency
from proxy.relay.memory.references import ItemReferences
from proxy.relay.memory.refusals import RefusalCache
from proxy.relay.memory.threads import Threads

if TYPE_CHECKING:  # The approvals import the memory.
    from proxy.relay.approvals.approvals import Approvals


class RunMemory(Struct, frozen=True):
    """The memory of earlier requests that planning and running share. The process has one instance.

    ``history`` holds hidden turns, and ``items`` finds items by their ids. ``threads`` knows which
    conversations contain untrusted results, and ``refusals`` what models refuse. ``idempotency`` knows the
    effects that a repeat must not cause again. ``commits`` waits for the record before a client continues.
    ``approvals`` asks for approvals and runs approved calls.
    """

    history: History
    items: ItemReferences
    threads: Threads
    refusals: RefusalCache
    idempotency: Idempotency
    commits: CommitWaiter
    approvals: "Approvals"
