"""The settings that can differ between the models of an upstream."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from proxy.config.types import Section, setting_fault
from proxy.wires.profile import HINTS, LimitField
from proxy.wires.providers import PROVIDERS


def check_model_patterns(values: dict[str, Any]) -> dict[str, Any]:
    """Check the keys of a table, which are patterns of models' names."""
    for pattern in values:
        if not pattern.strip() or len(pattern) > 200:
            raise setting_fault(
                f"{pattern[:80]!r} is not a model name; write a name, with * for any part of it"
            )
    return values


def check_provider(name: str) -> str:
    """Check that the table of providers has the name."""
    if name not in PROVIDERS:
        raise setting_fault(f"{name[:80]!r} is not one of: {', '.join(PROVIDERS)}")
    return name


TextCallForm = Literal[
    "off", "auto", "seed", "hermes", "qwen-xml", "llama3", "mistral", "deepseek", "dsml", "kimi", "glm",
    "harmony", "minimax", "cohere",
]  # fmt: skip
"""The form in which models write tool calls into their text."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SamplingName = Literal[
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias",
]  # fmt: skip


def check_hints(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check the names of what a model does not take."""
    for name in values:
        if name not in HINTS:
            raise setting_fault(f"{name[:80]!r} is not one of: {', '.join(HINTS)}")
    return values


class ProfileConfig(Section):
    """What the models of an upstream take of requests of other dialects. What is not set is what the proxy
    knows of the provider and the model. Requests that stay in one dialect are not changed."""

    provider: Annotated[str, AfterValidator(check_provider)] | None = Field(
        default=None,
        description="Whose API it is, if the address does not show it: a provider of docs/dialects.md, such "
        "as vllm or llama.cpp.",
    )
    limit_field: LimitField | None = Field(
        default=None,
        description="Field for the limit of output tokens on Chat: max_tokens or max_completion_tokens.",
    )
    max_output_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Most output tokens of one answer; a client's larger limit is lowered."
    )
    efforts: Annotated[tuple[Effort, ...], Field(strict=False)] | None = Field(
        default=None,
        description="Efforts of reasoning that the models take; another one becomes the nearest of them. "
        "[]: none, for models that do not reason.",
    )
    user_chars: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Most characters of a user's id; a digest replaces a longer one. 0: leave it out.",
    )
    sampling: Annotated[tuple[SamplingName, ...], Field(strict=False)] | None = Field(
        default=None, description="Sampling fields that the models take; others are left out."
    )
    without: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(check_hints)] | None = Field(
        default=None,
        description="What else they do not take, by the names of docs/dialects.md: "
        '["parallel_tool_calls", "service.store"].',
    )
    result_images: bool | None = Field(
        default=None, description="Show the images of tools' results to the model, after the results (Chat)."
    )
    text_lists: bool | None = Field(
        default=None, description="Keep several texts of one message separate, in every role (Chat)."
    )
    reasoning_field: Annotated[str, Field(max_length=64)] | None = Field(
        default=None,
        description="Field in which a model's reasoning goes back with its tool calls (Chat): "
        "reasoning_content or reasoning. Empty: it does not go back.",
    )
    call_id_chars: Annotated[int, Field(ge=0, le=64)] | None = Field(
        default=None,
        description="Most characters of a call's id; a digest replaces a longer one. 9: exactly nine letters "
        "and digits, as Mistral wants. 0: ids that the upstream made go back as they came (Chat).",
    )
    max_tools: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Most tools that a request may offer."
    )
    schema_without: Annotated[tuple[str, ...], Field(strict=False)] | None = Field(
        default=None,
        description="JSON Schema keywords that the upstream refuses in tools; $ref stands for references "
        "outside of $defs.",
    )

    def facts(self) -> dict[str, object]:
        """Return the fields of a :class:`~proxy.wires.profile.Profile` that are set."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields if name != "provider")
        return {name: value for name, value in values if value is not None}


class ModelConfig(Section):
    """Settings for some models of an upstream."""

    text_calls: TextCallForm | None = Field(default=None, description="Replaces text_calls of the upstream.")
    text_calls_repair: bool | None = Field(
        default=None, description="Replaces text_calls_repair of the upstream."
    )
    tools: Literal["native", "prompt"] | None = Field(
        default=None,
        description="native: send tools in the tools field; prompt: describe them in the prompt.",
    )
    profile: ProfileConfig = Field(
        default=ProfileConfig(), description="Replaces what it sets of the upstream's profile."
    )

    @field_validator("profile")
    @classmethod
    def _has_no_provider(cls, profile: ProfileConfig) -> ProfileConfig:
        if profile.provider is not None:
            raise setting_fault("provider holds for the whole upstream; set it in the upstream's profile")
        return profile


ModelTable = Annotated[dict[str, ModelConfig], AfterValidator(check_model_patterns)]
"""Settings of some models, by patterns of their names."""
