"""What the proxy does with each field of a Responses request for another dialect, and how Responses
expresses what other dialects ask for.

Source: OpenAI's API reference, "Create a model response".
"""

from typing import Final

from proxy.wires.crossing.tables import FieldTable, inverse, omitted, refused, translated, unneeded

KEEPER: Final = "openai"
"""The provider whose file ids Chat and Responses use."""

OFFLINE_SEARCH: Final = "tools[type=web_search, external_web_access=false]"
"""A tool that coding agents declare in every request; a model can do without it."""

_CACHE = omitted("Only the provider that a cache mark was written for understands it.")
_ITEM = unneeded("It describes an item of Responses; the model does not see it.")
_KEPT = refused("It refers to something that a Responses upstream stores.")
_HOSTED = refused("Only the provider can run this tool.")
_SEARCH = refused(
    "Only the provider can run this tool. To run it in the proxy, "
    "set tools.hosted.web_search to a server tool."
)
_IMAGES = refused(
    "Only the provider can run this tool. To run it in the proxy, set tools.hosted.image_generation to "
    "upstream:NAME, or to a server tool that makes images."
)
_PROGRAMS = refused(
    'Only the provider can run this tool. To run its programs in the proxy, set tools.programs to "auto".'
)
_HOSTED_ITEM = omitted("The provider ran this tool; the answer contains its result.")
_CLIENT_TOOL = refused("Only Responses has this tool.")
_REASONING = omitted("Reasoning in this form can be read only by the provider that made it.")
_LATER = refused("Only a Responses upstream answers in the background.")
_ASYNC = refused("Only a Responses upstream continues before a call has its result.")
_CALLER = refused(
    "Only a Responses upstream lets programs call tools. To run them in the proxy, set tools.programs to "
    '"auto" and declare programmatic_tool_calling.'
)

_REQUEST: Final = {
    "model": translated("model"),
    "input": translated("messages", "system"),
    "instructions": translated("system"),
    "stream": translated("stream"),
    "stream_options": translated("stream_padding"),
    "stream_options.include_obfuscation": translated("stream_padding"),
    "tools": translated("tools"),
    "tool_choice": translated("tool_choice"),
    "parallel_tool_calls": translated("parallel_tool_calls"),
    "max_tool_calls": translated("max_tool_calls"),
    "max_output_tokens": translated("output.max_tokens"),
    "text": translated("output.format", "output.verbosity"),
    "text.format": translated("output.format"),
    "text.verbosity": translated("output.verbosity"),
    "top_logprobs": translated("output.top_logprobs"),
    "temperature": translated("sampling.temperature"),
    "top_p": translated("sampling.top_p"),
    "reasoning": translated("reasoning.effort", "reasoning.summary"),
    "reasoning.effort": translated("reasoning.effort"),
    "reasoning.summary": translated("reasoning.summary"),
    "reasoning.generate_summary": translated("reasoning.summary"),
    "user": translated("service.user"),
    "safety_identifier": translated("service.safety_identifier"),
    "metadata": translated("service.metadata"),
    "store": translated("service.store"),
    "service_tier": translated("service.tier"),
    "prompt_cache_key": translated("service.cache_key"),
    "prompt_cache_retention": translated("service.cache_retention"),
    "moderation": translated("service.moderation"),
    "truncation": translated("truncate"),
}

_ADDED: Final = {
    "top_k": translated("sampling.top_k"),
    "min_p": translated("sampling.min_p"),
    "seed": translated("sampling.seed"),
    "presence_penalty": translated("sampling.presence_penalty"),
    "frequency_penalty": translated("sampling.frequency_penalty"),
    "stop": translated("output.stops"),
}
"""Fields that servers other than OpenAI's accept, too."""

_ONLY_HERE: Final = {
    "include": omitted("Other dialects return no additional output."),
    "reasoning.context": omitted("Other dialects do not choose which reasoning the model sees."),
    "reasoning.mode": omitted("Other dialects have only one reasoning mode."),
    "context_management": omitted("Only Responses shortens a conversation by itself."),
    "prompt_cache_options": _CACHE,
    "previous_response_id": _KEPT,
    "conversation": _KEPT,
    "prompt": _KEPT,
    "background": _LATER,
    "background_options": _LATER,
    "client_metadata": unneeded("It describes the client; the model does not see it."),
    "image": omitted("Other dialects do not say how images are compressed."),
    "access_programs": refused("The provider grants this access only on Responses."),
}

_ITEMS: Final = {
    "input[].id": _ITEM,
    "input[].status": _ITEM,
    "input[].phase": _ITEM,
    "input[].name": _ITEM,
    "input[].caller": _CALLER,
    "input[].async": _ASYNC,
    "input[].namespace": refused("Other dialects have no tool namespaces."),
    "input[].summary": _REASONING,
    "input[].content": _REASONING,
    "input[].content[].annotations": omitted("Citations annotate the text; the text itself is kept."),
    "input[].content[].logprobs": _ITEM,
    "input[].content[].prompt_cache_breakpoint": _CACHE,
    "input[].content[].detail": omitted("Other dialects have no level of detail for files."),
    "input[].output[].prompt_cache_breakpoint": _CACHE,
    "input[].output[].detail": omitted("Other dialects have no level of detail for files."),
    "input[type=item_reference]": _KEPT,
    **{
        f"input[type={kind}]": _HOSTED_ITEM
        for kind in (
            *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
            *("mcp_call", "mcp_list_tools", "program", "program_output"),
        )
    },
    **{
        f"input[type={kind}]": _CLIENT_TOOL
        for kind in (
            *("computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output"),
            *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
            *("tool_search_call", "tool_search_output"),
            *("additional_tools", "configuration_update"),
        )
    },
    **{
        f"input[type={kind}]": refused("Only the provider that asked for the approval can continue it.")
        for kind in ("mcp_approval_request", "mcp_approval_response")
    },
    **{
        f"input[type={kind}]": refused(
            "Only the provider that made it can read it. The proxy reads compactions of its own."
        )
        for kind in ("compaction", "compaction_trigger")
    },
}

_TOOLS: Final = {
    "tools[].defer_loading": omitted("Other dialects load every tool from the beginning."),
    "tools[].output_schema": omitted("Other dialects do not describe results."),
    "tools[].allowed_callers": _CALLER,
    "tools[].async": _ASYNC,
    **{
        f"{place}[type={kind}]": _HOSTED
        for place in ("tools", "tool_choice")
        for kind in ("file_search", "code_interpreter", "mcp")
    },
    **{f"{place}[type=programmatic_tool_calling]": _PROGRAMS for place in ("tools", "tool_choice")},
    **{f"{place}[type=image_generation]": _IMAGES for place in ("tools", "tool_choice")},
    **{
        f"{place}[type={kind}]": _SEARCH
        for place in ("tools", "tool_choice")
        for kind in (
            "web_search",
            "web_search_2025_08_26",
            "web_search_preview",
            "web_search_preview_2025_03_11",
        )
    },
    **{
        f"{place}[type={kind}]": _CLIENT_TOOL
        for place in ("tools", "tool_choice")
        for kind in (
            *("computer", "computer_use", "computer_use_preview", "local_shell", "shell", "apply_patch"),
            "tool_search",
        )
    },
    "tools[type=namespace]": omitted(
        "Other dialects have no tool namespaces, so these tools are not offered."
    ),
    OFFLINE_SEARCH: omitted("An offline search sees only what the provider stores."),
}

_UNSAID: Final = {
    "sampling.top_k": omitted("Responses has no field for it."),
    "sampling.min_p": omitted("Responses has no field for it."),
    "sampling.seed": omitted("Responses has no field for it."),
    "sampling.presence_penalty": refused("Responses has no penalties."),
    "sampling.frequency_penalty": refused("Responses has no penalties."),
    "sampling.logit_bias": refused("Responses has no logit bias."),
    "output.stops": refused("Responses has no stop sequences."),
    "output.choices": refused("Responses gives one answer."),
    "stream_usage": unneeded("Responses always reports usage at the end."),
}

RESPONSES_FIELDS: Final = FieldTable(
    dialect="responses",
    read={**_REQUEST, **_ADDED, **_ONLY_HERE, **_ITEMS, **_TOOLS},
    written={**inverse(_REQUEST), "output.logprobs": translated("include"), **_UNSAID},
)
