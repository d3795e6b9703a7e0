"""What a dialect needs so that its clients and upstreams can be those of any other one."""

from collections.abc import Mapping
from typing import Any, Protocol

from proxy.conversation import Conversation
from proxy.wires.crossing.ledger import Written
from proxy.wires.crossing.tables import FieldTable

__all__ = ["ConversationCodec"]


class ConversationCodec(Protocol):
    """Reads the requests of a dialect's clients, and writes those that its upstreams take."""

    @property
    def fields(self) -> FieldTable:
        """How each field is translated."""
        ...

    @property
    def returns_reasoning(self) -> bool:
        """Whether its clients send the text of a model's reasoning back."""
        ...

    def read(self, payload: Mapping[str, Any]) -> Conversation:
        """Read a request.  Raises :class:`RequestError` naming a field of the wrong type."""
        ...

    def write(self, conversation: Conversation, *, strict: bool = False) -> Written:
        """Write a request body.

        Raises :class:`RequestError` with status 400, naming the field of the client's request, for what
        this dialect cannot say and the body cannot go without; with ``strict`` for all that it goes without.
        """
        ...

    def without_reasoning(self, conversation: Conversation) -> Conversation:
        """A conversation for an upstream of this dialect that has refused it, since it lacks the reasoning of
        some turn; the same where nothing can be done about that."""
        ...
