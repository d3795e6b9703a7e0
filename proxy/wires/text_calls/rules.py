"""Decides in which form a model writes calls into its text, and whether its prompt describes tools."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from proxy.base.globs import fits
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


ToolMode = Literal["native", "prompt"]
"""How a model gets its tools: in the request's field for tools, or described in its prompt."""

_WITHOUT_FORM: Final = "seed"
"""The form for models that were trained on no known form."""


class TextCallRules(Struct, frozen=True):
    """How one model writes calls. ``prompt`` means that its prompt describes the tools."""

    form: Form
    repair: bool = False
    prompt: bool = False


class ModelTextCalls(Struct, frozen=True):
    """The settings for models that fit ``pattern``. ``None`` leaves a setting to the next entry that fits.

    ``text_calls`` is ``off``, ``auto``, or the name of a form.
    """

    pattern: str
    text_calls: str | None = None
    repair: bool | None = None
    tools: ToolMode | None = None


class TextCalls:
    """The settings for the models of one upstream. Of several entries that fit a model, the first with a
    value for a setting decides it."""

    def __init__(self, entries: Sequence[ModelTextCalls]) -> None:
        self._entries = tuple(entries)

    def __bool__(self) -> bool:
        """Return whether the proxy reads the text of any model."""
        return any(
            entry.tools == "prompt" or entry.text_calls not in (None, "off") for entry in self._entries
        )

    def of(self, model: str) -> TextCallRules | None:
        """Return the rules for a model, by the upstream's name for it; ``None`` if its text is not read."""
        fitting = [entry for entry in self._entries if fits(model, entry.pattern)]
        setting = next((entry.text_calls for entry in fitting if entry.text_calls is not None), None)
        repair = next((entry.repair for entry in fitting if entry.repair is not None), False)
        prompt = next((entry.tools for entry in fitting if entry.tools is not None), "native") == "prompt"
        if setting is None:
            setting = "auto" if prompt else "off"
        form = form_for_model(model) if setting == "auto" else FORMS.get(setting)
        if form is None and prompt:
            form = FORMS[_WITHOUT_FORM]
        return TextCallRules(form, repair, prompt) if form is not None else None
