"""What providers of Chat Completions refuse.

Sources that several rules share: ``openai.types.chat`` of the ``openai`` package names the members that
OpenAI knows; the refusals themselves are quoted in public issues, whose addresses stand at the rules.
"""

import re
from collections.abc import Iterator
from typing import Any

from provider_rules.rule import Asked, Body, Fault, Rule, fits, length_of, unknown
from provider_rules.tools import count_faults, name_faults, root_faults, schema_faults, strict_faults, twice

PLAIN = ("gpt-4*", "gpt-3.5*", "chatgpt-4o*", "gpt-5-chat*")
"""OpenAI's models without reasoning."""
REASONING = ("o1*", "o3*", "o4*", "gpt-5*", "codex*", "!gpt-5-chat*")
"""OpenAI's models with reasoning."""
_LIMITS = {"gpt-4o*": 16_384, "gpt-4.1*": 32_768, "gpt-3.5*": 4096, "gpt-4-turbo*": 4096}
FIELDS = frozenset({
    "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model", "moderation", "n",
    "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed",
    "service_tier", "stop", "store", "stream", "stream_options", "temperature", "tool_choice", "tools",
    "top_logprobs", "top_p", "user", "verbosity", "web_search_options",
})  # fmt: skip
"""The fields of OpenAI's request (``CompletionCreateParams`` of the ``openai`` package)."""
_MISTRAL = frozenset({
    "frequency_penalty", "guardrails", "max_tokens", "messages", "metadata", "model", "n",
    "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "prompt_mode", "random_seed",
    "reasoning_effort", "response_format", "safe_prompt", "stop", "stream", "stream_options", "temperature",
    "tool_choice", "tools", "top_p",
})  # fmt: skip
"""The fields of Mistral's request (``ChatCompletionRequest`` of ``mistralai`` 2.5.0); ``stream_options`` is
unverified."""
_GROQ = FIELDS - {
    "audio", "logit_bias", "logprobs", "metadata", "modalities", "moderation", "prediction",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "store",
    "top_logprobs", "verbosity", "web_search_options",
}  # fmt: skip
"""The fields of OpenAI's request that Groq takes (``CompletionCreateParams`` of ``groq`` 1.6.0, and
https://console.groq.com/docs/openai); ``stream_options`` is unverified."""
_GOOGLE = FIELDS - {"frequency_penalty", "metadata", "prompt_cache_key", "seed", "store"}
ASSISTANT = frozenset({"audio", "content", "function_call", "name", "refusal", "role", "tool_calls"})
_OTHERS = frozenset({"content", "name", "role"})
CALL = frozenset({"custom", "function", "id", "type"})
_TOOL = frozenset({"custom", "function", "type"})
_FUNCTION = frozenset({"description", "name", "parameters", "strict"})
_PARTS = {
    "assistant": ("text", "refusal"), "developer": ("text",), "system": ("text",), "tool": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
}  # fmt: skip
_INSTEAD = {"function_call", "refusal", "tool_calls"}
_SDK = "openai.types.chat of the openai package"
_OPENAI = ("openai",)
_CHAT = ("openai", "mistral", "deepseek", "kimi", "vllm", "xai", "groq", "google")


def _messages(body: Body) -> list[tuple[int, dict[str, Any]]]:
    return [(at, each) for at, each in enumerate(body.get("messages") or ()) if isinstance(each, dict)]


def _calls(body: Body) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for at, message in _messages(body):
        for position, call in enumerate(message.get("tool_calls") or ()):
            yield at, position, call


def _functions(body: Body) -> Iterator[tuple[int, dict[str, Any]]]:
    for at, tool in enumerate(body.get("tools") or ()):
        if isinstance(found := tool.get("function"), dict):
            yield at, found


def _required(asked: Asked) -> Iterator[Fault]:
    if not asked.body.get("model"):
        yield Fault("you must provide a model parameter")
    if "messages" not in asked.body:
        yield Fault("Missing required parameter: 'messages'.", ("messages",), "missing_required_parameter")
    elif not asked.body["messages"]:
        said = "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty"
        yield Fault(f"{said} array instead.", ("messages",), "empty_array")


def _fields(asked: Asked) -> Iterator[Fault]:
    yield from unknown(asked.body, FIELDS)


def _mistral_fields(asked: Asked) -> Iterator[Fault]:
    yield from unknown(asked.body, _MISTRAL)


def _groq_fields(asked: Asked) -> Iterator[Fault]:
    yield from unknown(asked.body, _GROQ)


def _google_fields(asked: Asked) -> Iterator[Fault]:
    yield from unknown(asked.body, _GOOGLE)


def _members(asked: Asked) -> Iterator[Fault]:
    for at, message in _messages(asked.body):
        # OpenAI's replies have annotations, and clients send replies back as they came.
        known = ASSISTANT | {"annotations"} if message.get("role") == "assistant" else _OTHERS
        extra = {"tool_call_id"} if message.get("role") == "tool" else set()
        yield from unknown(message, known | extra, ("messages", at))
    for at, position, call in _calls(asked.body):
        place = ("messages", at, "tool_calls", position)
        yield from unknown(call, CALL, place)
        yield from unknown(call.get("function") or {}, {"arguments", "name"}, (*place, "function"))


def _parts(asked: Asked) -> Iterator[Fault]:
    for at, message in _messages(asked.body):
        role, content = message.get("role"), message.get("content")
        if role not in _PARTS:
            if role != "function":
                said = f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user',"
                said = f"{said} 'function', 'tool', and 'developer'."
                yield Fault(said, ("messages", at, "role"), "invalid_value")
            continue
        if content is None and not (
            role == "assistant" and (message.keys() & {"function_call", "refusal", "tool_calls"})
        ):
            said = "Invalid value for 'content': expected a string, got null."
            yield Fault(said, ("messages", at, "content"))
        for position, part in enumerate(content if isinstance(content, list) else ()):
            place = ("messages", at, "content", position)
            if part.get("type") not in _PARTS[role]:
                said = f"Invalid value: '{part.get('type')}'. Supported values are:"
                said = f"{said} {', '.join(map(repr, _PARTS[role]))}."
                yield Fault(said, (*place, "type"), "invalid_value")
            if part.get("type") == "image_url":
                yield from _image(part["image_url"], (*place, "image_url"))


def _image(image: Any, place: tuple[str | int, ...]) -> Iterator[Fault]:
    if not isinstance(image, dict):
        yield Fault(f"Invalid type for '{place[-1]}': expected an object.", place, "invalid_type")
        return
    yield from unknown(image, {"detail", "url"}, place)
    if not str(image.get("url")).startswith(("http://", "https://", "data:image/")):
        said = "Invalid image URL. Expected a valid URL, but got a value with an invalid format."
        yield Fault(said, (*place, "url"), "invalid_image_url")


def _answers(asked: Asked) -> Iterator[Fault]:
    waiting: list[str] = []
    for at, message in [*_messages(asked.body), (len(asked.body.get("messages") or ()), {})]:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                said = (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message"
                )
                yield Fault(f"{said} with 'tool_calls'.", ("messages", at, "role"))
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            said = (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
            )
            said = f"{said} 'tool_call_id'. The following tool_call_ids did not have response messages:"
            yield Fault(f"{said} {', '.join(waiting)}", ("messages", at))
        waiting = [str(call.get("id")) for call in message.get("tool_calls") or ()]


def _call_forms(asked: Asked) -> Iterator[Fault]:
    for at, position, call in _calls(asked.body):
        place = ("messages", at, "tool_calls", position)
        yield from length_of(call.get("id"), 40, (*place, "id"))
        if call.get("type", "function") != "function":
            continue
        function = call.get("function") or {}
        if not isinstance(function.get("arguments"), str):
            said = "Invalid type for 'arguments': expected a string."
            yield Fault(said, (*place, "function", "arguments"), "invalid_type")
        yield from name_faults(function.get("name"), (*place, "function", "name"))


def _mistral_ids(asked: Asked) -> Iterator[Fault]:
    for _, _, call in _calls(asked.body):
        if not re.fullmatch(r"[a-zA-Z0-9]{9}", str(call.get("id"))):
            yield Fault(f"Tool call id was {call.get('id')} but must be a-z, A-Z, 0-9, with a length of 9.")


def _tool_forms(asked: Asked) -> Iterator[Fault]:
    tools = asked.body.get("tools")
    if tools == []:
        said = "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array"
        yield Fault(f"{said} instead.", ("tools",), "empty_array")
    yield from count_faults(tools or ())
    for at, tool in enumerate(tools or ()):
        if "type" not in tool:
            yield Fault(f"Missing required parameter: 'tools[{at}].type'.", ("tools", at, "type"))
        yield from unknown(tool, _TOOL, ("tools", at))
    for at, function in _functions(asked.body):
        yield from unknown(function, _FUNCTION, ("tools", at, "function"))


def _tool_names(asked: Asked) -> Iterator[Fault]:
    for at, function in _functions(asked.body):
        yield from name_faults(function.get("name"), ("tools", at, "function", "name"))


def _tool_twice(asked: Asked) -> Iterator[Fault]:
    if name := twice([str(function.get("name")) for _, function in _functions(asked.body)]):
        yield Fault(f"Duplicate function declaration found: {name}", ("tools",))


def _without_tools(asked: Asked) -> Iterator[Fault]:
    for name in ("tool_choice", "parallel_tool_calls"):
        if asked.body.get(name) is not None and not asked.body.get("tools"):
            said = f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
            yield Fault(said, (name,))


def _choice_without_tools(asked: Asked) -> Iterator[Fault]:
    if asked.body.get("tool_choice") not in (None, "none") and not asked.body.get("tools"):
        yield Fault("When using `tool_choice`, `tools` must be set.", ("tool_choice",))


def _choice(asked: Asked) -> Iterator[Fault]:
    choice = asked.body.get("tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        name = (choice.get("function") or {}).get("name") if kind == "function" else None
        if kind not in ("function", "custom", "allowed_tools"):
            said = "'$.tool_choice' is invalid. Please check the API reference."
            yield Fault(said, ("tool_choice",))
        elif name and name not in [function.get("name") for _, function in _functions(asked.body)]:
            yield Fault(f"Tool choice '{name}' not found in 'tools' parameter.", ("tool_choice",))
    elif choice not in (None, "none", "auto", "required"):
        said = f"Invalid value: '{choice}'. Supported values are: 'none', 'auto', and 'required'."
        yield Fault(said, ("tool_choice",), "invalid_value")


def _schemas(asked: Asked) -> Iterator[Fault]:
    for at, function in _functions(asked.body):
        name, place = str(function.get("name")), ("tools", at, "function", "parameters")
        if schema := function.get("parameters"):
            yield from root_faults(name, schema, place)
            yield from schema_faults(name, schema, place)
            if function.get("strict"):
                yield from strict_faults(name, schema, place)
    wanted = asked.body.get("response_format")
    if isinstance(wanted, dict) and (form := wanted.get("json_schema")) and form.get("strict"):
        yield from strict_faults(form.get("name", ""), form.get("schema"), ("response_format",))


def _references(asked: Asked) -> Iterator[Fault]:
    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(found := value.get("$ref"), str):
                yield found
            value = list(value.values())
        for inner in value if isinstance(value, list) else ():
            yield from walk(inner)

    for at, function in _functions(asked.body):
        for reference in walk(function.get("parameters")):
            if not reference.startswith("#/$defs/"):
                said = (
                    "Invalid request: tools.function.parameters is not a valid moonshot flavored json schema,"
                )
                said = f"{said} details: <references must start with #/$defs/>"
                yield Fault(said, ("tools", at, "function", "parameters"))


def _stored(asked: Asked) -> Iterator[Fault]:
    if asked.body.get("metadata") and not asked.body.get("store"):
        yield Fault("The 'metadata' parameter is only allowed when 'store' is enabled.", ("metadata",))


def _lengths(asked: Asked) -> Iterator[Fault]:
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        yield from length_of(asked.body.get(name), 64, (name,))
    for key, value in (asked.body.get("metadata") or {}).items():
        yield from length_of(value, 512, ("metadata", key))


def _bounds(asked: Asked) -> Iterator[Fault]:
    body = asked.body
    if isinstance(stop := body.get("stop"), list) and len(stop) > 4:
        said = "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array"
        yield Fault(f"{said} with length {len(stop)} instead.", ("stop",), "array_above_max_length")
    if {"max_tokens", "max_completion_tokens"} <= {name for name, value in body.items() if value is not None}:
        said = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        yield Fault(said, ("max_tokens",), "invalid_parameter_combination")
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None and body[name] < 1:
            said = (
                f"Invalid '{name}': integer below minimum value. Expected a value >= 1, but got {body[name]}"
            )
            yield Fault(f"{said} instead.", (name,), "integer_below_min_value")
    for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1), ("top_logprobs", 0, 20)):
        if body.get(name) is not None and not low <= body[name] <= high:
            said = f"Invalid '{name}': expected a value >= {low} and <= {high}, but got {body[name]} instead."
            yield Fault(said, (name,))
    for name, other in (("stream_options", "stream"), ("top_logprobs", "logprobs")):
        if body.get(name) is not None and not body.get(other):
            yield Fault(f"The '{name}' parameter is only allowed when '{other}' is enabled.", (name,))


def _word_json(asked: Asked) -> Iterator[Fault]:
    wanted = asked.body.get("response_format")
    if (wanted or {}).get("type") == "json_object" and "json" not in str(asked.body.get("messages")).lower():
        said = "'messages' must contain the word 'json' in some form, to use 'response_format' of type"
        yield Fault(f"{said} 'json_object'.", ("messages",))


def _no_effort(asked: Asked) -> Iterator[Fault]:
    if asked.body.get("reasoning_effort") is not None:
        yield Fault(place=("reasoning_effort",), value=asked.body["reasoning_effort"])


def _limit(asked: Asked) -> Iterator[Fault]:
    most = next((most for pattern, most in _LIMITS.items() if fits(asked.model, [pattern])), None)
    for name in ("max_tokens", "max_completion_tokens"):
        given = asked.body.get(name)
        if most is not None and given is not None and given > most:
            said = f"{name} is too large: {given}. This model supports at most {most} completion tokens,"
            yield Fault(f"{said} whereas you provided {given}.", (name,), "invalid_value")


def _old_limit(asked: Asked) -> Iterator[Fault]:
    if asked.body.get("max_tokens") is not None:
        said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
        yield Fault(f"{said} 'max_completion_tokens' instead.", ("max_tokens",), "unsupported_parameter")


def _sampling(asked: Asked) -> Iterator[Fault]:
    for name, only in (("temperature", 1), ("top_p", 1), ("presence_penalty", 0), ("frequency_penalty", 0)):
        if asked.body.get(name) not in (None, only):
            said = f"Unsupported value: '{name}' does not support {asked.body[name]} with this model."
            yield Fault(f"{said} Only the default ({only}) value is supported.", (name,), "unsupported_value")
    for name in ("logprobs", "top_logprobs", "stop", "logit_bias"):
        if asked.body.get(name):
            said = f"Unsupported parameter: '{name}' is not supported with this model."
            yield Fault(said, (name,), "unsupported_parameter")


def _bare_calls(asked: Asked) -> Iterator[Fault]:
    messages = _messages(asked.body)
    last = max((at for at, each in messages if each.get("role") == "user"), default=-1)
    for at, message in messages:
        if at > last and message.get("tool_calls") and not message.get("reasoning_content"):
            said = f"Missing `reasoning_content` field in the assistant message at message index {at}."
            yield Fault(said, code="invalid_request_error")


def _kimi_bare_calls(asked: Asked) -> Iterator[Fault]:
    for at, message in _messages(asked.body):
        if message.get("tool_calls") and not message.get("reasoning_content"):
            said = "thinking is enabled but reasoning_content is missing in assistant tool call message"
            yield Fault(f"{said} at index {at}")


def _mistral_effort(asked: Asked) -> Iterator[Fault]:
    if (effort := asked.body.get("reasoning_effort")) not in (None, "none", "high"):
        said = f"reasoning_effort={effort!r} is not supported for this model. Must be one of"
        yield Fault(f"{said} (<ReasoningEffort.none: 'none'>, <ReasoningEffort.high: 'high'>)")


def _kimi_sampling(asked: Asked) -> Iterator[Fault]:
    if asked.body.get("temperature") not in (None, 1):
        yield Fault("invalid temperature: only 1 is allowed for this model")


def _lost_limit(asked: Asked) -> Iterator[Fault]:
    if asked.body.get("max_completion_tokens") is not None and asked.body.get("max_tokens") is None:
        yield Fault("max_completion_tokens is ignored: this provider reads max_tokens")


_GH = "https://github.com/"
CHAT_RULES = (
    Rule("chat-required", _CHAT, _required, _SDK),
    Rule("chat-fields", ("openai",), _fields, f"{_GH}AAswordman/Operit/issues/1048; {_SDK}"),
    Rule("chat-fields-mistral", ("mistral",), _mistral_fields, f"{_GH}editor-code-assistant/eca/issues/231"),
    Rule("chat-fields-groq", ("groq",), _groq_fields, f"{_GH}fanenr/chatbot/issues/21; groq 1.6.0"),
    Rule(
        "chat-fields-google",
        ("google",),
        _google_fields,
        f"{_GH}ed-donner/agents/issues/45; {_GH}Vali-98/ChatterUI/issues/227",
    ),
    Rule(
        "chat-effort-mistral",
        ("mistral",),
        _mistral_effort,
        f"{_GH}architects-toolkit/SmartHopper/issues/647; {_GH}anomalyco/models.dev/pull/1986",
        ("mistral-small-latest", "mistral-small-2603", "mistral-medium-3*", "magistral-small-latest"),
    ),
    Rule(
        "chat-sampling-kimi",
        ("kimi",),
        _kimi_sampling,
        f"{_GH}QuantumNous/new-api/issues/5372; {_GH}Devin-AXIS/AINO/pull/223",
        ("kimi-k2.*", "kimi-k3*"),
    ),
    Rule(
        "chat-members",
        ("openai", "mistral", "groq", "google", "fastapi", "vllm-mistral"),
        _members,
        f"{_GH}charmbracelet/crush/issues/1590; {_SDK}",
    ),
    Rule("chat-parts", _OPENAI, _parts, _SDK),
    Rule("chat-answers", _CHAT, _answers, "https://platform.openai.com/docs/guides/function-calling"),
    Rule("chat-calls", _OPENAI, _call_forms, f"{_GH}langmanus/langmanus/issues/119; {_SDK}"),
    Rule("chat-ids-mistral", ("mistral",), _mistral_ids, f"{_GH}mistralai/mistral-vibe/issues/1075"),
    Rule("chat-tools", _OPENAI, _tool_forms, f"{_GH}zed-industries/zed/issues/32946; {_SDK}"),
    Rule(
        "chat-tool-names",
        ("openai", "mistral", "deepseek", "kimi", "google"),
        _tool_names,
        f"{_GH}home-assistant/core/issues/121325",
    ),
    Rule("chat-tool-twice", ("google",), _tool_twice, "unverified"),
    Rule("chat-without-tools", _OPENAI, _without_tools, f"{_GH}openai/swarm/issues/30"),
    Rule(
        "chat-choice-without-tools",
        ("vllm", "xai"),
        _choice_without_tools,
        f"{_GH}vllm-project/vllm/blob/main/vllm/entrypoints/openai/chat_completion/protocol.py",
    ),
    Rule("chat-choice", _CHAT, _choice, f"{_GH}openai/openai-node/issues/521"),
    Rule(
        "chat-schemas",
        _OPENAI,
        _schemas,
        f"{_GH}karakeep-app/karakeep/issues/1696; {_GH}sigoden/aichat/pull/1049",
    ),
    Rule("chat-references", ("kimi",), _references, f"{_GH}farion1231/cc-switch/issues/4618"),
    Rule("chat-stored", _OPENAI, _stored, f"{_GH}QwenLM/qwen-code/issues/243"),
    Rule("chat-lengths", _OPENAI, _lengths, f"{_GH}maximhq/bifrost/pull/1000"),
    Rule("chat-bounds", _OPENAI, _bounds, "https://platform.openai.com/docs/api-reference/chat/create"),
    Rule("chat-word-json", _OPENAI, _word_json, "https://platform.openai.com/docs/guides/structured-outputs"),
    Rule("chat-no-effort", _OPENAI, _no_effort, f"{_GH}AAswordman/Operit/issues/1048", PLAIN),
    Rule("chat-limit", _OPENAI, _limit, f"{_GH}ChatGPTNextWeb/NextChat/issues/3195", PLAIN),
    Rule(
        "chat-old-limit",
        _OPENAI,
        _old_limit,
        "https://platform.openai.com/docs/api-reference/chat/create",
        REASONING,
    ),
    Rule("chat-sampling", _OPENAI, _sampling, "https://platform.openai.com/docs/guides/reasoning", REASONING),
    Rule(
        "chat-reasoning-back",
        ("deepseek",),
        _bare_calls,
        f"{_GH}deepseek-ai/DeepSeek-V3/issues/1053",
        ("deepseek-reasoner*", "deepseek-r1*", "deepseek-v4*"),
    ),
    Rule(
        "chat-reasoning-back-kimi",
        ("kimi",),
        _kimi_bare_calls,
        "https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model",
        ("kimi-k*thinking*", "kimi-k3*"),
    ),
    Rule(
        "chat-lost-limit",
        ("deepseek",),
        _lost_limit,
        "https://api-docs.deepseek.com/api/create-chat-completion",
        ignored=True,
    ),
)
