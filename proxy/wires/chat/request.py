"""Chat Completions: reads the client's request.

Source: OpenAI's API reference, "Create chat completion".
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from proxy.base.values import value_class
from proxy.wires.chosen import NOTHING_CHOSEN, read_chosen
from proxy.wires.client_port import ReturnedCalls
from proxy.wires.message_list.request import CallsWithIdsRequest, JsonMessage
from proxy.wires.past.evidence import Speaker
from proxy.wires.turn.digest import canonical_arguments, sent_arguments, user_key
from proxy.wires.turn.request_members import (
    answers_server_call,
    check_result,
    declared_names,
    listed_messages,
    listed_tools,
    model_name,
    preview_of,
)

_OF_HISTORY = ("assistant", "tool", "function")
_SPEAKERS: Final[Mapping[str, Speaker]] = {
    "system": "system",
    "developer": "system",
    "assistant": "model",
    "tool": "tool",
    "function": "tool",
}
_BESIDE_TEXT = ("refusal", "audio", "tool_call_id")


@value_class
class ChatRequest(CallsWithIdsRequest):
    """The parts of a request that the proxy needs.

    ``history`` are the positions of the messages with answers, calls or results: a first request has none.
    ``people`` are the people whom the body names, as :func:`user_key` returns them. ``legacy``: the body has
    ``functions`` instead of ``tools``.
    """

    history: Sequence[int] = ()
    wants_usage: bool = False
    legacy: bool = False

    dialect_name: ClassVar[str] = "chat"

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Check that every tool message answers one open call of the assistant message before it, once."""
        open_calls: dict[str, str] = {}
        unanswered: dict[str, int] = {}
        legacy: object = None
        for position in self.history:
            message = self.messages[position]
            role = message.get("role")
            if role == "assistant":
                if "tool_calls" not in message and "function_call" not in message:
                    open_calls, legacy = {}, None
                    continue
                calls = _named_calls(message)
                open_calls = dict(calls)
                function = message.get("function_call")
                legacy = function.get("name") if isinstance(function, dict) else None
                if calls:
                    # Some models give two calls of one message the same id; each has a result of its own.
                    unanswered = Counter(call_id for call_id, _ in calls)
            elif role == "tool":
                param, call_id = f"messages[{position}].tool_call_id", message.get("tool_call_id")
                check_result(param, call_id, open_calls, unanswered, reserved)
            elif role == "function":
                for name in (legacy, message.get("name")):
                    if isinstance(name, str) and reserved(name):
                        raise answers_server_call(f"messages[{position}].name")

    def _model_messages(self) -> Sequence[tuple[int, JsonMessage]]:
        if not self.history:
            return ()
        said = [(position, self.messages[position]) for position in self.history]
        return [(position, message) for position, message in said if message.get("role") == "assistant"]

    def returned_calls(self) -> Sequence[ReturnedCalls]:
        messages = self.messages
        if not self.history or not any("tool_calls" in messages[position] for position in self.history):
            return ()
        return CallsWithIdsRequest.returned_calls(self)

    @classmethod
    def speaker(cls, message: JsonMessage) -> Speaker:
        role = message.get("role")
        return _SPEAKERS.get(role, "user") if type(role) is str else "user"

    @classmethod
    def _spoken(cls, message: JsonMessage) -> str | None:
        content = _plain(message.get("content"))
        return content if isinstance(content, str) and not message.get("name") else None

    @classmethod
    def _identity(cls, message: JsonMessage) -> list[Any]:
        # Libraries add and drop null fields and echo fields of the reply.
        content, role = message.get("content"), message.get("role")
        # OpenAI's later name for the same role; libraries write one or the other, depending on the model.
        role = "system" if role == "developer" else role
        content = content.strip() if type(content) is str else _plain(content)
        if len(message) == 2 and "role" in message and "content" in message:
            return [role, content or None, [], None, None, None, None, None]
        calls = message.get("tool_calls")
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            legacy = [legacy.get("name"), canonical_arguments(legacy.get("arguments"))]
        return [
            role,
            content or None,
            list(map(_canonical_call, calls)) if isinstance(calls, list) else [],
            legacy,
            message.get("tool_call_id"),
            message.get("name"),
            message.get("refusal") or None,
            message.get("audio") or None,
        ]

    @classmethod
    def _calls(cls, message: JsonMessage) -> Sequence[tuple[str, Any]]:
        calls = message.get("tool_calls")
        return [(_call_id(call), call) for call in calls] if isinstance(calls, list) else ()

    @classmethod
    def _text(cls, message: JsonMessage) -> str | None:
        if len(message) == 2 and type(content := message.get("content")) is str:
            return content.strip() or (None if content else "")
        if message.get("function_call"):
            return None
        return _only_text(message) if message.get("content") else ""

    @classmethod
    def _call_identity(cls, call: Any) -> Any:
        if not isinstance(call, dict):
            return None
        custom, function = call.get("custom"), call.get("function")
        if isinstance(custom, dict):
            return "custom", custom.get("name"), custom.get("input")
        if isinstance(function, dict) and custom is None:
            return "function", function.get("name"), sent_arguments(function.get("arguments"))
        return None

    @classmethod
    def _has_calls(cls, message: JsonMessage) -> bool:
        return bool(message.get("tool_calls"))

    @classmethod
    def answered_ids(cls, message: JsonMessage) -> Sequence[str] | None:
        return [str(message.get("tool_call_id"))] if message.get("role") == "tool" else None


def _call_id(call: Any) -> str:
    """Return the id of a call; ``""`` if it has none."""
    call_id = call.get("id") if isinstance(call, dict) else None
    return call_id if isinstance(call_id, str) else ""


def _named_calls(message: JsonMessage) -> Sequence[tuple[str, str]]:
    """Return the ids and names of the calls of an assistant message."""
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


def _canonical_call(call: Any) -> Any:
    """Return a call in the form that all libraries have in common."""
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and not call.get("custom"):
        return [call.get("id"), function.get("name"), canonical_arguments(function.get("arguments"))]
    # The input of a custom tool is text, in which every character counts.
    return call


def _only_text(message: JsonMessage) -> str | None:
    """Return the text of an answer, given as a string or as one text part; ``None`` for anything else.

    An answer of the proxy has only text, so one with more was changed. A name is only a label: libraries
    that let several models talk put one on each of their answers.
    """
    content = _plain(message.get("content"))
    if len(message) > 2 and any(message.get(key) for key in _BESIDE_TEXT):
        return None
    return content if isinstance(content, str) and content else None


def _plain(content: Any) -> Any:
    """Return content of one text part as its text, and anything else unchanged.

    Whitespace around a text is removed, because libraries trim it.
    """
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        only = content[0]
        if only.get("type") == "text":
            content = only.get("text")
    return content.strip() if isinstance(content, str) else content


def parse_chat_request(payload: Mapping[str, Any]) -> ChatRequest:
    """Read the parts of a request that the proxy needs; the upstream checks the rest.

    Raises :class:`RequestError` for a model or messages that are missing or of the wrong type, for tools that
    are no list and for a tool that is declared twice.
    """
    model, messages = model_name(payload), listed_messages(payload)
    history = [
        position
        for position, message in enumerate(messages)
        if message.get("role") in _OF_HISTORY or "tool_calls" in message
    ]
    options = payload.get("stream_options")
    tools = listed_tools(payload)
    functions = listed_tools(payload, "functions") if "functions" in payload else ()
    legacy = not tools and bool(functions)
    choice = payload.get("function_call" if legacy else "tool_choice")
    response_format = payload.get("response_format")
    return ChatRequest(
        members=tuple(payload),
        model=model,
        stream=payload.get("stream") is True,
        messages=messages,
        history=history,
        declared=(
            declared_names(functions, _function_name, "functions[{}].name")
            if legacy
            else declared_names(tools, declared_name, "tools[{}].function.name")
        ),
        tool_count=len(functions if legacy else tools),
        choices=_count(payload["n"]) if "n" in payload else 1,
        tools_forbidden=choice == "none",
        forced=None if choice is None else _forced(choice),
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


def declared_name(tool: Any, legacy: bool = False) -> str | None:
    """Return the name of one element of ``tools`` (or of ``functions``), if it has one."""
    if not isinstance(tool, dict):
        return None
    inner = tool if legacy else tool.get("function") or tool.get("custom")
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


def _function_name(function: Any) -> str | None:
    return declared_name(function, legacy=True)


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
            return preview_of(content)
    return ""
