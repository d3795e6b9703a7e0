"""The errors of providers: status and body, with their own words for a member that they do not know."""

from typing import Any

from provider_rules.rule import Fault, Shape, path_text


def _openai(fault: Fault) -> tuple[int, Any]:
    place = path_text(fault.place)
    said, code = fault.said or f"Unknown parameter: '{place}'.", fault.code
    if not fault.said:
        code = "unknown_parameter"
    error = {"message": said, "type": "invalid_request_error", "param": place or None, "code": code}
    return 400, {"error": error}


def _chat(fault: Fault) -> tuple[int, Any]:
    """OpenAI's Chat Completions words a field at the top unlike one further inside."""
    if fault.said or len(fault.place) > 1:
        return _openai(fault)
    said = f"Unrecognized request argument supplied: {fault.place[0]}"
    return 400, {"error": {"message": said, "type": "invalid_request_error", "param": None, "code": None}}


def _plain(fault: Fault) -> tuple[int, Any]:
    said = fault.said or f"Unknown parameter: '{path_text(fault.place)}'."
    error = {"message": said, "type": "invalid_request_error", "param": None, "code": None}
    return 400, {"error": error}


def _groq(fault: Fault) -> tuple[int, Any]:
    said = fault.said
    if not said and fault.place[0] == "messages":
        at = fault.place[1]
        name = path_text(fault.place[2:]).replace("[", ".").replace("]", "")
        said = (
            f"'messages.{at}' : for 'role:assistant' the following must be satisfied"
            f"[('messages.{at}' : property '{name}' is unsupported)]"
        )
    said = said or f"property '{path_text(fault.place)}' is unsupported"
    return 400, {"error": {"message": said, "type": "invalid_request_error"}}


def _extra(fault: Fault) -> dict[str, Any]:
    """What Pydantic says of a member that it does not know; a message's role stands in its place."""
    place: list[Any] = ["body", *fault.place]
    if fault.place[:1] == ("messages",) and len(fault.place) > 2:
        place.insert(3, "assistant")
    said = {"type": "extra_forbidden", "loc": place, "msg": "Extra inputs are not permitted"}
    return {**said, "input": fault.value}


def _mistral(fault: Fault) -> tuple[int, Any]:
    message: Any = fault.said or {"detail": [_extra(fault)]}
    error = {"object": "error", "message": message, "type": "invalid_request_error"}
    return (400 if fault.said else 422), {**error, "param": None, "code": None}


def _fastapi(fault: Fault) -> tuple[int, Any]:
    return (400, {"detail": fault.said}) if fault.said else (422, {"detail": [_extra(fault)]})


def _vllm(fault: Fault) -> tuple[int, Any]:
    extra = _extra(fault) if not fault.said else {}
    said = fault.said or str([{**extra, "loc": tuple(extra["loc"])}])
    return 400, {"object": "error", "message": said, "type": "BadRequestError", "code": 400}


def _google(fault: Fault) -> tuple[int, Any]:
    """As in https://github.com/n4ze3m/page-assist/issues/418."""
    said = fault.said
    if not said:
        *before, name = fault.place
        where = f" at '{path_text(tuple(before))}'" if before else ""
        said = f'Invalid JSON payload received. Unknown name "{name}"{where}: Cannot find field.'
    return 400, [{"error": {"code": 400, "message": said, "status": "INVALID_ARGUMENT"}}]


def _xai(fault: Fault) -> tuple[int, Any]:
    """As in https://github.com/yym68686/uni-api/issues/105; later answers have the code invalid-argument."""
    said = fault.said or f"Argument not supported on this model: {path_text(fault.place)}"
    return 400, {"code": "invalid-argument", "error": said}


def _anthropic(fault: Fault) -> tuple[int, Any]:
    said = fault.said or f"{'.'.join(map(str, fault.place))}: Extra inputs are not permitted"
    return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": said}}


def _ollama(fault: Fault) -> tuple[int, Any]:
    return 400, {"error": fault.said or f"unknown field {path_text(fault.place)}"}


SHAPES: dict[str, Shape] = {
    "anthropic": _anthropic, "deepseek": _plain, "fastapi": _fastapi, "google": _google, "groq": _groq,
    "kimi": _plain, "mistral": _mistral, "ollama": _ollama, "openai": _chat, "openai-responses": _openai,
    "vllm": _vllm, "vllm-mistral": _vllm, "xai": _xai,
}  # fmt: skip
"""The errors of each provider.

``fastapi`` stands for servers that pass Pydantic's errors on, and ``vllm-mistral`` for vLLM with a model of
Mistral's, whose messages Mistral's own library reads.
"""
