"""Chat Completions: reads the client's request.

Source: OpenAI's API reference, "Create chat completion".
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import orjson

from proxy.errors import ModelMissing, RequestError
from proxy.values import value_class
from proxy.wires.chosen import NOTHING_CHOSEN, Chosen, read_chosen
from proxy.wires.client_port import Answer, ReturnedCalls
from proxy.wires.past.clock import SystemRule
from proxy.wires.past.evidence import Evidence, Speaker
from proxy.wires.turn.declared import listed_tools
from proxy.wires.turn.digest import (
    PrefixDigests,
    canonical_arguments,
    conversation_digest,
    sent_arguments,
    user_key,
)

__all__ = [
    "MAX_CALL_ID",
    "ChatRequest",
    "declared_name",
    "parse_chat_request",
]

MAX_CALL_ID = 128
_PREVIEW = 120
_OF_HISTORY = ("assistant", "tool", "function")
_TELLING = ("system", "developer")
_BESIDE_TEXT = ("refusal", "audio", "tool_call_id")


@value_class
class ChatRequest:
    """The parts of a request that the proxy needs.

    ``members`` are the names of the body's members.  ``history`` are the positions of the messages with
    answers, calls or results: a first request has none.  ``people`` are the people whom the body names, as
    :func:`user_key` returns them.
    """

    members: Collection[str]
    model: str
    stream: bool
    messages: Sequence[Mapping[str, Any]]
    history: Sequence[int]
    declared: tuple[str, ...]
    choices: int
    tools_forbidden: bool
    forced: frozenset[str] | None
    wants_usage: bool
    wants_json: bool
    legacy: bool
    preview: str
    background: bool = False
    continues: str | None = None
    conversation: str = ""
    references: tuple[str, ...] = ()
    may_store: bool = True
    max_calls: int | None = None
    open_names: bool = False
    has_proxy_calls: bool = False
    people: str = ""
    chosen: Chosen = NOTHING_CHOSEN
    _beginnings: PrefixDigests = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_beginnings", PrefixDigests(self.messages, _visible, _speaker, _said))

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Check that every tool message answers one open call of the assistant message before it, once."""
        open_calls: dict[str, str] = {}
        unanswered: dict[str, int] = {}
        legacy: object = None
        for position in self.history:
            message = self.messages[position]
            role = message.get("role")
            if role == "assistant":
                calls = _calls_of(message)
                open_calls = dict(calls)
                function = message.get("function_call")
                legacy = function.get("name") if isinstance(function, dict) else None
                if calls:
                    # Some models give two calls of one message the same id; each has a result of its own.
                    unanswered = Counter(call_id for call_id, _ in calls)
            elif role == "tool":
                _check_result(position, message, open_calls, unanswered, reserved)
            elif role == "function":
                for name in (legacy, message.get("name")):
                    if isinstance(name, str) and reserved(name):
                        raise _answers_ours(f"messages[{position}].name")

    @property
    def returns_calls(self) -> bool:
        return True

    def returned_calls(self) -> Sequence[ReturnedCalls]:
        return [
            ReturnedCalls(position, frozenset([call_id for call_id, _ in calls]))
            for position, message in self._answering()
            if (calls := _calls_of(message))
        ]

    def _answering(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the messages of the model, each with its position."""
        for position in self.history:
            message = self.messages[position]
            if message.get("role") == "assistant":
                yield position, message

    def used_ids(self) -> frozenset[str]:
        """Return the call ids in the history; a new call must have another id."""
        if not self.history:
            return frozenset()
        found = [_calls_of(self.messages[position]) for position in self.history]
        return frozenset([call_id for calls in found for call_id, _ in calls])

    def answers(self) -> Sequence[Answer]:
        return [
            Answer(position, text)
            for position, message in self._answering()
            if not message.get("tool_calls")
            and not message.get("function_call")
            and (text := _answer_text(message)) is not None
        ]

    def answer_key(
        self, caller: str, shape: str, text: str, upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        words = ("chat answer", caller, self.people, shape, self.model, text.strip())
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        words = ("chat", caller, self.people, self.model, *sorted(call_ids))
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def identity_words(self, caller: str) -> tuple[str, ...]:
        return ("chat", caller, self.people, self.model)

    def evidence(self, upto: int | None = None, rule: SystemRule = "clock") -> Evidence | None:
        return self._beginnings.evidence(upto, rule)

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        message = self.messages[position]
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return True
        if message.get("content") and not is_shown(_answer_text(message) or ""):
            return False
        made = {call.get("id"): call for call in orjson.loads(held["messages"][-1]).get("tool_calls") or ()}
        shown = {call["client_id"]: made.get(call["call_id"]) for call in held["calls"]}
        shown.pop(None, None)
        if not self._answered_once(position + 1, shown):
            return False
        returned = [call for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)]
        return len(calls) == len(returned) == len(shown) and all(
            _is_call(call, shown.get(call["id"])) for call in returned
        )

    def _answered_once(self, start: int, shown: Collection[str]) -> bool:
        """Return whether the results from a position on belong to these calls alone, at most one to each."""
        following = itertools.islice(self.messages, start, None)
        results = itertools.takewhile(lambda message: message.get("role") == "tool", following)
        answered = [str(message.get("tool_call_id")) for message in results]
        return len(set(answered)) == len(answered) and set(answered) <= set(shown)


def _is_call(call: Mapping[str, Any], made: Mapping[str, Any] | None) -> bool:
    """Return whether a call that a client sends back is the one that a model made, apart from its id."""
    if made is None:
        return False
    custom, model_custom = call.get("custom"), made.get("custom")
    if isinstance(custom, dict) and isinstance(model_custom, dict):
        return [custom.get(key) for key in ("name", "input")] == [
            model_custom.get(key) for key in ("name", "input")
        ]
    function, model_function = call.get("function"), made.get("function")
    return (
        isinstance(function, dict)
        and isinstance(model_function, dict)
        and custom is None
        and function.get("name") == model_function.get("name")
        and sent_arguments(function.get("arguments")) == sent_arguments(model_function.get("arguments"))
    )


def _check_result(
    position: int,
    message: Mapping[str, Any],
    open_calls: Mapping[str, str],
    unanswered: dict[str, int],
    reserved: Callable[[str], bool],
) -> None:
    param = f"messages[{position}].tool_call_id"
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise RequestError(400, f"{param} must name the call that this result answers.", param=param)
    if len(call_id) > MAX_CALL_ID:
        raise RequestError(400, f"{param} is longer than {MAX_CALL_ID} characters.", param=param)
    if call_id not in open_calls:
        raise RequestError(
            400,
            f"{param} does not match a call of the assistant message before it. Remove the result.",
            param=param,
        )
    if not unanswered[call_id]:
        raise RequestError(400, f"{param} answers a call that already has a result.", param=param)
    if reserved(open_calls[call_id]):
        raise _answers_ours(param)
    unanswered[call_id] -= 1


def _answers_ours(param: str) -> RequestError:
    return RequestError(
        400,
        f"{param} answers a call of a server tool, which only the proxy may answer. "
        "Remove the call and its result.",
        param=param,
    )


def _calls_of(message: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return (id, name) of the calls of an assistant message."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return ()
    found = []
    for call in calls:
        if isinstance(call, dict) and isinstance(call.get("id"), str):
            inner = call.get("function") or call.get("custom")
            name = inner.get("name") if isinstance(inner, dict) else None
            found.append((call["id"], name if isinstance(name, str) else ""))
    return found


def _answer_text(message: Mapping[str, Any]) -> str | None:
    """Return the text of an answer, given as a string or as one text part; ``None`` for anything else.

    An answer of the proxy has only text, so one with more was changed.  A name is only a label: libraries
    that let several models talk put one on each of their answers.
    """
    content = _plain(message.get("content"))
    if any(message.get(key) for key in _BESIDE_TEXT):
        return None
    return content if isinstance(content, str) and content else None


def _plain(content: Any) -> Any:
    """Return content of one text part as its text, and anything else unchanged.

    Whitespace around a text is removed, because libraries trim it.
    """
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        only = content[0]
        if only.get("type") == "text":
            content = only.get("text")
    return content.strip() if isinstance(content, str) else content


def _speaker(message: Mapping[str, Any]) -> Speaker:
    role = message.get("role")
    if role in _TELLING:
        return "system"
    return "model" if role in _OF_HISTORY else "user"


def _said(message: Mapping[str, Any]) -> str | None:
    content = _plain(message.get("content"))
    return content if isinstance(content, str) and not message.get("name") else None


def _visible(message: Mapping[str, Any]) -> list[Any]:
    """Return what identifies a message, whichever client library sends it back.

    Libraries add and drop null fields and echo fields of the reply.  Role, content, calls and the id of an
    answered call stay.
    """
    content = _plain(message.get("content"))
    calls = []
    listed = message.get("tool_calls")
    for call in listed if isinstance(listed, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and not call.get("custom"):
            arguments = canonical_arguments(function.get("arguments"))
            calls.append([call.get("id"), function.get("name"), arguments])
        else:
            # The input of a custom tool is text, in which every character counts.
            calls.append(call)
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        legacy = [legacy.get("name"), canonical_arguments(legacy.get("arguments"))]
    role = message.get("role")
    return [
        # OpenAI's later name for the same role; libraries write one or the other, depending on the model.
        "system" if role == "developer" else role,
        content or None,
        calls,
        legacy,
        message.get("tool_call_id"),
        message.get("name"),
        message.get("refusal") or None,
        message.get("audio") or None,
    ]


def parse_chat_request(payload: Mapping[str, Any]) -> ChatRequest:
    """Read the parts of a request that the proxy needs; the upstream checks the rest.

    Raises :class:`RequestError` for a model or messages that are missing or of the wrong type, for tools that
    are no list and for a tool that is declared twice.
    """
    model = payload.get("model")
    if not isinstance(model, str) or not model:
        raise ModelMissing()
    messages = payload.get("messages")
    if not isinstance(messages, list):
        raise RequestError(400, "messages must be a list of messages.", param="messages")
    history = []
    for position, message in enumerate(messages):
        if type(message) is not dict:
            raise RequestError(400, f"messages[{position}] must be an object.", param=f"messages[{position}]")
        if message.get("role") in _OF_HISTORY or "tool_calls" in message:
            history.append(position)
    options = payload.get("stream_options")
    tools = listed_tools(payload)
    functions = listed_tools(payload, "functions")
    legacy = not tools and bool(functions)
    choice = payload.get("function_call" if legacy else "tool_choice")
    response_format = payload.get("response_format")
    return ChatRequest(
        members=tuple(payload),
        model=model,
        stream=payload.get("stream") is True,
        messages=messages,
        history=history,
        declared=_declared(functions if legacy else tools, legacy),
        choices=_count(payload.get("n")),
        tools_forbidden=choice == "none",
        forced=_forced(choice),
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        wants_json=isinstance(response_format, dict)
        and response_format.get("type") in ("json_object", "json_schema"),
        legacy=legacy,
        preview=_preview(messages),
        people=user_key(payload),
        chosen=read_chosen(tools) if tools else NOTHING_CHOSEN,
    )


def _count(asked: Any) -> int:
    """Return how many choices ``n`` asks for, as the laxest upstream reads it: 2.0 and "2" mean two."""
    if isinstance(asked, str) and len(asked) < 12:
        try:
            asked = float(asked)
        except ValueError:
            return 1
    whole = isinstance(asked, int) or (isinstance(asked, float) and asked.is_integer())
    return int(asked) if whole else 1


def _declared(tools: Sequence[Any], legacy: bool) -> tuple[str, ...]:
    """Return the names of the declared tools; raise :class:`RequestError` for a repeated one."""
    names: dict[str, None] = {}
    for position, tool in enumerate(tools):
        name = declared_name(tool, legacy)
        if name is None:
            continue
        if name in names:
            param = f"functions[{position}].name" if legacy else f"tools[{position}].function.name"
            raise RequestError(400, f"The tool {name[:64]!r} is declared twice.", param=param)
        names[name] = None
    return tuple(names)


def declared_name(tool: Any, legacy: bool = False) -> str | None:
    """Return the name of one element of ``tools`` (or of ``functions``), if it has one."""
    if not isinstance(tool, dict):
        return None
    inner = tool if legacy else tool.get("function") or tool.get("custom")
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


def _forced(choice: Any) -> frozenset[str] | None:
    if not isinstance(choice, dict):
        return None
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict):
        listed = allowed.get("tools")
        names = [declared_name(tool) for tool in (listed if isinstance(listed, list) else ())]
    else:
        names = [declared_name(choice), choice.get("name")]
    found = frozenset(name for name in names if isinstance(name, str))
    return found or None


def _preview(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list):
                content = " ".join(
                    part["text"]
                    for part in content
                    if isinstance(part, dict) and isinstance(part.get("text"), str)
                )
            return content[:_PREVIEW] if isinstance(content, str) else ""
    return ""
