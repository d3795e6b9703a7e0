"""Fits what a translated request asks for to what the upstream's model takes."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from proxy.base.conversation import ASPECT_DEFAULTS, Conversation, Message, Text, ToolResultPart
from proxy.wires.crossing.ledger import Ledger, shortened
from proxy.wires.profile import SAMPLING, Profile

_USERS: Final = ("service.user", "service.safety_identifier")
_ANSWER_WITH_JSON: Final = Message("system", (Text("Answer with JSON."),))
_LACKS: Final = "The upstream's model does not take it."


def fitted(conversation: Conversation, profile: Profile, ledger: Ledger) -> Conversation:
    """Return the conversation without what the model does not take; the ledger records each difference.

    Raises :class:`RequestError` with status 400 for a token limit below 1, and, if the ledger
    is strict, for everything that is left out.
    """
    for aspect in _lacking(profile):
        conversation = _left_out(conversation, aspect, ledger)
    return _capped(
        _with_effort(_with_short_users(conversation, profile, ledger), profile, ledger), profile, ledger
    )


def with_word_json(conversation: Conversation) -> Conversation:
    """Return the conversation with a system message that asks for JSON, if an answer in JSON is wanted.

    It stays the same if a message has the word already. OpenAI, DeepSeek and Groq refuse
    ``json_object`` otherwise (https://platform.openai.com/docs/guides/structured-outputs).
    """
    form = conversation.output.format
    if form is None or form.kind != "json_object":
        return conversation
    if any("json" in text.lower() for text in _texts((*conversation.system, *conversation.messages))):
        return conversation
    return replace(conversation, system=(*conversation.system, _ANSWER_WITH_JSON))


def _texts(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        for part in message.parts:
            for inner in part.parts if isinstance(part, ToolResultPart) else (part,):
                if isinstance(inner, Text):
                    yield inner.text


def with_aspect(conversation: Conversation, aspect: str, value: object) -> Conversation:
    """Return the conversation with another value of an aspect (:data:`~proxy.base.conversation.ASPECTS`)."""
    holder, _, name = aspect.rpartition(".")
    if not holder:
        return replace(conversation, **{name: value})  # type: ignore[arg-type]  # The name is an aspect.
    changes: dict[str, Any] = {holder: replace(getattr(conversation, holder), **{name: value})}
    return replace(conversation, **changes)


def _lacking(profile: Profile) -> list[str]:
    found = list(profile.without)
    if profile.sampling is not None:
        found += [f"sampling.{name}" for name in SAMPLING if name not in profile.sampling]
    if profile.user_chars == 0:
        found += _USERS
    if profile.efforts == ():
        found.append("reasoning.summary")
    return found


def _left_out(conversation: Conversation, aspect: str, ledger: Ledger) -> Conversation:
    value = attrgetter(aspect)(conversation)
    if value is None:
        return conversation
    if value != ASPECT_DEFAULTS.get(aspect, ()) and not aspect.startswith("stream_"):
        ledger.omit(ledger.name_of(aspect), _LACKS)
    return with_aspect(conversation, aspect, False if aspect == "stream_usage" else None)


def _with_effort(conversation: Conversation, profile: Profile, ledger: Ledger) -> Conversation:
    """Ask for the nearest effort that the model takes."""
    asked = conversation.reasoning.effort
    if asked is None:
        return conversation
    effort = profile.effort(asked)
    if effort is None and (asked != "none" or profile.efforts != ()):
        ledger.omit(ledger.name_of("reasoning.effort"), _LACKS)
    elif effort not in (None, asked):
        ledger.change(
            ledger.name_of("reasoning.effort"), f"The nearest effort that the model takes is {effort}."
        )
    return with_aspect(conversation, "reasoning.effort", effort)


def _with_short_users(conversation: Conversation, profile: Profile, ledger: Ledger) -> Conversation:
    """Send a digest of an id that is too long; the same user always has the same one."""
    for aspect in _USERS:
        user = attrgetter(aspect)(conversation)
        if user and len(user) > profile.user_chars:
            ledger.change(ledger.name_of(aspect), f"The upstream takes {profile.user_chars} characters.")
            conversation = with_aspect(conversation, aspect, shortened(user, profile.user_chars))
    return conversation


def _capped(conversation: Conversation, profile: Profile, ledger: Ledger) -> Conversation:
    asked, most = conversation.output.max_tokens, profile.max_output_tokens
    if asked is None:
        return conversation
    if asked < 1:
        raise ledger.refuse(ledger.name_of("output.max_tokens"), "Write at least 1, or leave it out.")
    if most is None or asked <= most:
        return conversation
    ledger.change(ledger.name_of("output.max_tokens"), f"The model gives at most {most} tokens.")
    return with_aspect(conversation, "output.max_tokens", most)
