"""What Anthropic's Messages API refuses.

The members of blocks come from ``anthropic.types`` of the ``anthropic`` package. A kind of block that is not
listed here is not looked into.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from provider_rules.rule import Asked, Body, Fault, Place, Rule, fits, unknown
from provider_rules.tools import twice

NEW = ("claude-*-4-[678]*", "claude-opus-5*", "claude-sonnet-5*", "claude-haiku-5*", "claude-fable-*")
"""Models from 4.6: with effort and adaptive thinking, without prefill."""
OLD = ("claude-2*", "claude-3-*", "claude-*-4-[015]*", "claude-*-4-2025*")
"""Models before 4.6."""
_LIMITS = {
    "claude-3-5-*": 8192, "claude-3-7-*": 128_000, "claude-3-*": 4096, "claude-opus-4-0*": 32_000,
    "claude-opus-4-1*": 32_000, "claude-opus-4-2025*": 32_000, "claude-opus-4-5*": 64_000,
    "claude-sonnet-4-[05]*": 64_000, "claude-sonnet-4-2025*": 64_000, "claude-haiku-4-5*": 64_000,
}  # fmt: skip
FIELDS = frozenset({
    "cache_control", "container", "diagnostics", "inference_geo", "max_tokens", "messages", "metadata",
    "model", "output_config", "service_tier", "speed", "stop_sequences", "stream", "system", "temperature",
    "thinking", "tool_choice", "tools", "top_k", "top_p", "user_profile_id", "workspace_id",
})  # fmt: skip
"""``MessageCreateParams`` of the ``anthropic`` package, and the sampling fields of older versions."""
_CACHED = {"cache_control", "type"}
BLOCKS: dict[str, frozenset[str]] = {
    kind: frozenset(members)
    for kind, members in {
        "text": {*_CACHED, "citations", "text"},
        "image": {*_CACHED, "source", "transformations"},
        "document": {*_CACHED, "citations", "context", "source", "title"},
        "tool_use": {*_CACHED, "caller", "id", "input", "name", "toolset_name"},
        "tool_result": {*_CACHED, "content", "is_error", "tool_use_id", "toolset_name"},
        "thinking": {"signature", "thinking", "type"},
        "redacted_thinking": {"data", "type"},
    }.items()
}
"""The members of the commonest blocks."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
_VERSION_OF_SYSTEM = "2026-10-21"
_SDK = "anthropic.types of the anthropic package"
_ANTHROPIC = ("anthropic",)


def _messages(body: Body) -> list[tuple[int, dict[str, Any]]]:
    return list(enumerate(body.get("messages") or ()))


def _held(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _blocks(body: Body) -> Iterator[tuple[Place, str, dict[str, Any]]]:
    """Yield every block of the messages with its place and the role of its message."""
    for at, message in _messages(body):
        for position, block in enumerate(_held(message.get("content"))):
            place = ("messages", at, "content", position)
            yield place, str(message.get("role")), block
            if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
                for inner, part in enumerate(block["content"]):
                    yield (*place, "tool_result", "content", inner), "result", part


def _at(place: Place) -> str:
    return ".".join(map(str, place))


def _headers(asked: Asked) -> Iterator[Fault]:
    if not asked.headers.get("x-api-key") and not asked.headers.get("authorization"):
        yield Fault("x-api-key header is required")
    if not asked.headers.get("anthropic-version"):
        yield Fault("anthropic-version: header is required")


def _fields(asked: Asked) -> Iterator[Fault]:
    if not asked.headers.get("anthropic-beta"):
        yield from unknown(asked.body, FIELDS)
    yield from unknown(asked.body.get("metadata") or {}, {"user_id"}, ("metadata",))
    if not asked.body.get("model"):
        yield Fault("model: Field required")
    if type(given := asked.body.get("max_tokens")) is not int:
        yield Fault("max_tokens: Field required")
    elif given < 0:
        yield Fault("max_tokens: Input should be greater than or equal to 0")
    if len((asked.body.get("metadata") or {}).get("user_id") or "") > 256:
        yield Fault("metadata.user_id: String should have at most 256 characters")


def _limit(asked: Asked) -> Iterator[Fault]:
    most = next((most for pattern, most in _LIMITS.items() if fits(asked.model, [pattern])), None)
    given = asked.body.get("max_tokens")
    if most is not None and isinstance(given, int) and given > most:
        said = f"max_tokens: {given} > {most}, which is the maximum allowed number of output tokens for"
        yield Fault(f"{said} {asked.model}")


def _tools(asked: Asked) -> Iterator[Fault]:
    tools = asked.body.get("tools") or []
    if twice([str(tool.get("name")) for tool in tools if "name" in tool]):
        yield Fault("tools: Tool names must be unique.")
    for at, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom":
            continue
        if not _NAME.fullmatch(tool.get("name", "")):
            yield Fault(f"tools.{at}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        schema = tool.get("input_schema") or {}
        if schema.get("type") != "object":
            yield Fault(f"tools.{at}.custom.input_schema.type: Input should be 'object'")
        if not all(map(_KEY.fullmatch, schema.get("properties") or {})):
            said = f"tools.{at}.custom.input_schema.properties: Property keys should match pattern"
            yield Fault(f"{said} '^[a-zA-Z0-9_.-]{{1,64}}$'")
        for word in {"oneOf", "allOf", "anyOf"} & schema.keys():
            said = f"tools.{at}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at"
            yield Fault(f"{said} the top level ({word})")


def _choice(asked: Asked) -> Iterator[Fault]:
    choice, tools = asked.body.get("tool_choice"), asked.body.get("tools") or []
    if choice is None:
        return
    kind = choice.get("type")
    if kind not in ("auto", "any", "none", "tool"):
        yield Fault("tool_choice: Input tag does not match any of the expected tags: auto, any, tool, none")
        return
    if not tools:
        yield Fault("tool_choice may only be specified while providing tools")
    elif kind == "tool" and choice.get("name") not in [tool.get("name") for tool in tools]:
        yield Fault(f"Tool '{choice.get('name')}' not found in provided tools")
    known = {"type", *({"name"} if kind == "tool" else ())}
    more = set() if kind == "none" else {"disable_parallel_tool_use"}
    yield from unknown(choice, known | more, ("tool_choice", kind))


def _cache_marks(asked: Asked) -> Iterator[Fault]:
    top = {"cache_control": None}
    marked = json.dumps({**asked.body, **top}).count('"cache_control": {')
    if marked > 4:
        said = "A maximum of 4 blocks with cache_control may be provided."
        yield Fault(f"{said} Found {marked}.")


def _roles(asked: Asked) -> Iterator[Fault]:
    messages = _messages(asked.body)
    if not messages:
        yield Fault("messages: at least one message is required")
        return
    version, beta = asked.headers.get("anthropic-version", ""), asked.headers.get("anthropic-beta", "")
    takes_system = version >= _VERSION_OF_SYSTEM or "mid-conversation-system" in beta
    for at, message in messages:
        role = message.get("role")
        if role == "system" and not takes_system:
            said = (
                'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter,'
            )
            yield Fault(f'{said} not "system" as an input message role.')
        elif role not in ("user", "assistant", "system"):
            yield Fault(f"messages.{at}.role: Input should be 'user' or 'assistant'")
        yield from unknown(message, {"content", "role"}, ("messages", at))
    if next((each["role"] for _, each in messages if each.get("role") != "system"), "user") != "user":
        yield Fault('messages: first message must use the "user" role')


def _texts(asked: Asked) -> Iterator[Fault]:
    messages = _messages(asked.body)
    for at, message in messages:
        last = at == len(messages) - 1 and message.get("role") == "assistant"
        if not message.get("content") and not last:
            said = f"messages.{at}: all messages must have non-empty content except for the optional final"
            yield Fault(f"{said} assistant message")
    texts = [block for _, role, block in _blocks(asked.body) if role != "result"]
    for block in (*_held(asked.body.get("system") or ()), *texts):
        if block.get("type") == "text" and not block.get("text", "").strip():
            fault = "must contain non-whitespace text" if block.get("text") else "must be non-empty"
            yield Fault(f"messages: text content blocks {fault}")


def _members(asked: Asked) -> Iterator[Fault]:
    for place, role, block in _blocks(asked.body):
        kind = str(block.get("type"))
        if kind in BLOCKS:
            yield from unknown(block, BLOCKS[kind], (*place, kind))
        if kind in ("tool_use", "thinking", "redacted_thinking") and role == "user":
            yield Fault(f"messages.{place[1]}: `{kind}` blocks can only be in `assistant` messages")
        if kind == "tool_result" and role == "assistant":
            yield Fault(f"messages.{place[1]}: `tool_result` blocks can only be in `user` messages")
        if kind == "tool_use":
            if not isinstance(block.get("input"), dict):
                yield Fault(f"{_at(place)}.tool_use.input: Input should be a valid dictionary")
            if not _CALL_ID.fullmatch(str(block.get("id", ""))):
                said = f"{_at(place)}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
                yield Fault(said)
        if kind == "thinking" and block.get("signature", "") in ("", "toolrelay", "toolrelay-translated"):
            yield Fault(f"{_at(place)}: Invalid `signature` in `thinking` block")
        if kind == "image":
            yield from _image(block.get("source") or {}, place)


def _image(source: dict[str, Any], place: Place) -> Iterator[Fault]:
    kind = source.get("type")
    if kind not in ("base64", "url", "file"):
        yield Fault(f"{_at(place)}.image.source: Input tag '{kind}' does not match any of the expected tags")
    elif kind == "base64" and source.get("media_type") not in _MEDIA:
        said = f"{_at(place)}.image.source.base64.media_type: Input should be"
        yield Fault(f"{said} {', '.join(map(repr, _MEDIA))}")


def _answers(asked: Asked) -> Iterator[Fault]:
    waiting: set[str] = set()
    seen: set[str] = set()
    for at, message in [*_messages(asked.body), (-1, {})]:
        if message.get("role") == "system":
            continue
        blocks = _held(message.get("content"))
        results = [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
        if stray := [each for each in results if each not in waiting]:
            said = (
                f"messages.{at}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {stray[0]}"
            )
            yield Fault(said)
        first = [block.get("type") for block in blocks[: len(results)]]
        if waiting - set(results) or set(first) - {"tool_result"}:
            said = f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after:"
            yield Fault(f"{said} {', '.join(sorted(waiting - set(results)))}")
        if len(set(results)) != len(results):
            yield Fault(f"messages.{at}: each tool_use must have a single result")
        calls = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        if seen & set(calls) or twice(calls):
            yield Fault(f"messages.{at}: `tool_use` ids must be unique")
        seen |= set(calls)
        waiting = set(calls)


def _thinking(asked: Asked) -> Iterator[Fault]:
    body = asked.body
    thinking = body.get("thinking") or {}
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind not in ("enabled", "adaptive"):
        return
    if kind == "enabled":
        if not isinstance(budget, int) or budget < 1024:
            yield Fault("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        elif budget >= (body.get("max_tokens") or 0):
            yield Fault("`max_tokens` must be greater than `thinking.budget_tokens`.")
        if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            yield Fault("Thinking may not be enabled when tool_choice forces tool use.")
    if body.get("temperature") not in (None, 1):
        yield Fault("`temperature` may only be set to 1 when thinking is enabled.")


def _sampling(asked: Asked) -> Iterator[Fault]:
    if asked.headers.get("anthropic-version", "") >= _VERSION_OF_SYSTEM:
        yield from unknown(asked.body, asked.body.keys() - {"temperature", "top_p", "top_k"})
    given = asked.body.get("temperature")
    if given is not None and not 0 <= given <= 1:
        yield Fault("temperature: range: 0..1")
    if any(not str(stop).strip() for stop in asked.body.get("stop_sequences") or ()):
        yield Fault("stop_sequences: each stop sequence must contain non-whitespace")


def _trailing(asked: Asked) -> Iterator[Fault]:
    messages = asked.body.get("messages") or [{}]
    if messages[-1].get("role") == "assistant":
        blocks = _held(messages[-1].get("content"))
        if blocks and str(blocks[-1].get("text", "")) != str(blocks[-1].get("text", "")).rstrip():
            yield Fault("messages: final assistant content cannot end with trailing whitespace")


def _prefill(asked: Asked) -> Iterator[Fault]:
    if (asked.body.get("messages") or [{}])[-1].get("role") == "assistant":
        said = "This model does not support assistant message prefill. The conversation must end with a user"
        yield Fault(f"{said} message.")


def _effort(asked: Asked) -> Iterator[Fault]:
    if (asked.body.get("output_config") or {}).get("effort") is not None:
        yield Fault("This model does not support the effort parameter.")


def _adaptive(asked: Asked) -> Iterator[Fault]:
    if (asked.body.get("thinking") or {}).get("type") == "adaptive":
        yield Fault("adaptive thinking is not supported on this model")


_GH = "https://github.com/"
_DOCS = "https://platform.claude.com/docs/en"
_API = f"{_DOCS}/api/messages"
MESSAGES_RULES = (
    Rule("messages-headers", _ANTHROPIC, _headers, f"{_DOCS}/api/versioning"),
    Rule("messages-fields", _ANTHROPIC, _fields, f"{_SDK}; {_API}"),
    Rule(
        "messages-limit",
        _ANTHROPIC,
        _limit,
        f"{_DOCS}/about-claude/models/overview",
    ),
    Rule("messages-tools", _ANTHROPIC, _tools, f"{_GH}n8n-io/n8n/issues/30590"),
    Rule("messages-choice", _ANTHROPIC, _choice, f"{_SDK} (ToolChoiceNoneParam); {_API}"),
    Rule("messages-cache-marks", _ANTHROPIC, _cache_marks, _API),
    Rule("messages-roles", _ANTHROPIC, _roles, _API),
    Rule("messages-texts", _ANTHROPIC, _texts, f"{_GH}anthropics/claude-code/issues/23440"),
    Rule("messages-members", _ANTHROPIC, _members, _SDK),
    Rule("messages-answers", _ANTHROPIC, _answers, _API),
    Rule(
        "messages-thinking",
        _ANTHROPIC,
        _thinking,
        f"{_DOCS}/build-with-claude/extended-thinking",
    ),
    Rule("messages-sampling", _ANTHROPIC, _sampling, _API),
    Rule("messages-trailing", _ANTHROPIC, _trailing, _API),
    Rule("messages-prefill", _ANTHROPIC, _prefill, f"{_GH}langchain-ai/deepagents/issues/1585", NEW),
    Rule(
        "messages-effort",
        _ANTHROPIC,
        _effort,
        f"{_GH}Oaklight/llm-rosetta/pull/289",
        (*OLD, "!claude-opus-4-5*"),
    ),
    Rule(
        "messages-adaptive",
        _ANTHROPIC,
        _adaptive,
        f"{_DOCS}/build-with-claude/adaptive-thinking",
        OLD,
    ),
)
