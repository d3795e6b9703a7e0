"""An upstream that behaves like OpenAI's, except for one habit at a time."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ollama_script import done
from recorded_answers import Asked, Given, Scripted

Habit = str
CITY = '{"city":"Paris"}'


def model_with(habit: Habit = "") -> Scripted:
    """Return the upstream; without a habit it behaves like OpenAI's in everything."""
    return Scripted(lambda asked: _answer(asked, habit))


def _answer(asked: Asked, habit: Habit) -> Given:
    if asked.path.startswith("/api/") and asked.rooted and habit in ("ollama too", "ollama only"):
        return _ollama(asked)
    if habit == "ollama only":
        return _error("Not Found", 404)
    if asked.method == "GET":
        return _json({"object": "list", "data": [{"id": "m-1"}, {"id": "m-2"}]})
    if asked.path == "/responses" and habit != "no responses":
        return _response(asked.payload, habit)
    if asked.path != "/chat/completions":
        return _error("Not Found", 404)
    return _refusal(asked.payload, habit) or _chat(asked.payload, habit)


def _ollama(asked: Asked) -> Given:
    """Answer as a server that also has Ollama's own API beside its ``/v1``."""
    if asked.path == "/api/tags":
        return _json({"models": [{"name": "m-1", "model": "m-1"}]})
    return Given(done(content="ok")) if asked.path == "/api/chat" else _error("Not Found", 404)


def _json(payload: Any, status: int = 200) -> Given:
    return Given(json.dumps(payload).encode(), status)


def _error(message: str, status: int = 400) -> Given:
    return _json({"error": {"message": message, "type": "invalid_request_error", "code": None}}, status)


def _parts(payload: Mapping[str, Any], role: str) -> list[Any]:
    found = [m["content"] for m in payload["messages"] if m["role"] == role]
    return [part for content in found if isinstance(content, list) for part in content]


def _typed_item(payload: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the call of a tool whose type only this dialect has; ``None`` if none is declared."""
    items = payload["input"] if isinstance(payload["input"], list) else []
    if any(item.get("type") == "additional_tools" for item in items):
        return {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": CITY}
    kind = next((tool["type"] for tool in payload.get("tools", ()) if tool["type"] != "function"), None)
    if kind == "namespace":
        call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": CITY}
        return {**call, "namespace": payload["tools"][0]["name"]}
    if kind == "custom":
        return {"type": "custom_tool_call", "call_id": "c", "name": "say", "input": "hello"}
    return None if kind is None else {"type": f"{kind}_call", "call_id": "c"}


def _refusal(payload: Mapping[str, Any], habit: Habit) -> Given | None:
    """Return an error if this server does not accept the request."""
    if any(tool["type"] == "custom" for tool in payload.get("tools", ())):
        if habit == "refuses special types" or habit.startswith("no tools"):
            return _error("Unknown tool type: custom")
        call = {"id": "c", "type": "custom", "custom": {"name": "say", "input": "hello"}}
        said: dict[str, Any] = {"role": "assistant", "content": "Hm."}
        if habit not in ("skips special types", "no calls"):
            said = {"role": "assistant", "content": None, "tool_calls": [call]}
        return _json({"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]})
    bound = payload.get("max_completion_tokens", payload.get("max_tokens", 0))
    has_results = any(message["role"] == "tool" for message in payload["messages"])
    images = [part for part in _parts(payload, "user") if part.get("type") == "image_url"]
    refused = {
        "no tools": "tools" in payload,
        "no strict": any(t["function"].get("strict") for t in payload.get("tools", ())),
        "no results": has_results,
        "no images": bool(images) and not has_results,
        "no include_usage": "stream_options" in payload,
    }
    if refused.get(habit):
        return _error(f"this server takes {habit}")
    if bound > 100_000:
        return _error("This model's maximum context length is 8192 tokens")
    return None


def _calls(payload: Mapping[str, Any], habit: Habit) -> list[dict[str, Any]]:
    """Return the calls that the request asks for."""
    if payload.get("tool_choice") in (None, "auto", "none") or habit in ("no calls", "calls in text"):
        return []
    names = [tool["function"]["name"] for tool in payload["tools"]]
    choice = payload["tool_choice"]
    if isinstance(choice, dict) and habit != "no forced choice":
        names = [choice["function"]["name"]]
    count = 2 if "Rome" in json.dumps(payload["messages"]) and habit != "one call" else 1
    made = []
    for at in range(count):
        call: dict[str, Any] = {
            "index": at,
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": names[0], "arguments": CITY},
        }
        match habit:
            case "blank ids":
                call["id"] = ""
            case "repeated ids":
                call["id"] = "call_0"
            case "no index":
                del call["index"]
            case "no type":
                del call["type"]
            case "object arguments":
                call["function"]["arguments"] = {"city": "Paris"}
        made.append(call)
    return made


def _chat(payload: Mapping[str, Any], habit: Habit) -> Given:
    calls = _calls(payload, habit)
    text = "one two three"
    if "response_format" in payload and habit != "no schema":
        text = '{"answer":"yes"}'
    if habit == "calls in text" and payload.get("tools"):
        text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    reason = "tool_calls" if calls and habit != "stop with calls" else "stop"
    head = {"id": "chatcmpl-1", "created": 1700000000, "model": payload["model"]}
    if not payload.get("stream") or habit == "no streaming":
        message: dict[str, Any] = {"role": "assistant", "content": None if calls else text}
        if calls:
            message["tool_calls"] = calls
        logprobs = {"content": [{"token": "one", "logprob": -0.1}]} if payload.get("logprobs") else None
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": reason}
        choice["logprobs"] = None if habit == "no logprobs" else logprobs
        count = 1 if habit == "one choice" else payload.get("n") or 1
        choices = [{**choice, "index": at} for at in range(count)]
        return _json({**head, "object": "chat.completion", "choices": choices, "usage": usage})
    head["object"] = "chat.completion.chunk"
    asked_usage = bool((payload.get("stream_options") or {}).get("include_usage"))
    chunks = list(_chunks(head, calls, text, reason, usage if asked_usage else None, habit))
    end = b"" if habit == "no end mark" else b"data: [DONE]\n\n"
    pieces = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return Given(pieces=[*pieces, end], content_type="text/event-stream")


def _chunks(
    head: Mapping[str, Any],
    calls: list[dict[str, Any]],
    text: str,
    reason: str,
    usage: Mapping[str, Any] | None,
    habit: Habit,
) -> Iterable[dict[str, Any]]:
    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        role = {"role": "assistant"} if habit == "role repeated" else {}
        made = {**head, "choices": [{"index": 0, "delta": {**role, **delta}, "finish_reason": finish}]}
        if habit == "no chunk ids":
            del made["id"]
        return made

    if habit == "empty first chunk":
        yield {"id": "", "object": "chat.completion.chunk", "choices": [], "prompt_filter_results": []}
    yield chunk({} if habit == "no role" else {"role": "assistant", "content": ""})
    if calls:
        for call in calls:
            yield chunk({"tool_calls": [call]})
            if habit == "said again":
                yield chunk({"tool_calls": [{**call, "function": {**call["function"], "arguments": ""}}]})
    else:
        yield chunk({"content": text})
    yield chunk({}, None if habit == "no reason" else reason)
    if usage is not None and habit != "no usage":
        yield {**head, "choices": [], "usage": usage}


def _response(payload: Mapping[str, Any], habit: Habit) -> Given:
    """Return a response of the Responses API, streamed or not."""
    if payload.get("previous_response_id") and habit == "no previous":
        return _error("previous_response_id is not supported")
    part = {"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}
    item: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    if (call := _typed_item(payload)) is not None and habit != "skips special types":
        if habit == "refuses special types":
            return _error(f"Invalid value: '{call['type']}'")
        item = {"id": "x_1", "status": "completed", **call}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    whole = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m-1",
        "status": "completed",
        "output": [item],
        "usage": usage,
    }
    if not payload.get("stream"):
        return _json(whole)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    numbers = [{} if habit == "unnumbered" else {"sequence_number": at} for at in range(len(events))]
    pieces = [
        b"data: " + json.dumps({**event, **number}).encode() + b"\n\n"
        for event, number in zip(events, numbers, strict=True)
    ]
    return Given(pieces=pieces, content_type="text/event-stream")
