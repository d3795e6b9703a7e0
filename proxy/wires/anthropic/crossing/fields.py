"""The rules by which the fields of Messages are read, and by which other dialects' fields are written in it.

Source: Anthropic's API reference, "Create a Message".
"""

from typing import Final

from proxy.wires.crossing.tables import FieldTable, inverse, omitted, refused, translated, unneeded

KEEPER: Final = "anthropic"
"""The provider to whom the file ids in Messages belong."""

_CACHE = omitted("Only the provider that a cache mark was written for understands it.")
_HOSTED = refused("Only the provider can run this tool.")
_HOSTED_ITEM = omitted("The provider ran this tool; the answer contains its result.")
_PLACE = refused("Only Anthropic offers this.")
_LATER_TOOLS = refused("Only Messages can change the tools during a conversation.")
_QUIET = unneeded("It changes how the request is served, not the answer.")

_REQUEST: Final = {
    "model": translated("model"),
    "messages": translated("messages"),
    "system": translated("system"),
    "max_tokens": translated("output.max_tokens"),
    "stop_sequences": translated("output.stops"),
    "stream": translated("stream"),
    "temperature": translated("sampling.temperature"),
    "top_p": translated("sampling.top_p"),
    "top_k": translated("sampling.top_k"),
    "tools": translated("tools"),
    "tool_choice": translated("tool_choice", "parallel_tool_calls"),
    "tool_choice.disable_parallel_tool_use": translated("parallel_tool_calls"),
    "output_config": translated("output.format", "reasoning.effort"),
    "output_config.effort": translated("reasoning.effort"),
    "output_config.format": translated("output.format"),
    "thinking": translated("reasoning.effort", "reasoning.summary"),
    "thinking.type": translated("reasoning.effort"),
    "thinking.budget_tokens": translated("reasoning.effort"),
    "thinking.display": translated("reasoning.summary"),
    "metadata": translated("service.user"),
    "metadata.user_id": translated("service.user"),
    "service_tier": translated("service.tier"),
}

_ONLY_HERE: Final = {
    "cache_control": _CACHE,
    "context_management": omitted("Only Messages shortens a conversation by itself."),
    "container": refused("Only Anthropic runs code in containers."),
    "mcp_servers": refused("The provider that runs the tools calls these servers."),
    "inference_geo": _PLACE,
    "speed": omitted("Only Anthropic has this field."),
    "diagnostics": _QUIET,
    "user_profile_id": _PLACE,
    "workspace_id": _PLACE,
    "metadata.account_uuid": _QUIET,
    "output_config.task_budget": omitted("Only Messages gives the model a task budget."),
    "thinking.block_binding": unneeded("Other dialects do not check where reasoning was made."),
    "fallbacks": omitted("Other dialects name no fallback models; the proxy's configuration does."),
    "fallback_credit_token": _QUIET,
    "billing_policy": refused("Only Anthropic lets a request say who pays for it."),
    "compaction": refused("Only Messages answers with a summary of the conversation."),
    "thread": refused("Only Anthropic keeps the conversation."),
    "messages[].clear_at": omitted("Other dialects show a message in every turn."),
    "messages[].output_config": omitted("Other dialects have these settings only for the whole request."),
}

_BLOCKS: Final = {
    f"{place}.{name}": rule
    for place in ("system[]", "messages[].content[]", "messages[].content[].content[]")
    for name, rule in {
        "cache_control": _CACHE,
        "citations": omitted("Citations annotate the text; the text itself is kept."),
        "caller": refused("Only Messages lets programs call tools."),
        "caller[type=direct]": unneeded("In other dialects only the model calls tools."),
        "transformations": omitted("Other dialects do not say how to handle images that are too large."),
        "toolset_name": refused("Only Messages has this set of tools."),
    }.items()
}

_HOSTED_BLOCKS: Final = {
    "messages[].content[type=document]": refused("Only Messages takes documents made of blocks."),
    "messages[].content[].content[type=document]": refused("Only Messages takes documents made of blocks."),
    "messages[].content[].content[type=browser_state]": refused("Only Messages has this set of tools."),
    "messages[].content[type=tool_addition]": _LATER_TOOLS,
    "messages[].content[type=tool_removal]": _LATER_TOOLS,
    "messages[].content[type=fallback]": omitted("It says which of the provider's models answered."),
    **{
        f"messages[].content[type={kind}]": _HOSTED_ITEM
        for kind in (
            *(
                "server_tool_use",
                "web_search_tool_result",
                "web_fetch_tool_result",
                "tool_search_tool_result",
            ),
            *(
                "code_execution_tool_result",
                "bash_code_execution_tool_result",
                "mcp_tool_use",
                "mcp_tool_result",
            ),
            *("text_editor_code_execution_tool_result", "container_upload", "compaction"),
            *("advisor_tool_result", "mcp_tool_listing"),
        )
    },
}

_TOOLS: Final = {
    "tools[].cache_control": _CACHE,
    "tools[].defer_loading": omitted("Other dialects load every tool from the beginning."),
    "tools[].eager_input_streaming": unneeded("The proxy itself streams or holds the arguments."),
    "tools[].input_examples": omitted("Other dialects have no examples of arguments."),
    "tools[].allowed_callers": refused(
        'Only Messages lets programs call tools. To run them in the proxy, set tools.programs to "auto" and '
        "declare code_execution."
    ),
    **{
        f"tools[type={kind}]": _HOSTED
        for kind in (
            *("web_fetch", "tool_search_tool_bm25", "tool_search_tool_regex"),
            *("mcp_toolset", "advisor"),
        )
    },
    "tools[type=code_execution]": refused(
        'Only the provider can run this tool. To run its programs in the proxy, set tools.programs to "auto".'
    ),
    "tools[type=web_search]": refused(
        "Only the provider can run this tool. To run it in the proxy, "
        "set tools.hosted.web_search to a server tool."
    ),
    **{
        f"tools[type={kind}]": refused("Only Messages has this tool.")
        for kind in ("bash", "text_editor", "memory", "computer", "computer_toolset", "browser_toolset")
    },
}

_UNSAID: Final = {
    "max_tool_calls": unneeded("The proxy itself limits the calls of its tools."),
    "sampling.min_p": omitted("Messages has no field for it."),
    "sampling.seed": omitted("Messages has no field for it."),
    "sampling.presence_penalty": refused("Messages has no penalties."),
    "sampling.frequency_penalty": refused("Messages has no penalties."),
    "sampling.logit_bias": refused("Messages has no logit bias."),
    "output.verbosity": omitted("Messages has no field for it."),
    "output.choices": refused("Messages gives one answer."),
    "output.logprobs": refused("Messages returns no log probabilities."),
    "output.top_logprobs": refused("Messages returns no log probabilities."),
    "reasoning.summary": omitted("A Messages upstream decides itself how it shows reasoning."),
    "service.safety_identifier": translated("metadata"),
    "service.metadata": omitted("Messages stores no response that metadata could describe."),
    "service.store": unneeded("Messages stores nothing; the proxy's record does."),
    "service.cache_key": omitted("Messages caches by the request's prefix only."),
    "service.cache_retention": omitted("Messages caches by marks in the request."),
    "service.moderation": refused("Messages has no moderation."),
    "truncate": omitted("Messages has no automatic truncation."),
    "stream_usage": unneeded("Messages always reports usage."),
    "stream_padding": unneeded("Messages has no padding."),
}

ANTHROPIC_FIELDS: Final = FieldTable(
    dialect="anthropic",
    read={**_REQUEST, **_ONLY_HERE, **_BLOCKS, **_HOSTED_BLOCKS, **_TOOLS},
    written={**inverse(_REQUEST), **_UNSAID},
)
