"""What known providers and models take of a translated request, as one table.

Every row that fits applies, a later one over an earlier one: first what is true of a model wherever it runs,
then what is true of a provider, then a provider's own models.  What a row does not know, the proxy learns
from the upstream's refusals, and the configuration can say (``upstreams.NAME.profile``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from proxy.caches import declare_lru
from proxy.globs import fits
from proxy.wires.profile import Profile

__all__ = ["KNOWN", "PROVIDERS", "Known", "UpstreamProfiles", "known_profile", "provider_at"]

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
"""Provider → where it is reached: hosts, or ports of servers that run anywhere.  Servers that have no port of
their own are named in the configuration."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of some models: ``facts`` are fields of :class:`~proxy.wires.profile.Profile`.

    ``provider`` is a key of :data:`PROVIDERS`, empty for all.  ``wires`` are the dialects that it holds for.
    ``models`` are patterns of names in lower case.  ``source`` says where it is written.
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
_OPENAI_MODELS: Final = "OpenAI: Models; Guides, Reasoning"
_CLAUDE: Final = "Anthropic: Models overview; Effort; Thinking"
_NEW: Final = "max_completion_tokens"
_TO_HIGH: Final = ("low", "medium", "high")
_TO_MAX: Final = (*_TO_HIGH, "xhigh", "max")
_STORED: Final = ("service.store", "service.metadata", "service.cache_key", "service.cache_retention")
_SERVICE: Final = (*_STORED, "service.tier", "service.safety_identifier")
_PLAIN_SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_SEEDED: Final = (*_PLAIN_SAMPLING, "seed")
_LOCAL_SAMPLING: Final = (*_SEEDED, "top_k", "min_p", "logit_bias")


def _claude(*names: str) -> tuple[str, ...]:
    """Return the patterns of Claude models; some gateways write a dot into the version."""
    return tuple(f"*claude-{one}*" for name in names for one in (name, f"{name[:-2]}.{name[-1]}"))


KNOWN: Final[Sequence[Known]] = (
    # Models, wherever they run.
    Known(
        "",
        _OPENAI,
        ("*gpt-3.5*", "*gpt-4", "*gpt-4-*"),
        {"efforts": (), "max_output_tokens": 4096},
        _OPENAI_MODELS,
    ),
    Known("", _OPENAI, ("*gpt-4", "*gpt-4-0*"), {"max_output_tokens": 8192}, _OPENAI_MODELS),
    Known(
        "",
        _OPENAI,
        ("*gpt-4o*", "*chatgpt-4o*", "*gpt-5-chat*", "*gpt-5.*-chat*"),
        {"efforts": (), "max_output_tokens": 16_384},
        _OPENAI_MODELS,
    ),
    Known("", _OPENAI, ("*gpt-4o-2024-05-13",), {"max_output_tokens": 4096}, _OPENAI_MODELS),
    Known("", _OPENAI, ("*gpt-4.1*",), {"efforts": (), "max_output_tokens": 32_768}, _OPENAI_MODELS),
    Known(
        "",
        _OPENAI,
        ("o1*", "*/o1*", "o3*", "*/o3*", "o4-mini*", "*/o4-mini*"),
        {
            "limit_field": _NEW,
            "max_output_tokens": 100_000,
            "efforts": _TO_HIGH,
            "sampling": (),
            "without": ("parallel_tool_calls",),
        },
        _OPENAI_MODELS,
    ),
    Known(
        "",
        _OPENAI,
        ("gpt-5", "*/gpt-5", "*gpt-5-mini*", "*gpt-5-nano*", "*gpt-5-2*", "*gpt-5-pro*", "*gpt-5-codex*"),
        {
            "limit_field": _NEW,
            "max_output_tokens": 128_000,
            "efforts": ("minimal", *_TO_HIGH),
            "sampling": (),
        },
        _OPENAI_MODELS,
    ),
    Known("", _OPENAI, ("*gpt-5-codex*", "*gpt-5.*-codex*"), {"efforts": _TO_HIGH}, _OPENAI_MODELS),
    Known(
        "",
        _OPENAI,
        ("*gpt-5.*", "*gpt-6*"),
        {"limit_field": _NEW, "max_output_tokens": 128_000},
        _OPENAI_MODELS,
    ),
    Known("", _OPENAI, ("*gpt-5.1", "*gpt-5.1-2*"), {"efforts": ("none", *_TO_HIGH)}, _OPENAI_MODELS),
    Known(
        "",
        _OPENAI,
        tuple(f"*gpt-5.{n}{end}" for n in (2, 4, 5) for end in ("", "-2*", "-mini*", "-nano*")),
        {"efforts": ("none", *_TO_HIGH, "xhigh")},
        _OPENAI_MODELS,
    ),
    Known("", _OPENAI, ("*gpt-oss*",), {"efforts": _TO_HIGH}, "OpenAI: gpt-oss model card"),
    Known("", ("ollama",), _ALL, {"efforts": ("none", *_TO_HIGH, "max")}, "Ollama: Thinking"),
    Known("", ("ollama",), ("*gpt-oss*",), {"efforts": _TO_HIGH}, "Ollama: Thinking"),
    Known(
        "",
        _MESSAGES,
        _ALL,
        {"efforts": ("none", *_TO_MAX), "user_chars": 256},
        "Anthropic: Create a Message, metadata.user_id",
    ),
    Known(
        "",
        _MESSAGES,
        ("*claude-*",),
        {"max_output_tokens": 128_000, "efforts": _TO_MAX, "sampling": ()},
        _CLAUDE,
    ),
    Known(
        "",
        _MESSAGES,
        ("*claude-3-*", "*claude-3.*"),
        {"max_output_tokens": 4096, "efforts": (), "sampling": None},
        _CLAUDE,
    ),
    Known("", _MESSAGES, ("*claude-3-5-*", "*claude-3.5-*"), {"max_output_tokens": 8192}, _CLAUDE),
    Known("", _MESSAGES, ("*claude-3-7-*", "*claude-3.7-*"), {"max_output_tokens": 64_000}, _CLAUDE),
    Known(
        "",
        _MESSAGES,
        ("*claude-opus-4*", "*claude-sonnet-4*", "*claude-haiku-4*", "*claude-4-*"),
        {"max_output_tokens": 64_000, "efforts": (), "sampling": None},
        _CLAUDE,
    ),
    Known(
        "",
        _MESSAGES,
        (
            "*claude-opus-4",
            "*claude-4-opus*",
            "*claude-opus-4-2025*",
            "*claude-opus-4@2025*",
            *_claude("opus-4-0", "opus-4-1"),
        ),
        {"max_output_tokens": 32_000},
        _CLAUDE,
    ),
    Known("", _MESSAGES, _claude("opus-4-5"), {"efforts": ("none", *_TO_HIGH)}, _CLAUDE),
    Known(
        "",
        _MESSAGES,
        _claude("opus-4-6", "sonnet-4-6"),
        {"max_output_tokens": 128_000, "efforts": ("none", *_TO_HIGH, "max")},
        _CLAUDE,
    ),
    Known(
        "",
        _MESSAGES,
        _claude("opus-4-7", "opus-4-8"),
        {"max_output_tokens": 128_000, "efforts": ("none", *_TO_MAX), "sampling": ()},
        _CLAUDE,
    ),
    Known(
        "",
        _MESSAGES,
        ("*claude-opus-5*", "*claude-sonnet-5*", *_claude("haiku-5-5")),
        {"efforts": ("none", *_TO_MAX)},
        _CLAUDE,
    ),
    Known("", _MESSAGES, _claude("opus-5-5"), {"efforts": _TO_MAX}, _CLAUDE),
    # Providers.
    Known(
        "openai",
        _CHAT,
        _ALL,
        {"limit_field": _NEW, "reasoning_field": "", "max_tools": 128, "without": ("service.metadata",)},
        "OpenAI: Create chat completion",
    ),
    Known("openai", ("responses",), _ALL, {"max_tools": 128}, "OpenAI: Create a model response"),
    Known(
        "azure",
        _CHAT,
        _ALL,
        {"limit_field": _NEW, "reasoning_field": "", "max_tools": 128, "without": ("service.metadata",)},
        "Azure OpenAI: REST API reference",
    ),
    Known(
        "mistral",
        _CHAT,
        _ALL,
        {
            "efforts": (),
            "user_chars": 0,
            "sampling": _PLAIN_SAMPLING,
            "reasoning_field": "",
            "without": (*_SERVICE, "output.verbosity", "stream_usage", "stream_padding"),
        },
        "Mistral: Chat completion; it answers every unknown field with 422",
    ),
    Known(
        "deepseek",
        _CHAT,
        _ALL,
        {
            "result_images": False,
            "max_tools": 128,
            "without": (*_SERVICE, "parallel_tool_calls", "output.verbosity", "stream_padding"),
            "user_chars": 0,
        },
        "DeepSeek: Create chat completion; it ignores unknown fields",
    ),
    Known(
        "moonshot",
        _CHAT,
        _ALL,
        {"efforts": (), "max_tools": 128, "schema_without": ("$ref",)},
        "Moonshot: Chat API, Tool use",
    ),
    Known(
        "groq",
        _CHAT,
        _ALL,
        {
            "limit_field": _NEW,
            "efforts": (),
            "reasoning_field": "",
            "max_tools": 128,
            "sampling": _SEEDED,
            "without": _STORED,
        },
        "Groq: OpenAI compatibility; API reference",
    ),
    Known("groq", _CHAT, ("*gpt-oss*",), {"efforts": _TO_HIGH}, "Groq: Reasoning"),
    Known(
        "xai",
        _CHAT,
        _ALL,
        {"limit_field": _NEW, "efforts": (), "sampling": ("temperature", "top_p", "seed")},
        "xAI: Chat completions, Reasoning",
    ),
    Known("xai", _CHAT, ("*grok-3-mini*",), {"efforts": ("low", "high")}, "xAI: Reasoning"),
    Known(
        "google",
        _CHAT,
        _ALL,
        {
            "efforts": ("none", *_TO_HIGH),
            "reasoning_field": "",
            "sampling": _PLAIN_SAMPLING,
            "without": (*_SERVICE, "output.verbosity", "stream_padding"),
        },
        "Google: Gemini API, OpenAI compatibility",
    ),
    Known(
        "google",
        _CHAT,
        ("*gemini-2.5-pro*",),
        {"efforts": _TO_HIGH},
        "Google: OpenAI compatibility, Thinking",
    ),
    Known(
        "google",
        _CHAT,
        ("*gemini-3*",),
        {"efforts": ("minimal", *_TO_HIGH)},
        "Google: OpenAI compatibility, Thinking",
    ),
    Known(
        "google",
        _CHAT,
        ("*gemini-1*", "*gemini-2.0*"),
        {"efforts": ()},
        "Google: OpenAI compatibility, Thinking",
    ),
    Known(
        "openrouter",
        _CHAT,
        _ALL,
        {
            "efforts": ("none", "minimal", *_TO_HIGH, "xhigh"),
            "reasoning_field": "reasoning",
            "sampling": _LOCAL_SAMPLING,
        },
        "OpenRouter: API parameters, Reasoning tokens",
    ),
    Known(
        "ollama",
        _CHAT,
        _ALL,
        {
            "efforts": ("none", *_TO_HIGH),
            "reasoning_field": "reasoning",
            "sampling": _SEEDED,
            "user_chars": 0,
            "without": (*_SERVICE, "parallel_tool_calls", "output.verbosity", "stream_padding"),
        },
        "Ollama: OpenAI compatibility; it ignores unknown fields",
    ),
    Known("llama.cpp", _CHAT, _ALL, {"sampling": _LOCAL_SAMPLING}, "llama.cpp: server README"),
    Known(
        "vllm",
        _CHAT,
        _ALL,
        {"sampling": _LOCAL_SAMPLING, "reasoning_field": "reasoning"},
        "vLLM: OpenAI-compatible server",
    ),
    Known(
        "lmstudio",
        _CHAT,
        _ALL,
        {"sampling": (*_SEEDED, "top_k", "logit_bias"), "user_chars": 0},
        "LM Studio: OpenAI compatibility",
    ),
)


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


@dataclass(frozen=True, slots=True)
class UpstreamProfiles:
    """The profiles of one upstream's models.

    ``settings`` are what the configuration says of all its models, ``per_model`` of those that fit a pattern,
    the first of which applies.  Each has the fields of a :class:`~proxy.wires.profile.Profile` that it sets.
    """

    provider: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    per_model: Sequence[tuple[str, Mapping[str, object]]] = ()

    def of(self, wire: str, model: str) -> Profile:
        """Return what a model takes that is asked in the dialect ``wire``."""
        theirs = next((facts for pattern, facts in self.per_model if fits(model, pattern)), {})
        known = known_profile(wire, model, self.provider)
        if not (self.settings or theirs):
            return known
        return replace(known, **{**self.settings, **theirs})  # type: ignore[arg-type]  # They are checked.
