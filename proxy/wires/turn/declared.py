"""Reads the tools that a client declares, in the list that every wire has."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.errors import RequestError

__all__ = ["listed_tools"]


def listed_tools(payload: Mapping[str, Any], field: str = "tools") -> Sequence[Any]:
    """Return the entries of a list of tools; ``()`` if there is no list.

    Raises :class:`RequestError` if the value is not a list. Otherwise the proxy would replace it by its own
    tools and hide the mistake.
    """
    listed = payload.get(field)
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise RequestError(400, f"{field} must be a list of tools.", param=field)
    return listed
