"""What OpenAI's Responses API refuses.

The members of items come from ``openai.types.responses`` of the ``openai`` package; a kind of item that is
not listed here is not looked into.
"""

from collections.abc import Iterator
from typing import Any

from provider_rules.chat import PLAIN, REASONING
from provider_rules.rule import Asked, Body, Fault, Place, Rule, length_of, unknown
from provider_rules.tools import count_faults, name_faults, root_faults, schema_faults, strict_faults

FIELDS = frozenset({
    "access_programs", "background", "background_options", "context_management", "conversation", "image",
    "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model",
    "moderation", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier",
    "store", "stream", "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs",
    "top_p", "truncation", "user",
})  # fmt: skip
"""The fields of the request (``ResponseCreateParams`` of the ``openai`` package)."""
_UNDOCUMENTED = {"client_metadata"}
"""What OpenAI's own Codex sends to OpenAI's API with each request."""
_CALLED = {"caller", "id", "type"}
ITEMS: dict[str, frozenset[str]] = {
    kind: frozenset(members)
    for kind, members in {
        "message": {"content", "id", "phase", "role", "status", "type"},
        "function_call": {*_CALLED, "arguments", "async", "call_id", "name", "namespace", "status"},
        "function_call_output": {*_CALLED, "call_id", "name", "namespace", "output", "status"},
        "reasoning": {"content", "encrypted_content", "id", "status", "summary", "type"},
        "custom_tool_call": {*_CALLED, "async", "call_id", "input", "name", "namespace", "status"},
        "custom_tool_call_output": {*_CALLED, "call_id", "output", "status"},
        "item_reference": {"id", "type"},
    }.items()
}
"""The members of the commonest items."""
_PREFIXES = {"function_call": "fc", "message": "msg", "reasoning": "rs", "custom_tool_call": "ctc"}
_OUTPUTS = {
    "function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call",
    "computer_call_output": "computer_call", "local_shell_call_output": "local_shell_call",
    "shell_call_output": "shell_call", "apply_patch_call_output": "apply_patch_call",
}  # fmt: skip
_OWN = ("output_text", "refusal", "reasoning_text")
_THEIRS = ("input_text", "input_image", "input_file", "input_audio")
_PART = {
    "input_text": {"prompt_cache_breakpoint", "text", "type"},
    "input_image": {"detail", "file_id", "image_url", "prompt_cache_breakpoint", "type"},
    "output_text": {"annotations", "logprobs", "text", "type"},
    "refusal": {"refusal", "type"},
}
_FUNCTION = frozenset({
    "allowed_callers", "async", "defer_loading", "description", "name", "output_schema", "parameters",
    "strict", "type",
})  # fmt: skip
_SDK = "openai.types.responses of the openai package"
_RESPONSES = ("openai-responses",)


def _items(body: Body) -> list[tuple[int, dict[str, Any]]]:
    given = body.get("input")
    return list(enumerate(given)) if isinstance(given, list) else []


def _kind(item: dict[str, Any]) -> str:
    return str(item.get("type", "message"))


def _functions(body: Body) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from (
        (at, tool) for at, tool in enumerate(body.get("tools") or ()) if tool.get("type") == "function"
    )


def _required(asked: Asked) -> Iterator[Fault]:
    if not asked.body.get("model") and not asked.body.get("prompt"):
        yield Fault("Missing required parameter: 'model'.", ("model",), "missing_required_parameter")
    if not asked.body.keys() & {"input", "previous_response_id", "conversation", "prompt"}:
        said = "One of 'input' or 'previous_response_id' or 'prompt' or 'conversation_id' must be provided."
        yield Fault(said, ("input",), "missing_required_parameter")


def _fields(asked: Asked) -> Iterator[Fault]:
    yield from unknown(asked.body, FIELDS | _UNDOCUMENTED)
    yield from unknown(
        asked.body.get("reasoning") or {},
        {"context", "effort", "generate_summary", "mode", "summary"},
        ("reasoning",),
    )
    yield from unknown(asked.body.get("text") or {}, {"format", "verbosity"}, ("text",))


def _members(asked: Asked) -> Iterator[Fault]:
    for at, item in _items(asked.body):
        if (known := ITEMS.get(_kind(item))) is not None:
            yield from unknown(item, known, ("input", at))


def _parts(asked: Asked) -> Iterator[Fault]:
    for at, item in _items(asked.body):
        own = item.get("role") == "assistant" or _kind(item) == "reasoning"
        name = "output" if _kind(item) in _OUTPUTS else "content"
        held = item.get(name)
        for position, part in enumerate(held if isinstance(held, list) else ()):
            yield from _part(part, _OWN if own else _THEIRS, ("input", at, name, position))
        if _kind(item) == "message" and not isinstance(held, str | list):
            yield Fault(f"Missing required parameter: 'input[{at}].content'.", ("input", at, "content"))


def _part(part: dict[str, Any], kinds: tuple[str, ...], place: Place) -> Iterator[Fault]:
    kind = part.get("type")
    if kind not in kinds:
        said = f"Invalid value: '{kind}'. Supported values are: {', '.join(map(repr, kinds))}."
        yield Fault(said, (*place, "type"), "invalid_value")
    elif kind in _PART:
        yield from unknown(part, _PART[kind], place)
    if kind == "input_image":
        url = part.get("image_url")
        if url is not None and not str(url).startswith(("http://", "https://", "data:image/")):
            said = "Invalid 'image_url'. Expected a valid URL, but got a value with an invalid format."
            yield Fault(said, (*place, "image_url"), "invalid_value")
        if part.get("detail", "auto") not in ("auto", "low", "high", "original"):
            yield Fault(f"Invalid value: '{part['detail']}'.", (*place, "detail"), "invalid_value")


def _answers(asked: Asked) -> Iterator[Fault]:
    body = asked.body
    items = _items(body)
    elsewhere = bool(body.get("previous_response_id") or body.get("conversation"))
    elsewhere = elsewhere or any(_kind(item) == "item_reference" for _, item in items)
    waiting: dict[tuple[str, Any], int] = {}
    for at, item in items:
        kind = _kind(item)
        if kind in _OUTPUTS:
            if waiting.pop((_OUTPUTS[kind], item.get("call_id")), None) is None and not elsewhere:
                said = f"No tool call found for {kind.replace('_', ' ')} with call_id {item.get('call_id')}."
                yield Fault(said, ("input",))
        elif kind in _OUTPUTS.values():
            if (kind, item.get("call_id")) in waiting:
                yield Fault(f"Duplicate function call id {item.get('call_id')}.", ("input", at))
            waiting[kind, item.get("call_id")] = at
    for kind, call_id in waiting:
        yield Fault(f"No tool output found for {kind.replace('_', ' ')} {call_id}.", ("input",))


def _ids(asked: Asked) -> Iterator[Fault]:
    for at, item in _items(asked.body):
        prefix, given = _PREFIXES.get(_kind(item)), item.get("id")
        if prefix and given and not str(given).startswith(prefix):
            said = f"Invalid 'input[{at}].id': '{given}'. Expected an ID that begins with '{prefix}'."
            yield Fault(said, ("input", at, "id"), "invalid_value")
        yield from length_of(item.get("call_id"), 64, ("input", at, "call_id"))


def _reasoning(asked: Asked) -> Iterator[Fault]:
    items = _items(asked.body)
    for at, item in items:
        if _kind(item) != "reasoning":
            continue
        following = items[at + 1][1] if at + 1 < len(items) else {}
        if not following or following.get("role", "assistant") != "assistant" or _kind(following) in _OUTPUTS:
            said = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following"
            yield Fault(f"{said} item.", ("input",))
        if asked.body.get("store") is False and not item.get("encrypted_content"):
            said = (
                f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to"
            )
            yield Fault(f"{said} false. Try again with `store` set to true, or remove this item.", ("input",))


def _tools(asked: Asked) -> Iterator[Fault]:
    yield from count_faults(asked.body.get("tools") or ())
    for at, tool in enumerate(asked.body.get("tools") or ()):
        if "type" not in tool:
            yield Fault(f"Missing required parameter: 'tools[{at}].type'.", ("tools", at, "type"))
    for at, tool in _functions(asked.body):
        yield from unknown(tool, _FUNCTION, ("tools", at))
        # Source: https://github.com/openai/codex/issues/46188
        yield from name_faults(tool.get("name"), ("tools", at, "name"), most=128)


def _schemas(asked: Asked) -> Iterator[Fault]:
    for at, tool in _functions(asked.body):
        name, schema = str(tool.get("name")), tool.get("parameters")
        place: Place = ("tools", at, "parameters")
        if schema is None:
            continue
        yield from root_faults(name, schema, place)
        yield from schema_faults(name, schema, place)
        if tool.get("strict"):
            yield from strict_faults(name, schema, place)
    form = (asked.body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema" and form.get("strict"):
        yield from strict_faults(form.get("name", ""), form.get("schema"), ("text", "format", "schema"))


def _choice(asked: Asked) -> Iterator[Fault]:
    choice, tools = asked.body.get("tool_choice"), asked.body.get("tools") or []
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        if choice.get("name") not in [tool.get("name") for tool in tools]:
            said = f"Tool choice '{choice['type']}' not found in 'tools' parameter."
            yield Fault(said, ("tool_choice",))
    elif choice == "required" and not tools:
        said = "Tool choice 'required' must be specified with 'tools' parameter."
        yield Fault(said, ("tool_choice",))
    elif isinstance(choice, str) and choice not in ("none", "auto", "required"):
        yield Fault(f"Invalid value: '{choice}'.", ("tool_choice",), "invalid_value")


def _bounds(asked: Asked) -> Iterator[Fault]:
    body = asked.body
    if (given := body.get("max_output_tokens")) is not None and given < 16:
        said = "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got"
        yield Fault(f"{said} {given} instead.", ("max_output_tokens",), "integer_below_min_value")
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        yield from length_of(body.get(name), 64, (name,))
    for key, value in (body.get("metadata") or {}).items():
        yield from length_of(value, 512, ("metadata", key))
    if body.get("previous_response_id") and body.get("conversation"):
        said = "Mutually exclusive parameters: ['previous_response_id', 'conversation']."
        yield Fault(said, (), "mutually_exclusive_parameters")


def _no_reasoning(asked: Asked) -> Iterator[Fault]:
    for name, value in (asked.body.get("reasoning") or {}).items():
        if value is not None:
            said = f"Unsupported parameter: 'reasoning.{name}' is not supported with this model."
            yield Fault(said, ("reasoning", name), "unsupported_parameter")
    if "reasoning.encrypted_content" in (asked.body.get("include") or ()):
        yield Fault("Encrypted content is not supported with this model.", ("include",))


def _sampling(asked: Asked) -> Iterator[Fault]:
    for name in ("temperature", "top_p"):
        if asked.body.get(name) not in (None, 1):
            said = f"Unsupported parameter: '{name}' is not supported with this model."
            yield Fault(said, (name,), "unsupported_parameter")


_GH = "https://github.com/"
RESPONSES_RULES = (
    Rule("responses-required", _RESPONSES, _required, _SDK),
    Rule("responses-fields", _RESPONSES, _fields, f"{_GH}OpenHands/software-agent-sdk/issues/755; {_SDK}"),
    Rule("responses-members", _RESPONSES, _members, _SDK),
    Rule("responses-parts", _RESPONSES, _parts, _SDK),
    Rule("responses-answers", _RESPONSES, _answers, f"{_GH}sst/opencode/issues/2628"),
    Rule("responses-ids", _RESPONSES, _ids, f"{_GH}jlcodes99/cockpit-tools/issues/2090"),
    Rule("responses-reasoning", _RESPONSES, _reasoning, f"{_GH}sst/opencode/issues/2628"),
    Rule("responses-tools", _RESPONSES, _tools, f"{_GH}zed-industries/zed/issues/42393; {_SDK}"),
    Rule("responses-schemas", _RESPONSES, _schemas, f"{_GH}tailcallhq/forgecode/issues/1359"),
    Rule("responses-choice", _RESPONSES, _choice, _SDK),
    Rule("responses-bounds", _RESPONSES, _bounds, f"{_GH}vectorize-io/hindsight/issues/58"),
    Rule("responses-no-reasoning", _RESPONSES, _no_reasoning, f"{_GH}BoundaryML/baml/pull/2708", PLAIN),
    Rule(
        "responses-sampling",
        _RESPONSES,
        _sampling,
        "https://platform.openai.com/docs/guides/reasoning",
        REASONING,
    ),
)
