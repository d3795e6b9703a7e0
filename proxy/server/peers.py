"""Lets the processes that serve one port ask each other.

A process publishes bytes under a name; any of the processes can collect what all of them publish. This module
does not know how the others are reached: a process that serves alone has no others.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog
from msgspec import Struct

MAX_ANSWER = 4 << 20
"""The most bytes that one process may publish under one name."""


class Answers(Struct, frozen=True):
    """The answers of the processes, this one's own first; ``missing`` is the number that gave none in time.

    ``ended`` are the last answers of processes that have ended, if they are kept.
    """

    bodies: tuple[bytes, ...] = ()
    missing: int = 0
    ended: tuple[bytes, ...] = ()


AskOthers = Callable[[str, float], Awaitable[Answers]]
"""Called as ``(name, seconds)``; returns the answers of all other processes."""


class Peers:
    """This process among those that serve one port."""

    def __init__(self) -> None:
        self.ask_others: AskOthers | None = None
        self._tells: dict[str, Callable[[], bytes]] = {}

    def publish(self, name: str, give: Callable[[], bytes]) -> None:
        """Answer to ``name`` with what ``give`` returns at that time. It must be quick and at most
        ``MAX_ANSWER`` bytes."""
        self._tells[name] = give

    @property
    def published(self) -> Sequence[str]:
        """The names that this process publishes."""
        return tuple(self._tells)

    def own_answer(self, name: str) -> bytes | None:
        """Return this process's own answer; ``None`` if there is none, or it is too large or fails."""
        give = self._tells.get(name)
        if give is None:
            return None
        try:
            body = give()
        # The boundary to the publisher: its fault must not break the channel.
        except Exception:  # noqa: BLE001
            structlog.get_logger("proxy.server").exception("peer_answer_failed", name=name)
            return None
        return body if len(body) <= MAX_ANSWER else None

    async def ask_all(self, name: str, *, within_s: float = 1.0) -> Answers:
        """Return the answers of all processes to a name, within ``within_s`` seconds."""
        body = self.own_answer(name)
        own = Answers((body,)) if body is not None else Answers(missing=1)
        if self.ask_others is None:
            return own
        others = await self.ask_others(name, within_s)
        return Answers((*own.bodies, *others.bodies), own.missing + others.missing, others.ended)
