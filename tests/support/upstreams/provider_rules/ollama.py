"""What Ollama's ``/api/chat`` refuses, and what it ignores although the client meant it.

Source of the members: ``ollama._types`` of the ``ollama`` package and ``api/types.go`` of Ollama.
"""

from collections.abc import Iterator

from provider_rules.rule import Asked, Fault, Rule, path_text, unknown

FIELDS = frozenset({
    "_debug_render_only", "format", "keep_alive", "logprobs", "messages", "model", "options", "shift",
    "stream", "think", "tools", "top_logprobs", "truncate",
})  # fmt: skip
MESSAGE = frozenset({"content", "images", "role", "thinking", "tool_call_id", "tool_calls", "tool_name"})
_OPTIONS = frozenset({
    "draft_num_predict", "frequency_penalty", "main_gpu", "min_p", "num_batch", "num_ctx", "num_gpu",
    "num_keep", "num_predict", "num_thread", "presence_penalty", "repeat_last_n", "repeat_penalty", "seed",
    "stop", "temperature", "top_k", "top_p", "typical_p", "use_mmap",
})  # fmt: skip
_NO_THINKING = ("llama3*", "llama2*", "qwen2*", "gemma2*", "gemma3*", "mistral*", "phi3*")
_TYPES = "https://github.com/ollama/ollama/blob/main/api/types.go"


def _go(wrong: str, member: str) -> Fault:
    return Fault(f"json: cannot unmarshal {wrong} into Go struct field ChatRequest.{member}")


def _forms(asked: Asked) -> Iterator[Fault]:
    if not asked.body.get("model"):
        yield Fault("model is required")
    for message in asked.body.get("messages") or ():
        if not isinstance(message.get("content", ""), str | None):
            yield _go("array", "messages.content of type string")
        if any(image.startswith(("data:", "http:", "https:")) for image in message.get("images") or ()):
            yield Fault("illegal base64 data at input byte 4")
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"].get("arguments", {}), dict):
                yield _go(
                    "string", "messages.tool_calls.function.arguments of type api.ToolCallFunctionArguments"
                )
    wanted = asked.body.get("format")
    if wanted not in (None, "", "json") and not isinstance(wanted, dict):
        yield Fault(f'invalid format: "{wanted}"; expected "json" or a JSON schema')
    if asked.body.get("think") not in (None, True, False, "low", "medium", "high", "max"):
        yield Fault(f'invalid think value: "{asked.body["think"]}"')


def _ignored(asked: Asked) -> Iterator[Fault]:
    found = list(unknown(asked.body, FIELDS))
    found += unknown(asked.body.get("options") or {}, _OPTIONS, ("options",))
    for at, message in enumerate(asked.body.get("messages") or ()):
        found += unknown(message, MESSAGE, ("messages", at))
    for fault in found:
        yield Fault(f"{path_text(fault.place)} is ignored", fault.place)


def _thinks(asked: Asked) -> Iterator[Fault]:
    if asked.body.get("think"):
        yield Fault(f'"{asked.body["model"]}" does not support thinking')


OLLAMA_RULES = (
    Rule("ollama-forms", ("ollama",), _forms, _TYPES),
    Rule("ollama-ignored", ("ollama",), _ignored, _TYPES, ignored=True),
    Rule(
        "ollama-thinks",
        ("ollama",),
        _thinks,
        "https://github.com/Gitlawb/openclaude/issues/1371",
        _NO_THINKING,
    ),
)
