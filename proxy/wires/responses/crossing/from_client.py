"""Reads a Responses request as a conversation.

Source: OpenAI's API reference, "Create a model response".
"""

from collections.abc import Mapping
from typing import Any, Final

from proxy.base.conversation import (
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
    Remote,
    Role,
    Stored,
    Text,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    split_system,
)
from proxy.wires.crossing.fields import Fields, read_format, read_sampling, read_service
from proxy.wires.crossing.media import inline_of, remote_of
from proxy.wires.responses.crossing.fields import KEEPER, OFFLINE_SEARCH, RESPONSES_FIELDS

LOGPROBS: Final = "message.output_text.logprobs"
"""The element of ``include`` that requests log probabilities."""
_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_TEXTS: Final = ("input_text", "output_text", "text")


def read_conversation(payload: Mapping[str, Any]) -> Conversation:
    """Read a Responses request.

    Raises :class:`RequestError`, which names the field, if a field has the wrong type.
    """
    asked = Fields(payload, RESPONSES_FIELDS)
    model = asked.model()
    first = [Message("system", (Text(instructions),))] if (instructions := asked.text("instructions")) else []
    system, messages = split_system((*first, *_Items(asked).read()))
    options = asked.inner("stream_options")
    output, reasoning = _output(asked), _reasoning(asked)
    asked.skip("background", False)
    return Conversation(
        model=model,
        messages=messages,
        system=system,
        tools=tuple(map(_tool, asked.elements("tools"))),
        tool_choice=_choice(asked),
        parallel_tool_calls=asked.flag("parallel_tool_calls"),
        max_tool_calls=asked.whole("max_tool_calls"),
        sampling=read_sampling(asked),
        output=output,
        reasoning=reasoning,
        service=read_service(asked),
        truncate=_truncate(asked),
        stream=asked.flag("stream") or False,
        stream_padding=options.flag("include_obfuscation") if options else None,
        native=asked.rest(),
        names=asked.names,
    )


# ---------------------------------------------------------------- items


class _Items:
    """Collects the items of an input into messages.

    The items that a model made in one turn are one message: its reasoning, texts and calls. A second text
    begins another message, unless a call stands between them, because the results of calls come after all
    of them.
    """

    def __init__(self, asked: Fields) -> None:
        self._asked = asked
        self._found: list[Message] = []

    def read(self) -> list[Message]:
        given = self._asked.take("input")
        if isinstance(given, str):
            return [Message("user", (Text(given, at="input"),) if given else (), at="input")]
        if given is not None:
            self._asked.leave("input")
        for item in self._asked.elements("input"):
            self._add(item)
        return self._found

    def _add(self, item: Fields) -> None:
        kind = item.text("type") or ("message" if item.peek("role") is not None else "item_reference")
        match kind:
            case "message":
                self._add_message(item)
            case "reasoning":
                self._join("assistant", _thought(item))
            case "function_call" | "custom_tool_call":
                self._join("assistant", _call(item, custom=kind == "custom_tool_call"))
            case "function_call_output" | "custom_tool_call_output":
                self._join("tool", _result(item))
            case _:
                self._join("assistant", NativePart(kind, native=(item.whole_native(kind),), at=item.path))

    def _add_message(self, item: Fields) -> None:
        given = item.text("role") or ""
        role = _ROLES.get(given)
        if role is None:
            raise item.fault("role", f"must be one of {', '.join(_ROLES)}")
        parts = tuple(item.contents("content", _content))
        message = Message(role, parts, native=item.rest(), at=item.path)
        before = self._found[-1] if self._found else None
        if role != "assistant" or before is None or before.role != role or _has_spoken(before):
            self._found.append(message)
            return
        # Only one of the items that become one message may provide the fields that identify an item.
        native = (
            message.native if not before.native else tuple(n for n in message.native if n.loss != "unneeded")
        )
        joined = Message(role, (*before.parts, *parts), native=(*before.native, *native), at=before.at)
        self._found[-1] = joined

    def _join(self, role: Role, part: Part) -> None:
        """Append a part to the last message if it has this role. Otherwise begin a new message with it."""
        before = self._found[-1] if self._found else None
        if before is not None and before.role == role:
            self._found[-1] = Message(role, (*before.parts, part), native=before.native, at=before.at)
        else:
            self._found.append(Message(role, (part,), at=part.at))


def _has_spoken(message: Message) -> bool:
    """Return whether a message has text and no call, so that another text begins another message."""
    spoken = any(isinstance(part, Text | Refusal) for part in message.parts)
    return spoken and not any(isinstance(part, ToolCallPart) for part in message.parts)


def _content(part: Fields) -> Content | None:
    """Return one part of a content; ``None`` for an empty text."""
    kind = part.text("type") or ""
    if kind in _TEXTS:
        part.skip("annotations", [])
        part.skip("logprobs", [])
        text, native = part.text("text"), part.rest()
        return Text(text, native=native, at=part.path) if text else None
    if kind == "refusal":
        refusal = part.text("refusal")
        return Refusal(refusal, native=part.rest(), at=part.path) if refusal else None
    if kind == "input_image":
        return _image(part)
    if kind == "input_file":
        return _file(part)
    return NativePart(kind, native=(part.whole_native(kind),), at=part.path)


def _image(part: Fields) -> Image:
    url, file_id, detail = part.text("image_url"), part.text("file_id"), part.text("detail") or ""
    if not url and not file_id:
        raise part.fault("image_url", "is missing; send it or file_id")
    source = (inline_of(url) or remote_of(part, "image_url", url)) if url else Stored(file_id or "", KEEPER)
    return Image(source, "" if detail == "auto" else detail, native=part.rest(), at=part.path)


def _file(part: Fields) -> File:
    data, url, file_id = part.text("file_data"), part.text("file_url"), part.text("file_id")
    part.skip("detail", "auto")
    if data:
        source: Inline | Remote | Stored = inline_of(data) or Inline("", data)
    elif url:
        source = remote_of(part, "file_url", url)
    elif file_id:
        source = Stored(file_id, KEEPER)
    else:
        raise part.fault("file_data", "is missing; send it, file_url or file_id")
    return File(source, part.text("filename") or "", native=part.rest(), at=part.path)


def _thought(item: Fields) -> Reasoning:
    return Reasoning(
        text="\n\n".join(_texts(item, "content", "reasoning_text")),
        summary=_texts(item, "summary", "summary_text"),
        encrypted=item.text("encrypted_content") or "",
        native=item.rest(),
        at=item.path,
    )


def _texts(item: Fields, name: str, kind: str) -> tuple[str, ...]:
    """Return a list of texts of one type. If it holds anything else, leave it unread and return ``()``."""
    texts = []
    for part in item.listed(name):
        text = part.get("text") if isinstance(part, dict) and part.keys() == {"type", "text"} else None
        if not isinstance(text, str) or part.get("type") != kind:
            item.leave(name)
            return ()
        texts.append(text)
    return tuple(texts)


def _call(item: Fields, *, custom: bool) -> ToolCallPart:
    item.skip("async", False)
    item.skip("caller", {"type": "direct"})
    call_id, name = item.text("call_id") or "", item.text("name") or ""
    arguments = item.text("input" if custom else "arguments") or ""
    return ToolCallPart(call_id, name, arguments, custom=custom, native=item.rest(), at=item.path)


def _result(item: Fields) -> ToolResultPart:
    item.skip("caller", {"type": "direct"})
    parts = tuple(item.contents("output", _content))
    return ToolResultPart(item.text("call_id") or "", parts, native=item.rest(), at=item.path)


# ---------------------------------------------------------------- settings


def _tool(tool: Fields) -> Tool:
    kind = tool.text("type") or ""
    if kind not in ("function", "custom"):
        offline = kind.startswith("web_search") and tool.peek("external_web_access") is False
        row = OFFLINE_SEARCH[len("tools[type=") : -1] if offline else kind
        return NativeTool(kind, native=(tool.whole_native(row),), at=tool.path)
    tool.skip("defer_loading", False)
    tool.skip("async", False)
    tool.skip("allowed_callers", ["direct"])
    name, description = tool.text("name") or "", tool.text("description") or ""
    if kind == "function":
        parameters, strict = tool.mapping("parameters"), tool.flag("strict")
        return FunctionTool(name, description, parameters, strict, native=tool.rest(), at=tool.path)
    form = tool.inner("format")
    grammar = None
    if form is not None and form.text("type") == "grammar":
        grammar = Grammar(form.text("syntax") or "", form.text("definition") or "")
    return CustomTool(name, description, grammar, native=tool.rest(), at=tool.path)


def _choice(asked: Fields) -> ToolChoice | None:
    """Return a choice of tools. Leave it unread if its form is unknown or has more fields."""
    choice = asked.take("tool_choice")
    if choice in ("auto", "none", "required"):
        return ToolChoice(choice)
    if name := _chosen(choice):
        return ToolChoice("named", (name,))
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        listed = choice.get("tools")
        names = tuple(map(_chosen, listed)) if isinstance(listed, list) else ("",)
        if all(names) and choice.keys() <= {"type", "mode", "tools"}:
            return ToolChoice("allowed", names, forced=choice.get("mode") == "required")
    if choice is not None:
        asked.leave("tool_choice")
    return None


def _chosen(tool: Any) -> str:
    """Return the name of a tool in a choice; ``""`` if it has another form or more fields."""
    if not isinstance(tool, dict) or tool.keys() != {"type", "name"}:
        return ""
    name = tool["name"] if tool["type"] in ("function", "custom") else ""
    return name if isinstance(name, str) else ""


def _output(asked: Fields) -> Output:
    text = asked.inner("text")
    included = asked.take("include")
    logprobs = isinstance(included, list) and LOGPROBS in included
    if logprobs:
        asked.names["output.logprobs"] = "include"
    if included not in (None, [], [LOGPROBS]):
        asked.leave("include")
    return Output(
        max_tokens=asked.whole("max_output_tokens"),
        stops=asked.texts("stop"),
        format=read_format(text.inner("format")) if text is not None else None,
        verbosity=text.text("verbosity") if text is not None else None,
        logprobs=logprobs or None,
        top_logprobs=asked.whole("top_logprobs"),
    )


def _reasoning(asked: Fields) -> ReasoningSettings:
    settings = asked.inner("reasoning")
    if settings is None:
        return ReasoningSettings()
    older = settings.text("generate_summary")
    return ReasoningSettings(settings.text("effort"), settings.text("summary") or older)


def _truncate(asked: Fields) -> bool | None:
    given = asked.text("truncation")
    if given not in (None, "auto", "disabled"):
        raise asked.fault("truncation", "must be auto or disabled")
    return None if given is None else given == "auto"
