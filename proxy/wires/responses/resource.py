"""The Response resource: the fields that every response has, and those that repeat the client's request.

Source: OpenAI's API reference, "The response object"; Open Responses' schema, which requires every field,
null where it allows null.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.base.chance import epoch_s
from proxy.base.events import FinishReason

__all__ = ["complete_resource", "ended_as", "whole_usage"]

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
come from :class:`~proxy.wires.responses.client_tools.ClientTools`."""

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
    said, word = response.get("status"), _INCOMPLETE.get(reason)
    if said in _UNFINISHED and (reason is None or word is not None):
        return dict(response)
    status, details = ("completed", None) if word is None else ("incomplete", {"reason": word})
    return {**response, "status": status, "incomplete_details": details}


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
) -> dict[str, Any]:
    """Return a whole resource: the last turn's, with the run's id and the client's output and request."""
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
