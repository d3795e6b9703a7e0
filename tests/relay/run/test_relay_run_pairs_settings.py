"""How each setting of a client's request reaches an upstream, for all pairs of dialects."""

import json
from typing import Any, Final

import pytest
from pair_kits import PAIRS, SPEAKERS, Message, Turn
from raw_upstream import RawUpstream
from running_proxy import make_config, running

Object = dict[str, Any]
QUESTION = Message("user", "hi")
LEFT_OUT: Final = "left out"
REFUSED: Final = "refused"
WITHOUT_TOOLS: Final = "asked without tools"
SCHEMA: Object = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
JSON_SCHEMA: Object = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
CHOSEN: Object = {"type": "function", "name": "mine"}

SETTINGS: dict[str, dict[str, Object | str]] = {
    "max tokens": {
        "chat": {"max_tokens": 77},
        "responses": {"max_output_tokens": 77},
        "anthropic": {"max_tokens": 77},
        "ollama": {"options": {"num_predict": 77}},
    },
    "temperature": {
        **{name: {"temperature": 0.5} for name in SPEAKERS},
        "ollama": {"options": {"temperature": 0.5}},
    },
    "top_p": {**{name: {"top_p": 0.25} for name in SPEAKERS}, "ollama": {"options": {"top_p": 0.25}}},
    "top_k": {
        "chat": LEFT_OUT,
        "responses": LEFT_OUT,
        "anthropic": {"top_k": 40},
        "ollama": {"options": {"top_k": 40}},
    },
    "stops": {
        "chat": {"stop": ["END"]},
        "responses": REFUSED,
        "anthropic": {"stop_sequences": ["END"]},
        "ollama": {"options": {"stop": ["END"]}},
    },
    "seed": {
        "chat": {"seed": 7},
        "responses": LEFT_OUT,
        "anthropic": LEFT_OUT,
        "ollama": {"options": {"seed": 7}},
    },
    "choices": {"chat": {"n": 2}, "responses": REFUSED, "anthropic": REFUSED, "ollama": REFUSED},
    "logprobs": {
        "chat": {"logprobs": True},
        "responses": {"include": ["message.output_text.logprobs"]},
        "anthropic": REFUSED,
        "ollama": {"logprobs": True},
    },
    "logit bias": {
        "chat": {"logit_bias": {"1": 2}},
        "responses": REFUSED,
        "anthropic": REFUSED,
        "ollama": REFUSED,
    },
    "penalty": {
        "chat": {"presence_penalty": 0.5},
        "responses": REFUSED,
        "anthropic": REFUSED,
        "ollama": {"options": {"presence_penalty": 0.5}},
    },
    "schema": {
        "chat": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        },
        "responses": {"text": {"format": JSON_SCHEMA}},
        "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "ollama": {"format": SCHEMA},
    },
    "json": {
        "chat": {"response_format": {"type": "json_object"}},
        "responses": {"text": {"format": {"type": "json_object"}}},
        "anthropic": REFUSED,
        "ollama": {"format": "json"},
    },
    "effort": {
        "chat": {"reasoning_effort": "low"},
        "responses": {"reasoning": {"effort": "low"}},
        "anthropic": {"output_config": {"effort": "low"}},
        "ollama": {"think": "low"},
    },
    "no thinking": {
        # Only a model that is known to take it is asked not to reason.
        "chat": LEFT_OUT,
        "responses": LEFT_OUT,
        "anthropic": {"thinking": {"type": "disabled"}},
        "ollama": {"think": False},
    },
    "verbosity": {
        "chat": {"verbosity": "low"},
        "responses": {"text": {"verbosity": "low"}},
        "anthropic": LEFT_OUT,
        "ollama": LEFT_OUT,
    },
    "any tool": {
        "chat": {"tool_choice": "required"},
        "responses": {"tool_choice": "required"},
        "anthropic": {"tool_choice": {"type": "any"}},
        "ollama": REFUSED,
    },
    "no tool": {
        "chat": {"tool_choice": "none"},
        "responses": {"tool_choice": "none"},
        "anthropic": {"tool_choice": {"type": "none"}},
        "ollama": WITHOUT_TOOLS,
    },
    "one tool": {
        "chat": {"tool_choice": {"type": "function", "function": {"name": "mine"}}},
        "responses": {"tool_choice": CHOSEN},
        "anthropic": {"tool_choice": {"type": "tool", "name": "mine"}},
        "ollama": REFUSED,
    },
    "one call at a time": {
        "chat": {"parallel_tool_calls": False},
        "responses": {"parallel_tool_calls": False},
        "anthropic": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "ollama": LEFT_OUT,
    },
    "user": {
        "chat": {"user": "u1"},
        "responses": {"user": "u1"},
        "anthropic": {"metadata": {"user_id": "u1"}},
        "ollama": LEFT_OUT,
    },
    "metadata": {
        "chat": {"metadata": {"a": "b"}, "store": True},
        "responses": {"metadata": {"a": "b"}, "store": True},
        "anthropic": LEFT_OUT,
        "ollama": LEFT_OUT,
    },
    "cache key": {
        "chat": {"prompt_cache_key": "k"},
        "responses": {"prompt_cache_key": "k"},
        "anthropic": LEFT_OUT,
        "ollama": LEFT_OUT,
    },
    "flex tier": {
        "chat": {"service_tier": "flex"},
        "responses": {"service_tier": "flex"},
        "anthropic": LEFT_OUT,
        "ollama": LEFT_OUT,
    },
}
"""The form of each setting in each dialect, or what happens to it if the upstream has no form for it."""

ANSWERED_IN_ONE_DIALECT = {"logprobs"}
"""Settings whose answer the proxy does not translate, so that it refuses them for another dialect."""

CASES = [
    pytest.param(setting, client, upstream, id=f"{setting}-{client}-{upstream}")
    for setting, forms in SETTINGS.items()
    for client, upstream in PAIRS
    if client != upstream and not isinstance(forms[client], str)
]


_REASONS = {"chat": "gpt-5", "responses": "gpt-5", "anthropic": "claude-opus-4-7"}
REASONING = {"effort": {**_REASONS, "ollama": "gpt-oss"}, "no thinking": _REASONS}
"""For settings of reasoning, a model of each dialect's provider that takes them."""


def within(part: Any, whole: Any) -> bool:
    """Return whether an object contains all of another one."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and within(value, whole[name]) for name, value in part.items())
    return bool(part == whole)


@pytest.mark.parametrize(("setting", "client", "upstream"), CASES)
async def test_a_setting_crosses_or_is_named(setting: str, client: str, upstream: str) -> None:
    """A setting goes to the upstream in its own form, or the proxy names it as left out or refused."""
    asking, answering = SPEAKERS[client], SPEAKERS[upstream]
    asked, wanted = SETTINGS[setting][client], SETTINGS[setting][upstream]
    wanted = REFUSED if setting in ANSWERED_IN_ONE_DIALECT else wanted
    assert isinstance(asked, dict)
    async with RawUpstream(answering.script(Turn("Hello."))) as server:
        config = make_config({"base_url": server.url, "wires": (upstream,)}, tools={"enabled": False})
        async with running(config) as proxy:
            # Ollama's models cannot call tools with a format, so these settings have none.
            tools = () if setting in ("schema", "json") else ("mine",)
            model = REASONING.get(setting, {}).get(upstream, answering.model)
            body = {**asking.ask([QUESTION], tools=tools), "model": model, **asked}
            answer = await proxy.ask(body, path=asking.path)
        left_out = (answer.header("x-toolrelay-left-out") or "").replace(" ", "").split(",")
        if wanted == REFUSED:
            assert answer.status == 400
            assert next(iter(asked)) in asking.error(answer.json)
            assert server.requests == []
            return
        asking.seen(answer)
        sent = json.loads(server.requests[0].body)
    if wanted == WITHOUT_TOOLS:
        assert "tools" not in sent
        assert left_out == [""]
    elif wanted == LEFT_OUT:
        assert any(name.startswith(next(iter(asked))) for name in left_out)
        assert next(iter(asked)) not in sent
    else:
        assert within(wanted, sent), sent
        assert left_out == [""]


def test_every_dialect_says_something_of_each() -> None:
    """Each setting has an entry for each dialect."""
    assert all(forms.keys() == SPEAKERS.keys() for forms in SETTINGS.values())
