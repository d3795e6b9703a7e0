"""Finds the form in which a model writes its calls, by the form's name or the model's."""

import re
from collections.abc import Mapping
from typing import Final

from proxy.wires.text_calls.form import Form
from proxy.wires.text_calls.formats.marked_json import Cohere, Hermes, Llama, Mistral, Seed
from proxy.wires.text_calls.formats.tagged import Dsml, Glm, MiniMax, QwenXml
from proxy.wires.text_calls.formats.tokens import DeepSeek, Harmony, Kimi

FORMS: Final[Mapping[str, Form]] = {
    form.name: form
    for form in (
        *(Seed(), Hermes(), QwenXml(), Llama(), Mistral(), DeepSeek(), Dsml(), Kimi(), Glm(), Harmony()),
        *(MiniMax(), Cohere()),
    )
}
"""Every form, by its name in settings."""

_FAMILIES: Final = (
    (re.compile(r"r1-distill|coder-0\.5b|llama-?2"), ""),
    (re.compile(r"hermes"), "hermes"),
    (re.compile(r"qwen-?3-coder|qwen-?3\.5|nemotron-3-nano"), "qwen-xml"),
    (re.compile(r"qwen-?2\.5|qwq|qwen-?3|granite"), "hermes"),
    (re.compile(r"glm-(?:4\.[567]|5)"), "glm"),
    (re.compile(r"llama-?3\.[123]"), "llama3"),
    (re.compile(r"mistral|ministral|magistral|devstral|mixtral-8x22b"), "mistral"),
    (re.compile(r"deepseek-v(?:3\.2|4)"), "dsml"),
    (re.compile(r"deepseek-v3|deepseek-r1-0528|cogito-v2"), "deepseek"),
    (re.compile(r"minimax-m2"), "minimax"),
    (re.compile(r"kimi-k2"), "kimi"),
    (re.compile(r"gpt-oss"), "harmony"),
    (re.compile(r"command-[ra](?![a-z])"), "cohere"),
)
"""Patterns of models' names in lower case, and the form of each family. The first match counts."""
_MOST_NAME: Final = 200


def form_for_model(model: str) -> Form | None:
    """Return the form on which a model of this name was trained; ``None`` if the name does not tell."""
    name = model[:_MOST_NAME].lower().replace("_", "-").rpartition("/")[2]
    form_name = next((form for pattern, form in _FAMILIES if pattern.search(name)), "")
    return FORMS.get(form_name)
