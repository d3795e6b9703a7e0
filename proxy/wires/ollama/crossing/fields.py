"""The rules by which Ollama's request fields are read, and by which other dialects' fields are written in it.

Source: Ollama's API reference, "Generate a chat completion" and "Generate a completion", and its types
``ChatRequest``, ``GenerateRequest`` and ``Options``.
"""

from typing import Final

from proxy.wires.crossing.tables import FieldTable, inverse, omitted, refused, translated, unneeded

_MACHINE = unneeded("It configures the server's own hardware.")
_UNKNOWN = omitted("Ollama's server ignores fields that it does not know.")
_SAMPLING = omitted("Only Ollama has this sampling method.")
_CONTEXT = omitted("The provider decides how much of a conversation its model reads.")

_REQUEST: Final = {
    "model": translated("model"),
    "messages": translated("messages", "system"),
    "tools": translated("tools"),
    "stream": translated("stream"),
    "format": translated("output.format"),
    "think": translated("reasoning.effort", "reasoning.summary"),
    "truncate": translated("truncate"),
    "logprobs": translated("output.logprobs"),
    "top_logprobs": translated("output.top_logprobs"),
    "options": translated("sampling.temperature", "sampling.top_p"),
    "options.temperature": translated("sampling.temperature"),
    "options.top_p": translated("sampling.top_p"),
    "options.top_k": translated("sampling.top_k"),
    "options.min_p": translated("sampling.min_p"),
    "options.seed": translated("sampling.seed"),
    "options.presence_penalty": translated("sampling.presence_penalty"),
    "options.frequency_penalty": translated("sampling.frequency_penalty"),
    "options.num_predict": translated("output.max_tokens"),
    "options.stop": translated("output.stops"),
}

_ONLY_HERE: Final = {
    "keep_alive": unneeded("It says how long the server keeps the model in memory."),
    "shift": _CONTEXT,
    "_debug_render_only": refused("Only Ollama can return the rendered prompt."),
    "options.num_ctx": _CONTEXT,
    "options.num_keep": _CONTEXT,
    "options.typical_p": _SAMPLING,
    "options.repeat_penalty": _SAMPLING,
    "options.repeat_last_n": _SAMPLING,
    "options.tfs_z": _SAMPLING,
    "options.penalize_newline": _SAMPLING,
    "options.mirostat": _SAMPLING,
    "options.mirostat_tau": _SAMPLING,
    "options.mirostat_eta": _SAMPLING,
    **{
        f"options.{name}": _MACHINE
        for name in (
            *("num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa"),
            *("low_vram", "f16_kv", "vocab_only", "draft_num_predict", "logits_all", "embedding_only"),
        )
    },
    "messages[].tool_calls[].function.index": unneeded("The order of the list has the same meaning."),
    "messages[].tool_calls[].type": unneeded("There is only one type."),
}

_UNSAID: Final = {
    "tool_choice": refused("Ollama has no tool_choice."),
    "parallel_tool_calls": omitted("Ollama has no switch for it."),
    "max_tool_calls": unneeded("The proxy itself limits the calls of its tools."),
    "sampling.logit_bias": refused("Ollama has no logit bias."),
    "output.verbosity": omitted("Ollama has no field for it."),
    "output.choices": refused("Ollama gives one answer."),
    "service.user": omitted("Ollama has no field for users."),
    "service.safety_identifier": omitted("Ollama has no field for users."),
    "service.metadata": omitted("Ollama stores no response that metadata could describe."),
    "service.store": unneeded("Ollama stores nothing; the proxy's record does."),
    "service.tier": omitted("Ollama has no tiers."),
    "service.cache_key": omitted("Ollama caches by the request's prefix only."),
    "service.cache_retention": omitted("Ollama caches by the request's prefix only."),
    "service.moderation": refused("Ollama has no moderation."),
    "stream_usage": unneeded("Ollama always reports usage."),
    "stream_padding": unneeded("Ollama has no padding."),
}

OLLAMA_FIELDS: Final = FieldTable(
    dialect="ollama",
    read={**_REQUEST, **_ONLY_HERE},
    written={**inverse(_REQUEST), **_UNSAID},
    # Go's ``encoding/json`` drops unknown members, and the server only logs options that it does not know.
    # So clients send what other servers read: ``tool_choice`` (Vercel's provider), ``num_ctx`` at the top.
    unknown=_UNKNOWN,
)

_DRAWS: Final = refused("Only Ollama returns an image.")
_CHAT_ONLY: Final = ("messages", "tools")

COMPLETION_FIELDS: Final = FieldTable(
    dialect="ollama_generate",
    read={
        **{name: rule for name, rule in OLLAMA_FIELDS.read.items() if not name.startswith(_CHAT_ONLY)},
        "prompt": translated("messages"),
        "images": translated("messages"),
        "system": translated("system"),
        "suffix": refused("Other dialects cannot complete the text between a prompt and a suffix."),
        "template": refused("Other dialects do not let a request replace the template of the prompt."),
        "raw": refused("Other dialects always apply the template of the model."),
        "context": refused("Only the server that made these tokens can read them; send messages instead."),
        "width": _DRAWS,
        "height": _DRAWS,
        "steps": _DRAWS,
    },
    # The proxy asks no upstream for a completion; it sends a chat.
    written={},
    unknown=_UNKNOWN,
)
