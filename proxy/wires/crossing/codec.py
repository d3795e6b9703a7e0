"""How a dialect's requests are translated from and to other dialects, without rounding large integers."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.base.conversation import Conversation, ToolCallPart
from proxy.json.exact import loads_exactly
from proxy.wires.crossing.fitting import fitted
from proxy.wires.crossing.ledger import Ledger, Written
from proxy.wires.crossing.tables import FieldTable
from proxy.wires.profile import Profile
from proxy.wires.providers import known_profile


def _unchanged(conversation: Conversation) -> Conversation:
    return conversation


class ConversationCodec(Struct, frozen=True):
    """The functions that read the requests of a dialect's clients and write requests for its upstreams.

    ``read`` raises :class:`RequestError`, which names a field of the wrong type.

    ``body`` returns the members of the body of a conversation, for what a model takes, and tells the ledger
    what the dialect cannot express.

    ``returns_reasoning``: its clients send back the text of a model's reasoning.

    ``repair_missing_reasoning`` returns the conversation for an upstream that refused it because reasoning is
    missing in a turn; by default the same one, because no upstream of the dialect is known to need any.
    """

    fields: FieldTable
    read: Callable[[Mapping[str, Any]], Conversation]
    body: Callable[[Conversation, Profile, Ledger], dict[str, Any]]
    returns_reasoning: bool = False
    repair_missing_reasoning: Callable[[Conversation], Conversation] = _unchanged

    def write(
        self, conversation: Conversation, profile: Profile | None = None, *, strict: bool = False
    ) -> Written:
        """Write the body of a conversation for a model with a profile; without one, for what is known of it.

        Raises :class:`RequestError` with status 400, which names the field of the client's request, if the
        dialect cannot express a field that must not be left out; with ``strict``, for every field left out.
        """
        ledger = Ledger(self.fields, conversation.names, strict=strict)
        profile = profile or known_profile(self.fields.dialect, conversation.model)
        conversation = fitted(conversation, profile, ledger)
        body = self.body(conversation, profile, ledger)
        ledger.put_natives(conversation.native, body)
        return ledger.close(body)


_ROUNDED: Final = re.compile(r"[:,\[]-?\d(?:\.\d+)?e[+-]?\d")
"""A number as orjson writes a large float; it writes no blanks between the members of an object."""


def read_exactly(codec: ConversationCodec, raw: bytes) -> Conversation:
    """Return the conversation of a request.

    The slower exact parser runs only if the arguments of a call have a number that orjson may have rounded.
    """
    conversation = codec.read(orjson.loads(raw))
    for message in conversation.messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart) and _ROUNDED.search(part.arguments) is not None:
                return codec.read(loads_exactly(raw))
    return conversation
