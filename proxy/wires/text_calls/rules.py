"""Decides in which form a model writes calls into its text, and whether its prompt describes tools."""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from proxy.base.globs import fits
from proxy.wires.text_calls.form import Form
from proxy.wires.text_calls.table import FORMS, form_for_model

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
