"""The principal behind a key: its holder, or one of the people who share it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.rights.callers import Caller, end_user_name
from proxy.server.messages.request import EdgeRequest


class Principal(NamedTuple):
    """The one who asks, by the name in the record, and whether that is one person.

    ``shown`` is the person as the client or the token names it; empty if there is only the key.
    """

    name: str
    is_person: bool
    shown: str = ""


class Principals:
    """The principals of requests: tells the people of shared keys apart, by the setting ``auth.end_user``."""

    def __init__(self, end_user: str) -> None:
        self._place, _, self._name = end_user.partition(":")

    def of(self, request: EdgeRequest, caller: Caller, payload: Mapping[str, Any]) -> Principal:
        """Return the principal of a request: the key, or one person of a key that several people share.

        A minted token names the person, whatever the request says. If the operator configures no end users,
        the body's own fields name people of a shared key. Hidden turns then belong to that person, and the
        caller remains the key.
        """
        user: object = caller.end_user
        if not user and not self._place:
            return Principal(caller.name, not caller.rights.shared)
        if not user and self._place == "header":
            # Two such headers are ignored: the client may have sent one besides the gateway's.
            given = request.headers.getall(self._name, ())
            user = given[0] if len(given) == 1 else None
        elif not user:
            user = payload.get(self._name)
        if not isinstance(user, str) or not user:
            return Principal(caller.name, False)
        return Principal(f"{caller.name}/{end_user_name(user)}", True, user)
