"""Reads a Chat client's request as a conversation.

Source: OpenAI's API reference, "Create chat completion".
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from proxy.base.conversation import (
    Audio,
    Content,
    Conversation,
    CustomTool,
    File,
    FunctionTool,
    Grammar,
    Image,
    Inline,
    Message,
    NativePart,
    NativeTool,
    Output,
    Part,
    Reasoning,
    ReasoningSettings,
    Refusal,
    Role,
    Stored,
    Text,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    split_system,
)
from proxy.wires.chat.crossing.fields import CHAT_FIELDS, KEEPER
from proxy.wires.crossing.fields import Fields, read_format, read_sampling, read_service
from proxy.wires.crossing.media import inline_of, remote_of

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def read_conversation(payload: Mapping[str, Any]) -> Conversation:
    """Read a Chat request.

    Raises :class:`RequestError`, which names the field, for a field of the wrong type.
    """
    asked = Fields(payload, CHAT_FIELDS)
    model = asked.model()
    system, messages = split_system(_Messages(asked).read())
    options = asked.inner("stream_options")
    return Conversation(
        model=model,
        messages=messages,
        system=system,
        tools=tuple(_tools(asked)),
        tool_choice=_choice(asked, "tool_choice") or _choice(asked, "function_call"),
        parallel_tool_calls=asked.flag("parallel_tool_calls"),
        sampling=replace(read_sampling(asked), logit_bias=asked.mapping("logit_bias")),
        output=_output(asked),
        reasoning=ReasoningSettings(effort=asked.text("reasoning_effort")),
        # Chat stores nothing by default.
        service=read_service(asked, stores=False),
        stream=asked.flag("stream") or False,
        stream_usage=bool(options and options.flag("include_usage")),
        stream_padding=options.flag("include_obfuscation") if options else None,
        native=asked.rest(),
        names=asked.names,
    )


class _Messages:
    """A reader of a request's messages, in order.

    A call of the old ``function_call`` has no id, nor has its result: both get one from the call's position.
    """

    def __init__(self, asked: Fields) -> None:
        self._asked = asked
        self._found: list[Message] = []
        self._results: list[ToolResultPart] = []
        self._legacy_id = ""

    def read(self) -> list[Message]:
        if self._asked.peek("messages") is None:
            raise self._asked.fault("messages", "must be a list of messages")
        for place, message in enumerate(self._asked.elements("messages")):
            said = message.text("role") or ""
            role = _ROLES.get(said)
            if role is None:
                raise message.fault("role", f"must be one of {', '.join(_ROLES)}")
            if role == "tool":
                self._results.append(self._result(message, legacy=said == "function"))
                continue
            self._end_results()
            parts = (
                tuple(message.contents("content", _content))
                if role != "assistant"
                else tuple(self._said(message, place))
            )
            self._found.append(Message(role, parts, native=message.rest(), at=message.path))
        self._end_results()
        return self._found

    def _said(self, message: Fields, place: int) -> Iterator[Part]:
        """Read the model's reasoning, text and calls."""
        # Some servers send the same reasoning under both names.
        thoughts = {message.text(name): name for name in ("reasoning", "reasoning_content")}
        for thought, name in thoughts.items():
            if thought:
                yield Reasoning(thought, at=message.at(name))
        yield from message.contents("content", _content)
        message.skip("annotations", [], None)
        if refusal := message.text("refusal"):
            yield Refusal(refusal, at=message.at("refusal"))
        for index, call in enumerate(message.elements("tool_calls")):
            yield _call(call, f"call_{place}_{index}")
        legacy = message.inner("function_call")
        if legacy is not None:
            self._legacy_id = f"call_{place}"
            name, arguments = legacy.text("name") or "", legacy.text("arguments") or ""
            yield ToolCallPart(self._legacy_id, name, arguments, at=legacy.path)

    def _result(self, message: Fields, *, legacy: bool) -> ToolResultPart:
        call_id = message.text("tool_call_id") or (self._legacy_id if legacy else "")
        name = message.text("name") or ""
        parts = tuple(message.contents("content", _content))
        return ToolResultPart(call_id, parts, name=name, native=message.rest(), at=message.path)

    def _end_results(self) -> None:
        """Join results that follow each other in one message."""
        if self._results:
            self._found.append(Message("tool", tuple(self._results), at=self._results[0].at))
            self._results.clear()


def _content(part: Fields) -> Content | None:
    """Read one part of a content; ``None`` for an empty text."""
    kind = part.text("type") or ""
    match kind:
        case "text":
            text, native = part.text("text"), part.rest()
            return Text(text, native=native, at=part.path) if text else None
        case "refusal":
            return Refusal(part.text("refusal") or "", native=part.rest(), at=part.path)
        case "image_url":
            return _image(part)
        case "input_audio" if (sound := part.inner("input_audio")) is not None:
            data, form = sound.text("data") or "", sound.text("format") or ""
            return Audio(data, form, native=part.rest(), at=part.path)
        case "file" if (file := part.inner("file")) is not None:
            return _file(part, file)
    return NativePart(kind, native=(part.whole_native(kind),), at=part.path)


def _image(part: Fields) -> Image:
    """Read an image; some clients write its address where others have an object."""
    url, detail = part.take("image_url"), ""
    within, name = part, "image_url"
    if isinstance(url, dict):
        part.leave("image_url")
        image = part.inner("image_url")
        assert image is not None
        url, detail = image.text("url"), image.text("detail") or ""
        within, name = image, "url"
    if not isinstance(url, str) or not url:
        raise part.fault("image_url", "must have a url")
    source = inline_of(url) or remote_of(within, name, url)
    return Image(source, "" if detail == "auto" else detail, native=part.rest(), at=part.path)


def _file(part: Fields, file: Fields) -> File:
    data, file_id = file.text("file_data"), file.text("file_id")
    name = file.text("filename") or ""
    if not data and not file_id:
        raise part.fault("file", "must have file_data or file_id")
    source = (inline_of(data) or Inline("", data)) if data else Stored(file_id or "", KEEPER)
    return File(source, name, native=part.rest(), at=part.path)


def _call(call: Fields, made_id: str) -> ToolCallPart:
    call_id, kind = call.text("id") or made_id, call.text("type")
    custom = call.inner("custom") if kind == "custom" else None
    inner = custom or call.inner("function")
    if inner is None:
        raise call.fault("function", "is missing")
    name, arguments = inner.text("name") or "", inner.text("input" if custom else "arguments") or ""
    return ToolCallPart(call_id, name, arguments, custom=custom is not None, native=call.rest(), at=call.path)


def _tools(asked: Fields) -> Iterator[Tool]:
    for tool in asked.elements("tools"):
        kind = tool.text("type") or "function"
        if kind == "function" and (function := tool.inner("function")) is not None:
            yield _function(tool, function)
        elif kind == "custom" and (custom := tool.inner("custom")) is not None:
            yield _custom(tool, custom)
        else:
            yield NativeTool(kind, native=(tool.whole_native(kind),), at=tool.path)
    for function in asked.elements("functions"):
        yield _function(function, function)


def _function(tool: Fields, function: Fields) -> FunctionTool:
    function.skip("type", "function")
    # In Chat, strict is false by default. Other dialects have another default, so set it.
    return FunctionTool(
        function.text("name") or "",
        function.text("description") or "",
        function.mapping("parameters"),
        function.flag("strict") or False,
        native=tool.rest(),
        at=tool.path,
    )


def _custom(tool: Fields, custom: Fields) -> CustomTool:
    form = custom.inner("format")
    grammar = None
    if form is not None and form.text("type") == "grammar" and (rules := form.inner("grammar")) is not None:
        grammar = Grammar(rules.text("syntax") or "", rules.text("definition") or "")
    name, description = custom.text("name") or "", custom.text("description") or ""
    return CustomTool(name, description, grammar, native=tool.rest(), at=tool.path)


def _choice(asked: Fields, field: str) -> ToolChoice | None:
    """Read a choice of tools; a choice in an unknown form, or with more fields, stays native to Chat."""
    choice = asked.take(field)
    if choice in ("auto", "none", "required"):
        return ToolChoice(choice)
    if choice == "any":  # Mistral's name for it.
        return ToolChoice("required")
    if isinstance(choice, dict):
        if name := _chosen(choice) or _only_name(choice):
            return ToolChoice("named", (name,))
        allowed = choice.get("allowed_tools")
        if isinstance(allowed, dict) and choice.keys() == {"type", "allowed_tools"}:
            listed = allowed.get("tools")
            names = tuple(map(_chosen, listed)) if isinstance(listed, list) else ("",)
            if all(names) and allowed.keys() <= {"mode", "tools"}:
                return ToolChoice("allowed", names, forced=allowed.get("mode") == "required")
    if choice is not None:
        asked.leave(field)
    return None


def _chosen(tool: Any) -> str:
    """Return the name of a tool in a choice; empty if the choice has another form, or more fields."""
    if not isinstance(tool, dict) or not tool.keys() <= {"type", "function", "custom"}:
        return ""
    kind = tool.get("type") or "function"
    return _only_name(tool.get(kind)) if isinstance(kind, str) else ""


def _only_name(inner: Any) -> str:
    name = inner.get("name") if isinstance(inner, dict) and len(inner) == 1 else None
    return name if isinstance(name, str) else ""


def _output(asked: Fields) -> Output:
    asked.skip("modalities", ["text"])
    newer, older = asked.whole("max_completion_tokens"), asked.whole("max_tokens")
    if newer is not None and older is not None and newer != older:
        raise asked.fault("max_tokens", "contradicts max_completion_tokens. Send one of them")
    return Output(
        max_tokens=older if newer is None else newer,
        stops=asked.texts("stop"),
        format=read_format(asked.inner("response_format"), "json_schema"),
        verbosity=asked.text("verbosity"),
        choices=asked.whole("n"),
        logprobs=asked.flag("logprobs"),
        top_logprobs=asked.whole("top_logprobs"),
    )
