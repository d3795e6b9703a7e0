"""The server tools that a client wants by a header."""

from msgspec import Struct

from proxy.base.errors import RequestError
from proxy.http.own_headers import TOOLS


class Wanted(Struct, frozen=True):
    """The tools that a client chose with ``x-toolrelay-tools`` or in its body: none, all, or names.

    ``param`` is the field of that choice. Without ``programs`` none are written: agents write none.
    """

    every: bool = False
    names: tuple[str, ...] = ()
    param: str = TOOLS
    programs: bool = True


def parse_wanted(header: str | None) -> Wanted | None:
    """Parse ``x-toolrelay-tools``; return ``None`` if the client did not send it.

    Raise :class:`RequestError` for a header that names nothing.
    """
    if header is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in header.split(",") if name.strip()))
    if not names:
        raise RequestError(400, f"{TOOLS} must be none, all or a list of tool names.", param=TOOLS)
    if names == ("none",):
        return Wanted()
    if names == ("all",):
        return Wanted(every=True)
    return Wanted(names=names)
