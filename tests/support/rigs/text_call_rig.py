"""Clients and upstreams of every dialect for the tests of calls in texts.

The functions make requests and turns, and read what a client understands. This module does not use the
package under test.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import chat_script as chat
import messages_script as messages
import ollama_script as ollama
import responses_script as responses
from raw_upstream import Step
from responses_check import check_response_stream
from running_proxy import Answer
from sse_check import check_chat_stream

WIRES = ("chat", "responses", "anthropic", "ollama")
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "ollama": "/api/chat",
}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


@dataclass
class Said:
    """What a client understands of an answer."""

    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    finish: str = ""


def ask(
    wire: str, *, stream: bool = True, tools: Sequence[str] = ("get_weather",), **more: Any
) -> dict[str, Any]:
    """Return a request that declares tools of the client."""
    said = "What is the weather in Paris?"
    if wire in ("chat", "ollama"):
        kit = [
            {"type": "function", "function": {"name": name, "description": "d", "parameters": PARAMETERS}}
            for name in tools
        ]
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": said}]}
    elif wire == "responses":
        kit = [
            {"type": "function", "name": name, "description": "d", "parameters": PARAMETERS} for name in tools
        ]
        asked = {"input": [{"role": "user", "content": said}], "store": False}
    else:
        kit = [{"name": name, "description": "d", "input_schema": PARAMETERS} for name in tools]
        asked = {"messages": [{"role": "user", "content": said}], "max_tokens": 100}
    return {"model": "m", "stream": stream, **asked, **({"tools": kit} if kit else {}), **more}


def behind(wire: str, asked: dict[str, Any], answer: Answer, results: dict[str, str]) -> dict[str, Any]:
    """Return the client's next request: it adds the answer, and the results of its calls by their ids."""
    said = understood(wire, answer, stream=bool(asked["stream"]))
    called = list(zip(said.ids, said.calls, strict=True))
    if wire == "responses":
        items: list[Any] = [responses.message(said.text)] if said.text else []
        items += [responses.function_call(i, name, json.dumps(given)) for i, (name, given) in called]
        items += [responses.output(i, results[i]) for i in said.ids]
        return {**asked, "input": [*asked["input"], *items]}
    if wire == "chat":
        calls = [
            {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for i, (name, given) in called
        ]
        told = [{"role": "tool", "tool_call_id": i, "content": results[i]} for i in said.ids]
        turn = {"role": "assistant", "content": said.text or None, "tool_calls": calls}
        return {**asked, "messages": [*asked["messages"], turn, *told]}
    if wire == "ollama":
        made = [ollama.call(name, given, index=at) for at, (_, (name, given)) in enumerate(called)]
        found = [
            # Ollama's clients send the tool's name back, and no id.
            {"role": "tool", "tool_name": name, "content": results[i]}
            for i, (name, _) in called
        ]
        return {**asked, "messages": [*asked["messages"], ollama.assistant(said.text, *made), *found]}
    blocks = [messages.text(said.text)] if said.text else []
    blocks += [messages.tool_use(i, name, given) for i, (name, given) in called]
    told = [{"type": "tool_result", "tool_use_id": i, "content": results[i]} for i in said.ids]
    turns = [{"role": "assistant", "content": blocks}, {"role": "user", "content": told}]
    return {**asked, "messages": [*asked["messages"], *turns]}


def pieces(text: str, size: int = 4) -> list[str]:
    """Cut a text into pieces like those in which tokens are streamed."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def say(
    wire: str,
    text: str,
    *,
    stream: bool = True,
    cut: bool = False,
    repeats: Mapping[str, Any] = MappingProxyType({}),
) -> list[Step]:
    """Return the steps of a turn that says a text; ``cut`` gives it the finish reason of a length limit.

    ``repeats`` are members of the request that a response of Responses repeats.
    """
    if wire == "chat":
        reason = "length" if cut else "stop"
        if not stream:
            return chat.reply(text, reason=reason, used=(9, 3))
        said = chat.content(*pieces(text))
        return chat.stream(chat.role(), said, chat.finish(reason), chat.usage(9, 3))
    if wire == "responses":
        used = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
        more: dict[str, Any] = {"usage": used, **repeats}
        if cut:
            more |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        item = responses.message(text)
        return responses.stream(item, **more) if stream else responses.reply(item, **more)
    if wire == "ollama":
        reason = "length" if cut else "stop"
        return ollama.stream(text, reason=reason) if stream else ollama.reply(text, reason=reason)
    kind = messages.stream if stream else messages.reply
    return kind(messages.text(text), reason="max_tokens" if cut else "end_turn")


def body_of(script: Sequence[Step]) -> bytes:
    """Return the bytes of a scripted stream without its head and its framing."""
    chunks = [step for step in script[1:] if isinstance(step, bytes)]
    return b"".join(step.partition(b"\r\n")[2][:-2] for step in chunks)


def understood(wire: str, answer: Answer, *, stream: bool = True, hidden: tuple[str, ...] = ()) -> Said:
    """Return what a client reads of an answer, and check what every client needs of a stream."""
    assert answer.status == 200, answer.body
    for secret in hidden:
        assert secret not in answer.body.decode()
    readers = {"chat": _chat, "responses": _responses, "anthropic": _messages, "ollama": _ollama}
    return readers[wire](answer, stream)


def _chat(answer: Answer, stream: bool) -> Said:
    if stream:
        read = check_chat_stream(answer.body, wants_usage=b'"usage":{' in answer.body)
        calls = [(call.name, json.loads(call.arguments)) for call in read.calls]
        return Said(read.text, calls, [call.id for call in read.calls], read.finish or "")
    choice = answer.json["choices"][0]
    made = choice["message"].get("tool_calls") or []
    return Said(
        choice["message"]["content"] or "",
        [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made],
        [call["id"] for call in made],
        choice["finish_reason"],
    )


def _responses(answer: Answer, stream: bool) -> Said:
    if stream:
        read = check_response_stream(answer.body, complete=False)
        resource = read.response
    else:
        resource = answer.json
    said = Said(finish=str(resource["status"]))
    for item in resource["output"]:
        if item["type"] == "message":
            said.text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            said.calls.append((item["name"], json.loads(item["arguments"])))
            said.ids.append(item["call_id"])
    return said


def _messages(answer: Answer, stream: bool) -> Said:
    if stream:
        read = messages.read_stream(answer.body)
        blocks, reason = read.blocks, read.message["stop_reason"]
    else:
        blocks, reason = answer.json["content"], answer.json["stop_reason"]
    said = Said(finish=str(reason))
    for block in blocks:
        if block["type"] == "text":
            said.text += block["text"]
        elif block["type"] == "tool_use":
            said.calls.append((block["name"], block["input"]))
            said.ids.append(block["id"])
    return said


def _ollama(answer: Answer, stream: bool) -> Said:
    read = ollama.read_stream(answer.body) if stream else ollama.read_reply(answer.body)
    assert not read.error
    return Said(read.text, read.called(), [call["id"] for call in read.calls], read.last["done_reason"])


def thought_in(wire: str, answer: Answer, *, stream: bool) -> str:
    """The reasoning that a client reads."""
    if not stream:
        whole = answer.json
        if wire == "chat":
            return str(whole["choices"][0]["message"].get("reasoning_content") or "")
        if wire == "ollama":
            return str(whole["message"].get("thinking") or "")
        listed = whole["output" if wire == "responses" else "content"]
        return "".join(map(_whole_thought, listed))
    lines = [line.removeprefix(b"data: ") for line in answer.body.splitlines()]
    return "".join(_thought(json.loads(line)) for line in lines if line[:1] == b"{")


def _whole_thought(part: dict[str, Any]) -> str:
    if part["type"] == "thinking":
        return str(part["thinking"])
    return "".join(one["text"] for one in part["summary"]) if part["type"] == "reasoning" else ""


def _thought(event: dict[str, Any]) -> str:
    """The reasoning in one event of any dialect."""
    delta = event.get("delta")
    if event.get("type") == "response.reasoning_summary_text.delta":
        return str(delta)
    if isinstance(delta, dict) and delta.get("type") == "thinking_delta":
        return str(delta["thinking"])
    choices = event.get("choices") or [{}]
    holder = choices[0].get("delta") or event.get("message") or {}
    return str(holder.get("reasoning_content") or holder.get("thinking") or "")
