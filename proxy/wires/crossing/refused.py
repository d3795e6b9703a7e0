"""Reads from an upstream's refusal which part of a translated request its model does not take.

Only the text of the error says so. Examples, each of a provider:

* OpenAI: ``Unsupported parameter: 'reasoning_effort' is not supported with this model.``; ``max_tokens is too
  large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.``;
  ``Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. Supported values are:
  'low', 'medium', and 'high'.``; ``Invalid 'user': string too long. Expected a string with maximum length
  64``
* Mistral and vLLM: ``body.max_completion_tokens: Extra inputs are not permitted``
* Anthropic: ``This model does not support the effort parameter.``; ``max_tokens: 64000 > 32000, which is the
  maximum allowed number of output tokens for claude-opus-4-1``
* Google: ``Invalid JSON payload received. Unknown name "store": Cannot find field.``
* Groq: ``property 'metadata' is unsupported``; xAI: ``Model grok-4 does not support parameter
  reasoningEffort.``; Ollama: ``"llama3.2" does not support thinking``; Kimi: ``invalid temperature: only 1
  is allowed for this model``; Gemini: ``Thinking level MINIMAL is not supported for this model``
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Final

from msgspec import Struct

from proxy.base.conversation import ASPECT_DEFAULTS, Conversation, Image, ToolResultPart
from proxy.wires.crossing.tables import FieldTable
from proxy.wires.profile import EFFORTS, HINTS, PORTABLE_EFFORTS, LimitField, Profile
from proxy.wires.turn.refused_fields import UNSUPPORTED
from proxy.wires.turn.result_images import takes_no_images

_LIMIT: Final = "output.max_tokens"
_BOUND: Final = re.compile(r"maximum|at most|less than|<=?|range|exceed|too large|> ?\d", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?<![\w.-])\d{1,3}(?:,\d{3})+(?![\w-])|(?<![\w.-])\d{2,9}(?![\w-])")
_WINDOW: Final = re.compile(r"maximum context length is (\d{2,9})", re.IGNORECASE)
_INPUT: Final = re.compile(r"(\d{1,9}) (?:input tokens|in the messages|tokens from the input)", re.IGNORECASE)
_LEVELS: Final = re.compile(rf"['\"`]({'|'.join(EFFORTS)})['\"`]")
_CHOICES: Final = re.compile(
    r"supported values|must be (?:one of|(?=[\"']))|expected one of|input should be", re.IGNORECASE
)
_BESIDE: Final = re.compile(
    r"deprecated|cannot both|may only be set|only supported (with|when)|only \S+ is allowed", re.IGNORECASE
)
"""Words about a setting that the model does not take, or does not take beside another one."""
_PLACED: Final = re.compile(r"\b(messages|input)\W{1,4}\d")
"""The place of a message: then the error is about its content."""
_OF_MODEL: Final = re.compile(r"\b(?:for|with|by) this model\b", re.IGNORECASE)
_ALSO: Final = {
    "think": ("thinking",),
    "reasoning_effort": ("thinking level", "reasoning value"),
    "max_tokens": ("requested output tokens",),
}
"""Other names that a server has for a field: Ollama says that a model does not support thinking, and names an
effort a reasoning value; Gemini says thinking level, and vLLM which tokens were requested."""
_MOST_CHARS: Final = 1000
_LEAST: Final = 16
"""The smallest token limit that a refusal may set."""
_LENGTH: Final = re.compile(r"maximum length (?:of )?(\d{1,4})|at most (\d{1,4}) char", re.IGNORECASE)
_BARE: Final = frozenset({"effort", "thinking", "temperature", "verbosity"})
"""Names that mean a field of a request even outside of quotes."""


class Refusal(Struct, frozen=True):
    """What a refusal shows: the ``profile`` of the model with it.

    ``lasts`` says that it holds for other requests of the same model, too.
    """

    profile: Profile
    lasts: bool = True


def after_refusal(message: str, asked: Conversation, profile: Profile, table: FieldTable) -> Refusal | None:
    """Return what an error message shows about a request that was written from ``asked``; ``None`` for
    nothing.

    ``table`` are the fields of the upstream's dialect. A value that the client got wrong is its own fault,
    so a setting of sampling is left out only if the model does not take it.
    """
    said = message[:_MOST_CHARS]
    if _PLACED.search(said):
        return None
    for aspect in (_LIMIT, *HINTS):
        if not (_is_sent(asked, aspect) and any(_is_named(said, name) for name in _fields(aspect, table))):
            continue
        is_limit = aspect == _LIMIT
        found = _limited(said, asked, profile, table) if is_limit else _without(aspect, said, asked, profile)
        if found is not None and found.profile != profile:
            return found
    about_images = "image" in said.lower() and takes_no_images(said, None)
    if about_images and profile.result_images and _has_result_images(asked):
        return Refusal(replace(profile, result_images=False))
    return None


def _is_sent(asked: Conversation, aspect: str) -> bool:
    """Return whether a body has this aspect. The proxy adds some: a limit, and the wish for usage."""
    if aspect == _LIMIT:
        return True
    if aspect == "stream_usage":
        return asked.stream
    value = attrgetter(aspect)(asked)
    return value is not None and value != ASPECT_DEFAULTS.get(aspect, ())


def _fields(aspect: str, table: FieldTable) -> Iterator[str]:
    """Yield the names that a dialect's fields for an aspect have in errors."""
    for path, rule in table.read.items():
        if aspect in rule.to:
            yield path
            yield from _ALSO.get(path, ())
            last = path.rpartition(".")[2]
            if "_" in last or last in _BARE:
                yield last


def _is_named(said: str, name: str) -> bool:
    """Return whether a name stands in a text as a field's: in quotes, in a path, or made of several words."""
    spelled = "_?".join(map(re.escape, name.split("_")))
    if "_" in name or " " in name or name in _BARE:
        return re.search(rf"(?<![a-z]){spelled}(?![a-z])", said, re.IGNORECASE) is not None
    return re.search(rf"[\"'`.]{spelled}(?=[\"'`.:\[])", said) is not None


def _limited(said: str, asked: Conversation, profile: Profile, table: FieldTable) -> Refusal | None:
    """Learn the maximum of the token limit, or that its field has the other name."""
    other: LimitField = "max_tokens" if profile.limit_field != "max_tokens" else "max_completion_tokens"
    renamed = Refusal(replace(profile, limit_field=other)) if table.dialect == "chat" else None
    if re.search(rf"use ['\"`]?{other}['\"`]? instead", said, re.IGNORECASE):
        return renamed
    limits = (asked.output.max_tokens, profile.max_output_tokens)
    limit = min((limit for limit in limits if limit is not None), default=0)
    window, used = _WINDOW.search(said), _INPUT.search(said)
    if window and used:
        # How much fits beside this conversation says nothing about the next one.
        room = int(window[1]) - int(used[1])
        return Refusal(replace(profile, max_output_tokens=room), lasts=False) if 0 < room < limit else None
    if _BOUND.search(said) and not window:
        most = max((n for n in map(_whole, _NUMBER.findall(said)) if n < limit), default=0)
        if most >= _LEAST:
            return Refusal(replace(profile, max_output_tokens=most))
    return renamed if UNSUPPORTED.search(said) else None


def _whole(digits: str) -> int:
    return int(digits.replace(",", ""))


def _without(aspect: str, said: str, asked: Conversation, profile: Profile) -> Refusal | None:
    """Learn that an aspect is not taken, or which of its values are."""
    is_unknown = UNSUPPORTED.search(said) is not None
    if aspect == "reasoning.effort":
        return _other_effort(said, profile.effort(asked.reasoning.effort or ""), profile, lasts=is_unknown)
    if aspect in ("service.user", "service.safety_identifier") and not is_unknown:
        length = _LENGTH.search(said)
        most = int(length[1] or length[2]) if length else 0
        return Refusal(replace(profile, user_chars=min(most, profile.user_chars)), lasts=most > 0)
    if aspect.startswith("sampling.") and not (is_unknown or _BESIDE.search(said)):
        return None
    lasts = is_unknown or _OF_MODEL.search(said) is not None
    return Refusal(profile.changed({"without": (aspect,)}), lasts=lasts)


def _other_effort(said: str, sent: str | None, profile: Profile, *, lasts: bool) -> Refusal | None:
    if sent is None:
        return None
    choices = _CHOICES.search(said)
    named = _LEVELS.findall(said, choices.end()) if choices else ()
    taken = tuple(level for level in EFFORTS if level in named and level != sent)
    if taken:
        return Refusal(replace(profile, efforts=taken))
    one_level = sent == "none" or re.search(rf"thinking level {sent}\b", said, re.IGNORECASE)
    known = profile.efforts if profile.efforts is not None else PORTABLE_EFFORTS if sent != "none" else ()
    rest = tuple(level for level in known if level not in ("none", sent)) if one_level else ()
    return Refusal(replace(profile, efforts=rest), lasts=lasts)


def _has_result_images(asked: Conversation) -> bool:
    return any(
        isinstance(part, ToolResultPart) and any(isinstance(inner, Image) for inner in part.parts)
        for message in asked.messages
        for part in message.parts
    )
