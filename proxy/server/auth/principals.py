"""Who asks with a key: whoever holds it, or one of the people behind it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.server.callers import Caller, end_user_name
from proxy.server.serving.request import EdgeRequest

__all__ = ["Principal", "Principals"]


class Principal(NamedTuple):
    """Who asks, as the record calls them, and whether that is one person."""

    name: str
    is_person: bool


class Principals:
    """Tells the people of shared keys apart, by what the operator says of end users (``auth.end_user``)."""

    def __init__(self, end_user: str) -> None:
        self._place, _, self._name = end_user.partition(":")

    def of(self, request: EdgeRequest, caller: Caller, payload: Mapping[str, Any]) -> Principal:
        """Who asks: a key that several people share needs the end user's name.

        Who came with a minted token is the person that it was made for, whatever the request says.
        Where the operator says nothing of end users, a body's own fields name people of a shared key; those
        are in the keys of what is put back, and the caller stays the key.
        """
        user: object = caller.end_user
        if not user and not self._place:
            return Principal(caller.name, not caller.rights.shared)
        if not user and self._place == "header":
            # One that came beside the one that somebody on the way added says nothing.
            given = request.headers.getall(self._name, ())
            user = given[0] if len(given) == 1 else None
        elif not user:
            user = payload.get(self._name)
        if not isinstance(user, str) or not user:
            return Principal(caller.name, False)
        return Principal(f"{caller.name}/{end_user_name(user)}", True)
