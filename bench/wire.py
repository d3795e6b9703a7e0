"""What the mock upstream and the load generator agree on: models that say how to answer, and stamps.

A stamp ``@123@`` is a moment of the machine's monotonic clock in nanoseconds, which all processes share.
"""

import re
from dataclasses import dataclass

__all__ = ["END", "KEY", "Plan", "plan_of", "stamps"]

END = b"data: [DONE]\n\n"
KEY = "sk-bench-0123456789abcdef0123456789abcdef"
"""The client key that the proxy is told to know."""

_PLAN = re.compile(rb'"model": ?"bench-([a-z]+)(?:-([0-9]+))?(?:-([0-9]+))?"')
_STAMP = re.compile(rb"@([0-9]+)@")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request is to be answered.

    ``kind`` is ``json`` (one object), ``burst`` or ``paced`` (a stream of ``count`` chunks, at once or
    one each ``pause_ms``), or ``tool`` (a turn that calls a tool with ``count`` bytes of arguments, then one
    that answers).
    """

    kind: str
    count: int = 1
    pause_ms: int = 0

    @property
    def model(self) -> str:
        """The model's name that asks for it."""
        return f"bench-{self.kind}-{self.count}-{self.pause_ms}"


def plan_of(body: bytes) -> Plan:
    """What a request's body asks for; one JSON answer where it names no plan."""
    found = _PLAN.search(body)
    if found is None:
        return Plan("json")
    return Plan(found[1].decode(), int(found[2] or 1), int(found[3] or 0))


def stamps(data: bytes) -> list[int]:
    """The moments written into a piece of a stream, nanoseconds."""
    return [int(found) for found in _STAMP.findall(data)]
