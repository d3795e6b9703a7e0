"""The Response resource: the fields that every response has, and those that repeat the client's request.

Source: OpenAI's API reference, "The response object"; Open Responses' schema, which requires every field,
null where it allows null.

An upstream repeats the tools of the request with the fields that it filled in (``strict``), including the
server tools. The client gets its own part of that list. It gets its own declaration for a tool that a
server tool replaced, or that the upstream leaves out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson

from proxy.base.chance import epoch_s
from proxy.base.events import FinishReason
from proxy.json.splice import elements, join_array
from proxy.wires.responses.own_items.hosted import tool_usage

_INCOMPLETE: Final[Mapping[FinishReason | None, str]] = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}
"""The words of ``incomplete_details.reason``; after all other reasons a response is completed."""

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "store",
    "tool_choice",
)
"""Fields of the resource that repeat the request and that the proxy changes for the upstream. ``tools``
come from :class:`~proxy.wires.responses.resource.ClientTools`."""

_DEFAULTS: dict[str, Any] = {
    "object": "response",
    "status": "completed",
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "output": [],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": None,
    "user": None,
}
_UNFINISHED: Final = ("incomplete", "failed", "cancelled")
_REQUEST_FIELDS = (
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "temperature",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
)


def ended_as(response: Mapping[str, Any], reason: FinishReason | None) -> dict[str, Any]:
    """Return a response with the status and the details for a finish reason; ``None`` keeps its own."""
    status, word = response.get("status"), _INCOMPLETE.get(reason)
    if status in _UNFINISHED and (reason is None or word is not None):
        return dict(response)
    status, details = ("completed", None) if word is None else ("incomplete", {"reason": word})
    return {**response, "status": status, "incomplete_details": details}


def queued(response_id: str, asked: Mapping[str, Any], created_at: float) -> dict[str, Any]:
    """Return the resource of a response that has not started; ``asked`` is the body of its request."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(created_at),
        "status": "queued",
        "background": True,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "max_output_tokens": asked.get("max_output_tokens"),
        "metadata": asked.get("metadata") or {},
        "model": asked.get("model"),
        "output": [],
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": asked.get("previous_response_id"),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools") or [],
        "usage": None,
    }


def complete_resource(
    response: Mapping[str, Any],
    asked: Mapping[str, Any],
    *,
    public_id: str,
    created_at: int,
    model: str,
    output: Sequence[Mapping[str, Any]],
    usage: Mapping[str, Any] | None,
    tools: Sequence[Any],
    used: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a whole resource: the last turn's, with the run's id and the client's output and request.

    ``used`` is what the calls that the proxy ran in the provider's place have used.
    """
    whole = dict(_DEFAULTS)
    for key in ("text", "reasoning"):
        if isinstance(asked.get(key), dict):
            whole[key] = {**_DEFAULTS[key], **asked[key]}
    whole |= {key: asked[key] for key in _REQUEST_FIELDS if asked.get(key) is not None}
    whole |= {key: value for key, value in response.items() if value is not None or key not in whole}
    whole |= {key: asked.get(key, _DEFAULTS[key]) for key in _ECHOED}
    for key in ("tool_choice", "store"):
        if whole[key] is None:
            whole[key] = _DEFAULTS[key]
    created = created_at or whole.get("created_at")
    whole |= {
        "id": public_id,
        "created_at": int(created) if isinstance(created, int | float) and created else epoch_s(),
        "model": model,
        "output": list(output),
        "tools": list(tools),
        "usage": None if usage is None else whole_usage(usage),
    }
    if used:
        whole.setdefault("tool_usage", tool_usage(used))
    if whole["status"] == "completed":
        whole["completed_at"] = epoch_s()
    else:
        whole.setdefault("completed_at", None)
    return whole


def whole_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return usage with all counts that clients read, 0 if the upstream does not report them."""
    whole = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, **usage}
    for name, count in (
        ("input_tokens_details", "cached_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
    ):
        details = whole.get(name)
        whole[name] = {count: 0, **(details if isinstance(details, Mapping) else {})}
    return whole


# ---------------------------------------------------------------- tools


T = TypeVar("T")

_NAMED = ("function", "custom")
_FUNCTION = {"description": None, "parameters": None, "strict": None}
"""Fields of every function in the resource."""
_SEARCH: Final = {"search_context_size": "medium", "user_location": None}
_FILLED: Final[Mapping[Any, Mapping[str, Any]]] = {
    "function": _FUNCTION,
    "web_search": {"filters": None, **_SEARCH},
    "web_search_preview": _SEARCH,
}
"""Fields that a tool has in the resource, by its type, if the client left them out."""


class ClientTools:
    """The tools in the responses to one client. With ``open_names``, a stored prompt may contain tools that
    the client did not declare."""

    def __init__(
        self, asked: Mapping[str, Any], is_hidden: Callable[[str], bool], *, open_names: bool
    ) -> None:
        declared = asked.get("tools")
        self._declared: Sequence[Any] = declared if isinstance(declared, list) else []
        self._is_hidden = is_hidden
        self._open_names = open_names

    def listed(self, response: Mapping[str, Any]) -> list[Any]:
        """Return the tools for a resource that an upstream made."""
        listed = response.get("tools")
        listed = listed if isinstance(listed, list) else []
        return self._told(zip(listed, listed, strict=True), self._declared)

    def completed(self, response: Mapping[str, Any]) -> list[Any]:
        """Return the same tools, each function with every field of its schema."""
        return with_all_fields(self.listed(response))

    def raw(self, response: Mapping[str, Any], listed: bytes) -> bytes:
        """Return the same tools as bytes, with the upstream's bytes where possible; ``listed`` is its raw
        list."""
        tools = response.get("tools")
        pieces = elements(listed) if tools and isinstance(tools, list) else []
        pairs = zip(tools or (), pieces, strict=True) if pieces else ()
        shown = self._told(pairs, [orjson.dumps(tool) for tool in self._declared])
        return listed if shown == pieces else join_array(shown)

    def _told(self, listed: Iterable[tuple[Any, T]], declared: Sequence[T]) -> list[T]:
        """Return the declared tools, each in its form from ``listed`` if it is there."""
        named: dict[str, T] = {}
        hosted: list[T] = []
        for tool, form in listed:
            if _kind(tool) in _NAMED:
                name = tool.get("name")
                if isinstance(name, str) and not self._is_hidden(name):
                    named.setdefault(name, form)
            elif isinstance(tool, dict):
                hosted.append(form)
        if len(hosted) < sum(_kind(tool) not in _NAMED for tool in self._declared):
            hosted = []  # They cannot be matched to the declared ones.
        shown = []
        for tool, form in zip(self._declared, declared, strict=True):
            if _kind(tool) in _NAMED:
                shown.append(named.pop(str(tool.get("name")), form))
            else:
                shown.append(hosted.pop(0) if hosted else form)
        return [*shown, *named.values(), *hosted] if self._open_names else shown


def with_all_fields(tools: Iterable[Any]) -> list[Any]:
    """Return the tools, each function and search with every field of its schema."""
    return [{**tool, **_FILLED[kind], **tool} if (kind := _kind(tool)) in _FILLED else tool for tool in tools]


def _kind(tool: Any) -> Any:
    return tool.get("type") if isinstance(tool, dict) else None
