"""Writes a conversation as the body of an Ollama chat request.

Source: Ollama's API reference, "Generate a chat completion".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.base.conversation import (
    Audio,
    Conversation,
    CustomTool,
    File,
    FunctionTool,
    Image,
    Inline,
    Message,
    NativePart,
    NativeTool,
    Part,
    Reasoning,
    ReasoningSettings,
    Refusal,
    Text,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from proxy.schemas.portable import repaired
from proxy.wires.crossing.ledger import Ledger, without_none
from proxy.wires.crossing.media import file_words, omit_detail, result_words
from proxy.wires.ollama.crossing.encoder import call_object
from proxy.wires.profile import Profile

_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
_BETWEEN: Final = {"assistant": "", "system": "\n\n", "user": "\n\n"}
"""The separator between texts that are joined, by role: a model's texts are pieces of one text."""


def body_of(conversation: Conversation, profile: Profile, ledger: Ledger) -> dict[str, Any]:
    """Return the body of a chat request. See :attr:`.ConversationCodec.body`."""
    ledger.check(conversation, ("tool_choice",))
    body: dict[str, Any] = {
        "model": conversation.model,
        "messages": list(_messages((*conversation.system, *conversation.messages), ledger)),
    }
    tools = _tools(conversation, ledger)
    if tools:
        body["tools"] = tools
    wanted = conversation.output.format
    if wanted is not None:
        if tools:
            raise ledger.refuse(
                ledger.name_of("output.format"),
                "If a format is set, the model cannot call tools. Leave out the format or the tools.",
            )
        body["format"] = "json" if wanted.schema is None else wanted.schema
    body |= _settings(conversation)
    return body


# ---------------------------------------------------------------- messages


def _messages(messages: Iterable[Message], ledger: Ledger) -> Iterator[dict[str, Any]]:
    names: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            yield from _results(message, names, ledger)
            continue
        names |= {part.call_id: part.name for part in message.parts if isinstance(part, ToolCallPart)}
        role = "system" if message.role == "developer" else message.role
        said = _said(role, message.parts, ledger)
        ledger.put_natives(message.native, said)
        if role == "assistant" and said == {"role": role, "content": ""}:
            continue  # Everything in the model's message was left out.
        yield said


def _said(role: str, parts: Sequence[Part], ledger: Ledger) -> dict[str, Any]:
    """Write one message: its content is one text, never a list and never null."""
    texts: list[str] = []
    thoughts: list[str] = []
    images: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case Text() | Refusal():
                texts.append(part.text)
                ledger.put_natives(part.native, {})
            case Reasoning():
                thoughts += _thought(part, ledger)
            case Image():
                images.append(_image(part, ledger))
            case File():
                texts.append(_file(part, ledger))
            case ToolCallPart():
                calls.append(_call(part, len(calls), ledger))
            case Audio():
                raise ledger.refuse(part.at, "Ollama takes no sound.")
            case NativePart():
                ledger.native_fragment(part.native)
            case _:
                raise ledger.refuse(part.at, "It has no place in a message of this kind.")
    said: dict[str, Any] = {"role": role, "content": _BETWEEN[role].join(texts)}
    if thoughts:
        said["thinking"] = "\n\n".join(thoughts)
    if images:
        said["images"] = images
    if calls:
        said["tool_calls"] = calls
    return said


def _thought(part: Reasoning, ledger: Ledger) -> list[str]:
    text = part.text or "\n\n".join(part.summary)
    if not text:
        ledger.omit(part.at, "Reasoning in this form can be read only by the provider that made it.")
    ledger.put_natives(part.native, {})
    return [text] if text else []


def _image(part: Image, ledger: Ledger) -> str:
    omit_detail(part, ledger)
    if not isinstance(part.source, Inline):
        raise ledger.refuse(part.at, "Ollama takes images only with their data, in base64.")
    ledger.put_natives(part.native, {})
    return part.source.data


def _file(part: File, ledger: Ledger) -> str:
    if not isinstance(part.source, Inline) or not part.source.is_text:
        raise ledger.refuse(part.at, "Ollama takes only text files.")
    ledger.put_natives(part.native, {})
    return file_words(part)


def _call(part: ToolCallPart, place: int, ledger: Ledger) -> dict[str, Any]:
    if part.custom:
        raise ledger.refuse(part.at, "Ollama has no tools whose input is text.")
    written = call_object(part.call_id, part.name, part.arguments, place)
    ledger.put_natives(part.native, written)
    return written


def _results(message: Message, names: Mapping[str, str], ledger: Ledger) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        if not isinstance(part, ToolResultPart):
            raise ledger.refuse(part.at, "It has no place among results.")
        images = [
            inner.source.data
            for inner in part.parts
            if isinstance(inner, Image) and isinstance(inner.source, Inline)
        ]
        pictured = 0
        for inner in part.parts:
            if isinstance(inner, Image):
                pictured += 1
                omit_detail(inner, ledger)
        said: dict[str, Any] = {
            "role": "tool",
            # If one image has only an address, words replace all of them.
            "content": result_words(part, ledger, images=len(images) < pictured),
            "tool_call_id": part.call_id,
        }
        if name := part.name or names.get(part.call_id):
            said["tool_name"] = name
        if images and len(images) == pictured:
            said["images"] = images
        ledger.put_natives(part.native, said)
        yield said


# ---------------------------------------------------------------- settings


def _tools(conversation: Conversation, ledger: Ledger) -> list[Any]:
    choice = conversation.tool_choice
    if choice is not None and choice.kind == "none":
        return []
    if choice is not None and (choice.kind in ("required", "named") or choice.forced):
        raise ledger.refuse(
            ledger.name_of("tool_choice"),
            "The model decides by itself whether it calls a tool. Use auto or none.",
        )
    offered = choice.names if choice is not None and choice.kind == "allowed" else None
    return [
        made
        for tool in conversation.tools
        if offered is None or isinstance(tool, NativeTool) or tool.name in offered
        if (made := _tool(tool, ledger)) is not None
    ]


def _tool(tool: Tool, ledger: Ledger) -> Any:
    match tool:
        case NativeTool():
            return ledger.native_fragment(tool.native)
        case CustomTool():
            raise ledger.refuse(tool.at, "Ollama has no tools whose input is text.")
        case FunctionTool():
            if tool.strict:
                ledger.omit(f"{tool.at}.strict", "Ollama does not hold a model to the schema of a tool.")
            function: dict[str, Any] = {"name": tool.name, "description": tool.description}
            function["parameters"] = repaired(tool.parameters or {})
            written = {"type": "function", "function": function}
            ledger.put_natives(tool.native, written)
            return written


def _settings(conversation: Conversation) -> dict[str, Any]:
    """Return the settings that the client asked for."""
    sampling, output = conversation.sampling, conversation.output
    options = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "num_predict": output.max_tokens,
        "stop": list(output.stops) or None,
    }
    asked = {
        # Ollama streams by default, so always set it.
        "stream": conversation.stream,
        "think": _think(conversation.reasoning),
        "truncate": conversation.truncate,
        "logprobs": output.logprobs,
        "top_logprobs": output.top_logprobs if output.logprobs else None,
        "options": without_none(options) or None,
    }
    return without_none(asked)


def _think(asked: ReasoningSettings) -> bool | str | None:
    if asked.effort == "none":
        return False
    if asked.effort is None:
        # A summary shows thoughts if there are any; it asks for none, and not all models can think.
        return None
    return _EFFORTS.get(asked.effort, asked.effort)
