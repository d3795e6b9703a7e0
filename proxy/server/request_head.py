"""What a request's head says, and what follows from it alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp.http import RawRequestMessage

__all__ = ["Head"]

Found = TypeVar("Found")


class Head(dict[Any, Any]):
    """A head as the parser read it, and what has been decided by it.

    ``head[rule]`` is what ``rule``, a function of the head and of nothing else, makes of it.  A head may be
    that of many requests (:class:`~proxy.server.known_heads.KnownHeads`), so a rule is asked once for all of
    them, and what it returns is shared; one that raises is asked again.  Rules stay with those whose
    business they are.  Nothing of a request's peer or body stands here, its length neither.
    """

    __slots__ = ("headers", "message")

    def __init__(self, message: RawRequestMessage) -> None:
        self.message = message
        self.headers = message.headers

    if TYPE_CHECKING:

        def __getitem__(self, rule: Callable[["Head"], Found]) -> Found: ...

    # A dictionary asks this for what it lacks: what is there is found without a call.
    def __missing__(self, rule: Callable[["Head"], Found]) -> Found:
        found = self[rule] = rule(self)
        return found
