"""How a dialect's requests are translated from and to other dialects."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from proxy.base.conversation import Conversation
from proxy.wires.crossing.ledger import Written
from proxy.wires.crossing.tables import FieldTable


def _unchanged(conversation: Conversation) -> Conversation:
    return conversation


class ConversationCodec(Struct, frozen=True):
    """The functions that read the requests of a dialect's clients and write requests for its upstreams.

    ``read`` raises :class:`RequestError`, which names a field of the wrong type.

    ``write`` writes the body of a conversation for a model with a profile; without one, for what is known of
    the model.  It
    raises :class:`RequestError` with status 400, which names the field of the client's request, if the
    dialect cannot express a field that must not be left out; with ``strict``, for every field left out.

    ``returns_reasoning``: its clients send back the text of a model's reasoning.

    ``repair_missing_reasoning`` returns the conversation for an upstream that refused it because reasoning is
    missing in a turn; by default the same one, because no upstream of the dialect is known to need any.
    """

    fields: FieldTable
    read: Callable[[Mapping[str, Any]], Conversation]
    write: Callable[..., Written]
    returns_reasoning: bool = False
    repair_missing_reasoning: Callable[[Conversation], Conversation] = _unchanged
