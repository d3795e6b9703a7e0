"""The settings that can differ between the models of an upstream."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from proxy.server.config.types import Section, setting_fault

__all__ = ["ModelConfig", "ModelTable", "TextCallForm"]


def check_model_patterns(values: dict[str, Any]) -> dict[str, Any]:
    """Check the keys of a table, which are patterns of models' names."""
    for pattern in values:
        if not pattern.strip() or len(pattern) > 200:
            raise setting_fault(
                f"{pattern[:80]!r} is not a model name; write a name, with * for any part of it"
            )
    return values


TextCallForm = Literal[
    "off", "auto", "seed", "hermes", "qwen-xml", "llama3", "mistral", "deepseek", "dsml", "kimi", "glm",
    "harmony", "minimax", "cohere",
]  # fmt: skip
"""The form in which models write tool calls into their text."""


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


ModelTable = Annotated[dict[str, ModelConfig], AfterValidator(check_model_patterns)]
"""Settings of some models, by patterns of their names."""
