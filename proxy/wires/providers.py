"""What known providers and models take of a translated request, as one table.

Every row that fits applies, a later one over an earlier one: first what is true of a model wherever it runs,
then what is true of a provider, then a provider's own models. What a row does not know, the proxy learns
from the upstream's refusals, and the configuration can say (``upstreams.NAME.profile``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct, field

from proxy.base.caches import declare_lru
from proxy.base.globs import fits
from proxy.wires.profile import Profile

_LONGEST_NAME: Final = 200

PROVIDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "openai": ("api.openai.com", "*.api.openai.com"),
    "azure": ("*.openai.azure.com", "*.services.ai.azure.com", "*.cognitiveservices.azure.com"),
    "anthropic": ("api.anthropic.com",),
    "mistral": ("api.mistral.ai", "codestral.mistral.ai"),
    "deepseek": ("api.deepseek.com",),
    "moonshot": ("api.moonshot.ai", "api.moonshot.cn", "api.kimi.com"),
    "groq": ("api.groq.com",),
    "xai": ("api.x.ai", "*.api.x.ai"),
    "google": ("generativelanguage.googleapis.com",),
    "openrouter": ("openrouter.ai",),
    "ollama": ("*:11434", "ollama.com"),
    "llama.cpp": (),
    "vllm": (),
    "lmstudio": ("*:1234",),
}
"""Provider → where it is reached: hosts, or ports of servers that run anywhere. Servers that have no port of
their own are named in the configuration."""

MAKERS: Final = frozenset({"openai", "azure", "anthropic"})
"""Providers that understand all types of tools of their dialect, even those that a client runs. Other
servers refuse them, or leave them out without a word."""


class Known(Struct, frozen=True):
    """What is known of some models: ``facts`` are fields of :class:`~proxy.wires.profile.Profile`.

    ``provider`` is a key of :data:`PROVIDERS`, empty for all. ``wires`` are the dialects that it holds for.
    ``models`` are patterns of names in lower case. ``source`` are the addresses where it is written, or the
    type of an SDK. What stands behind "unverified" in it has no source: there the value is the one that
    fails least, since the proxy learns from a refusal and not from silence.
    """

    provider: str
    wires: tuple[str, ...]
    models: tuple[str, ...]
    facts: Mapping[str, object]
    source: str


_OPENAI: Final = ("chat", "responses")
_CHAT: Final = ("chat",)
_MESSAGES: Final = ("anthropic",)
_ALL: Final = ("*",)
_NEW: Final = "max_completion_tokens"
_TO_HIGH: Final = ("low", "medium", "high")
_TO_XHIGH: Final = (*_TO_HIGH, "xhigh")
_TO_MAX: Final = (*_TO_XHIGH, "max")
_STORED: Final = ("service.store", "service.metadata", "service.cache_key", "service.cache_retention")
_SERVICE: Final = (*_STORED, "service.tier", "service.safety_identifier")
_UNREAD: Final = (*_SERVICE, "output.verbosity", "stream_padding")
_PLAIN_SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_SEEDED: Final = (*_PLAIN_SAMPLING, "seed")
_LOCAL_SAMPLING: Final = (*_SEEDED, "top_k", "min_p", "logit_bias")
_GH: Final = "https://github.com/"
_OPENAI_DOCS: Final = "https://platform.openai.com/docs/"
_OPENAI_MODELS: Final = f"{_OPENAI_DOCS}models"
_OPENAI_EFFORTS: Final = "https://learn.microsoft.com/en-us/javascript/api/@azure/ai-projects/reasoningeffort"
_PYDANTIC: Final = f"{_GH}pydantic/pydantic-ai/blob/main/pydantic_ai_slim/pydantic_ai/"
_VERCEL: Final = f"{_GH}vercel/ai/blob/main/packages/"
_LIVE: Final = f"{_PYDANTIC}profiles/openai.py"
_CLAUDE_DOCS: Final = "https://platform.claude.com/docs/en/"
_CLAUDE: Final = f"{_CLAUDE_DOCS}about-claude/models/overview; {_CLAUDE_DOCS}build-with-claude/effort"
_GROK: Final = f"{_PYDANTIC}profiles/grok.py"
_GEMINI: Final = "https://ai.google.dev/gemini-api/docs/openai"
_WITHOUT_THINKING: Final = (
    *("llama2*", "llama3*", "qwen2*", "gemma2*", "gemma3*", "phi3*", "mistral", "mistral:*", "mistral-nemo*"),
)
"""Models of Ollama's library that do not think."""
_NO_THINKING: Final = f"{_GH}Gitlawb/openclaude/issues/1371; https://ollama.com/search?c=thinking"
_GEMINI_LEVELS: Final = "https://ai.google.dev/gemini-api/docs/thinking"


def _claude(*names: str) -> tuple[str, ...]:
    """Return the patterns of Claude models; some gateways write a dot into the version."""
    return tuple(f"*claude-{one}*" for name in names for one in (name, f"{name[:-2]}.{name[-1]}"))


# fmt: off
KNOWN: Final[Sequence[Known]] = (
    # Models, wherever they run.
    Known("", _OPENAI, ("*gpt-3.5*", "*gpt-4", "*gpt-4-*"), {"efforts": (), "max_output_tokens": 4096},
          f"{_GH}ChatGPTNextWeb/NextChat/issues/3195"),
    Known("", _OPENAI, ("*gpt-4", "*gpt-4-0*"), {"max_output_tokens": 8192}, _OPENAI_MODELS),
    Known("", _OPENAI, ("*gpt-4o*", "*chatgpt-4o*", "*gpt-5-chat*"),
          {"efforts": (), "max_output_tokens": 16_384},
          f"{_GH}enoch3712/ExtractThinker/issues/346; {_LIVE}"),
    Known("", _OPENAI, ("*gpt-4o-2024-05-13",), {"max_output_tokens": 4096},
          f"{_GH}diffbot/code-gpt-docs/issues/284"),
    Known("", _OPENAI, ("*gpt-4.1*",), {"efforts": (), "max_output_tokens": 32_768},
          "https://vercel.com/ai-gateway/models/gpt-4.1-fast"),
    Known("", _OPENAI, ("o1*", "*/o1*", "o3*", "*/o3*", "o4-mini*", "*/o4-mini*"),
          {"limit_field": _NEW, "max_output_tokens": 100_000, "efforts": _TO_HIGH, "sampling": (),
           "without": ("parallel_tool_calls",)},
          f"{_OPENAI_MODELS}; {_GH}defog-ai/defog/pull/171; {_GH}langchain4j/langchain4j/issues/3258"),
    Known("", _OPENAI, ("*o1-mini*", "*o1-preview*"), {"efforts": ()},
          f"{_GH}BerriAI/litellm/issues/11819; unverified: o1-preview"),
    Known("", _OPENAI,
          ("gpt-5", "*/gpt-5", "*gpt-5-mini*", "*gpt-5-nano*", "*gpt-5-2*", "*gpt-5-pro*", "*gpt-5-codex*"),
          {"limit_field": _NEW, "max_output_tokens": 128_000, "efforts": ("minimal", *_TO_HIGH),
           "sampling": ()},
          f"{_OPENAI_MODELS}; {_GH}microsoft/vscode/issues/301045; {_LIVE}"),
    Known("", _OPENAI, ("*gpt-5-pro*",), {"efforts": ("high",), "max_output_tokens": 272_000},
          f"{_OPENAI_EFFORTS}; {_OPENAI_MODELS}/gpt-5-pro"),
    Known("", _OPENAI, ("*gpt-5-codex*", "*gpt-5.*-codex*"), {"efforts": _TO_HIGH},
          f"{_GH}openai/codex/issues/6647"),
    Known("", _OPENAI, ("*gpt-5.*", "*gpt-6*"), {"limit_field": _NEW, "max_output_tokens": 128_000},
          f"{_OPENAI_MODELS}; unverified: gpt-6"),
    Known("", _OPENAI, ("*gpt-5.1", "*gpt-5.1-2*"), {"efforts": ("none", *_TO_HIGH)},
          f"{_GH}CortexReach/memory-lancedb-pro/issues/201"),
    Known("", _OPENAI, ("*gpt-5.1-codex-max*", "*gpt-5.2-codex*"), {"efforts": _TO_XHIGH}, _OPENAI_EFFORTS),
    Known("", _OPENAI, ("*gpt-5.1-codex-max*",), {"without": ("output.verbosity",)},
          f"{_GH}openai/codex/issues/9035"),
    Known("", _OPENAI,
          tuple(f"*gpt-5.{n}{end}" for n in (2, 3, 4, 5) for end in ("", "-2*", "-mini*", "-nano*")),
          {"efforts": ("none", *_TO_XHIGH)}, f"{_OPENAI_EFFORTS}; {_LIVE}"),
    Known("", _OPENAI, ("*gpt-5.3-codex*",), {"efforts": ("none", *_TO_XHIGH)}, _LIVE),
    Known("", _OPENAI, ("*gpt-5.6*",), {"efforts": ("none", *_TO_MAX)},
          f"{_GH}QwenLM/qwen-code/pull/11295; {_GH}aebrer/dreb/pull/481"),
    Known("", _OPENAI, ("*gpt-5.*-pro*",), {"efforts": ("medium", "high", "xhigh")},
          f"{_GH}openclaw/openclaw/pull/30946; {_GH}router-for-me/CLIProxyAPI/pull/2916"),
    Known("", _OPENAI, ("*gpt-5.*-chat*",),
          {"efforts": ("medium",), "sampling": (), "max_output_tokens": 16_384},
          f"{_GH}Laisky/one-api/issues/285; {_LIVE}; unverified: max_output_tokens"),
    Known("", _OPENAI, ("*gpt-6*",), {"efforts": _TO_MAX},
          f"{_GH}QwenLM/qwen-code/pull/11295; {_GH}The-PR-Agent/pr-agent/pull/3259"),
    Known("", _OPENAI, ("*gpt-oss*",), {"efforts": _TO_HIGH}, "https://huggingface.co/openai/gpt-oss-20b"),
    Known("", ("ollama",), _ALL, {"efforts": ("none", *_TO_HIGH, "max")},
          f"{_GH}ollama/ollama/blob/main/api/types.go"),
    Known("", ("ollama",), ("*gpt-oss*",), {"efforts": _TO_HIGH},
          f"{_GH}ollama/ollama/blob/main/docs/capabilities/thinking.mdx"),
    Known("", ("ollama",), _WITHOUT_THINKING, {"efforts": ()}, _NO_THINKING),
    Known("", _MESSAGES, _ALL, {"efforts": ("none", *_TO_MAX), "user_chars": 256},
          f"{_CLAUDE_DOCS}api/messages"),
    Known("", _MESSAGES, ("*claude-*",), {"max_output_tokens": 128_000, "efforts": _TO_MAX, "sampling": ()},
          _CLAUDE),
    Known("", _MESSAGES, ("*claude-3-*", "*claude-3.*"),
          {"max_output_tokens": 4096, "efforts": (), "sampling": None}, _CLAUDE),
    Known("", _MESSAGES, ("*claude-3-5-*", "*claude-3.5-*"), {"max_output_tokens": 8192},
          f"{_GH}olimorris/codecompanion.nvim/issues/1028"),
    Known("", _MESSAGES, ("*claude-3-7-*", "*claude-3.7-*"), {"max_output_tokens": 64_000}, _CLAUDE),
    Known("", _MESSAGES, ("*claude-opus-4*", "*claude-sonnet-4*", "*claude-haiku-4*", "*claude-4-*"),
          {"max_output_tokens": 64_000, "efforts": (), "sampling": None},
          f"{_GH}UKGovernmentBEIS/inspect_ai/pull/2675; {_GH}Oaklight/llm-rosetta/pull/289"),
    Known("", _MESSAGES,
          ("*claude-opus-4", "*claude-4-opus*", "*claude-opus-4-2025*", "*claude-opus-4@2025*",
           *_claude("opus-4-0", "opus-4-1")),
          {"max_output_tokens": 32_000}, f"{_GH}UKGovernmentBEIS/inspect_ai/pull/2675"),
    Known("", _MESSAGES, _claude("opus-4-5"), {"efforts": ("none", *_TO_HIGH)}, _CLAUDE),
    Known("", _MESSAGES, _claude("opus-4-6", "sonnet-4-6"),
          {"max_output_tokens": 128_000, "efforts": ("none", *_TO_HIGH, "max")}, _CLAUDE),
    Known("", _MESSAGES, _claude("opus-4-7", "opus-4-8"),
          {"max_output_tokens": 128_000, "efforts": ("none", *_TO_MAX), "sampling": ()}, _CLAUDE),
    Known("", _MESSAGES, ("*claude-opus-5*", "*claude-sonnet-5*", *_claude("haiku-5-5")),
          {"efforts": ("none", *_TO_MAX)}, f"{_CLAUDE}; {_GH}NousResearch/hermes-agent/pull/90948"),
    Known("", _MESSAGES, _claude("opus-5-5"), {"efforts": _TO_MAX}, _CLAUDE),
    # Providers.
    Known("openai", _CHAT, _ALL,
          {"limit_field": _NEW, "reasoning_field": "", "max_tools": 128, "call_id_chars": 40},
          f"{_OPENAI_DOCS}api-reference/chat/create; {_GH}langmanus/langmanus/issues/119 (ids of calls)"),
    Known("openai", ("responses",), _ALL, {"max_tools": 128},
          f"{_OPENAI_DOCS}api-reference/responses/create; {_GH}whoz-oss/coday/issues/220"),
    Known("azure", _CHAT, _ALL,
          {"limit_field": _NEW, "reasoning_field": "", "max_tools": 128, "call_id_chars": 40},
          "https://learn.microsoft.com/azure/ai-services/openai/quotas-limits; "
          f"{_GH}BerriAI/litellm/issues/8855 (old deployments want max_tokens); unverified: ids of calls"),
    Known("mistral", _CHAT, _ALL,
          {"efforts": (), "user_chars": 0, "sampling": _PLAIN_SAMPLING, "reasoning_field": "",
           "call_id_chars": 9, "without": ("service.store", "service.cache_retention", "service.tier",
                       "service.safety_identifier", "output.verbosity", "stream_usage", "stream_padding")},
          f"{_GH}mistralai/client-python (ChatCompletionRequest of mistralai 2.5.0); "
          f"{_GH}editor-code-assistant/eca/issues/231 (422 for an unknown field); "
          f"{_GH}charmbracelet/crush/issues/1590; {_GH}mistralai/mistral-vibe/issues/1075 (ids of calls)"),
    Known("mistral", _CHAT,
          ("*mistral-small-latest*", "*mistral-small-2603*", "*mistral-medium-2604*", "*mistral-medium-3",
           "*mistral-medium-3.5*", "*mistral-medium-3-5*", "*magistral-small-latest*"),
          {"efforts": ("none", "high")},
          f"{_GH}anomalyco/models.dev/pull/1986; https://docs.mistral.ai/capabilities/reasoning/adjustable"),
    Known("mistral", _CHAT, ("*mistral-large-4*",), {"efforts": _TO_HIGH},
          "https://docs.mistral.ai/inference/conversations/reasoning; unverified: high and other levels"),
    Known("mistral", _CHAT, ("*glm-5*",), {"efforts": ("none", "high")},
          f"{_GH}vercel/ai/issues/20587; unverified: none"),
    Known("deepseek", _CHAT, _ALL,
          {"efforts": ("minimal", *_TO_MAX), "sampling": _PLAIN_SAMPLING, "result_images": False,
           "max_tools": 128, "user_chars": 0, "without": (*_UNREAD, "parallel_tool_calls")},
          "https://api-docs.deepseek.com/guides/thinking_mode; "
          f"{_VERCEL}deepseek/src/chat/deepseek-chat-language-model.ts; "
          f"{_GH}rikkahub/rikkahub/issues/1433 (images); unverified: max_tools, fields that are ignored"),
    Known("moonshot", _CHAT, _ALL,
          {"limit_field": _NEW, "efforts": (), "max_tools": 128, "schema_without": ("$ref",)},
          f"{_GH}MoonshotAI/kimi-cli/blob/main/packages/kosong/src/kosong/chat_provider/kimi.py; "
          f"{_GH}farion1231/cc-switch/issues/4618; unverified: max_tools"),
    Known("moonshot", _CHAT, ("*kimi-k2.*", "*kimi-k2-thinking*", "*kimi-for-coding*"),
          {"efforts": ("minimal", *_TO_HIGH), "sampling": ()},
          f"{_GH}Kilo-Org/cloud/pull/3807; {_PYDANTIC}providers/moonshotai.py; "
          f"{_GH}QuantumNous/new-api/issues/5372"),
    Known("moonshot", _CHAT, ("*kimi-k3*",), {"efforts": ("low", "high", "max"), "sampling": ()},
          f"{_VERCEL}moonshotai/src/moonshotai-chat-options.ts; {_GH}Devin-AXIS/AINO/pull/223"),
    Known("groq", _CHAT, _ALL,
          {"limit_field": _NEW, "efforts": (), "reasoning_field": "", "max_tools": 128,
           "sampling": ("temperature", "top_p", "seed"),
           "without": (*_STORED, "service.safety_identifier", "output.verbosity", "stream_padding")},
          "CompletionCreateParams of groq 1.6.0; https://console.groq.com/docs/openai; "
          f"{_GH}fanenr/chatbot/issues/21 (400 for an unknown field)"),
    Known("groq", _CHAT, ("*gpt-oss*",), {"efforts": _TO_HIGH, "reasoning_field": "reasoning"},
          "CompletionCreateParams and ChatCompletionAssistantMessageParam of groq 1.6.0"),
    Known("groq", _CHAT, ("*qwen3*",), {"efforts": ("none",), "reasoning_field": "reasoning"},
          f"CompletionCreateParams of groq 1.6.0; {_GH}iamsrikanthnani/pluely/pull/219"),
    Known("xai", _CHAT, _ALL,
          {"limit_field": _NEW, "sampling": ("temperature", "top_p", "seed"), "max_tools": 200},
          f"{_VERCEL}xai/src/xai-chat-language-model.ts; {_GH}yym68686/uni-api/issues/105; "
          f"{_GH}anomalyco/opencode/issues/28911"),
    Known("xai", ("responses",), _ALL, {"max_tools": 200, "without": ("service.metadata",)},
          f"{_GH}anomalyco/opencode/issues/28911; {_GH}anomalyco/opencode/issues/47496"),
    Known("xai", _OPENAI, ("*grok-4.20*reasoning*", "*grok-code-fast*"), {"efforts": ()},
          f"{_VERCEL}xai/src/supports-reasoning-effort.ts; {_GH}NousResearch/hermes-agent/pull/23435"),
    Known("xai", _OPENAI, ("*grok-3-mini*",), {"efforts": ("low", "high")}, _GROK),
    Known("xai", _OPENAI,
          ("*grok-4.3*", "*grok-latest*", "*grok-4-fast*", "*grok-4-1-fast*", "*grok-4-0709*"),
          {"efforts": ("none", *_TO_HIGH)}, _GROK),
    Known("xai", _OPENAI, ("*grok-4.5*", "*grok-build-latest*"), {"efforts": _TO_HIGH}, _GROK),
    Known("xai", _OPENAI, ("*grok-4.6*",), {"efforts": _TO_XHIGH}, f"{_GH}mnfst/modelparams.dev/pull/330"),
    Known("google", _CHAT, _ALL,
          {"efforts": ("none", *_TO_HIGH), "reasoning_field": "",
           "sampling": ("temperature", "top_p", "presence_penalty"),
           "without": _UNREAD},
          f"{_GEMINI}; {_GH}Vali-98/ChatterUI/issues/227; {_GH}ed-donner/agents/issues/45; "
          "unverified: service.tier, output.verbosity, stream_padding"),
    Known("google", _CHAT, ("*gemini-2.5-pro*",), {"efforts": _TO_HIGH},
          f"{_GEMINI_LEVELS}; {_GH}earendil-works/pi/issues/3460"),
    Known("google", _CHAT, ("*gemini-3*",), {"efforts": _TO_HIGH},
          f"{_GEMINI_LEVELS}; {_GH}agentjido/req_llm/issues/971"),
    Known("google", _CHAT, ("*gemini-3-flash*", "*gemini-3.5-flash*", "*gemini-3.6-flash*"),
          {"efforts": ("minimal", *_TO_HIGH)},
          f"{_GH}BerriAI/litellm-docs/pull/1505; {_GH}withceleste/celeste-python/pull/292"),
    Known("google", _CHAT, ("*gemini-1*", "*gemini-2.0*"), {"efforts": ()}, f"{_GEMINI_LEVELS}; unverified"),
    Known("openrouter", _CHAT, _ALL,
          {"efforts": ("none", "minimal", *_TO_MAX), "reasoning_field": "reasoning",
           "sampling": _LOCAL_SAMPLING, "user_chars": 128},
          "https://openrouter.ai/docs/client-sdks/typescript/models/chatrequestreasoningeffort; "
          f"{_GH}ujisati/claude-code-provider-proxy/pull/11; "
          "https://openrouter.ai/docs/use-cases/reasoning-tokens; "
          f"https://openrouter.ai/docs/api_reference/parameters; {_GH}OpenRouterTeam/ai-sdk-provider"),
    Known("ollama", _CHAT, _ALL,
          {"efforts": ("none", *_TO_HIGH, "max"), "reasoning_field": "reasoning", "sampling": _SEEDED,
           "user_chars": 0, "without": (*_UNREAD, "parallel_tool_calls")},
          f"{_GH}ollama/ollama/blob/main/openai/openai.go; "
          f"{_GH}ollama/ollama/blob/main/docs/api/openai-compatibility.mdx"),
    Known("ollama", _CHAT, _WITHOUT_THINKING, {"efforts": ()}, _NO_THINKING),
    Known("llama.cpp", _CHAT, _ALL,
          {"efforts": ("none", "minimal", *_TO_MAX), "sampling": _LOCAL_SAMPLING, "user_chars": 0,
           "without": _UNREAD},
          f"{_GH}ggml-org/llama.cpp/blob/master/tools/server/server-task.cpp; "
          f"{_GH}ggml-org/llama.cpp/pull/26941 (before, efforts but none are ignored)"),
    Known("vllm", _CHAT, _ALL,
          {"efforts": ("none", "minimal", *_TO_MAX), "sampling": _LOCAL_SAMPLING,
           "reasoning_field": "reasoning", "user_chars": 0, "without": _UNREAD},
          f"{_GH}vllm-project/vllm/blob/main/vllm/entrypoints/openai/chat_completion/protocol.py; "
          f"{_GH}vllm-project/vllm/issues/38488"),
    Known("lmstudio", _CHAT, _ALL,
          {"efforts": (), "sampling": (*_SEEDED, "top_k", "logit_bias"), "user_chars": 0, "without": _UNREAD},
          "https://lmstudio.ai/docs/developer/openai-compat/chat-completions; "
          f"{_GH}lmstudio-ai/lmstudio-bug-tracker/issues/988 (an effort is ignored); "
          "unverified: sampling, other fields that are ignored"),
    Known("lmstudio", _CHAT, ("*gpt-oss*", "*gemma-4*", "*qwen3.5*"), {"efforts": _TO_HIGH},
          f"{_GH}lmstudio-ai/lmstudio-bug-tracker/issues/2195; unverified: gpt-oss"),
)
# fmt: on


def provider_at(base_url: str) -> str:
    """Return the provider at an address, a key of :data:`PROVIDERS`; empty for one that is not known."""
    parts = urlsplit(base_url)
    place = (parts.hostname or "").lower()
    placed = f"{place}:{parts.port}" if parts.port else place
    return next(
        (
            name
            for name, hosts in PROVIDERS.items()
            for host in hosts
            if fits(place, host) or fits(placed, host)
        ),
        "",
    )


@lru_cache(maxsize=256)
def _known(provider: str, wire: str, model: str) -> Profile:
    profile = Profile()
    for row in KNOWN:
        if (
            row.provider in ("", provider)
            and wire in row.wires
            and any(fits(model, one) for one in row.models)
        ):
            profile = profile.changed(row.facts)
    return profile


declare_lru("model_profiles", _known, 3000)


def known_profile(wire: str, model: str, provider: str = "") -> Profile:
    """Return what is known of a model that is asked in the dialect ``wire``."""
    return _known(provider, wire, model.lower()[-_LONGEST_NAME:])


class UpstreamProfiles(Struct, frozen=True):
    """The profiles of one upstream's models.

    ``settings`` are what the configuration says of all its models, ``per_model`` of those that fit a pattern,
    the first of which applies. Each has the fields of a :class:`~proxy.wires.profile.Profile` that it sets.
    """

    provider: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    per_model: Sequence[tuple[str, Mapping[str, object]]] = ()

    def of(self, wire: str, model: str) -> Profile:
        """Return what a model takes that is asked in the dialect ``wire``."""
        known = known_profile(wire, model, self.provider)
        if not self.per_model and not self.settings:
            return known
        theirs = next((facts for pattern, facts in self.per_model if fits(model, pattern)), {})
        if not (self.settings or theirs):
            return known
        return replace(known, **{**self.settings, **theirs})  # type: ignore[arg-type]  # They are checked.
