"""The interface by which a dialect's requests are translated from and to other dialects."""

from collections.abc import Mapping
from typing import Any, Protocol

from proxy.base.conversation import Conversation
from proxy.wires.crossing.ledger import Written
from proxy.wires.crossing.tables import FieldTable
from proxy.wires.profile import Profile

__all__ = ["ConversationCodec"]


class ConversationCodec(Protocol):
    """A codec that reads the requests of a dialect's clients and writes requests for its upstreams."""

    @property
    def fields(self) -> FieldTable:
        """How each field is translated."""
        ...

    @property
    def returns_reasoning(self) -> bool:
        """Whether its clients send back the text of a model's reasoning."""
        ...

    def read(self, payload: Mapping[str, Any]) -> Conversation:
        """Read a request.  Raises :class:`RequestError`, which names a field of the wrong type."""
        ...

    def write(
        self, conversation: Conversation, profile: Profile | None = None, *, strict: bool = False
    ) -> Written:
        """Write a request body for a model with this profile; without one, for what is known of the model.

        Raises :class:`RequestError` with status 400, which names the field of the client's request, if this
        dialect cannot express a field that must not be left out; with ``strict``, for every field left out.
        """
        ...

    def repair_missing_reasoning(self, conversation: Conversation) -> Conversation:
        """Return the conversation for an upstream that refused it because reasoning is missing in a turn.

        Returns the same conversation if the dialect cannot help.
        """
        ...
