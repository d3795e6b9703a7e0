"""Writes a conversation as the body of a Chat request.

Source: OpenAI's API reference, "Create chat completion".
"""

import re
from collections.abc import Iterator, Sequence
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
from proxy.wires.chat.crossing.fields import KEEPER
from proxy.wires.crossing.fitting import with_word_json
from proxy.wires.crossing.ledger import Ledger, fitting_id, shortened, without_none
from proxy.wires.crossing.media import data_url, file_words, result_words
from proxy.wires.crossing.reasoning import in_loops, is_plain
from proxy.wires.profile import Profile

_MOST_ID: Final = 40
_MOST_FOREIGN_ID: Final = 64
"""The longest id that another dialect's own providers make."""
_MISTRALS: Final = 9
_NINE: Final = re.compile(r"[A-Za-z0-9]{9}")
"""An id as Mistral makes it, and takes no other (https://github.com/mistralai/mistral-vibe/issues/1075)."""
_BETWEEN: Final = {"assistant": "", "system": "\n\n", "developer": "\n\n", "user": "\n\n", "tool": "\n"}
"""The separator between texts that are joined, by role: a model's texts are pieces of one text."""


def body_of(conversation: Conversation, profile: Profile, ledger: Ledger) -> dict[str, Any]:
    """Return the body of a Chat request. See :attr:`.ConversationCodec.body`."""
    conversation = with_word_json(conversation)
    if conversation.service.metadata and not conversation.service.store:
        # WIRE: as OpenAI says (https://github.com/QwenLM/qwen-code/issues/243).
        ledger.omit(ledger.name_of("service.metadata"), "Chat takes it only together with store.")
    ledger.check(conversation, _more_sampling(profile))
    writer = _Messages(profile, ledger)
    body: dict[str, Any] = {
        "model": conversation.model,
        "messages": writer.write((*conversation.system, *conversation.messages)),
        **_tools(conversation, ledger),
        **_settings(conversation, profile),
    }
    return body


def _more_sampling(profile: Profile) -> tuple[str, ...]:
    """Return the aspects of sampling that OpenAI has no fields for, and this upstream has."""
    return tuple(f"sampling.{name}" for name in ("top_k", "min_p") if name in (profile.sampling or ()))


# ---------------------------------------------------------------- messages


class _Messages:
    """A writer of messages, one after the other."""

    def __init__(self, profile: Profile, ledger: Ledger) -> None:
        self._profile = profile
        self._ledger = ledger

    def write(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        written: list[dict[str, Any]] = []
        for message, in_loop in zip(messages, in_loops(messages), strict=True):
            if message.role == "tool":
                written += self._results(message)
                continue
            said: dict[str, Any] = {"role": message.role}
            if message.role == "assistant":
                self._spoken(message, said, in_loop=in_loop)
                if message.parts and said.items() <= {"role": "assistant", "content": ""}.items():
                    continue  # Everything in the model's message was left out.
            else:
                said["content"] = self._content(message.role, message.parts)
            self._ledger.put_natives(message.native, said)
            written.append(said)
        return written

    def _spoken(self, message: Message, said: dict[str, Any], *, in_loop: bool) -> None:
        """Write the model's text, refusals and calls, and its reasoning if that goes back."""
        content: list[Part] = []
        refusals, calls, thoughts = [], [], []
        for part in message.parts:
            match part:
                case ToolCallPart():
                    calls.append(self._call(part))
                case Refusal():
                    refusals.append(part.text)
                    self._ledger.put_natives(part.native, {})
                case Reasoning():
                    thoughts += self._thought(part, in_loop=in_loop)
                case _:
                    content.append(part)
        said["content"] = self._content("assistant", content) if content or not (calls or refusals) else None
        if thoughts:
            said[self._profile.reasoning_field] = "\n\n".join(thoughts)
        if refusals:
            said["refusal"] = "".join(refusals)
        if calls:
            said["tool_calls"] = calls

    def _thought(self, part: Reasoning, *, in_loop: bool) -> list[str]:
        """Write reasoning with the calls that it led to, until the user's next message.

        WIRE: DeepSeek and Moonshot refuse calls without it; no known provider asks for any other reasoning.
        """
        if not is_plain(part):
            self._ledger.omit(
                part.at, "Reasoning in this form can be read only by the provider that made it."
            )
        elif not (self._profile.reasoning_field and (in_loop or self._profile.all_reasoning)):
            self._ledger.omit(
                part.at, "The upstream takes the model's reasoning back only with calls of tools."
            )
        else:
            self._ledger.put_natives(part.native, {})
            return [part.text or "\n\n".join(part.summary)]
        return []

    def _call(self, part: ToolCallPart) -> dict[str, Any]:
        name = self._ledger.tool_name(part.name)
        inner = {"name": name, "input" if part.custom else "arguments": part.arguments}
        if not part.custom and not part.arguments.strip():
            inner["arguments"] = "{}"
        kind = "custom" if part.custom else "function"
        call: dict[str, Any] = {"id": self._call_id(part.call_id), "type": kind, kind: inner}
        self._ledger.put_natives(part.native, call)
        return call

    def _call_id(self, call_id: str) -> str:
        """Return an id that the upstream accepts.

        If the profile sets no length, an id that is longer than those of other dialects is the upstream's own
        and goes back as it came: gateways keep data in it, without which the model refuses the call
        (https://github.com/BerriAI/litellm/pull/16895).
        """
        most = self._profile.call_id_chars
        if most == _MISTRALS:
            return call_id if _NINE.fullmatch(call_id) else shortened(call_id, most)
        return (
            call_id if not most and len(call_id) > _MOST_FOREIGN_ID else fitting_id(call_id, most or _MOST_ID)
        )

    def _content(self, role: str, parts: Sequence[Part]) -> Any:
        """Write a text, or a list of parts if there is more than text."""
        written = [made for part in parts for made in self._part(part)]
        plain = [
            part["text"] for part in written if isinstance(part, dict) and part.keys() == {"type", "text"}
        ]
        if len(plain) < len(written) or (len(plain) > 1 and (role == "user" or self._profile.text_lists)):
            return written
        return _BETWEEN[role].join(plain)

    def _part(self, part: Part) -> Iterator[Any]:
        """Write a part in Chat's form; nothing if it is left out."""
        made: dict[str, Any]
        match part:
            case Text() | Refusal():
                made = {"type": "text", "text": part.text}
            case Image():
                image = {"url": self._image_url(part)}
                made = {"type": "image_url", "image_url": image}
                if part.detail:
                    made["image_url"]["detail"] = part.detail
            case File():
                made = self._file(part)
            case Audio():
                sound = {"data": part.data, "format": part.format}
                made = {"type": "input_audio", "input_audio": sound}
            case NativePart():
                if (whole := self._ledger.native_fragment(part.native)) is not None:
                    yield whole
                return
            case _:
                raise self._ledger.refuse(part.at, "It has no place in a message of this kind.")
        self._ledger.put_natives(part.native, made)
        yield made

    def _image_url(self, image: Image) -> str:
        match image.source:
            case Inline():
                return data_url(image.source)
            case Remote():
                return image.source.url
            case Stored():
                raise self._ledger.refuse(image.at, "Chat cannot refer to an image by the id of a file.")

    def _file(self, part: File) -> dict[str, Any]:
        file: dict[str, Any] = {}
        match part.source:
            case Inline(is_text=True):
                return {"type": "text", "text": file_words(part)}
            case Inline():
                file["file_data"] = data_url(part.source) if part.source.media_type else part.source.data
            case Stored(keeper=keeper) if keeper == KEEPER:
                file["file_id"] = part.source.file_id
            case Stored():
                raise self._ledger.refuse(part.at, "The file is kept by another provider.")
            case Remote():
                raise self._ledger.refuse(part.at, "Chat cannot refer to a file by its address.")
        if part.name:
            file["filename"] = part.name
        if part.context:
            self._ledger.omit(part.at, "Chat takes a file without words about it.")
        return {"type": "file", "file": file}

    def _results(self, message: Message) -> Iterator[dict[str, Any]]:
        """Write a message for each result, and one of the user's for their images if the profile says so."""
        images: list[Any] = []
        for part in message.parts:
            if not isinstance(part, ToolResultPart):
                raise self._ledger.refuse(part.at, "It has no place among results.")
            result: dict[str, Any] = {
                "role": "tool",
                "tool_call_id": self._call_id(part.call_id),
                "content": self._result(part),
            }
            self._ledger.put_natives(part.native, result)
            yield result
            pictures = [inner for inner in part.parts if isinstance(inner, Image)]
            if pictures and self._profile.result_images:
                images.append({"type": "text", "text": f"[image from {part.name or part.call_id}]"})
                images += [made for picture in pictures for made in self._part(picture)]
        if images:
            yield {"role": "user", "content": images}

    def _result(self, part: ToolResultPart) -> Any:
        texts = [inner for inner in part.parts if isinstance(inner, Text)]
        if len(texts) == len(part.parts) > 1 and self._profile.text_lists and not part.is_error:
            return self._content("tool", texts)
        return result_words(part, self._ledger, images=not self._profile.result_images)


# ---------------------------------------------------------------- settings


def _tools(conversation: Conversation, ledger: Ledger) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tools = [made for tool in conversation.tools if (made := _tool(tool, ledger)) is not None]
    if tools:
        found["tools"] = tools
    if conversation.tool_choice is not None:
        custom = {tool.name for tool in conversation.tools if isinstance(tool, CustomTool)}
        found["tool_choice"] = _choice(conversation.tool_choice, custom, ledger)
    if conversation.parallel_tool_calls is not None:
        found["parallel_tool_calls"] = conversation.parallel_tool_calls
    return found


def _tool(tool: Tool, ledger: Ledger) -> Any:
    match tool:
        case NativeTool():
            return ledger.native_fragment(tool.native)
        case FunctionTool():
            kind, inner = "function", _described(tool, ledger)
            if tool.parameters is not None:
                inner["parameters"] = repaired(tool.parameters)
            if tool.strict:
                inner["strict"] = True
        case CustomTool():
            kind, inner = "custom", _described(tool, ledger)
            if tool.grammar is not None:
                rules = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
                inner["format"] = {"type": "grammar", "grammar": rules}
    written = {"type": kind, kind: inner}
    ledger.put_natives(tool.native, written)
    return written


def _described(tool: FunctionTool | CustomTool, ledger: Ledger) -> dict[str, Any]:
    inner: dict[str, Any] = {"name": ledger.tool_name(tool.name)}
    if tool.description:
        inner["description"] = tool.description
    return inner


def _choice(choice: ToolChoice, custom: set[str], ledger: Ledger) -> Any:
    if choice.kind not in ("named", "allowed"):
        return choice.kind
    tools = []
    for name in choice.names:
        kind = "custom" if name in custom else "function"
        tools.append({"type": kind, kind: {"name": ledger.tool_name(name)}})
    if choice.kind == "named":
        return tools[0]
    allowed = {"mode": "required" if choice.forced else "auto", "tools": tools}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _settings(conversation: Conversation, profile: Profile) -> dict[str, Any]:
    """Return the settings that the client asked for."""
    sampling, output, service = conversation.sampling, conversation.output, conversation.service
    options = {
        "include_usage": conversation.stream_usage or None,
        "include_obfuscation": conversation.stream_padding,
    }
    asked = {
        profile.limit_field: output.max_tokens,
        "stop": list(output.stops) or None,
        "response_format": _format(output.format),
        "verbosity": output.verbosity,
        "n": output.choices,
        "logprobs": output.logprobs,
        "top_logprobs": output.top_logprobs if output.logprobs else None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if profile.sampling else None,
        "min_p": sampling.min_p if profile.sampling else None,
        "seed": sampling.seed,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": sampling.logit_bias,
        "reasoning_effort": conversation.reasoning.effort,
        "user": service.user,
        "safety_identifier": service.safety_identifier,
        "metadata": service.metadata if service.store else None,
        "store": service.store or None,
        "service_tier": service.tier,
        "prompt_cache_key": service.cache_key,
        "prompt_cache_retention": service.cache_retention,
        "moderation": service.moderation,
        "stream": conversation.stream or None,
        "stream_options": (without_none(options) or None) if conversation.stream else None,
    }
    return without_none(asked)


def _format(form: OutputFormat | None) -> dict[str, Any] | None:
    if form is None:
        return None
    if form.kind == "json_object":
        return {"type": "json_object"}
    described = {
        "name": form.name or "answer",
        "description": form.description or None,
        "schema": form.schema,
        "strict": form.strict,
    }
    return {"type": "json_schema", "json_schema": without_none(described)}
