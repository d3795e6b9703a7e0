"""Anthropic Messages, as data.

Source: Anthropic's API reference, "Messages", "Streaming messages" and "Errors".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.base.errors import RequestError
from proxy.wires.anthropic.typed_tools.table import TYPED_TOOLS
from proxy.wires.dialect import (
    OPAQUE,
    Credential,
    Dialect,
    Endpoint,
    Errors,
    ErrorText,
    HostedTool,
    RequestFields,
    TextPiece,
    TurnFields,
    UsageFields,
)
from proxy.wires.openai import dialect as openai
from proxy.wires.repairing import CUT_OFF
from proxy.wires.stream.sse import EventBoundary, SSEEvent, SSEParser, encode_event

_TYPES: Final = frozenset(
    {
        "api_error", "authentication_error", "billing_error", "invalid_request_error", "not_found_error",
        "overloaded_error", "permission_error", "rate_limit_error", "request_too_large", "timeout_error",
    }
)  # fmt: skip
_BY_CODE: Final = {
    "draining": "overloaded_error",
    "endpoint_not_allowed": "permission_error",
    "invalid_api_key": "authentication_error",
    "model_not_found": "not_found_error",
    "not_found": "not_found_error",
    "request_too_large": "request_too_large",
    "upstream_timeout": "timeout_error",
}
"""The proxy's own error codes, and the error type of Messages with the same meaning."""

_BY_STATUS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


_NO_THREAD: Final = "thread_unsupported_request"
"""The code by which clients learn to send the whole conversation. Source: the type
``ThreadUnsupportedRequestErrorDetails`` of anthropic 2.14."""


def _error(message: str, type: str, code: str | None) -> dict[str, Any]:
    """Make an error; ``code`` may be the proxy's own, or the type of an upstream's error."""
    kind = next((word for word in (code, _BY_CODE.get(code or ""), type) if word in _TYPES), "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_body(
    message: str,
    *,
    type: str,
    param: str | None = None,
    code: str | None = None,
    request_id: str = "",
    doc_url: str = "",
) -> dict[str, Any]:
    """Build the envelope of an error. It has no field for ``param``, which every message names."""
    body = _error(message, type, code)
    if code == _NO_THREAD:
        body["error"]["details"] = {"error_code": code, "unsupported": [param]}
    if doc_url:
        body["error"]["doc_url"] = doc_url
    return {**body, "request_id": request_id} if request_id else body


def error_event(message: str, *, type: str, code: str | None) -> bytes:
    """Encode an error inside a stream, after which nothing follows.

    WIRE: three of the clients raise on the name of the event alone.
    """
    return encode_event(orjson.dumps(_error(message, type, code)), b"error")


def read_error(body: bytes) -> ErrorText:
    """Read an error body; without a code, the type is the code.

    It also reads OpenAI's envelope, because llama-server uses that on this path too.
    """
    said = openai.read_error(body)
    if not said.message or said.code is not None:
        return said
    payload = orjson.loads(body)
    error = payload.get("error") if isinstance(payload, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return said._replace(code=kind) if isinstance(kind, str) else said


def ping_event(**more: Any) -> bytes:
    """Encode a ping, which has no meaning; clients ignore its other members, ``more``."""
    return encode_event(orjson.dumps({"type": "ping", **more}), b"ping")


PING: Final = b":".ljust(2046) + b"\n" + ping_event()
"""A ping, padded so that proxies that buffer forward it."""

STOP: Final = encode_event(b'{"type":"message_stop"}', b"message_stop")
"""The event that ends a stream; there is no other end mark."""

# Inside a text the quotes would be escaped, so these are members, though not always at the top level.
_LAST: Final = re.compile(rb'"type"\s*:\s*"(?:message_delta|message_stop|error)"|"error"\s*:')


def event_type(event: SSEEvent, payload: Any) -> str:
    """Return the type of an event, from its data or else its name. An error may have neither."""
    kind = payload.get("type") if isinstance(payload, dict) else None
    if not isinstance(kind, str):
        kind = event.event.decode("utf-8", "replace")
    return "error" if isinstance(payload, dict) and payload.get("error") else kind


class MessageBoundary(EventBoundary):
    """A boundary for streams of messages, which end with ``message_stop`` or with an error.

    A stream that just stops gets the missing end: ``message_stop`` if the model has said why it stops, else
    an error. Every piece must be parsed for that, so it is never :attr:`at_boundary`.
    """

    __slots__ = ("_says_why",)

    _sign = b""

    def __init__(self, *, max_held: int = 64 * 1024) -> None:
        super().__init__(max_held=max_held)
        self._says_why = False

    def feed(self, chunk: bytes) -> bytes:
        ready = super().feed(chunk)
        self.at_boundary = False
        return ready

    def _look_for_end_mark(self, data: bytes, skip: int = 0) -> None:
        if self.done_seen or _LAST.search(data) is None:
            return
        parser = SSEParser(at_start=self._at_start)
        for event in [*parser.feed(data), parser.close()][skip:]:
            if event is not None and _LAST.search(event.data) is not None:
                self._note(event)

    def _note(self, event: SSEEvent) -> None:
        try:
            payload = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            payload = None
        kind = event_type(event, payload)
        self._says_why = self._says_why or kind == "message_delta"
        self.done_seen = self.done_seen or kind in ("message_stop", "error")

    def _missing_end(self) -> bytes:
        return STOP if self._says_why else error_event(CUT_OFF, type="api_error", code=None)


FRAMING: Final = replace(
    openai.FRAMING, end_mark=b"", end_text=b"message_stop", end_sign=ord("g"), boundary=MessageBoundary
)


def _model(name: str, owner: str) -> dict[str, Any]:
    """Make the entry of a model of another provider, of which only the name is known."""
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _models(listed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make a list with all models on one page. Source: Anthropic's API reference, "List Models"."""
    ends = (listed[0]["id"], listed[-1]["id"]) if listed else (None, None)
    return {"data": list(listed), "has_more": False, "first_id": ends[0], "last_id": ends[1]}


def _page(listed: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Make the page of a list that ``limit``, ``after_id`` and ``before_id`` ask for; all without a limit.

    Source: Anthropic's API reference, "List Models". Raises :class:`RequestError` (400) for a
    limit that is no number from 1 to 1000, and for an id that is not on the list.
    """
    said = query.get("limit", "")
    limit = int(said) if said.isascii() and said.isdecimal() and len(said) <= 4 else 0
    if said and not 1 <= limit <= _MOST_MODELS:
        raise RequestError(400, f"limit must be a whole number from 1 to {_MOST_MODELS}.", param="limit")
    ids = [model["id"] for model in listed]
    for name in ("after_id", "before_id"):
        if query.get(name) and query[name] not in ids:
            raise RequestError(400, f"{name} must be the id of a model on this list.", param=name)
    if before := query.get("before_id"):
        left = listed[: ids.index(before)]
        shown = left[-limit:] if limit else left
    else:
        left = listed[ids.index(query["after_id"]) + 1 :] if query.get("after_id") else listed
        shown = left[:limit] if limit else left
    return {**_models(shown), "has_more": len(shown) < len(left)}


_MOST_MODELS: Final = 1000
_LISTS: Final = replace(
    openai.OPENAI_LISTS, entry=_model, whole=_models, page=_page, query=f"limit={_MOST_MODELS}"
)

ANTHROPIC: Final = Dialect(
    name="anthropic",
    wire="anthropic",
    prefix=openai.PREFIX,
    path="/messages",
    framing=FRAMING,
    errors=Errors(
        error_body, error_event, read_error, id_header="request-id", types=tuple(_BY_STATUS.items())
    ),
    credentials=(Credential("x-api-key", ""), Credential("Authorization", "Bearer")),
    usage=UsageFields("input_tokens", "output_tokens", ""),
    quirks=openai.QUIRKS,
    models=_LISTS,
    query=openai.QUERY,
    families=frozenset({"messages"}),
    headers=(("anthropic-version", "2023-06-01"),),
    answer_ids="msg_",
    refused_schemas=frozenset({"a property name"}),
    # Source: anthropic 2.14 (``beta_fallbacks_param``, ``beta_advisor_tool_20260301_param``).
    fields=RequestFields(texts=("system", "messages"), models=(("fallbacks",),)),
    turns=TurnFields(
        ids=frozenset({"id", "tool_use_id"}),
        volatile=frozenset({"thinking", "signature", "encrypted_content"}),
        reasoning=frozenset({"thinking", "redacted_thinking"}),
        lists=frozenset({"content"}),
        opaque=OPAQUE | {"tool_use_id", "media_type"},
        free=frozenset({"input"}),
    ),
    pieces=[
        TextPiece(("delta", name), frozenset({"content_block_delta"}), ("index",), name == "partial_json")
        for name in ("text", "thinking", "partial_json")
    ],
    # ``code_execution`` may keep files in its container and reach other hosts.
    tools=(
        *(HostedTool(kind, repeatable=True) for kind in (*TYPED_TOOLS, "browser", "web_fetch")),
        HostedTool("advisor_", chooses_model=True),
    ),
)

ENDPOINTS: Final = (
    Endpoint(
        ANTHROPIC, "POST", "/messages", "generate",
        body="routed", model="named", streams=True, operation="chat",
    ),
    Endpoint(
        ANTHROPIC, "POST", "/messages/count_tokens", "count", body="routed", model="named", usage="none"
    ),
    # Anthropic charges each request of a batch when it processes it, which the proxy does not see.
    Endpoint(ANTHROPIC, "POST", "/messages/{rest}"),
    Endpoint(ANTHROPIC, "GET", "/messages/{rest}"),
    Endpoint(ANTHROPIC, "DELETE", "/messages/{rest}"),
)  # fmt: skip
