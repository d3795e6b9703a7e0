"""Which models write calls into their text, in which form, and which have to be told how to."""

from collections.abc import Sequence
from typing import Final, Literal

from proxy.globs import fits
from proxy.values import value_class
from proxy.wires.text_calls.form import Form
from proxy.wires.text_calls.table import FORMS, form_of_model

__all__ = ["ModelTextCalls", "TextCallRules", "TextCalls", "ToolMode"]

ToolMode = Literal["native", "prompt"]
"""Whether a model is given tools in the field for them, or told of them in its prompt."""

_WITHOUT_FORM: Final = "seed"
"""What models that were trained on no form, or on one that nobody knows, are told to write."""


@value_class
class TextCallRules:
    """How one model writes calls.  ``prompt``: it is told of its tools in its prompt."""

    form: Form
    repair: bool = False
    prompt: bool = False


@value_class
class ModelTextCalls:
    """What is set for the models that fit a ``pattern``; ``None`` leaves it to the next that fits.

    ``text_calls`` is ``off``, ``auto``, or the name of a form.
    """

    pattern: str
    text_calls: str | None = None
    repair: bool | None = None
    tools: ToolMode | None = None


class TextCalls:
    """What is set for the models of one upstream: of several entries that fit a model the first that says
    something counts."""

    def __init__(self, entries: Sequence[ModelTextCalls]) -> None:
        self._entries = tuple(entries)

    def __bool__(self) -> bool:
        """Whether any model's text is read."""
        return any(
            entry.tools == "prompt" or entry.text_calls not in (None, "off") for entry in self._entries
        )

    def of(self, model: str) -> TextCallRules | None:
        """What holds for a model, by the upstream's name for it; ``None`` where its text is not read."""
        fitting = [entry for entry in self._entries if fits(model, entry.pattern)]
        said = next((entry.text_calls for entry in fitting if entry.text_calls is not None), None)
        repair = next((entry.repair for entry in fitting if entry.repair is not None), False)
        prompt = next((entry.tools for entry in fitting if entry.tools is not None), "native") == "prompt"
        if said is None:
            said = "auto" if prompt else "off"
        form = form_of_model(model) if said == "auto" else FORMS.get(said)
        if form is None and prompt:
            form = FORMS[_WITHOUT_FORM]
        return TextCallRules(form, repair, prompt) if form is not None else None
