"""Ollama's own API, as data.

Source: Ollama's API reference (``docs/api.md``) and its request and response types (``api/types.go``).
"""

import re
from typing import Any, Final

import orjson

from proxy.wires.dialect import Credential, Dialect, Endpoint, Errors, Framing, UsageFields
from proxy.wires.dialects import openai
from proxy.wires.dialects.model_lists import OLLAMA_LISTS
from proxy.wires.stream.ndjson import CONTENT_TYPE, LineBoundary, LineParser, begins_lines

__all__ = [
    "ENDPOINTS",
    "OLLAMA",
    "UNFINISHED",
    "ChatBoundary",
    "error_body",
    "error_line",
    "escape_line_breaks",
    "line",
]

UNFINISHED: Final = "The upstream's response ended before it was finished."
"""The error for a stream that ends without its end: several clients would take it for a complete answer."""

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


def error_body(
    message: str,
    *,
    type: str,
    param: str | None = None,
    code: str | None = None,
    request_id: str = "",
    doc_url: str = "",
) -> dict[str, str]:
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
        return error_line(UNFINISHED, type="api_error", code=None)


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
    models=OLLAMA_LISTS,
    families=frozenset({"api"}),
    rooted=True,
    tag=":latest",
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
