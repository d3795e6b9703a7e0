"""What the words of a provider's refusal show about its model.

The messages are those of the providers' APIs, as people quote them in public issues; only their numbers are
changed where a case needs others. The issue stands behind a message, as ``owner/repository/number`` of
GitHub. A message without one has no source that we found.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.conversation import (
    Conversation,
    Image,
    Inline,
    Message,
    Output,
    ReasoningSettings,
    Sampling,
    Service,
    Text,
    ToolResultPart,
)
from proxy.wires.anthropic.crossing.fields import ANTHROPIC_FIELDS
from proxy.wires.chat.crossing.fields import CHAT_FIELDS
from proxy.wires.chat.wire import ChatWire
from proxy.wires.crossing.refused import after_refusal
from proxy.wires.crossing.tables import FieldTable
from proxy.wires.crossing.translation import Translation
from proxy.wires.ollama.crossing.fields import OLLAMA_FIELDS
from proxy.wires.openai.dialect import read_error
from proxy.wires.profile import EFFORTS, Profile
from proxy.wires.responses.crossing.fields import RESPONSES_FIELDS

ASKED = Conversation(
    "m",
    (Message("user", (Text("hi"),)),),
    parallel_tool_calls=False,
    sampling=Sampling(temperature=0.5, top_p=0.5),
    output=Output(max_tokens=32_000, verbosity="low"),
    reasoning=ReasoningSettings("medium"),
    service=Service(user="u" * 120, metadata={"a": "b"}, store=True),
    stream=True,
)
CHAT, RESPONSES, MESSAGES, OLLAMA = CHAT_FIELDS, RESPONSES_FIELDS, ANTHROPIC_FIELDS, OLLAMA_FIELDS

NONE = "Unsupported value: 'none' is not supported with the 'gpt-5.1-codex' model. Supported values are: "


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (
            # openai/codex/6647
            {"message": f"{NONE}'low', 'medium', and 'high'.", "param": "reasoning.effort"},
            {"efforts": ("low", "high")},
        ),
        ({"message": "Unsupported parameter.", "param": "user"}, {"without": ("service.user",)}),
        ({"message": "Unsupported parameter.", "param": "input[0].user"}, None),
        ({"message": "Unsupported parameter.", "param": ["user"]}, None),
        (
            # 1Panel-dev/MaxKB/2912
            {
                "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'user'), 'msg': 'Extra inputs are "
                "not permitted', 'input': 32000}]",
            },
            {"without": ("service.user",)},
        ),
        (
            {
                "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'metadata'), "
                "'input': {'input': 32000}}]"
            },
            {"without": ("service.metadata",)},
        ),
        (
            {
                "message": "1 validation error:\n  {'type': 'literal_error', 'loc': ('body', 'messages', 0, "
                "'role'), 'msg': \"Input should be 'user'\", 'input': \"'user' is not supported\"}",
            },
            None,
        ),
    ],
)
def test_where_an_error_names_the_field(error: dict[str, Any], facts: dict[str, Any] | None) -> None:
    """The field may be named in ``param`` alone, or in a list that Python has printed with the input."""
    said = read_error(json.dumps({"error": error}).encode())
    found = after_refusal(said.refusal, ASKED, Profile(), RESPONSES)
    assert (found and found.profile) == (facts and replace(Profile(), **facts))
    assert "32000" not in said.message


@pytest.mark.parametrize(
    ("table", "message", "facts"),
    [
        (
            CHAT,
            # teilomillet/gollm/33
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            {"limit_field": "max_completion_tokens"},
        ),
        # QuantumNous/new-api/5372 (Kimi)
        (
            CHAT,
            "invalid temperature: only 1 is allowed for this model",
            {"without": ("sampling.temperature",)},
        ),
        # earendil-works/pi/3460 (Gemini): one level only, which the proxy sent.
        (CHAT, "Thinking level MEDIUM is not supported for this model.", {"efforts": ("low", "high")}),
        (
            CHAT,
            # ollama/ollama, openai/openai.go
            'invalid reasoning value: \'medium\' (must be "high", "low", or "none")',
            {"efforts": ("none", "low", "high")},
        ),
        (
            CHAT,
            # enoch3712/ExtractThinker/346
            "max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas "
            "you provided 32000.",
            {"max_output_tokens": 16_384},
        ),
        (
            CHAT,
            # deepseek-ai/DeepSeek-V3/69
            "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
            {"max_output_tokens": 8192},
        ),
        (
            CHAT,
            # skapadia3214/groq-moa/8 (Groq)
            "max_tokens for `llama-3.1-8b-instant` must be less than or equal to 8000",
            {"max_output_tokens": 8000},
        ),
        (
            RESPONSES,
            "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 16384, but got "
            "32000 instead.",
            {"max_output_tokens": 16_384},
        ),
        (
            MESSAGES,
            # olimorris/codecompanion.nvim/1028
            "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for "
            "claude-3-5-sonnet-20241022",
            {"max_output_tokens": 8192},
        ),
        # anomalyco/opencode/12113 (Azure), 1jehuang/jcode/708 (Mistral), brendanlong/lion-reader/1325 (Groq),
        # chenyme/grok2api/814 (xAI), run-llama/llama_index/17731 (Azure)
        (CHAT, "Unrecognized request argument supplied: reasoning_effort", {"efforts": ()}),
        (CHAT, "body.reasoning_effort: Extra inputs are not permitted", {"efforts": ()}),
        (CHAT, "reasoning_effort is not supported with this model", {"efforts": ()}),
        (
            CHAT,
            "Model grok-4.20-0309-reasoning does not support parameter reasoningEffort.",
            {"efforts": ()},
        ),
        (CHAT, "Unknown parameter: 'reasoning_effort'.", {"efforts": ()}),
        (
            CHAT,
            # architects-toolkit/SmartHopper/647 (Mistral)
            "reasoning_effort='medium' is not supported for this model. Must be one of "
            "(<ReasoningEffort.none: 'none'>, <ReasoningEffort.high: 'high'>)",
            {"efforts": ("none", "high")},
        ),
        # iamsrikanthnani/pluely/219 (Groq)
        (CHAT, "`reasoning_effort` must be one of `none` or `default`", {"efforts": ("none",)}),
        (
            RESPONSES,
            # BoundaryML/baml/2708
            "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
            {"efforts": ()},
        ),
        # anthropics/claude-code/30795; server/routes.go of Ollama
        (MESSAGES, "This model does not support the effort parameter.", {"efforts": ()}),
        (OLLAMA, '"llama3.2" does not support thinking', {"efforts": ()}),
        (
            CHAT,
            "Invalid 'user': string too long. Expected a string with maximum length 32, but got a string "
            "with length 64 instead.",
            {"user_chars": 32},
        ),
        (CHAT, "body.user: Extra inputs are not permitted", {"without": ("service.user",)}),
        (
            CHAT,
            # BeehiveInnovations/pal-mcp-server/78
            "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) "
            "value is supported.",
            {"without": ("sampling.temperature",)},
        ),
        (
            CHAT,
            # evalstate/fast-agent/279
            "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
            {"without": ("parallel_tool_calls",)},
        ),
        (
            CHAT,
            # Azure/azure-sdk-for-net/45719
            "Unrecognized request argument supplied: parallel_tool_calls",
            {"without": ("parallel_tool_calls",)},
        ),
        (
            CHAT,
            # ed-donner/agents/45 (Google)
            'Invalid JSON payload received. Unknown name "store": Cannot find field.',
            {"without": ("service.store",)},
        ),
        # skye-harris/hass_local_openai_llm/59, fanenr/chatbot/21 (both Groq)
        (CHAT, "`metadata` is not supported with this model", {"without": ("service.metadata",)}),
        (
            CHAT,
            "property 'store' is unsupported, did you mean 'stop'?",
            {"without": ("service.store",)},
        ),
        (CHAT, "body.stream_options: Extra inputs are not permitted", {"without": ("stream_usage",)}),
        (CHAT, "body.verbosity: Extra inputs are not permitted", {"without": ("output.verbosity",)}),
    ],
)
def test_what_providers_say(table: FieldTable, message: str, facts: dict[str, Any]) -> None:
    """Each message shows one fact about the model, which holds for its other requests, too."""
    found = after_refusal(message, ASKED, Profile(), table)
    assert found is not None
    assert found.profile == replace(Profile(), **facts)
    assert found.lasts
    lessons = found.profile.lessons(Profile())
    assert Profile().learned(lessons) == found.profile


@pytest.mark.parametrize(
    "message",
    [
        "",
        "The model `m` does not exist.",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
        # odysseus-dev/odysseus/40 (Groq)
        "'messages.1' : for 'role:user' the following must be satisfied[('messages.1' : property 'metadata' "
        "is unsupported)]",
        "Unknown parameter: 'messages[2].store'.",
        "input[3]: 'user' is not permitted here",
        "The user has no access to this model, which is not supported.",
        "Unsupported parameter: 'seed' is not supported with this model.",
        "max_tokens: 32000 is fine, temperature is not",
    ],
)
def test_what_shows_nothing(message: str) -> None:
    """A value that the client got wrong, a place in a message, and what was not sent teach nothing."""
    assert after_refusal(message, ASKED, Profile(), CHAT) is None


@pytest.mark.parametrize(
    ("message", "efforts"),
    [
        (
            # Kilo-Org/cloud/3807 (Kimi)
            "Unsupported value: 'reasoning_effort' does not support 'none' with this model. Supported values "
            "are: 'minimal', 'low', 'medium', and 'high'.",
            ("minimal", "low", "medium", "high"),
        ),
        # profiles/grok.py of pydantic/pydantic-ai (xAI)
        ("This model does not support 'reasoning_effort' value 'none'", EFFORTS[1:]),
    ],
)
def test_models_that_always_reason(message: str, efforts: tuple[str, ...]) -> None:
    """A model that does not take ``none`` is asked for one of the efforts that it takes."""
    asked = replace(ASKED, reasoning=ReasoningSettings("none"))
    found = after_refusal(message, asked, Profile(efforts=EFFORTS), CHAT)
    assert found is not None
    assert found.profile.efforts == efforts


@pytest.mark.parametrize(
    "message",
    [
        # claude-code-best/claude-code/272 (vLLM)
        "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is "
        "8192 tokens and your request has 200 input tokens (32000 > 8192 - 200).",
        # vLLM since 0.14
        "This model's maximum context length is 8192 tokens. However, you requested 32000 output tokens and "
        "your prompt contains at least 200 input tokens, for a total of at least 32200 tokens. Please reduce "
        "the length of the input prompt or the number of requested output tokens.",
    ],
)
def test_the_room_beside_a_conversation_is_not_remembered(message: str) -> None:
    """How many tokens fit beside this input says nothing about the next request."""
    found = after_refusal(message, ASKED, Profile(), CHAT)
    assert found is not None
    assert (found.profile.max_output_tokens, found.lasts) == (7992, False)


def test_thinking_that_cannot_be_turned_off() -> None:
    """A model that always thinks is asked for its least effort instead."""
    asked = replace(ASKED, reasoning=ReasoningSettings("none"))
    # cline/cline/13203
    message = '"thinking.type.disabled" is not supported for this model.'
    found = after_refusal(message, asked, Profile(efforts=EFFORTS), MESSAGES)
    assert found is not None
    assert found.profile.effort("none") == "minimal"


def test_images_of_results() -> None:
    """An upstream without vision gets words in place of images of results; one bad image shows nothing."""
    picture = ToolResultPart("c", (Image(Inline("image/png", "AAAA")),))
    asked = replace(ASKED, messages=(*ASKED.messages, Message("tool", (picture,))))
    # ollama/ollama/17301
    said = "this model does not support image input (ref: b8bd630e-4a39-4b57-82af-9158ee9d5703)"
    found = after_refusal(said, asked, Profile(), CHAT)
    assert found is not None
    assert not found.profile.result_images
    assert after_refusal("Invalid image data.", asked, Profile(), CHAT) is None


@given(st.text(max_size=200))
def test_no_text_breaks_it(message: str) -> None:
    """Whatever an upstream writes, the profile stays valid and a body can be written."""
    found = after_refusal(message, ASKED, Profile(), CHAT)
    if found is not None:
        ChatWire.codec.write(ASKED, found.profile)
        assert isinstance(Profile().learned(found.profile.lessons(Profile())), Profile)


def test_lessons_from_elsewhere_are_checked() -> None:
    """Names of refused fields share the memory with lessons, and no text in it makes an invalid profile."""
    odd = {"reasoning", "without:messages", "limit_field:x", "max_output_tokens:-1", "efforts:odd,low"}
    assert Profile().learned(odd) == Profile(efforts=("low",))


def test_the_narrowest_lesson_holds() -> None:
    """A later refusal may be narrower than an earlier one, and the memory keeps both."""
    lessons = {"max_output_tokens:16384", "max_output_tokens:9000", "efforts:none,low", "efforts:"}
    assert Profile().learned(lessons) == Profile(max_output_tokens=9000, efforts=())


def test_a_strict_translation_learns_nothing() -> None:
    """With ``strict`` nothing may be left out, so a refusal stays the client's to read."""
    translation = Translation(ChatWire.codec, Profile(efforts=EFFORTS, user_chars=200), strict=True)
    translation.write(ASKED)
    assert not translation.learn("Unrecognized request argument supplied: reasoning_effort")
    assert not translation.leave_out({"without:service.store"})


def test_a_translation_learns_a_bounded_number_of_times() -> None:
    """An upstream that refuses everything is not asked without end."""
    translation = Translation(ChatWire.codec, Profile(), strict=False)
    translation.write(ASKED)
    names = ("reasoning_effort", "temperature", "top_p", "user", "store", "metadata", "verbosity")
    learned = [translation.learn(f"body.{name}: Extra inputs are not permitted") for name in names]
    assert learned == [True] * 4 + [False] * 3
