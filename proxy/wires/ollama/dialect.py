"""Ollama's own API, as data.

Source: Ollama's API reference (``docs/api.md``) and its request and response types (``api/types.go``).
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.wires.dialect import (
    OPAQUE,
    Credential,
    Dialect,
    Endpoint,
    Errors,
    Framing,
    ModelLists,
    RequestFields,
    TextPiece,
    TurnFields,
    UsageFields,
)
from proxy.wires.openai import dialect as openai
from proxy.wires.repairing import CUT_OFF
from proxy.wires.stream.ndjson import CONTENT_TYPE, LineBoundary, LineParser, begins_lines

_VERSION: Final = "0.12.6"
"""The version of Ollama's API that clients get if no upstream reports its own."""

_NO_TIME: Final = "1970-01-01T00:00:00Z"
_NO_DIGEST: Final = "0" * 64
_LENGTHS: Final = ("context_length", "max_model_len", "max_input_tokens", "context_window")
"""The members in which providers give a model's context length in OpenAI's list form."""

# Inside a text the quotes would be escaped, so these are members, though not always at the top level.
_LAST: Final = re.compile(rb'"done"[ \t]*:[ \t]*true|"error"[ \t]*:')


_LINE_BREAKS: Final = (
    (b"\xc2\x85", rb"\u0085"),
    (b"\xe2\x80\xa8", rb"\u2028"),
    (b"\xe2\x80\xa9", rb"\u2029"),
)
"""Characters at which ollama-python 0.6.3 ends a line, as ``str.splitlines`` does, and their JSON escapes."""


def line(payload: Any) -> bytes:
    """Encode one line of a stream, to be sent in one write."""
    return escape_line_breaks(orjson.dumps(payload, option=orjson.OPT_APPEND_NEWLINE))


def escape_line_breaks(data: bytes) -> bytes:
    """Escape the characters, other than a line feed, at which a client ends a line; ``data`` is JSON."""
    if not data.isascii():
        for raw, escaped in _LINE_BREAKS:
            data = data.replace(raw, escaped)
    return data


def error_body(message: str, *, type: str, **fields: str | None) -> dict[str, str]:
    """Build an error, which is one text in this dialect and has no other field.

    WIRE: clients show it as it is; one of them shows an object as ``[object Object]``.
    """
    return {"error": message}


def error_line(message: str, *, type: str, code: str | None) -> bytes:
    """Encode an error inside a stream. It is the last line: no line with ``done`` may follow."""
    return line({"error": message})


class ChatBoundary(LineBoundary):
    """A boundary for streams whose last line has ``done`` or an error."""

    __slots__ = ()

    def _ends(self, line: bytes) -> bool:
        if _LAST.search(line) is None:
            return False
        try:
            payload = orjson.loads(line)
        except orjson.JSONDecodeError:
            # A line that came only in part does not tell at which level the member is.
            return b'"error"' not in line and line.lstrip()[:1] == b"{" and line.rstrip()[-1:] == b"}"
        return isinstance(payload, dict) and (payload.get("done") is True or bool(payload.get("error")))

    def _missing_end(self) -> bytes:
        return error_line(CUT_OFF, type="api_error", code=None)


FRAMING: Final = Framing(
    content_type=CONTENT_TYPE,
    event_end=b"\n",
    event_sign=b"\n",
    end_mark=b"",
    end_text=b'"done":true',
    end_sign=ord("d"),
    parser=LineParser,
    boundary=ChatBoundary,
    begins=begins_lines,
)


def _details(owner: str) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "",
        "family": owner,
        "families": [owner],
        "parameter_size": "",
        "quantization_level": "",
    }


def _entry(name: str, owner: str) -> dict[str, Any]:
    """Make an entry. WIRE: clients in Python check the types of all these members."""
    return {
        "name": name,
        "model": name,
        "modified_at": _NO_TIME,
        "size": 0,
        "digest": _NO_DIGEST,
        "details": _details(owner),
    }


def _shown_model(owner: str, entry: Mapping[str, Any], tools: bool) -> dict[str, Any]:
    """Describe a model of another dialect's upstream as ``/api/show`` does; ``entry`` is from its list.

    Clients decide by the capabilities what they offer the model.
    """
    length = next((said for name in _LENGTHS if type(said := entry.get(name)) is int and said > 0), None)
    info: dict[str, Any] = {"general.architecture": owner, "general.basename": ""}
    if length is not None:
        info[f"{owner}.context_length"] = length
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": _NO_TIME,
        "details": _details(owner),
        "model_info": info,
        "capabilities": ["completion", *(["tools"] if tools else []), "vision"],
    }


_LISTS: Final = ModelLists(
    path="/api/tags",
    rooted=True,
    read=lambda payload: openai.listed_models(payload, "models", "model", "name"),
    entry=_entry,
    names=("name", "model"),
    whole=lambda models: {"models": models},
    show=_shown_model,
    version=_VERSION,
)

OLLAMA: Final = Dialect(
    name="ollama",
    wire="ollama",
    prefix="/api",
    path="/api/chat",
    framing=FRAMING,
    errors=Errors(error_body, error_line, openai.read_error),
    credentials=(Credential("Authorization", "Bearer"),),
    usage=UsageFields("prompt_eval_count", "eval_count", "", member=""),
    quirks=openai.QUIRKS,
    models=_LISTS,
    families=frozenset({"api"}),
    rooted=True,
    tag=":latest",
    fields=RequestFields(texts=("system", "prompt", "suffix", "messages")),
    turns=TurnFields(
        volatile=frozenset({"thinking", "created_at"}),
        lists=frozenset({"tool_calls"}),
        opaque=OPAQUE | {"images", "tool_name", "tool_call_id"},
        free=frozenset({"arguments"}),
    ),
    pieces=[
        TextPiece(path)
        for path in (("message", "content"), ("message", "thinking"), ("response",), ("thinking",))
    ],
)

ENDPOINTS: Final = (
    Endpoint(
        OLLAMA, "POST", "/api/chat", "generate",
        body="routed", model="named", streams=True, operation="chat",
    ),
    Endpoint(
        OLLAMA, "POST", "/api/generate", "complete",
        body="routed", model="named", streams=True, operation="text_completion", reader="ollama_generate",
    ),
    Endpoint(
        OLLAMA, "POST", "/api/embed", "infer",
        body="routed", model="named", same_model=True, operation="embeddings",
    ),
    Endpoint(
        OLLAMA, "POST", "/api/embeddings", "infer",
        body="routed", model="named", same_model=True, operation="embeddings",
    ),
    Endpoint(OLLAMA, "GET", "/api/tags", "models", action="list"),
    Endpoint(OLLAMA, "GET", "/api/ps", "models", action="running"),
    Endpoint(
        OLLAMA, "POST", "/api/show", "models",
        body="routed", model="named", usage="none", action="show",
    ),
    Endpoint(OLLAMA, "GET", "/api/version", "models", action="version"),
    # All other paths pull, make, copy or delete models, or sign the server in somewhere.
    Endpoint(OLLAMA, "", "/api/{rest}", "manage"),
)  # fmt: skip
