"""Reads an Ollama client's request as a conversation.

Source: Ollama's API reference, "Generate a chat completion".
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import orjson

from proxy.base.conversation import (
    Conversation,
    FunctionTool,
    Image,
    Inline,
    Message,
    Output,
    OutputFormat,
    Part,
    Reasoning,
    ReasoningSettings,
    Role,
    Sampling,
    Service,
    Text,
    ToolCallPart,
    ToolResultPart,
    split_system,
)
from proxy.wires.crossing.fields import Fields, read_sampling
from proxy.wires.ollama.crossing.fields import OLLAMA_FIELDS
from proxy.wires.ollama.request import Call, keys_of, pair

_ROLES: Final = ("system", "user", "assistant", "tool")
_LEVELS: Final = ("low", "medium", "high", "max")
_MEDIA: Final = (
    ("iVBORw0KGgo", "image/png"),
    ("/9j/", "image/jpeg"),
    ("R0lGOD", "image/gif"),
    ("UklGR", "image/webp"),
)
"""The first characters of images in base64; this dialect does not give their media type."""


def read_conversation(payload: Mapping[str, Any]) -> Conversation:
    """Read a chat request.

    Raises :class:`RequestError`, which names the field, for a field of the wrong type.
    """
    asked = Fields(payload, OLLAMA_FIELDS)
    model = asked.model()
    system, messages = split_system(_messages(list(asked.elements("messages"))))
    tools = tuple(map(_tool, asked.elements("tools")))
    settings = read_settings(asked)
    return Conversation(
        model=model,
        messages=messages,
        system=system,
        tools=tools,
        **settings._asdict(),
        native=asked.rest(),
        names=asked.names,
    )


# ---------------------------------------------------------------- messages


def _messages(asked: Sequence[Fields]) -> Iterator[Message]:
    """Read the messages; the results after a turn become one message, in the order of the turn's calls."""
    calls: Sequence[Call] = ()
    place = 0
    while place < len(asked):
        message = asked[place]
        role = (message.text("role") or "").lower()
        if role not in _ROLES:
            raise message.fault("role", "must be system, user, assistant or tool")
        if role == "tool":
            message.leave("role")
            end = place
            while end < len(asked) and str(asked[end].peek("role")).lower() == "tool":
                end += 1
            yield from _results(asked[place:end], calls)
            place, calls = end, ()
            continue
        parts = list(_said(message))
        if role == "assistant":
            calls, made = _calls(message, message.path)
            parts += made
        yield Message(cast("Role", role), tuple(parts), native=message.rest(), at=message.path)
        place += 1


def _said(message: Fields) -> Iterator[Part]:
    if thinking := message.text("thinking"):
        yield Reasoning(thinking, at=message.at("thinking"))
    if content := message.text("content"):
        yield Text(content, at=message.at("content"))
    yield from read_images(message)


def read_images(message: Fields) -> Iterator[Image]:
    """Read the images of an object. Raises :class:`RequestError` for one that is no text."""
    for place, data in enumerate(message.listed("images")):
        if not isinstance(data, str):
            raise message.fault(f"images[{place}]", "must be an image in base64")
        media = next((kind for start, kind in _MEDIA if data.startswith(start)), "image/png")
        yield Image(Inline(media, data), at=f"{message.at('images')}[{place}]")


def _calls(message: Fields, path: str) -> tuple[Sequence[Call], Sequence[ToolCallPart]]:
    """Read the calls of a message; a call without an id gets one, the same in each request."""
    found: list[Call] = []
    natives = []
    for call in message.elements("tool_calls"):
        function = call.inner("function")
        name = function.text("name") if function is not None else None
        if function is None or not name:
            raise call.fault("function.name", "must name the tool that is called")
        arguments = orjson.dumps(function.mapping("arguments") or {}).decode()
        function.skip("index", len(found))
        call.skip("type", "function")
        found.append(Call(call.text("id") or "", name, arguments))
        natives.append((call.rest(), call.path))
    keys = keys_of([(f"{path} {call.name}", call.arguments) for call in found])
    named = [call._replace(call_id=call.call_id or key) for call, key in zip(found, keys, strict=True)]
    parts = [
        ToolCallPart(call.call_id, call.name, call.arguments, native=native, at=at)
        for call, (native, at) in zip(named, natives, strict=True)
    ]
    return named, parts


def _results(asked: Sequence[Fields], calls: Sequence[Call]) -> Iterator[Message]:
    """Read the results of a turn's calls; a result without a call becomes a user message."""
    facts = [
        {name: message.text(name) for name in ("tool_call_id", "tool_name", "name", "role")}
        for message in asked
    ]
    places = pair(calls, facts)
    results: dict[int, ToolResultPart] = {}
    strays: list[Message] = []
    for message, place in zip(asked, places, strict=True):
        parts = tuple(part for part in _said(message) if isinstance(part, Text | Image))
        native = message.rest()
        if place is None or place in results:
            strays.append(Message("user", parts, native=native, at=message.path))
        else:
            call = calls[place]
            results[place] = ToolResultPart(
                call.call_id, parts, name=call.name, native=native, at=message.path
            )
    if results:
        yield Message("tool", tuple(results[place] for place in sorted(results)), at=asked[0].path)
    yield from strays


# ---------------------------------------------------------------- settings


class Settings(NamedTuple):
    """The settings of a request; the fields are those of a :class:`Conversation`."""

    sampling: Sampling
    output: Output
    reasoning: ReasoningSettings
    truncate: bool | None
    stream: bool
    # Ollama stores no answers, so the upstream must not store them either.
    service: Service = Service(store=False)


def read_settings(asked: Fields) -> Settings:
    """Read the settings that chats and completions share.

    Raises :class:`RequestError`, which names the field, for a field of the wrong type.
    """
    options = asked.inner("options") or Fields({}, OLLAMA_FIELDS, "options", ("options",))
    limit = options.whole("num_predict")
    return Settings(
        sampling=read_sampling(options),
        output=Output(
            # A negative number means no limit, or as much as fits.
            max_tokens=limit if limit is not None and limit > 0 else None,
            stops=options.texts("stop"),
            format=_format(asked),
            logprobs=asked.flag("logprobs"),
            top_logprobs=asked.whole("top_logprobs"),
        ),
        reasoning=_reasoning(asked),
        truncate=asked.flag("truncate"),
        stream=asked.flag("stream") is not False,
    )


def _tool(tool: Fields) -> FunctionTool:
    tool.skip("type", "function", "")
    function = tool.inner("function")
    name = function.text("name") if function is not None else None
    if function is None or not name:
        raise tool.fault("function.name", "must name the tool")
    description, schema = function.text("description") or "", function.mapping("parameters")
    # Ollama holds no model to a schema; Responses would by default.
    return FunctionTool(name, description, schema, False, native=tool.rest(), at=tool.path)


def _format(asked: Fields) -> OutputFormat | None:
    wanted = asked.peek("format")
    if wanted in (None, ""):
        asked.take("format")
        return None
    if wanted == "json":
        asked.take("format")
        return OutputFormat("json_object")
    if not isinstance(wanted, dict):
        raise asked.fault("format", 'must be "json" or a JSON Schema')
    return OutputFormat("json_schema", asked.mapping("format"))


def _reasoning(asked: Fields) -> ReasoningSettings:
    """Read ``think``; thoughts are shown whenever the model thinks."""
    wanted = asked.take("think")
    if wanted is None:
        return ReasoningSettings()
    if wanted is False:
        return ReasoningSettings("none")
    if wanted is True or wanted in _LEVELS:
        return ReasoningSettings("medium" if wanted is True else wanted, "auto")
    raise asked.fault("think", "must be true, false, low, medium, high or max")
