"""Reads requests whose calls carry their arguments as JSON objects, without rounding large integers."""

import re
from typing import Final

import orjson

from proxy.base.conversation import Conversation, ToolCallPart
from proxy.json.exact import loads_exactly
from proxy.wires.crossing.codec import ConversationCodec

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
