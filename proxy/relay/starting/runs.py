"""The planner and the orchestrator in one object, for code that starts runs."""

from msgspec import Struct

from proxy.relay.planning import Planner
from proxy.relay.routing.prices import Prices
from proxy.relay.run.orchestrator import Orchestrator
from proxy.relay.run_memory import RunMemory

__all__ = ["Runs"]


class Runs(Struct, frozen=True):
    """Plans and runs an :class:`~proxy.relay.planning.Ask`, for any part of the server."""

    planner: Planner
    orchestrator: Orchestrator
    prices: Prices
    memory: RunMemory
