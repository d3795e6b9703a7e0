"""The fingerprint of a prompt: what was asked of the model, less the conversation.

Two runs with one fingerprint gave the model the same tools, schemas and parameters, so that a difference
between them is not the request's.  It says how, never what or for whom.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

__all__ = ["prompt_fingerprint"]

_LEFT_OUT = frozenset(
    {
        # What is said.
        "messages", "input", "instructions", "prompt", "prediction", "conversation", "previous_response_id",
        # For whom, and what is remembered of it.
        "user", "safety_identifier", "prompt_cache_key", "metadata", "store",
        # How the answer travels.
        "stream", "stream_options",
    }
)  # fmt: skip
_LISTS_OF_TOOLS = ("tools", "functions")


def prompt_fingerprint(payload: Mapping[str, Any], offered: str) -> str:
    """A digest of a request's model, tools and parameters.

    ``payload`` is the request's body as the client sent it, ``offered`` the digest of the server tools
    that go with it.  The order of keys and of tools does not change it.
    """
    parts = {key: value for key, value in payload.items() if key not in _LEFT_OUT}
    for key in _LISTS_OF_TOOLS:
        if isinstance(parts.get(key), list):
            parts[key] = sorted(_text(tool).decode() for tool in parts[key])
    return hashlib.blake2b(_text([offered, parts]), digest_size=16).hexdigest()


def _text(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
