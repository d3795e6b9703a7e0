"""The conventions of the mock upstream and the load generator: names of models, and stamps.

The name of a model says how to answer. A stamp ``@123@`` is a time of the machine's monotonic clock in
nanoseconds, which all processes share.
"""

import re
from dataclasses import dataclass

END = b"data: [DONE]\n\n"
KEY = "sk-bench-0123456789abcdef0123456789abcdef"
"""The client key in the proxy's configuration."""

_PLAN = re.compile(rb'"model": ?"bench-([a-z]+)(?:-([0-9]+))?(?:-([0-9]+))?"')
_STAMP = re.compile(rb"@([0-9]+)@")


@dataclass(frozen=True, slots=True)
class Plan:
    """How to answer a request.

    ``kind`` is ``json`` for one object. It is ``burst`` or ``paced`` for a stream of ``count`` chunks, at
    once or one every ``pause_ms``. With ``tool`` or ``act``, one turn calls a tool with ``count`` bytes of
    arguments, and the next turn answers.
    """

    kind: str
    count: int = 1
    pause_ms: int = 0

    @property
    def model(self) -> str:
        """The name of the model that asks for this plan."""
        return f"bench-{self.kind}-{self.count}-{self.pause_ms}"


def plan_of(body: bytes) -> Plan:
    """Return the plan that a request's body names; one JSON answer if it names none."""
    found = _PLAN.search(body)
    if found is None:
        return Plan("json")
    return Plan(found[1].decode(), int(found[2] or 1), int(found[3] or 0))


def stamps(data: bytes) -> list[int]:
    """Return the times in a piece of a stream, in nanoseconds."""
    return [int(found) for found in _STAMP.findall(data)]
