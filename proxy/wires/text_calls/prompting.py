"""Rewrites a conversation for a model that takes no tools: definitions, calls and results become text.

The definitions stand at the end of the first system message. The same tools always give the same text, so
that a provider's prompt cache can work. Calls and results have the form that the model's family knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from proxy.base.conversation import (
    Content,
    Conversation,
    CustomTool,
    FunctionTool,
    Message,
    NativeTool,
    Part,
    Refusal,
    Text,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.schemas.portable import repaired
from proxy.wires.text_calls.form import Form, Result

_MOST_STOPS: Final = 4
"""Servers accept no more stop sequences than this."""
_PURPOSE: Final = "You can call functions. These are their definitions, with JSON Schemas of their arguments:"
_HOW: Final = "To call a function, write this, with its name and arguments in place of the words in capitals:"
_RULES: Final = (
    "Write nothing behind your calls: their results come in the next message. Never make up a result. "
    "If no call is needed, answer as usual and without this form."
)
_SEVERAL: Final = "For several calls write one behind the other."
_SINGLE: Final = "Make one call at a time."


def prompted(conversation: Conversation, form: Form, *, takes_stops: bool = True) -> Conversation:
    """Return the same conversation without tools, for a model that takes none.

    ``takes_stops``: the upstream's dialect has stop sequences. One of them keeps the model from inventing a
    result.
    """
    tools = _choosable(conversation.tools, conversation.tool_choice)
    system = conversation.system
    if tools:
        text = _instructions(tools, conversation, form)
        system = _with_words(conversation.system, text)
    stops = conversation.output.stops
    if tools and takes_stops and len(stops) < _MOST_STOPS:
        stops = tuple(dict.fromkeys((*stops, form.result_beginnings[0])))
    return replace(
        conversation,
        system=system,
        messages=tuple(_messages(conversation.messages, form)),
        tools=tuple(tool for tool in conversation.tools if isinstance(tool, NativeTool)),
        tool_choice=None,
        parallel_tool_calls=None,
        output=replace(conversation.output, stops=stops),
    )


# ---------------------------------------------------------------- definitions


def _choosable(tools: Sequence[Tool], choice: ToolChoice | None) -> list[FunctionTool | CustomTool]:
    """Return the tools that may be called, sorted by name."""
    kind = choice.kind if choice is not None else "auto"
    if kind == "none":
        return []
    named = choice.names if choice is not None and kind in ("named", "allowed") else None
    usable = [tool for tool in tools if isinstance(tool, FunctionTool | CustomTool)]
    chosen = {tool.name: tool for tool in usable if named is None or tool.name in named}
    return [chosen[name] for name in sorted(chosen)]


def _instructions(tools: Sequence[FunctionTool | CustomTool], conversation: Conversation, form: Form) -> str:
    single = conversation.parallel_tool_calls is False
    lines = [_PURPOSE, form.definitions([_definition(tool) for tool in tools])]
    lines += [_HOW, form.example, f"{_SINGLE if single else _SEVERAL} {_RULES}"]
    choice = conversation.tool_choice
    if choice is not None and (choice.kind in ("required", "named") or choice.forced):
        which = f"the function {tools[0].name}" if choice.kind == "named" else "at least one function"
        lines.append(f"This time you must call {which}: do not answer without a call.")
    return "\n".join(lines)


def _definition(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    """Return a tool's definition for models. A tool that takes text has one argument, called ``input``."""
    made: dict[str, Any] = {"name": tool.name}
    if tool.description:
        made["description"] = tool.description
    if isinstance(tool, FunctionTool):
        made["parameters"] = repaired(tool.parameters or {})
        return made
    schema: dict[str, Any] = {"type": "string"}
    if tool.grammar is not None:
        schema["description"] = f"Has to fit this {tool.grammar.syntax} grammar: {tool.grammar.definition}"
    made["parameters"] = {"type": "object", "properties": {"input": schema}, "required": ["input"]}
    return made


def _with_words(system: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Return the system messages with ``words`` at the end of the first."""
    if not system:
        return (Message("system", (Text(text),)),)
    first = system[0]
    return (replace(first, parts=(*first.parts, Text(text))), *system[1:])


# ---------------------------------------------------------------- messages


def _messages(messages: Iterable[Message], form: Form) -> Iterable[Message]:
    names: dict[str, tuple[str, str]] = {}
    results: Message | None = None
    for message in messages:
        if results is not None:
            # Templates of many models require alternating roles.
            joins = message.role == "user"
            yield replace(message, parts=(*results.parts, *message.parts)) if joins else results
            results = None
            if joins:
                continue
        if message.role == "tool":
            results = _results(message, names, form)
        elif any(isinstance(part, ToolCallPart) for part in message.parts):
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    names[part.call_id] = part.name, form.id_of(part.name, len(names), part.call_id)
            yield _spoken(message, names, form)
        else:
            yield message
    if results is not None:
        yield results


def _spoken(message: Message, names: Mapping[str, tuple[str, str]], form: Form) -> Message:
    """Return the model's message, with its calls in the form in which it should have written them."""
    kept: list[Part] = []
    calls: list[str] = []
    text = ""
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            calls.append(form.call(part.name, _arguments(part), names[part.call_id][1]))
        elif isinstance(part, Text):
            text += part.text
        else:
            kept.append(part)
    written = form.calls(calls)
    kept.append(Text(f"{text.rstrip()}\n{written}" if text.strip() else written))
    return Message("assistant", tuple(kept), at=message.at)


def _arguments(part: ToolCallPart) -> str:
    return orjson.dumps({"input": part.arguments}).decode() if part.custom else part.arguments


def _results(message: Message, names: Mapping[str, tuple[str, str]], form: Form) -> Message:
    """Return the results of a turn as one user message. They follow the order of the calls, because not
    every form names the call that a result answers. Parts that are not text come last."""
    written: list[str] = []
    others: list[Content] = []
    order = {call_id: place for place, call_id in enumerate(names)}
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    for part in sorted(results, key=lambda part: order.get(part.call_id, len(order))):
        texts = [inner.text for inner in part.parts if isinstance(inner, Text | Refusal)]
        others += [inner for inner in part.parts if not isinstance(inner, Text | Refusal)]
        text = "\n".join(texts)
        if part.is_error:
            text = f"Error: {text}"
        name, its = names.get(part.call_id, (part.name, part.call_id))
        written.append(form.result(Result(its, name, form.escaped(text), part.is_error)))
    return Message("user", (Text(form.results(written)), *others), at=message.at)
