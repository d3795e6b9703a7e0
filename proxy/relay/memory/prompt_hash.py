"""The prompt hash: a digest of what was asked of the model, without the conversation.

Two runs with one prompt hash gave a model of the same name the same instructions, system messages and tools.
The hash shows how the model was asked, never what or for whom.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from proxy.base.caches import declare_lru
from proxy.wires.client_port import ClientRequest

_DIGITS: Final = 32
_MOST_MODEL: Final = 200
"""The most characters of a model's name whose hash is kept."""
_UNSEEN: Final = frozenset({"authorization", "cache_control", "headers"})
"""The members of a tool that no model sees. The first and the last one may contain a token."""


def prompt_hash(request: ClientRequest, payload: Mapping[str, Any], offered: str) -> str:
    """Return the prompt hash of a request: 32 hexadecimal digits.

    ``payload`` is the request's body as the client sent it, and ``offered`` the digest of the offered server
    tools. The order of keys and of tools does not change the result.
    """
    tools = [
        _seen(tool)
        for name in ("tools", "functions")
        if isinstance(listed := payload.get(name), list)
        for tool in listed
    ]
    system, model = request.system_texts, request.model
    if not (tools or system) and len(model) <= _MOST_MODEL:
        return _without_words(model, offered)
    if len(tools) > 1:
        tools.sort(key=_name)
    return _hashed([model, system, tools, offered])


@lru_cache(256)
def _without_words(model: str, offered: str) -> str:
    """Return the hash of a request that has neither instructions nor tools of its own."""
    return _hashed([model, (), [], offered])


declare_lru("prompt_hashes", _without_words, 1000)


def _hashed(said: Any) -> str:
    # SHA-256 takes a fifth of BLAKE2's time where the processor has it.
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGITS]


def _seen(tool: Any) -> Any:
    """Return what a model sees of a tool."""
    if not isinstance(tool, dict) or _UNSEEN.isdisjoint(tool):
        return tool
    return {key: value for key, value in tool.items() if key not in _UNSEEN}


def _name(tool: Any) -> tuple[str, str]:
    """Return the kind and the name of a tool, by which tools are sorted; a name is used only once."""
    if not isinstance(tool, dict):
        return "", ""
    inner = tool.get("function")
    named = inner if isinstance(inner, dict) else tool
    return str(tool.get("type")), str(named.get("name", tool.get("server_label")))
