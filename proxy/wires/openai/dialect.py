"""The data that OpenAI's dialects share, and the paths of its API in no dialect with server tools."""

import re
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.wires.dialect import (
    OPAQUE,
    Credential,
    Dialect,
    Endpoint,
    Errors,
    ErrorText,
    Framing,
    HostedTool,
    ModelLists,
    Quirks,
    RequestFields,
    TurnFields,
    UsageFields,
)
from proxy.wires.stream.sse import (
    CONTENT_TYPE,
    DONE,
    DONE_SIGN,
    END_MARK,
    EventBoundary,
    SSEParser,
    begins_events,
    encode_event,
)

PREFIX: Final = "/v1"
_MAX_MESSAGE: Final = 4096
_MOST_FAULTS: Final = 32
_FIELD: Final = re.compile(r"[a-z][a-z_.]{0,63}")
"""The name of a field in an error's ``param``; a place in a message also has a number."""
_PRINTED: Final = re.compile(r"(\[|\d+ validation errors?:\s+)\{'type': '")
_FAULT: Final = re.compile(
    r"\{'type': '(?P<type>\w+)', 'loc': \((?P<loc>[^()]*)\)(, 'msg': (?P<quote>['\"])(?P<msg>.*?)(?P=quote))?"
)
_STEP: Final = re.compile(r"[^\s,'\"]+")


def error_body(
    message: str,
    *,
    type: str,
    param: str | None = None,
    code: str | None = None,
    request_id: str = "",
    doc_url: str = "",
) -> dict[str, dict[str, str | None]]:
    """Build OpenAI's error envelope. It always has all four keys; ``param`` and ``code`` may be null.

    WIRE: openai-python keeps the whole object as ``body`` of its exception, so ``doc_url`` stands in it.
    """
    error = {"message": message, "type": type, "param": param, "code": code}
    return {"error": {**error, "doc_url": doc_url} if doc_url else error}


def error_event(message: str, *, type: str, code: str | None) -> bytes:
    """Encode an error inside a stream: a data line whose object has the one key ``error``.

    Source: openai-python and openai-node raise on that key.
    """
    return encode_event(orjson.dumps(error_body(message, type=type, code=code)))


def read_error(body: bytes) -> ErrorText:
    """Read an error body; nothing of it if it is not JSON (HTML is never shown).

    The message is cut, because it may quote the client at any length and other code searches it.
    """
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ErrorText()
    # Google's endpoint for OpenAI's clients puts the object into a list:
    # https://github.com/n4ze3m/page-assist/issues/418
    if isinstance(payload, list) and payload:
        payload = payload[0]
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if isinstance(error, str):
        return ErrorText(error[:_MAX_MESSAGE])
    if not isinstance(error, dict):
        return ErrorText()
    code, field = error.get("code"), error.get("param")
    said = _words(error.get("message") or error.get("detail"))[:_MAX_MESSAGE]
    return ErrorText(
        said,
        code[:_MAX_MESSAGE] if isinstance(code, str) else None,
        field if isinstance(field, str) and _FIELD.fullmatch(field) else "",
    )


def _words(message: Any) -> str:
    """Return a message as text; for the list that pydantic makes (FastAPI, Mistral), places and messages.

    That list also repeats the input at each place; this is left out. vLLM writes the list as Python does:
    https://github.com/1Panel-dev/MaxKB/issues/2912
    """
    if isinstance(message, dict):
        message = message.get("detail")
    if isinstance(message, str) and _PRINTED.match(message):
        found = _FAULT.finditer(message[:_MAX_MESSAGE])
        message = [{"loc": _STEP.findall(one["loc"]), "msg": one["msg"] or one["type"]} for one in found]
    if not isinstance(message, list):
        return message if isinstance(message, str) else ""
    faults = [fault for fault in message[:_MOST_FAULTS] if isinstance(fault, dict)]
    placed = [(fault["loc"], fault.get("msg")) for fault in faults if isinstance(fault.get("loc"), list)]
    return "\n".join(f"{'.'.join(map(str, place))}: {words}" for place, words in placed)


_NO_TOOLS = re.compile(
    r"(does not|doesn't|not|no|cannot|can't|without|support\w{0,12})[^.]{0,60}"
    r"\b(tools?|tool[_ ](use|choice|calling|calls?)|functions?|function[_ ]call\w*)\b"
    r"|\b(tools?|tool[_ ](use|choice|calling|calls?)|function[_ ]call\w*)\b[^.]{0,60}"
    r"(not|n't|un)[- ]?(support|allow|available|enabled|permit)"
    r"|--enable-auto-tool-choice",
    re.IGNORECASE,
)
_MISSING = re.compile(r"\bno tool (output|call)s? (was |were )?found\b", re.IGNORECASE)
"""Matches a complaint about a call or an output that the input lacks, which is not about the model."""


def _refuses_tools(message: str) -> bool:
    return bool(_NO_TOOLS.search(message) and not _MISSING.search(message))


QUIRKS: Final = Quirks(
    refuses_tools=_refuses_tools,
    # A model that the upstream does not know is a different error.
    unknown_response=re.compile(rb"previous_response|\bresponse\b[^.]{0,200}\bnot[ _]found", re.IGNORECASE),
)

FRAMING: Final = Framing(
    content_type=CONTENT_TYPE,
    event_end=b"\n\n",
    event_sign=b"data:",
    end_mark=END_MARK,
    end_text=DONE,
    end_sign=DONE_SIGN,
    parser=SSEParser,
    boundary=EventBoundary,
    begins=begins_events,
)

_CREDENTIALS: Final = (
    Credential("Authorization", "Bearer"),
    Credential("api-key", ""),
    Credential("x-api-key", ""),
)
"""The headers of OpenAI's, Azure's and Anthropic's SDKs, in this order."""

QUERY: Final = frozenset({"api-version", "beta"})
"""Query parameters that Azure's and Anthropic's clients send with inference requests."""

_FAMILIES: Final = frozenset(
    {
        "assistants", "audio", "batches", "completions", "conversations", "embeddings", "evals", "files",
        "fine_tuning", "images", "models", "moderations", "responses", "threads", "uploads",
        "vector_stores", "videos",
    }
)  # fmt: skip

_TAKES_FILES: Final = frozenset(
    {
        "audio", "containers", "content_provenance_checks", "files", "images", "realtime", "skills",
        "uploads", "videos",
    }
)  # fmt: skip


def listed_models(payload: Any, member: str, *names: str) -> dict[str, dict[str, Any]]:
    """Return the models of a list by name, each once."""
    listed = payload.get(member) if isinstance(payload, dict) else None
    found: dict[str, dict[str, Any]] = {}
    for model in listed if isinstance(listed, list) else ():
        if isinstance(model, dict):
            name = next((said for one in names if isinstance(said := model.get(one), str) and said), None)
            if name is not None:
                found.setdefault(name, model)
    return found


def _entry(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


OPENAI_LISTS: Final = ModelLists(
    path="/models",
    rooted=False,
    read=lambda payload: listed_models(payload, "data", "id"),
    entry=_entry,
    names=("id",),
    whole=lambda models: {"object": "list", "data": models},
)

SHARED: Final = Dialect(
    name="openai",
    wire="chat",
    prefix=PREFIX,
    path="",
    framing=FRAMING,
    errors=Errors(error_body, error_event, read_error),
    credentials=_CREDENTIALS,
    usage=UsageFields("prompt_tokens", "completion_tokens", "total_tokens"),
    quirks=QUIRKS,
    models=OPENAI_LISTS,
    query=QUERY,
    # Sources: the request types of openai 3.57 (``tool_param``, ``moderation``); OpenRouter's API reference,
    # and its guides on model fallbacks, presets, plugins and server tools; vLLM's
    # ``ChatCompletionRequest``, for ``documents``, which its chat templates put before the model.
    fields=RequestFields(
        texts=("messages", "prediction", "documents"),
        tools=("tools", "functions"),
        usage=("stream_options", "include_usage"),
        models=(("models",), ("moderation", "model"), ("svg", "model")),
        choosing=("plugins", "preset", "route"),
    ),
    turns=TurnFields(
        ids=frozenset({"id", "tool_call_id"}),
        volatile=frozenset(
            {
                *("reasoning", "reasoning_content", "reasoning_details", "reasoning_text"),
                *("extra_content", "thought_signature"),
            }
        ),
        lists=frozenset({"tool_calls", "content"}),
        opaque=OPAQUE | {"tool_call_id", "thought_signature"},
        json_texts=frozenset({"arguments"}),
    ),
    tools=(
        *(HostedTool(kind, repeatable=True) for kind in ("function", "custom", "web_search", "file_search")),
        HostedTool(
            "openrouter:",
            asks_models=True,
            asks_none=frozenset({"openrouter:web_search", "openrouter:web_fetch", "openrouter:datetime"}),
        ),
    ),
)
"""What OpenAI's dialects have in common."""

OPENAI: Final = replace(SHARED, families=_FAMILIES, takes_files=_TAKES_FILES)
"""The dialect of all paths below ``/v1`` that belong to no dialect with server tools."""

MODELS: Final = Endpoint(OPENAI, "GET", "/models", "models")
CONVERSATIONS: Final = Endpoint(OPENAI, "POST", "/conversations", creates="conversation")

ENDPOINTS: Final = (
    Endpoint(
        OPENAI, "POST", "/completions", "infer",
        body="routed", model="named", usage="on_request", streams=True, deployed=True,
        operation="text_completion",
    ),
    Endpoint(
        OPENAI, "POST", "/embeddings", "infer",
        body="routed", model="named", same_model=True, deployed=True, operation="embeddings",
    ),
    Endpoint(OPENAI, "POST", "/moderations", "infer", body="json", model="named", usage="none"),
    Endpoint(OPENAI, "POST", "/audio/speech", "infer", body="json", model="named", deployed=True),
    Endpoint(OPENAI, "POST", "/audio/transcriptions", "infer", body="form", deployed=True),
    Endpoint(OPENAI, "POST", "/audio/translations", "infer", body="form", deployed=True),
    Endpoint(OPENAI, "POST", "/images/generations", "infer", body="json", model="named", deployed=True),
    Endpoint(OPENAI, "POST", "/images/edits", "infer", body="form", deployed=True),
    Endpoint(OPENAI, "POST", "/images/variations", "infer", body="form"),
    MODELS,
    Endpoint(OPENAI, "GET", "/models/{rest}", "models"),
    CONVERSATIONS,
    # The cancelled answer was counted when it was given.
    Endpoint(OPENAI, "POST", "/{rest}/cancel", usage="none"),
    # Other providers serve these below the same prefix.
    Endpoint(OPENAI, "POST", "/rerank", body="json", model="named"),
    Endpoint(OPENAI, "POST", "/score", body="json", model="named"),
)  # fmt: skip
