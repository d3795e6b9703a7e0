"""Hypothesis strategies for conversations, for properties that must hold for every conversation."""

import base64
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

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
    Native,
    Output,
    OutputFormat,
    Part,
    Reasoning,
    ReasoningSettings,
    Refusal,
    Remote,
    Sampling,
    Service,
    Stored,
    Text,
    Tool,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.schemas.portable import repaired

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    words,
    st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | words, st.lists, max_leaves=4),
    max_size=3,
)
_data = st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode())
_urls = words.map(lambda path: Remote(f"https://example.com/{quote(path)}"))
_part_kinds: dict[str, st.SearchStrategy[Content]] = {
    "text": st.builds(Text, words),
    "image": st.builds(
        Image, st.builds(Inline, st.just("image/png"), _data) | _urls, st.sampled_from(["", "low", "high"])
    ),
    "file": st.builds(
        File,
        st.builds(Inline, st.just("application/pdf"), _data)
        | st.builds(Stored, words.map("file-".__add__), st.just("openai")),
        st.just("") | words,
    ),
    "audio": st.builds(Audio, _data, st.sampled_from(["wav", "mp3"])),
}


def _optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def _turn(draw: st.DrawFn, kinds: Sequence[str], first_call: int) -> list[Message]:
    """Draw a user's message and the answer to it with the results of its calls."""
    said: list[Part] = list(
        draw(st.lists(st.one_of([_part_kinds[kind] for kind in kinds if kind in _part_kinds]), max_size=3))
    )
    turn = [Message("user", tuple(said))]
    if draw(st.booleans()):
        turn.append(Message(draw(st.sampled_from(["system", "developer"])), (Text(draw(words)),)))
    answer: list[Part] = [Text(text) for text in draw(st.lists(words, max_size=2))]
    if "reasoning" in kinds:
        answer[:0] = [Reasoning(text) for text in draw(st.lists(words, max_size=1))]
    answer += [Refusal(text) for text in draw(st.lists(words, max_size=1))]
    calls = [
        ToolCallPart(
            f"call_{first_call + place}", draw(names), draw(words) if custom else "{}", custom=custom
        )
        for place, custom in enumerate(draw(st.lists(st.booleans(), max_size=3)))
    ]
    if answer or calls:
        turn.append(Message("assistant", (*answer, *calls)))
    if calls:
        results = [
            ToolResultPart(call.call_id, tuple(map(Text, draw(st.lists(words, max_size=2)))))
            for call in calls
        ]
        turn.append(Message("tool", tuple(results)))
    return turn


def _tool(name: str, *, bare: bool) -> st.SearchStrategy[Tool]:
    grammar = _optional(st.builds(Grammar, st.sampled_from(["lark", "regex"]), words))
    described = st.just("") | words
    schemas = objects.map(repaired)
    function = st.builds(
        FunctionTool, st.just(name), described, _optional(schemas) if bare else schemas, st.booleans()
    )
    return function | st.builds(CustomTool, st.just(name), described, grammar)


@st.composite
def _tool_use(draw: st.DrawFn, *, bare: bool) -> dict[str, Any]:
    listed = [draw(_tool(name, bare=bare)) for name in draw(st.lists(names, max_size=3, unique=True))]
    choices = [st.builds(ToolChoice, st.sampled_from(["auto", "none", "required"]))]
    if declared := tuple(tool.name for tool in listed if isinstance(tool, FunctionTool | CustomTool)):
        choices.append(st.builds(ToolChoice, st.just("named"), st.tuples(st.sampled_from(declared))))
        choices.append(st.builds(ToolChoice, st.just("allowed"), st.just(declared), st.booleans()))
    return {
        "tools": tuple(listed),
        "tool_choice": draw(_optional(st.one_of(choices))),
        "parallel_tool_calls": draw(_optional(st.booleans())),
    }


_numbers = _optional(st.floats(0, 2) | st.integers(0, 2))
_formats = st.builds(OutputFormat, st.just("json_object")) | st.builds(
    OutputFormat, st.just("json_schema"), objects, names, st.just("") | words, _optional(st.booleans())
)
_tokens = _optional(st.integers(1, 9_999))


@st.composite
def conversations(
    draw: st.DrawFn,
    kinds: Sequence[str] = ("text", "image", "file"),
    sampling: Sequence[str] = ("temperature", "top_p"),
    output: Sequence[str] = ("max_tokens", "format", "verbosity", "logprobs", "top_logprobs"),
    *,
    bare_tools: bool = False,
) -> Conversation:
    """Draw a conversation with these kinds of parts and at most these settings of sampling and output.

    With ``bare_tools`` some tools take no arguments.
    """
    messages: list[Message] = []
    for place in range(draw(st.integers(0, 3))):
        messages += draw(_turn(kinds, 10 * place))
    leading = st.builds(Message, st.sampled_from(["system", "developer"]), st.tuples(st.builds(Text, words)))
    asked = {
        "temperature": _numbers,
        "top_p": _numbers,
        "top_k": _tokens,
        "min_p": _numbers,
        "seed": _tokens,
        "presence_penalty": _numbers,
        "frequency_penalty": _numbers,
        "logit_bias": _optional(st.dictionaries(names, st.integers(-9, 9), min_size=1, max_size=2)),
    }
    wanted = {
        "max_tokens": _optional(st.integers(16, 10_000)),
        "stops": st.lists(words, max_size=3).map(tuple),
        "format": _optional(_formats),
        "verbosity": _optional(st.sampled_from(["low", "medium", "high"])),
        "choices": _optional(st.integers(1, 3)),
        "logprobs": st.just(True),
        "top_logprobs": _tokens,
    }
    return Conversation(
        model=draw(names),
        messages=tuple(messages),
        system=tuple(draw(st.lists(leading, max_size=2))),
        **draw(_tool_use(bare=bare_tools)),
        sampling=Sampling(**{name: draw(asked[name]) for name in sampling}),
        output=Output(**{name: draw(wanted[name]) for name in output}),
        reasoning=ReasoningSettings(effort=draw(_optional(st.sampled_from(["none", "low", "max"])))),
        service=draw(_services),
        stream=draw(st.booleans()),
    )


_services = st.builds(
    Service,
    user=_optional(words),
    safety_identifier=_optional(words),
    metadata=_optional(st.dictionaries(words, words, min_size=1, max_size=2)),
    store=st.booleans(),
    tier=_optional(st.sampled_from(["auto", "flex"])),
    cache_key=_optional(words),
    cache_retention=_optional(st.sampled_from(["in_memory", "24h"])),
    moderation=_optional(st.just({"model": "m"})),
)


def natives(found: Any) -> list[Native]:
    """Return all parts of a conversation that only one dialect has, at any depth."""
    if isinstance(found, Native):
        return [found]
    if isinstance(found, tuple):
        return [native for inner in found for native in natives(inner)]
    if hasattr(found, "__dataclass_fields__"):
        return [native for name in found.__dataclass_fields__ for native in natives(getattr(found, name))]
    return []
