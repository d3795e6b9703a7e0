"""Hold a request's head, and cache what follows from the head alone."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import HttpVersion11
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from proxy.base.errors import RequestError

GONE: Final = RawRequestMessage(
    "GET", "/", HttpVersion11, CIMultiDictProxy(CIMultiDict[str]()), (), False, None, False, False, URL("/")
)
"""Replaces a message after it was released."""

Found = TypeVar("Found")


class Head(dict[Any, Any]):
    """The head of a request as the parser read it, with cached decisions about it.

    ``head[rule]`` is the value of ``rule``, a function of the head alone. Many requests may share one head
    (:class:`~proxy.server.messages.heads.known_heads.KnownHeads`). So a rule is evaluated once for all of
    them, and its value is shared. A rule that raises is evaluated again. A component whose decision depends
    on more than the head may use itself as a key, and store the part that depends on the head. Each rule is
    defined in the module that needs it. A head has no data about the peer or the body, and no length of the
    body.
    """

    __slots__ = ("headers", "message")

    def __init__(self, message: RawRequestMessage) -> None:
        self.message = message
        self.headers = message.headers

    if TYPE_CHECKING:

        def __getitem__(self, rule: Callable[["Head"], Found]) -> Found: ...

    # A dictionary calls this only for missing keys, so a cached value is found without a call.
    def __missing__(self, rule: Callable[["Head"], Found]) -> Found:
        found = self[rule] = rule(self)
        return found

    def sole(self, name: str) -> str | None:
        """Return the value of a header that may occur once; ``None`` if it is missing.

        Raises :class:`RequestError` (400) if it occurs twice, because readers may use the first
        value, the last or both.
        """
        if name not in self.headers:
            return None
        values = self.headers.getall(name)
        if len(values) > 1:
            raise RequestError(400, f"The header {name} occurs more than once. Send it once.", param=name)
        return values[0]

    def listed(self, name: str) -> Sequence[str]:
        """Return the elements of a list header, in lower case; several lines form one list (RFC 9110,
        5.3)."""
        if name not in self.headers:
            return ()
        return [part.strip().lower() for part in ",".join(self.headers.getall(name)).split(",")]
