"""Writes a conversation as the body of a Responses request.

Source: OpenAI's API reference, "Create a model response".
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from proxy.base.conversation import (
    Content,
    Conversation,
    CustomTool,
    File,
    FunctionTool,
    Image,
    Inline,
    Message,
    NativePart,
    NativeTool,
    OutputFormat,
    Part,
    Reasoning,
    Refusal,
    Remote,
    Stored,
    Text,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.schemas.portable import repaired
from proxy.wires.crossing.ledger import Ledger, fitting_id, without_none
from proxy.wires.crossing.media import data_url, file_words, marked_result
from proxy.wires.profile import Profile
from proxy.wires.responses.crossing.fields import KEEPER
from proxy.wires.responses.crossing.from_client import LOGPROBS
from proxy.wires.turn.edits import LEAST_TOKENS

_MOST_ID: Final = 64


def body_of(conversation: Conversation, profile: Profile, ledger: Ledger) -> dict[str, Any]:
    """Return the body of a Responses request. See :attr:`.ConversationCodec.body`."""
    ledger.check(conversation)
    instructions, system = _instructions(conversation.system)
    body: dict[str, Any] = {"model": conversation.model}
    if instructions:
        body["instructions"] = instructions
    body["input"] = _Items(ledger).write((*system, *conversation.messages))
    body |= _tools(conversation, ledger)
    body |= _settings(conversation, ledger)
    return body


def _instructions(system: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Return the instructions, from a first message that is one plain text, and the other messages."""
    match system:
        case [Message(role="system", parts=(Text(native=()) as only,), native=()), *rest]:
            return only.text, rest
    return "", system


# ---------------------------------------------------------------- items


class _Items:
    """Writes messages as items, one after the other."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._custom: set[str] = set()

    def write(self, messages: Iterable[Message]) -> list[Any]:
        return [item for message in messages for item in self._message(message)]

    def _message(self, message: Message) -> Iterator[Any]:
        """Yield the items of a message: adjacent texts as one item, all else as one item each."""
        if message.role in ("system", "developer", "user"):
            item: dict[str, Any] = {"role": message.role, "content": self._content(message.parts, "input")}
            self._ledger.put_natives(message.native, item)
            yield item
            return
        own: dict[str, Any] = {}
        self._ledger.put_natives(message.native, own)
        spoken: list[Content] = []
        for part in (*message.parts, None):
            if isinstance(part, Text | Refusal):
                spoken.append(part)
                continue
            if spoken:
                yield self._spoken(spoken, own)
                spoken, own = [], {}
            if part is not None and (written := self._part(part)) is not None:
                yield written

    def _spoken(self, parts: Sequence[Content], own: dict[str, Any]) -> dict[str, Any]:
        """Return a text item of the model. An item with an id needs all its fields."""
        whole = {"type": "message"} if "id" in own else {}
        return {
            **whole,
            "role": "assistant",
            "content": self._content(parts, "output", whole=bool(whole)),
            **own,
        }

    def _content(self, parts: Sequence[Part], side: str, *, whole: bool = False) -> Any:
        """Return a string for a single plain text, else a list of parts."""
        written = [made for part in parts for made in self._contents(part, side)]
        if not written:
            return ""
        only = written[0] if len(written) == 1 else None
        if not whole and isinstance(only, dict) and only.keys() == {"type", "text"}:
            return only["text"]
        return written

    def _contents(self, part: Part, side: str) -> Iterator[Any]:
        """Yield a part as content on the ``input`` or the ``output`` side of the model."""
        match part:
            case Text():
                made: dict[str, Any] = {"type": f"{side}_text", "text": part.text}
            case Refusal() if side == "output":
                made = {"type": "refusal", "refusal": part.text}
            case Refusal():
                made = {"type": "input_text", "text": part.text}
            case Image():
                made = {"type": "input_image", "detail": part.detail or "auto", **self._image(part)}
            case File():
                made = self._file(part)
            case NativePart():
                if (whole := self._ledger.native_fragment(part.native)) is not None:
                    yield whole
                return
            case _:
                raise self._ledger.refuse(part.at, "Responses has no form for it in a message.")
        self._ledger.put_natives(part.native, made)
        yield made

    def _image(self, image: Image) -> dict[str, str]:
        match image.source:
            case Inline():
                return {"image_url": data_url(image.source)}
            case Remote():
                return {"image_url": image.source.url}
            case Stored():
                return {"file_id": self._kept(image.source, image.at)}

    def _file(self, part: File) -> dict[str, Any]:
        match part.source:
            case Inline(is_text=True):
                return {"type": "input_text", "text": file_words(part)}
            case Inline():
                data = data_url(part.source) if part.source.media_type else part.source.data
                made = {"type": "input_file", "file_data": data}
            case Remote():
                made = {"type": "input_file", "file_url": part.source.url}
            case Stored():
                made = {"type": "input_file", "file_id": self._kept(part.source, part.at)}
        if part.name:
            made["filename"] = part.name
        if part.context:
            self._ledger.omit(part.at, "Responses takes a file without words about it.")
        return made

    def _kept(self, source: Stored, at: str) -> str:
        if source.keeper != KEEPER:
            raise self._ledger.refuse(at, "The file is kept by another provider.")
        return source.file_id

    def _part(self, part: Part) -> Any:
        """Return an item that is not a message; ``None`` for one that is left out."""
        match part:
            case ToolCallPart():
                item = self._call(part)
            case ToolResultPart():
                kind = "custom_tool_call_output" if part.call_id in self._custom else "function_call_output"
                output = self._content(marked_result(part), "input")
                item = {"type": kind, "call_id": fitting_id(part.call_id, _MOST_ID), "output": output}
            case Reasoning():
                return self._thought(part)
            case NativePart():
                return self._ledger.native_fragment(part.native)
            case _:
                raise self._ledger.refuse(part.at, "Responses has no form for it in messages of the model.")
        self._ledger.put_natives(part.native, item)
        return item

    def _call(self, part: ToolCallPart) -> dict[str, Any]:
        call_id, name = fitting_id(part.call_id, _MOST_ID), self._ledger.tool_name(part.name)
        if part.custom:
            self._custom.add(part.call_id)
            return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": part.arguments}
        arguments = part.arguments if part.arguments.strip() else "{}"
        return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}

    def _thought(self, part: Reasoning) -> dict[str, Any] | None:
        """Return a reasoning item. Only its maker can take it back: it must have an id or be encrypted."""
        own: dict[str, Any] = {}
        self._ledger.put_natives(part.native, own)
        if not part.encrypted and not own:
            self._ledger.omit(part.at, "Responses takes reasoning back only where it was made.")
            return None
        item: dict[str, Any] = {"type": "reasoning"}
        item["summary"] = [{"type": "summary_text", "text": text} for text in part.summary]
        if part.text:
            item["content"] = [{"type": "reasoning_text", "text": part.text}]
        if part.encrypted:
            item["encrypted_content"] = part.encrypted
        return {**item, **own}


# ---------------------------------------------------------------- settings


def _tools(conversation: Conversation, ledger: Ledger) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    tools = [made for tool in conversation.tools if (made := _tool(tool, ledger)) is not None]
    if tools:
        asked["tools"] = tools
    if conversation.tool_choice is not None:
        custom = {tool.name for tool in conversation.tools if isinstance(tool, CustomTool)}
        asked["tool_choice"] = _choice(conversation.tool_choice, custom, ledger)
    asked["parallel_tool_calls"] = conversation.parallel_tool_calls
    asked["max_tool_calls"] = conversation.max_tool_calls
    return without_none(asked)


def _tool(tool: Tool, ledger: Ledger) -> Any:
    if isinstance(tool, NativeTool):
        return ledger.native_fragment(tool.native)
    kind = "function" if isinstance(tool, FunctionTool) else "custom"
    written: dict[str, Any] = {"type": kind, "name": ledger.tool_name(tool.name)}
    if tool.description:
        written["description"] = tool.description
    match tool:
        case FunctionTool():
            written["parameters"] = repaired(tool.parameters or {})
            if tool.strict is not None:
                written["strict"] = tool.strict
        case CustomTool(grammar=grammar) if grammar is not None:
            rules = {"syntax": grammar.syntax, "definition": grammar.definition}
            written["format"] = {"type": "grammar", **rules}
    ledger.put_natives(tool.native, written)
    return written


def _choice(choice: ToolChoice, custom: set[str], ledger: Ledger) -> Any:
    if choice.kind not in ("named", "allowed"):
        return choice.kind
    tools = [
        {"type": "custom" if name in custom else "function", "name": ledger.tool_name(name)}
        for name in choice.names
    ]
    if choice.kind == "named":
        return tools[0]
    return {"type": "allowed_tools", "mode": "required" if choice.forced else "auto", "tools": tools}


def _settings(conversation: Conversation, ledger: Ledger) -> dict[str, Any]:
    """Return the settings that the request gives, besides its input."""
    output, service, truncate = conversation.output, conversation.service, conversation.truncate
    text = {"format": _format(output.format), "verbosity": output.verbosity}
    reasoning = {"effort": conversation.reasoning.effort, "summary": conversation.reasoning.summary}
    padding = {"include_obfuscation": conversation.stream_padding}
    asked = {
        "max_output_tokens": _limit(output.max_tokens, ledger),
        "text": without_none(text) or None,
        "include": [LOGPROBS] if output.logprobs else None,
        "top_logprobs": output.top_logprobs,
        "temperature": conversation.sampling.temperature,
        "top_p": conversation.sampling.top_p,
        "reasoning": without_none(reasoning) or None,
        "truncation": None if truncate is None else "auto" if truncate else "disabled",
        "user": service.user,
        "safety_identifier": service.safety_identifier,
        "metadata": service.metadata,
        "store": service.store,
        "service_tier": service.tier,
        "prompt_cache_key": service.cache_key,
        "prompt_cache_retention": service.cache_retention,
        "moderation": service.moderation,
        "stream": conversation.stream or None,
        "stream_options": (without_none(padding) or None) if conversation.stream else None,
    }
    return without_none(asked)


def _limit(asked: int | None, ledger: Ledger) -> int | None:
    """Return the token limit; clients that probe a model ask for one token, and Responses takes no so few."""
    if asked is None or asked >= LEAST_TOKENS:
        return asked
    ledger.change(ledger.name_of("output.max_tokens"), f"Responses takes no limit below {LEAST_TOKENS}.")
    return LEAST_TOKENS


def _format(form: OutputFormat | None) -> dict[str, Any] | None:
    if form is None:
        return None
    if form.kind == "json_object":
        return {"type": "json_object"}
    described = {
        "type": "json_schema",
        "name": form.name or "answer",
        "description": form.description or None,
        "schema": form.schema or {},
        "strict": form.strict,
    }
    return without_none(described)
