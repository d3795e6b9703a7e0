"""The table of what providers refuse: each rule refuses what it says, and nothing that is right."""

import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from provider_rules import KNOWN_FAULTS, PROVIDERS, REFERENCE, RULES, broken, refusal
from provider_rules import chat as chat_rules
from provider_rules import messages as messages_rules
from provider_rules import ollama as ollama_rules
from provider_rules import responses as responses_rules
from provider_rules.judge import Judge
from raw_upstream import RawUpstream
from running_proxy import ProxyAddress

Body = dict[str, Any]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
CLOSED = {**SCHEMA, "additionalProperties": False, "required": ["a"]}
USER = {"role": "user", "content": "hi"}
IMAGE = "data:image/png;base64,AAAA"


def _function(**more: Any) -> Body:
    return {"type": "function", "function": {"name": "f", "parameters": SCHEMA, **more}}


def _tool(**more: Any) -> Body:
    return {"type": "function", "name": "f", "parameters": SCHEMA, **more}


def _custom(**more: Any) -> Body:
    return {"name": "f", "input_schema": SCHEMA, **more}


RIGHT: Mapping[str, tuple[Body, ...]] = {
    "chat": (
        {"messages": [USER]},
        {"messages": [USER], "tools": [_function(strict=True, parameters=CLOSED)], "tool_choice": "auto"},
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]},
                      {"role": "tool", "tool_call_id": "call_1", "content": "1"}]},
        {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]}]},
        {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1},
    ),
    "responses": (
        {"input": "hi"},
        {"input": [USER, {"type": "reasoning", "id": "rs_1", "summary": []}, ITEM,
                   {"type": "function_call_output", "call_id": "call_1", "output": "1"}]},
        {"input": [{"type": "function_call_output", "call_id": "call_1", "output": "1"}],
         "previous_response_id": "resp_1"},
        {"input": "hi", "tools": [_tool(), {"type": "web_search"}], "max_output_tokens": 16},
    ),
    "messages": (
        {"messages": [USER], "system": ""},
        {"messages": [USER, {"role": "assistant", "content": [USE]},
                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}],
         "tools": [_custom()], "tool_choice": {"type": "none"}},
        {"messages": [USER], "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
        {"messages": [USER], "cache_control": {"type": "ephemeral"}},
    ),
    "ollama": (
        {"messages": [USER], "think": False, "options": {"num_predict": 5}},
        {"messages": []},
    ),
}  # fmt: skip
"""Bodies that the reference provider of a dialect takes."""
BASE: Mapping[str, Body] = {
    "chat": {"model": "m", "messages": [USER]},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "messages": [USER], "max_tokens": 10},
    "ollama": {"model": "m", "messages": [USER]},
}
HEADERS = (("x-api-key", "k"), ("Anthropic-Version", "2023-06-01"))
NAMED = {"type": "function", "function": {"name": "g"}}
WRONG: Mapping[str, tuple[Any, ...]] = {
    "json": (b"{", b"[]", {"tools": [1]}),
    "chat-required": ({"model": None}, {"messages": []}),
    "chat-fields": ({"top_k": 1},),
    "chat-fields-mistral": ({"max_completion_tokens": 1}, {"user": "u"}),
    "chat-fields-groq": ({"store": False}, {"verbosity": "low"}),
    "chat-fields-google": ({"store": False}, {"seed": 1}),
    "chat-effort-mistral": ({"model": "mistral-small-latest", "reasoning_effort": "medium"},),
    "chat-sampling-kimi": ({"model": "kimi-k2.6", "temperature": 0.5},),
    "chat-members": (
        {"messages": [{"role": "assistant", "content": "x", "reasoning_content": "y"}]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, "index": 0}]},
                      {"role": "tool", "tool_call_id": "call_1", "content": "1"}]},
    ),
    "chat-ids-mistral": (
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]},
                      {"role": "tool", "tool_call_id": "call_1", "content": "1"}]},
    ),
    "chat-parts": (
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": IMAGE}]}]},
        {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]},
        {"messages": [{"role": "ipython", "content": "x"}]},
    ),
    "chat-answers": (
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]},
        {"messages": [USER, {"role": "tool", "tool_call_id": "call_1", "content": "1"}]},
    ),
    "chat-calls": (
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": "c" * 41}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [
            {**CALL, "function": {"name": "f", "arguments": {}}}]}]},
    ),
    "chat-tools": ({"tools": []}, {"tools": [_function()] * 129}, {"tools": [{**_function(), "x": 1}]}),
    "chat-tool-names": ({"tools": [_function(name="a.b")]}, {"tools": [_function(name="a" * 65)]}),
    "chat-tool-twice": ({"tools": [_function(), _function()]},),
    "chat-without-tools": ({"tool_choice": "auto"}, {"parallel_tool_calls": False}),
    "chat-choice-without-tools": ({"tool_choice": "auto"},),
    "chat-choice": ({"tools": [_function()], "tool_choice": NAMED}, {"tool_choice": "any"}),
    "chat-schemas": (
        {"tools": [_function(parameters={"type": "object"})]},
        {"tools": [_function(parameters={"type": "object", "properties": {"a": {"type": "array"}}})]},
        {"tools": [_function(strict=True)]},
        {"tools": [_function(parameters={"type": "string"})]},
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
    ),
    "chat-references": ({"tools": [_function(parameters={"items": {"$ref": "#/properties/a"}})]},),
    "chat-stored": ({"metadata": {"a": "b"}},),
    "chat-lengths": ({"user": "u" * 65}, {"store": True, "metadata": {"a": "b" * 513}}),
    "chat-bounds": (
        {"stop": list("abcde")}, {"max_tokens": 1, "max_completion_tokens": 1}, {"max_tokens": 0},
        {"temperature": 3}, {"stream_options": {}},
    ),
    "chat-word-json": ({"response_format": {"type": "json_object"}},),
    "chat-no-effort": ({"model": "gpt-4o-mini", "reasoning_effort": "none"},),
    "chat-limit": ({"model": "gpt-4o-mini", "max_tokens": 32_000},),
    "chat-old-limit": ({"model": "o3-mini", "max_tokens": 5},),
    "chat-sampling": ({"model": "gpt-5", "temperature": 0.5}, {"model": "o3", "stop": ["x"]}),
    "chat-reasoning-back": (
        {"model": "deepseek-reasoner", "messages": [USER, {"role": "assistant", "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "call_1", "content": "1"}]},
    ),
    "chat-reasoning-back-kimi": (
        {"model": "kimi-k2-thinking", "messages": [USER, {"role": "assistant", "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "call_1", "content": "1"}]},
    ),
    "chat-lost-limit": ({"max_completion_tokens": 5},),
    "responses-required": ({"model": None}, b'{"model":"m"}'),
    "responses-fields": ({"reasoning_effort": "low"}, {"reasoning": {"budget": 1}}, {"text": {"x": 1}}),
    "responses-members": ({"input": [{**USER, "name": "n"}]},),
    "responses-parts": (
        {"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]},
        {"input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "AAAA"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "cache": 1}]}]},
    ),
    "responses-answers": (
        {"input": [ITEM]}, {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}
    ),
    "responses-ids": ({"input": [{**USER, "id": "x_1"}]}, {"input": [{**ITEM, "call_id": "c" * 65}]}),
    "responses-reasoning": (
        {"input": [USER, {"type": "reasoning", "id": "rs_1", "summary": []}]},
        {"store": False, "input": [{"type": "reasoning", "id": "rs_1", "summary": []}, ITEM]},
    ),
    "responses-tools": ({"tools": [_tool()] * 129}, {"tools": [_tool(name="a b")]}, {"tools": [_tool(x=1)]}),
    "responses-schemas": (
        {"tools": [_tool(parameters={})]}, {"tools": [_tool(strict=True)]},
        {"text": {"format": {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}}},
    ),
    "responses-choice": ({"tool_choice": {"type": "function", "name": "g"}}, {"tool_choice": "required"}),
    "responses-bounds": (
        {"max_output_tokens": 1}, {"user": "u" * 65}, {"previous_response_id": "r", "conversation": "c"},
    ),
    "responses-no-reasoning": (
        {"model": "gpt-4o", "reasoning": {"summary": "auto"}},
        {"model": "gpt-4.1", "include": ["reasoning.encrypted_content"]},
    ),
    "responses-sampling": ({"model": "gpt-5-mini", "top_p": 0.5},),
    "messages-headers": ({},),
    "messages-fields": ({"top_logprobs": 1}, {"max_tokens": None}, {"metadata": {"a": "b"}}),
    "messages-limit": ({"model": "claude-3-haiku-20240307", "max_tokens": 8192},),
    "messages-tools": (
        {"tools": [_custom(), _custom()]}, {"tools": [_custom(name="a.b")]},
        {"tools": [_custom(input_schema={})]},
        {"tools": [_custom(input_schema={"type": "object", "properties": {"$top": {}}})]},
    ),
    "messages-choice": (
        {"tool_choice": {"type": "auto"}},
        {"tools": [_custom()], "tool_choice": {"type": "tool", "name": "g"}},
        {"tools": [_custom()], "tool_choice": {"type": "none", "disable_parallel_tool_use": True}},
    ),
    "messages-cache-marks": (
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5},
    ),
    "messages-roles": (
        {"messages": []}, {"messages": [{"role": "assistant", "content": "x"}, USER]},
        {"messages": [USER, {"role": "system", "content": "x"}]},
    ),
    "messages-texts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": " \n"}]}]},
        {"messages": [{"role": "user", "content": ""}]}, {"system": [{"type": "text", "text": ""}]},
    ),
    "messages-members": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "id": "1"}]}]},
        {"messages": [{"role": "user", "content": [USE]}]},
        {"messages": [USER, {"role": "assistant", "content": [{**USE, "input": "{}"}]}]},
        {"messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}]},
    ),
    "messages-answers": (
        {"messages": [USER, {"role": "assistant", "content": [USE]}, USER]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}]},
    ),
    "messages-thinking": (
        {"thinking": {"type": "enabled", "budget_tokens": 100}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    ),
    "messages-sampling": ({"temperature": 1.5}, {"stop_sequences": ["\n"]}),
    "messages-trailing": ({"messages": [USER, {"role": "assistant", "content": "x "}]},),
    "messages-prefill": (
        {"model": "claude-opus-4-6", "messages": [USER, {"role": "assistant", "content": "x"}]},
    ),
    "messages-effort": ({"model": "claude-sonnet-4-5", "output_config": {"effort": "low"}},),
    "messages-adaptive": ({"model": "claude-opus-4-5", "thinking": {"type": "adaptive"}},),
    "ollama-forms": (
        {"messages": [{"role": "user", "content": []}]}, {"format": "text"}, {"think": "xhigh"},
        {"messages": [{"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "{}"}}]}]},
    ),
    "ollama-ignored": (
        {"tool_choice": "auto"}, {"options": {"max_tokens": 1}}, {"messages": [{**USER, "x": 1}]},
    ),
    "ollama-thinks": ({"model": "llama3.2", "think": True},),
}  # fmt: skip
"""For each rule what a body must have to break it."""


def _dialect(rule: str) -> str:
    return "chat" if rule == "json" else rule.partition("-")[0]


def _names(body: Any, provider: str, headers: Any = HEADERS) -> set[str]:
    return {one.rule.name for one in broken(provider, body, headers)}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_refuses_what_it_says(rule: str) -> None:
    """Each rule has samples that break it, and its refusal has the provider's status and shape."""
    dialect = _dialect(rule)
    for sample in WRONG[rule]:
        body = sample if isinstance(sample, bytes) else {**BASE[dialect], **sample}
        headers = () if rule == "messages-headers" else HEADERS
        for provider in RULES[rule].providers if rule != "json" else ("openai",):
            found = [one for one in broken(provider, body, headers) if one.rule.name == rule]
            assert found, (provider, sample)
            assert str(found[0]).startswith(f"{rule}: ")
            said = refusal(provider, found)
            assert (said is None) == RULES[rule].ignored
            assert said is None or (said.status in (400, 422) and said.data), said
        assert rule not in {one.rule.name for one in broken(REFERENCE[dialect], body, headers, [rule])}


@pytest.mark.parametrize("dialect", RIGHT)
def test_what_is_right_is_taken(dialect: str) -> None:
    """The reference provider of a dialect takes ordinary requests."""
    for sample in RIGHT[dialect]:
        assert _names({**BASE[dialect], **sample}, REFERENCE[dialect]) == set(), sample


def test_each_rule_has_a_source() -> None:
    """Each rule says where its refusal is documented, and holds for a provider that exists."""
    for rule in RULES.values():
        assert rule.source
        assert set(rule.providers) <= PROVIDERS.keys()


def test_old_and_new_models_are_told_apart() -> None:
    """A rule for a kind of model holds for no other, and not for a name that tells nothing."""
    effort = {**BASE["messages"], "output_config": {"effort": "low"}}
    names = ("claude-haiku-4-5", "claude-opus-4-20250514", "claude-opus-4-5", "claude-sonnet-4-6", "m")
    refused = [_names({**effort, "model": model}, "anthropic") != set() for model in names]
    assert refused == [True, True, False, False, False]
    efforts = {**BASE["chat"], "reasoning_effort": "low"}
    of_openai = ("gpt-4.1", "openai/gpt-4o", "gpt-5-chat-latest", "gpt-5.1", "o4-mini", "m")
    refused = [_names({**efforts, "model": model}, "openai") != set() for model in of_openai]
    assert refused == [True, True, True, False, False, False]


def test_the_tables_agree_with_the_sdks() -> None:
    """The members that the rules know are those of the installed packages' types."""
    from anthropic import types as anthropic_types
    from anthropic.types import message_create_params as messages_params
    from ollama import _types as ollama_types
    from openai.types import chat
    from openai.types.chat import completion_create_params as chat_params
    from openai.types.responses import response_create_params as responses_params
    from openai.types.responses import response_input_item_param

    assert {"stream", *chat_params.CompletionCreateParamsBase.__annotations__} == chat_rules.FIELDS
    assert {"stream", *responses_params.ResponseCreateParamsBase.__annotations__} == responses_rules.FIELDS
    known = {"stream", *messages_params.MessageCreateParamsBase.__annotations__}
    assert messages_rules.FIELDS - {"temperature", "top_k", "top_p"} == known
    assert chat.ChatCompletionAssistantMessageParam.__annotations__.keys() == chat_rules.ASSISTANT
    for kind, members in messages_rules.BLOCKS.items():
        name = "".join(part.capitalize() for part in kind.split("_")) + "BlockParam"
        assert members == getattr(anthropic_types, name).__annotations__.keys(), kind
    found: dict[str, set[str]] = {}
    for item in typing.get_args(response_input_item_param.ResponseInputItemParam):
        for kind in re.findall(r"'(\w+)'", str(typing.get_type_hints(item)["type"])):
            found.setdefault(kind, set()).update(item.__annotations__)
    for kind, members in responses_rules.ITEMS.items():
        assert members >= found[kind], kind
    assert ollama_types.Message.model_fields.keys() <= ollama_rules.MESSAGE
    assert ollama_types.ChatRequest.model_fields.keys() <= ollama_rules.FIELDS


def test_known_faults_are_about_tests_and_rules_that_exist() -> None:
    """Each entry names a rule, a test that is there, and says what is wrong."""
    files = {file.name: file for file in Path(__file__).parent.rglob("test_*.py")}
    for known in KNOWN_FAULTS:
        assert known.rule in RULES
        assert known.reason
        for pattern in known.tests:
            file, name = re.match(r"(.*)::(\w+)", pattern).groups()  # type: ignore[union-attr]
            assert f"def {name}(" in files[file].read_text("utf-8"), pattern


async def test_a_double_refuses_and_the_judge_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream answers with the provider's error in place of its script, and the test would fail."""
    judge = Judge(expected=["chat-stored"], known=["chat-lengths"], accepted=["chat-bounds"])
    monkeypatch.setattr(Judge, "current", judge)
    async with RawUpstream([b"HTTP/1.1 204 No Content\r\n\r\n"]) as upstream:
        port = ProxyAddress(upstream.port)
        for more in ({"metadata": {"a": "b"}}, {"max_tokens": 0, "user": "u" * 65}, {"odd": 1}):
            body = {**BASE["chat"], **more}
            answer = await port.ask(body)
            if "max_tokens" in more:
                assert answer.status == 204
            else:
                assert answer.status == 400
                assert answer.json["error"]["type"] == "invalid_request_error"
    (said,) = judge.complaints()
    assert said.startswith("chat-fields: ")
    idle = Judge(expected=["chat-stored"], known=["chat-lengths"])
    assert idle.complaints() == [
        "no request broke chat-stored",
        "KNOWN_FAULTS: this test does not break chat-lengths any more",
    ]
