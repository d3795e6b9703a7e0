"""The fingerprint of a prompt: a digest of what was asked of the model, without the conversation.

Two runs with the same fingerprint gave the model the same tools, schemas and parameters.  So a difference
between them is not caused by the request.  The fingerprint shows how the model was asked, never what or for
whom.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

__all__ = ["prompt_fingerprint"]

_LEFT_OUT = frozenset(
    {
        # The conversation.
        "messages", "input", "instructions", "prompt", "prediction", "conversation", "previous_response_id",
        # The user, and what is stored.
        "user", "safety_identifier", "prompt_cache_key", "metadata", "store",
        # The transport of the answer.
        "stream", "stream_options",
    }
)  # fmt: skip
_LISTS_OF_TOOLS = ("tools", "functions")


def prompt_fingerprint(payload: Mapping[str, Any], offered: str) -> str:
    """Return a digest of a request's model, tools and parameters.

    ``payload`` is the request's body as the client sent it, and ``offered`` the digest of the offered server
    tools.  The order of keys and of tools does not change the result.
    """
    parts = {key: value for key, value in payload.items() if key not in _LEFT_OUT}
    for key in _LISTS_OF_TOOLS:
        if isinstance(parts.get(key), list):
            parts[key] = sorted(_text(tool).decode() for tool in parts[key])
    return hashlib.blake2b(_text([offered, parts]), digest_size=16).hexdigest()


def _text(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
