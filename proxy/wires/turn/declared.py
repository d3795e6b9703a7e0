"""The tools that a client declares, as every wire lists them."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.errors import RequestError

__all__ = ["listed_tools"]


def listed_tools(payload: Mapping[str, Any], field: str = "tools") -> Sequence[Any]:
    """What stands in a list of tools; nothing where there is none.

    Raises :class:`RequestError` for what is no list: with tools of ours in its place nobody would
    hear of the mistake.
    """
    listed = payload.get(field)
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise RequestError(400, f"{field} must be a list of tools.", param=field)
    return listed
