"""Reads a Messages client's request as a conversation.

Source: Anthropic's API reference, "Create a Message".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from proxy.base.conversation import (
    Content,
    Conversation,
    File,
    FunctionTool,
    Image,
    Inline,
    Message,
    NativePart,
    NativeTool,
    Output,
    OutputFormat,
    Part,
    Reasoning,
    ReasoningSettings,
    Sampling,
    Service,
    Source,
    Stored,
    Text,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.wires.anthropic.blocks import TRANSLATED_SIGNATURE
from proxy.wires.anthropic.crossing.fields import ANTHROPIC_FIELDS, KEEPER
from proxy.wires.crossing.fields import Fields
from proxy.wires.crossing.media import remote_of
from proxy.wires.typed_tools.searching import loaded_text

_CHOICES: Final[Mapping[str, ToolChoice]] = {
    "auto": ToolChoice("auto"),
    "any": ToolChoice("required"),
    "none": ToolChoice("none"),
}
_BUDGETS: Final = ((4096, "low"), (16384, "medium"))
"""Token budgets for thinking, and the effort that a smaller budget means."""


def read_conversation(payload: Mapping[str, Any]) -> Conversation:
    """Read a Messages request.

    Raises :class:`RequestError`, which names the field, for a field of the wrong type.
    """
    asked = Fields(payload, ANTHROPIC_FIELDS)
    model = asked.model()
    parts = tuple(_contents(asked, "system"))
    choice, parallel = _choice(asked)
    config = asked.inner("output_config")
    reasoning = _reasoning(asked, config.text("effort") if config is not None else None)
    identity = asked.inner("metadata")
    return Conversation(
        model=model,
        messages=tuple(_messages(asked)),
        system=(Message("system", parts, at="system"),) if parts else (),
        tools=tuple(map(_tool, asked.elements("tools"))),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=Sampling(asked.number("temperature"), asked.number("top_p"), asked.whole("top_k")),
        output=Output(
            max_tokens=asked.whole("max_tokens"),
            stops=asked.texts("stop_sequences"),
            format=_format(config) if config is not None else None,
        ),
        reasoning=reasoning,
        # Messages stores no answers, so the upstream must not store them either.
        service=Service(
            user=identity.text("user_id") if identity is not None else None, store=False, tier=_tier(asked)
        ),
        stream=asked.flag("stream") or False,
        native=asked.rest(),
        names=asked.names,
    )


# ---------------------------------------------------------------- messages


def _messages(asked: Fields) -> Iterator[Message]:
    """Read the messages; the results of a turn's calls become a message before the user's other content."""
    for message in asked.elements("messages"):
        role = message.text("role") or ""
        if role not in ("user", "assistant", "system"):
            raise message.fault("role", "must be user, assistant or system")
        # Only a system message may have settings instead of content.
        wordless = role == "system" and message.peek("content") is None
        parts = () if wordless else tuple(message.contents("content", _block, each="blocks", needed=True))
        results = tuple(part for part in parts if isinstance(part, ToolResultPart))
        rest = tuple(part for part in parts if not isinstance(part, ToolResultPart))
        native = message.rest()
        if results:
            yield Message("tool", results, at=message.path)
        if rest or not results or native:
            yield Message(role, rest, native=native, at=message.path)  # type: ignore[arg-type]


def _block(block: Fields) -> Part | None:
    """Read one block; ``None`` for an empty text."""
    kind = block.text("type") or ""
    match kind:
        case "tool_use":
            return _call(block)
        case "tool_result":
            return _result(block)
        case "thinking":
            text, signature = block.text("thinking") or "", block.text("signature") or ""
            signature = "" if signature == TRANSLATED_SIGNATURE else signature
            return Reasoning(text, signature=signature, native=block.rest(), at=block.path)
        case "redacted_thinking":
            return Reasoning(redacted=block.text("data") or "", native=block.rest(), at=block.path)
        case _:
            return _content(block, kind)


def _contents(holder: Fields, name: str) -> Iterator[Content]:
    """Read a system prompt or the content of a result."""
    return holder.contents(name, lambda block: _content(block, block.text("type") or ""), each="blocks")


def _content(block: Fields, kind: str) -> Content | None:
    """Read a block of a message or of a tool's result."""
    match kind:
        case "text":
            block.skip("citations", [])
            text, native = block.text("text"), block.rest()
            return Text(text, native=native, at=block.path) if text else None
        case "image":
            source = _source(block)
            return Image(source, native=block.rest(), at=block.path)
        case "search_result":
            return _found_text(block)
        case "tool_reference":
            # Claude Code's own search answers with references alone.
            return Text(loaded_text(block.text("tool_name") or ""), native=block.rest(), at=block.path)
        case "document" if (block.peek("source") or {}).get("type") != "content":
            source = _source(block)
            name, context = block.text("title") or "", block.text("context") or ""
            return File(source, name, context, native=block.rest(), at=block.path)
        case _:
            return NativePart(kind, native=(block.whole_native(kind),), at=block.path)


def _found_text(block: Fields) -> Text:
    """Read a result of the client's own search as text: its title, its source and its content."""
    texts = [part.get("text") for part in block.listed("content") if isinstance(part, dict)]
    lines = [block.text("title"), block.text("source"), *texts]
    block.skip("citations", {"enabled": False}, {"enabled": True})
    text = "\n".join(line for line in lines if isinstance(line, str) and line)
    return Text(text, native=block.rest(), at=block.path)


def _source(block: Fields) -> Source:
    """Read the source of an image or a document."""
    source = block.inner("source")
    kind = source.text("type") if source is not None else None
    if source is not None:
        match kind:
            case "base64":
                return Inline(source.text("media_type") or "", source.text("data") or "")
            case "text":
                media_type = source.text("media_type") or "text/plain"
                return Inline(media_type, source.text("data") or "", is_text=True)
            case "url":
                return remote_of(source, "url", source.text("url") or "")
            case "file":
                return Stored(source.text("file_id") or "", KEEPER)
    raise block.fault("source.type", "must be base64, text, url or file")


def _call(block: Fields) -> ToolCallPart:
    call_id, name = block.text("id") or "", block.text("name") or ""
    arguments = orjson.dumps(block.mapping("input") or {}).decode()
    return ToolCallPart(call_id, name, arguments, native=block.rest(), at=block.path)


def _result(block: Fields) -> ToolResultPart:
    call_id, failed = block.text("tool_use_id") or "", block.flag("is_error") or False
    parts = tuple(_contents(block, "content"))
    return ToolResultPart(call_id, parts, is_error=failed, native=block.rest(), at=block.path)


# ---------------------------------------------------------------- settings


def _tool(tool: Fields) -> Tool:
    kind = tool.text("type") or "custom"
    if kind != "custom":
        return NativeTool(kind, native=(tool.whole_native(kind),), at=tool.path)
    tool.skip("defer_loading", False)
    tool.skip("allowed_callers", ["direct"])
    name, description = tool.text("name") or "", tool.text("description") or ""
    schema, strict = tool.mapping("input_schema"), tool.flag("strict") or False
    return FunctionTool(name, description, schema, strict, native=tool.rest(), at=tool.path)


def _choice(asked: Fields) -> tuple[ToolChoice | None, bool | None]:
    """Read a choice of tools, and whether several may be called at once."""
    choice = asked.inner("tool_choice")
    if choice is None:
        return None, None
    serial = choice.flag("disable_parallel_tool_use")
    parallel = None if serial is None else not serial
    kind = choice.take("type")
    if kind == "tool" and (name := choice.text("name")):
        return ToolChoice("named", (name,)), parallel
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise choice.fault("type", "must be auto, any, none or tool, with a name")
    return _CHOICES[kind], parallel


def _format(config: Fields) -> OutputFormat | None:
    form = config.inner("format")
    if form is None:
        return None
    if form.take("type") != "json_schema":
        form.leave("type")
        return None
    return OutputFormat("json_schema", form.mapping("schema"))


def _reasoning(asked: Fields, effort: str | None) -> ReasoningSettings:
    thinking = asked.inner("thinking")
    if thinking is None:
        return ReasoningSettings(effort)
    kind, budget = thinking.text("type"), thinking.whole("budget_tokens")
    display = thinking.text("display")
    if kind == "disabled":
        effort = "none"
    elif effort is None and budget is not None:
        effort = next((name for bound, name in _BUDGETS if budget < bound), "high")
    return ReasoningSettings(effort, "auto" if display == "summarized" else None)


def _tier(asked: Fields) -> str | None:
    tier = asked.text("service_tier")
    return "default" if tier == "standard_only" else tier
