"""Checks that a Chat stream follows the rules that every client library needs.

Official and other clients depend on these rules: one response id, one role, call indices without gaps, one
finish reason, usage last and only on request, one end mark, and only what a strict parser of server-sent
events accepts. This module does not use the package under test.
"""

import json
from dataclasses import dataclass, field
from typing import Any

_END = "[DONE]"
_FINISHES = {"stop", "length", "tool_calls", "content_filter", "function_call"}
_ERROR_KEYS = {"message", "type", "param", "code"}


class BadStream(AssertionError):
    """The rule that a stream breaks, and where it does."""


@dataclass
class Call:
    """One tool call, joined from its fragments."""

    index: int
    id: str
    name: str
    arguments: str = ""


@dataclass
class Reading:
    """What a client understands of a stream."""

    ids: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    created: list[int] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    function_call: Call | None = None
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    comments: list[str] = field(default_factory=list)
    traces: list[dict[str, Any]] = field(default_factory=list)
    roles: int = 0


def check_chat_stream(
    body: bytes,
    *,
    wants_usage: bool,
    hidden: tuple[str, ...] = (),
    trace: str = "silent",
    forwarded: int = 0,
) -> Reading:
    """Read a whole stream, check every rule, and return what the stream says.

    ``hidden`` are texts that must not be in the stream, such as the names of server tools. The first
    ``forwarded`` chunks are an upstream's own bytes. Only there, the role may be repeated, the time may
    change, and Azure's first chunk may have a blank id.
    Raises :class:`BadStream`.
    """
    read = Reading()
    events = _events(body, read)
    _must(bool(events) and events[-1] == _END, "the end mark is not the last event")
    _must(events.count(_END) == 1, f"{events.count(_END)} end marks")
    for secret in hidden:
        _must(secret not in body.decode(), f"{secret!r} is in the stream")
    chunks = [_object(event, position) for position, event in enumerate(events[:-1])]
    for position, chunk in enumerate(chunks):
        last = position == len(chunks) - 1
        if "error" in chunk:
            _error(chunk, read, last)
        else:
            own = position >= forwarded
            if not own and chunk.get("id") == "" and chunk.get("choices") == [] and not read.ids:
                continue
            if not own and read.roles:
                _drop_role(chunk)
            _chunk(chunk, read, f"chunk {position}", last=last, wants_usage=wants_usage, trace=trace)
            _must(not own or read.created[-1] == read.created[0], f"chunk {position}: another time")
    _whole(read, wants_usage)
    return read


def _must(holds: bool, rule: str) -> None:
    if not holds:
        raise BadStream(rule)


def _events(body: bytes, read: Reading) -> list[str]:
    """Return the data of each event; the stream may only have data lines, comments and blank lines."""
    _must(not body.startswith(b"\xef\xbb\xbf"), "a byte order mark hides the first event")
    text = body.decode("utf-8")
    lines = text.replace("\r\n", "\n").split("\n")
    _must("\r" not in "".join(lines), "a lone CR")
    _must(lines[-2:] == ["", ""], "no blank line after the last event")
    found = []
    for number, line in enumerate(lines[:-2]):
        if not line:
            _must(number > 0 and lines[number - 1] != "", f"line {number}: two blank lines")
        elif line.startswith(":"):
            read.comments.append(line[1:].strip())
        else:
            _must(line.startswith("data: "), f"line {number} is neither data nor a comment: {line[:40]!r}")
            _must(lines[number + 1] == "", f"line {number}: no blank line after the data")
            found.append(line[len("data: ") :])
    return found


def _object(data: str, position: int) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError as exc:
        raise BadStream(f"event {position} is not JSON: {data[:80]!r}") from exc
    _must(isinstance(parsed, dict), f"event {position} is not an object")
    return dict(parsed)


def _drop_role(chunk: dict[str, Any]) -> None:
    for choice in chunk.get("choices") or ():
        if isinstance(choice.get("delta"), dict):
            choice["delta"].pop("role", None)


def _error(chunk: dict[str, Any], read: Reading, last: bool) -> None:
    error = chunk["error"]
    _must(isinstance(error, dict), "a null error is an error to some clients")
    _must(set(chunk) == {"error"} and set(error) == _ERROR_KEYS, "an error event of another shape")
    _must(isinstance(error["message"], str) and bool(error["message"]), "an error without words")
    _must(last, "something follows the error")
    _must(read.finish is None, "an error after the finish reason")
    read.error = error


def _chunk(
    chunk: dict[str, Any], read: Reading, where: str, *, last: bool, wants_usage: bool, trace: str
) -> None:
    choices: Any = chunk.get("choices")
    _must(isinstance(choices, list), f"{where}: no choices")
    _must(chunk.get("object") == "chat.completion.chunk", f"{where}: object is {chunk.get('object')!r}")
    _head(chunk, read, where)
    _must("x_toolrelay" not in chunk or trace == "events", f"{where}: a trace nobody asked for")
    if "x_toolrelay" in chunk:
        read.traces.append(chunk["x_toolrelay"])
    _usage(chunk, read, where, last=last, wants_usage=wants_usage)
    _must(len(choices) <= 1, f"{where}: {len(choices)} choices")
    for choice in choices:
        _must(read.finish is None, f"{where}: a choice after the finish reason")
        _must(choice.get("index") == 0, f"{where}: choice index {choice.get('index')!r}")
        _must(isinstance(choice.get("delta"), dict), f"{where}: no delta")
        _delta(choice["delta"], read, where)
        finish = choice.get("finish_reason")
        if finish is not None:
            _must(finish in _FINISHES, f"{where}: finish reason {finish!r}")
            read.finish = finish


def _head(chunk: dict[str, Any], read: Reading, where: str) -> None:
    heads: list[tuple[str, type, list[Any]]] = [
        ("id", str, read.ids),
        ("model", str, read.models),
        ("created", int, read.created),
    ]
    for key, kind, seen in heads:
        value = chunk.get(key)
        _must(isinstance(value, kind) and bool(value), f"{where}: {key} is {value!r}")
        seen.append(value)
    _must(len(set(read.ids)) == 1, f"{where}: another id")
    _must(len(set(read.models)) == 1, f"{where}: another model")


def _usage(chunk: dict[str, Any], read: Reading, where: str, *, last: bool, wants_usage: bool) -> None:
    usage = chunk.get("usage")
    if usage is None:
        _must(bool(chunk["choices"]) or not last or not wants_usage, f"{where}: the last chunk has no usage")
        return
    _must(wants_usage, f"{where}: usage that nobody asked for")
    _must(last and chunk["choices"] == [], f"{where}: usage before the last chunk")
    counts = [usage.get(f"{kind}_tokens") for kind in ("prompt", "completion", "total")]
    _must(all(type(count) is int for count in counts), f"{where}: usage without its counts")
    read.usage = usage


def _delta(delta: dict[str, Any], read: Reading, where: str) -> None:
    if "role" in delta:
        _must(delta["role"] == "assistant", f"{where}: role {delta['role']!r}")
        _must(not read.text and not read.calls, f"{where}: the role comes late")
        read.roles += 1
    content = delta.get("content")
    _must(content is None or isinstance(content, str), f"{where}: content is no text")
    _must(read.roles == 1, f"{where}: {read.roles} roles at the first delta")
    read.text += content or ""
    reasoning = delta.get("reasoning_content")
    read.reasoning += reasoning if isinstance(reasoning, str) else ""
    calls = delta.get("tool_calls", [])
    _must(isinstance(calls, list), f"{where}: tool_calls is no list")
    for fragment in calls:
        _fragment(fragment, read, where)
    if "function_call" in delta:
        _function(delta["function_call"], read, where)


def _fragment(fragment: dict[str, Any], read: Reading, where: str) -> None:
    index: Any = fragment.get("index")
    function: Any = fragment.get("function")
    _must(type(index) is int and isinstance(function, dict), f"{where}: a call without index or function")
    _must(0 <= index <= len(read.calls), f"{where}: call index {index} after {len(read.calls)} calls")
    if index == len(read.calls):
        _must(
            bool(fragment.get("id")) and fragment.get("type") == "function", f"{where}: a call begins blank"
        )
        _must(bool(function.get("name")), f"{where}: a call without a name")
        _must(fragment["id"] not in {call.id for call in read.calls}, f"{where}: a call id twice")
        read.calls.append(Call(index, fragment["id"], function["name"]))
    else:
        _must("id" not in fragment and "name" not in function, f"{where}: id or name again")
    arguments = function.get("arguments", "")
    _must(isinstance(arguments, str), f"{where}: arguments are no text")
    read.calls[index].arguments += arguments


def _function(call: dict[str, Any], read: Reading, where: str) -> None:
    if read.function_call is None:
        _must(bool(call.get("name")), f"{where}: a function call without a name")
        read.function_call = Call(0, "", call["name"])
    else:
        _must("name" not in call, f"{where}: the function's name again")
    read.function_call.arguments += call.get("arguments") or ""


def _whole(read: Reading, wants_usage: bool) -> None:
    """Check the rules that need the whole stream."""
    if read.error is not None:
        return
    _must(read.roles == 1, f"{read.roles} roles")
    _must(read.finish is not None, "no finish reason")
    _must(
        (read.finish == "tool_calls") == bool(read.calls) or read.finish in ("length", "content_filter"),
        f"finish reason {read.finish!r} with {len(read.calls)} calls",
    )
    _must((read.finish == "function_call") == (read.function_call is not None), "a function call unfinished")
    _must(not wants_usage or read.usage is not None, "no usage although it was asked for")
    if read.finish == "tool_calls":
        for call in read.calls:
            _must(_is_object(call.arguments), f"arguments of {call.id} are no object")


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments or "{}"), dict)
    except ValueError:
        return False
