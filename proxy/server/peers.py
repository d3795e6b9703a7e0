"""What the processes that serve one port can ask each other.

A process says under a name what it has to tell, as bytes; any of them can have what all tell.  How the
others are reached is not known here: a process that serves alone has none.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

__all__ = ["MAX_ANSWER", "Answers", "Peers"]

MAX_ANSWER = 4 << 20
"""Bytes that one process may tell under one name."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the processes told, this one's own first; ``missing`` of them told nothing in time.

    ``ended`` is what is left of those that have gone, where what they told is remembered.
    """

    bodies: tuple[bytes, ...] = ()
    missing: int = 0
    ended: tuple[bytes, ...] = ()


AskOthers = Callable[[str, float], Awaitable[Answers]]
"""(name, seconds) → what all others tell."""


class Peers:
    """This process among those that serve one port."""

    def __init__(self) -> None:
        self.ask_others: AskOthers | None = None
        self._tells: dict[str, Callable[[], bytes]] = {}

    def publish(self, name: str, give: Callable[[], bytes]) -> None:
        """Answer to ``name`` with what ``give`` returns then: quickly, and at most ``MAX_ANSWER`` bytes."""
        self._tells[name] = give

    @property
    def told(self) -> Sequence[str]:
        """The names under which this process has something to tell."""
        return tuple(self._tells)

    def own(self, name: str) -> bytes | None:
        """What this process tells; ``None`` where it has nothing, or too much."""
        give = self._tells.get(name)
        if give is None:
            return None
        try:
            body = give()
        # The boundary to whoever registered: a fault of theirs must not take the channel along.
        except Exception:  # noqa: BLE001
            structlog.get_logger("proxy.server").exception("peer_answer_failed", name=name)
            return None
        return body if len(body) <= MAX_ANSWER else None

    async def ask_all(self, name: str, *, within_s: float = 1.0) -> Answers:
        """What every process tells under a name, after ``within_s`` seconds at the latest."""
        body = self.own(name)
        own = Answers((body,)) if body is not None else Answers(missing=1)
        if self.ask_others is None:
            return own
        others = await self.ask_others(name, within_s)
        return Answers((*own.bodies, *others.bodies), own.missing + others.missing, others.ended)
