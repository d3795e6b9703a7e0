"""The rules by which Chat's request fields are read, and by which other dialects' fields are written in Chat.

Source: OpenAI's API reference, "Create chat completion"; for fields of other providers their references.
"""

from typing import Final

from proxy.wires.crossing.tables import FieldTable, inverse, omitted, refused, translated, unneeded

KEEPER: Final = "openai"
"""The provider to whom the file ids in Chat and Responses belong."""

_CACHE = omitted("Only the provider that a cache mark was written for understands it.")
_ECHO = unneeded("It comes from an earlier reply; the model does not see it.")
_OTHER_REASONING = omitted("Reasoning in this form can be read only by the provider that made it.")
_NAMED = omitted("Other dialects do not name the participants of a conversation.")
_AUDIO = refused("Only Chat returns audio.")
_ORDER = unneeded("The order of the list has the same meaning.")

_REQUEST: Final = {
    "model": translated("model"),
    "messages": translated("messages", "system"),
    "stream": translated("stream"),
    "stream_options": translated("stream_usage", "stream_padding"),
    "stream_options.include_usage": translated("stream_usage"),
    "stream_options.include_obfuscation": translated("stream_padding"),
    "tools": translated("tools"),
    "tool_choice": translated("tool_choice"),
    "parallel_tool_calls": translated("parallel_tool_calls"),
    "functions": translated("tools"),
    "function_call": translated("tool_choice"),
    "max_completion_tokens": translated("output.max_tokens"),
    "max_tokens": translated("output.max_tokens"),
    "stop": translated("output.stops"),
    "response_format": translated("output.format"),
    "response_format.json_schema": translated("output.format"),
    "verbosity": translated("output.verbosity"),
    "n": translated("output.choices"),
    "logprobs": translated("output.logprobs"),
    "top_logprobs": translated("output.top_logprobs"),
    "temperature": translated("sampling.temperature"),
    "top_p": translated("sampling.top_p"),
    "top_k": translated("sampling.top_k"),
    "min_p": translated("sampling.min_p"),
    "seed": translated("sampling.seed"),
    "presence_penalty": translated("sampling.presence_penalty"),
    "frequency_penalty": translated("sampling.frequency_penalty"),
    "logit_bias": translated("sampling.logit_bias"),
    "reasoning_effort": translated("reasoning.effort"),
    "user": translated("service.user"),
    "safety_identifier": translated("service.safety_identifier"),
    "metadata": translated("service.metadata"),
    "store": translated("service.store"),
    "service_tier": translated("service.tier"),
    "prompt_cache_key": translated("service.cache_key"),
    "prompt_cache_retention": translated("service.cache_retention"),
    "moderation": translated("service.moderation"),
    "prompt_cache_options": _CACHE,
    "audio": _AUDIO,
    "modalities": _AUDIO,
    "prediction": refused("Only Chat accepts a predicted output."),
    "web_search_options": refused(
        "Only the provider can run this search. To run it in the proxy, "
        "set tools.hosted.web_search to a server tool."
    ),
}

_MESSAGES: Final = {
    "messages[].name": _NAMED,
    "messages[].annotations": omitted("Citations annotate the text; the text itself is kept."),
    "messages[].id": _ECHO,
    "messages[].audio": refused("It refers to audio that another provider stores."),
    "messages[].reasoning_details": _OTHER_REASONING,
    "messages[].cache_control": _CACHE,
    "messages[].content[].cache_control": _CACHE,
    "messages[].content[].prompt_cache_breakpoint": _CACHE,
    "messages[].content[type=thinking]": _OTHER_REASONING,
    "messages[].tool_calls[].index": _ORDER,
    "messages[].tool_calls[].extra_content": _OTHER_REASONING,
    "tools[].cache_control": _CACHE,
    "tools[].function.cache_control": _CACHE,
}

_UNSAID: Final = {
    "truncate": omitted("Chat upstreams refuse a conversation that is too long."),
    "max_tool_calls": unneeded("The proxy itself limits the calls of its tools."),
    "sampling.top_k": omitted("Chat has no field for it."),
    "sampling.min_p": omitted("Chat has no field for it."),
    "reasoning.summary": omitted("A Chat upstream decides itself how it shows reasoning."),
}

CHAT_FIELDS: Final = FieldTable(
    dialect="chat",
    read={**_REQUEST, **_MESSAGES},
    written={**inverse(_REQUEST), **_UNSAID},
)
