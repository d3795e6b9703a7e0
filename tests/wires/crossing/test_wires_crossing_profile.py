"""What an upstream's model does not take of a translated request is left out or changed, and named."""

import json
from typing import Any

import pytest

from proxy.base.conversation import (
    Conversation,
    FunctionTool,
    Image,
    Inline,
    Message,
    Output,
    ReasoningSettings,
    Sampling,
    Service,
    Text,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
)
from proxy.base.errors import RequestError
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.profile import EFFORTS, HINTS, SAMPLING, Profile
from proxy.wires.providers import KNOWN, PROVIDERS, UpstreamProfiles, known_profile, provider_at
from proxy.wires.responses.wire import ResponsesWire

HELLO = (Message("user", (Text("hi"),)),)
CODECS: dict[str, ConversationCodec] = {
    "chat": ChatWire.codec,
    "responses": ResponsesWire.codec,
    "anthropic": AnthropicWire.codec,
    "ollama": OllamaWire.codec,
}
CLAUDE_CODE = Conversation(
    "gpt-4o-mini",
    HELLO,
    output=Output(max_tokens=32_000),
    reasoning=ReasoningSettings("medium"),
    service=Service(user="user_" + "0" * 120),
    stream=True,
    names={
        "output.max_tokens": "max_tokens",
        "reasoning.effort": "output_config.effort",
        "service.user": "metadata.user_id",
    },
)


def sent(wire: str, asked: Conversation, profile: Profile | None = None) -> tuple[dict[str, Any], set[str]]:
    """Return the body and the names of what it lacks or has with another value."""
    written = CODECS[wire].write(asked, profile)
    body: dict[str, Any] = json.loads(written.body)
    return body, {left.field for left in written.left_out}


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_claude_code_on_a_model_without_reasoning(wire: str) -> None:
    """The README's own line: no effort, the model's own maximum, and a user's id of 64 characters at most."""
    body, left_out = sent(wire, CLAUDE_CODE, known_profile(wire, "gpt-4o-mini", "openai"))
    assert left_out == {"max_tokens", "output_config.effort", "metadata.user_id"}
    assert not {"reasoning_effort", "reasoning"} & body.keys()
    assert body.get("max_completion_tokens", body.get("max_output_tokens")) == 16_384
    assert 0 < len(body["user"]) <= 64
    again, _ = sent(wire, CLAUDE_CODE, known_profile(wire, "gpt-4o-mini", "openai"))
    assert again["user"] == body["user"]


def test_nothing_is_left_out_of_what_a_model_takes() -> None:
    """A profile that takes everything changes nothing."""
    body, left_out = sent("chat", CLAUDE_CODE, Profile(efforts=EFFORTS, user_chars=200))
    assert not left_out
    assert (body["max_tokens"], body["reasoning_effort"], body["user"]) == (
        32_000, "medium", CLAUDE_CODE.service.user,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("efforts", "asked", "said"),
    [
        (None, "none", None),
        (None, "minimal", "low"),
        (None, "max", "high"),
        ((), "high", None),
        (("low", "medium", "high"), "none", "low"),
        (("none", "low", "high"), "minimal", "low"),
        (("none", "low", "high"), "medium", "low"),
        (("none",), "high", None),
        (EFFORTS, "max", "max"),
        (EFFORTS, "strange", None),
    ],
)
def test_the_nearest_effort(efforts: tuple[str, ...] | None, asked: str, said: str | None) -> None:
    """An effort becomes the nearest that the model takes, and never turns reasoning off unasked."""
    assert Profile(efforts=efforts).effort(asked) == said


def test_what_is_not_taken_is_left_out() -> None:
    """Sampling and hints that a model does not take are left out by the client's name of each."""
    asked = Conversation(
        "m", HELLO, sampling=Sampling(temperature=0.5, seed=7), parallel_tool_calls=False,
        service=Service(tier="flex", user="u"),
    )  # fmt: skip
    body, left_out = sent(
        "chat",
        asked,
        Profile(sampling=("seed",), without=("parallel_tool_calls", "service.tier"), user_chars=0),
    )
    assert left_out == {"sampling.temperature", "parallel_tool_calls", "service.tier", "service.user"}
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": 7}


def test_a_strict_bridge_refuses_what_is_left_out_but_not_what_is_lowered() -> None:
    """With ``strict`` a hint that is not taken is refused by its name; a lower limit is still a limit."""
    with pytest.raises(RequestError) as refusal:
        ChatWire.codec.write(CLAUDE_CODE, Profile(efforts=()), strict=True)
    assert refusal.value.param == "output_config.effort"
    ChatWire.codec.write(CLAUDE_CODE, Profile(max_output_tokens=5, efforts=EFFORTS), strict=True)


@pytest.mark.parametrize("wire", CODECS)
def test_a_limit_of_nothing_is_refused(wire: str) -> None:
    """A token limit of 0 is refused by the client's name for it."""
    asked = Conversation("m", HELLO, output=Output(max_tokens=0), names={"output.max_tokens": "limit"})
    with pytest.raises(RequestError) as refusal:
        CODECS[wire].write(asked)
    assert (refusal.value.status, refusal.value.param) == (400, "limit")


@pytest.mark.parametrize("limit", [1, 15, 16, 17])
def test_the_least_limit_of_responses(limit: int) -> None:
    """Responses takes no limit below 16, so a probe with 1 asks for 16."""
    body, left_out = sent("responses", Conversation("m", HELLO, output=Output(max_tokens=limit)))
    assert body["max_output_tokens"] == max(limit, 16)
    assert left_out == ({"output.max_tokens"} if limit < 16 else set())


def test_a_summary_does_not_make_ollama_think() -> None:
    """Codex asks for a summary of reasoning; a model that cannot think would refuse ``think``."""
    body, _ = sent("ollama", Conversation("m", HELLO, reasoning=ReasoningSettings(summary="auto")))
    assert "think" not in body


def test_images_of_results_follow_the_results() -> None:
    """An image in a result reaches the model of a Chat upstream, after all results of the turn."""
    picture = Image(Inline("image/png", "AAAA"))
    called = Message("assistant", (ToolCallPart("c", "f", "{}"),))
    asked = Conversation("m", (*HELLO, called, Message("tool", (ToolResultPart("c", (picture,)),))))
    body, left_out = sent("chat", asked)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "user"]
    assert body["messages"][3]["content"][1]["type"] == "image_url"
    assert not left_out


@pytest.mark.parametrize(
    ("model", "effort", "fields"),
    [
        ("claude-sonnet-4-5", "high", {}),
        ("claude-sonnet-4-5", "none", {}),
        ("claude-opus-4-5", "max", {"output_config": {"effort": "high"}}),
        ("claude-opus-4-6", "high", {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}}),
        (
            "claude-sonnet-4.6",
            "xhigh",
            {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
        ),
        ("claude-opus-4-8", "none", {"thinking": {"type": "disabled"}}),
        ("claude-sonnet-5-5", "none", {"thinking": {"type": "between_tools"}}),
        ("claude-opus-5-5", "none", {"output_config": {"effort": "low"}}),
        ("claude-opus-5", "max", {"output_config": {"effort": "max"}}),
    ],
)
def test_efforts_of_claude(model: str, effort: str, fields: dict[str, Any]) -> None:
    """Anthropic's guides to effort and thinking: each model gets what it takes, and thinks if asked to."""
    body, _ = sent("anthropic", Conversation(model, HELLO, reasoning=ReasoningSettings(effort)))
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == fields


def test_claude_is_not_made_to_think_beside_a_forced_call() -> None:
    """Thinking beside a forced call or beside a temperature is refused, so only the effort is sent."""
    forced = Conversation(
        "claude-opus-4-6", HELLO, tools=(FunctionTool("f"),), tool_choice=ToolChoice("required"),
        reasoning=ReasoningSettings("high"),
    )  # fmt: skip
    assert "thinking" not in sent("anthropic", forced)[0]
    warm = Conversation(
        "claude-opus-4-6", HELLO, reasoning=ReasoningSettings("high"), sampling=Sampling(temperature=0.5)
    )
    assert "thinking" not in sent("anthropic", warm)[0]


def test_no_tool_and_serial_calls() -> None:
    """Anthropic refuses ``disable_parallel_tool_use`` beside ``none``."""
    asked = Conversation(
        "m", HELLO, tools=(FunctionTool("f"),), tool_choice=ToolChoice("none"), parallel_tool_calls=False
    )
    assert sent("anthropic", asked)[0]["tool_choice"] == {"type": "none"}


def test_white_space_and_system_messages_alone() -> None:
    """Anthropic refuses texts of white space only and a conversation without messages."""
    blank = Message("assistant", (Text(" \n"), ToolCallPart("c", "f", "{}")))
    done = Message("tool", (ToolResultPart("c", (Text("\n"),)),))
    body, _ = sent("anthropic", Conversation("m", (*HELLO, blank, done)))
    assert [block["type"] for message in body["messages"] for block in message["content"]] == [
        "text", "tool_use", "tool_result",
    ]  # fmt: skip
    assert "content" not in body["messages"][2]["content"][0]
    system = Conversation("m", (), system=(Message("system", (Text("Say ok."),)),))
    body, _ = sent("anthropic", system)
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Say ok."}]}]
    assert "system" not in body
    with pytest.raises(RequestError, match="at least one message"):
        AnthropicWire.codec.write(Conversation("m", ()))


def test_the_table_is_sound() -> None:
    """Each row names a provider, fields of a profile, and values that a profile can have."""
    for row in KNOWN:
        assert row.provider in ("", *PROVIDERS)
        assert row.source
        assert all(pattern == pattern.lower() for pattern in row.models)
        profile = Profile().changed(row.facts)
        assert set(profile.without) <= set(HINTS)
        assert set(profile.efforts or ()) <= set(EFFORTS)
        assert set(profile.sampling or ()) <= set(SAMPLING)


@pytest.mark.parametrize(
    ("provider", "wire", "model", "asked", "said"),
    [
        ("openai", "responses", "gpt-5.1-codex", "none", "low"),
        ("openai", "responses", "gpt-5.1-codex-max", "max", "xhigh"),
        ("openai", "chat", "gpt-5.2-chat-latest", "high", "medium"),
        ("openai", "chat", "gpt-5.6-sol", "max", "max"),
        ("openai", "chat", "gpt-6-astra", "none", "low"),
        ("openai", "responses", "gpt-5-pro", "low", "high"),
        ("mistral", "chat", "mistral-small-latest", "low", "high"),
        ("mistral", "chat", "codestral-latest", "low", None),
        ("moonshot", "chat", "kimi-k2.6", "none", "minimal"),
        ("moonshot", "chat", "kimi-k3", "xhigh", "high"),
        ("groq", "chat", "qwen/qwen3-32b", "medium", None),
        ("groq", "chat", "qwen/qwen3-32b", "none", "none"),
        ("xai", "chat", "grok-4.20-0309-reasoning", "low", None),
        ("xai", "chat", "grok-4.5", "none", "low"),
        ("google", "chat", "gemini-3.7-flash", "minimal", "low"),
        ("google", "chat", "gemini-3-flash-preview", "minimal", "minimal"),
        ("google", "chat", "gemini-2.5-pro", "none", "low"),
        ("lmstudio", "chat", "step3p7", "low", None),
        ("lmstudio", "chat", "openai/gpt-oss-20b", "low", "low"),
    ],
)
def test_efforts_of_providers(provider: str, wire: str, model: str, asked: str, said: str | None) -> None:
    """A model is asked for an effort that its provider takes; the rows of the table name the sources."""
    assert known_profile(wire, model, provider).effort(asked) == said


@pytest.mark.parametrize(
    ("address", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://my.openai.azure.com/openai/v1", "azure"),
        ("http://127.0.0.1:11434/v1", "ollama"),
        ("http://gpu.local:1234/v1", "lmstudio"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("http://127.0.0.1:8000/v1", ""),
        ("replay:", ""),
    ],
)
def test_providers_are_known_by_their_address(address: str, provider: str) -> None:
    """A provider is known by its host, a local server by its port."""
    assert provider_at(address) == provider


def test_settings_are_above_the_table() -> None:
    """The configuration is above the table, and the first pattern that fits a model above both."""
    profiles = UpstreamProfiles(
        "mistral", {"efforts": ("low",), "user_chars": 9}, (("a*", {"efforts": ()}), ("*", {"max_tools": 3}))
    )
    assert profiles.of("chat", "abc").efforts == ()
    other = profiles.of("chat", "x")
    assert (other.efforts, other.user_chars, other.max_tools) == (("low",), 9, 3)
    assert "service.store" in other.without
    assert UpstreamProfiles("openai").of("chat", "OpenAI/GPT-4o").efforts == ()
