"""A client's request whose conversation is a list of messages.

This module has the part that all such dialects have in common: it finds the turns that the client sends back,
recognizes them, and makes the digests under which the proxy keeps hidden turns. Each dialect reads single
messages.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

import orjson

from proxy.base.values import value_class
from proxy.wires.client_port import Answer, ClientRequest, ReturnedCalls
from proxy.wires.past.clock import SystemRule
from proxy.wires.past.evidence import Evidence, Place, Speaker
from proxy.wires.turn.digest import PrefixDigests, conversation_digest, conversation_digests, encoded

JsonMessage = Mapping[str, Any]
"""A message of a request, as parsed JSON."""


@value_class
class MessageListRequest(ClientRequest):
    """A request, of which a dialect reads single messages.

    ``members`` are the names of the body's members. ``dialect_name`` is a part of every digest, so that
    conversations of different dialects are never taken for each other.
    """

    members: Collection[str]
    messages: Sequence[JsonMessage]
    preview: str = ""
    has_proxy_calls: bool = False
    _beginnings: PrefixDigests = field(init=False, repr=False, compare=False)

    dialect_name: ClassVar[str]

    def __post_init__(self) -> None:
        digests = PrefixDigests(self.messages, self._identity, self.speaker, self._spoken)
        object.__setattr__(self, "_beginnings", digests)

    # How a dialect reads one message. These methods belong to the class, because the digests keep them: a
    # request that refers to itself would stay in memory until the next garbage collection.

    @classmethod
    @abstractmethod
    def speaker(cls, message: JsonMessage) -> Speaker:
        """Return who wrote a message."""

    @classmethod
    @abstractmethod
    def _identity(cls, message: JsonMessage) -> list[Any] | None:
        """Return what identifies a message, whichever client library sends it back, as JSON values.

        ``None`` for a message that does not count.
        """

    @classmethod
    @abstractmethod
    def _calls(cls, message: JsonMessage) -> Sequence[tuple[str, Any]]:
        """Return pairs of the client's id of a call (``""`` for none) and the call, in a model's message."""

    @classmethod
    def _has_calls(cls, message: JsonMessage) -> bool:
        """Return whether a model's message has calls."""
        return bool(cls._calls(message))

    @classmethod
    @abstractmethod
    def _text(cls, message: JsonMessage) -> str | None:
        """Return the text of a model's message.

        Return ``""`` if the message has no content, and ``None`` if it has content other than one text.
        """

    @classmethod
    @abstractmethod
    def answered_ids(cls, message: JsonMessage) -> Sequence[str] | None:
        """Return the ids of the calls that a message answers; ``None`` if no results can follow here."""

    @classmethod
    def _spoken(cls, message: JsonMessage) -> str | None:
        """Return the text of a client's message; ``None`` if it has more than text."""
        return cls._text(message)

    def _system_text(self, rule: SystemRule) -> str | None:
        """Return the system prompt that the body has beside the messages, in the form to compare.

        ``None`` if the dialect has it among the messages.
        """
        return None

    @property
    def system_texts(self) -> Sequence[str]:
        # The role is enough here: who spoke may take a look at all of a message.
        said = [one for one in self.messages if one.get("role") in ("system", "developer")]
        texts = [self._spoken(one) or _canonical(self._identity(one)) for one in said] if said else ()
        beside = self._system_text("exact")
        return [text.strip() for text in (beside, *texts) if text] if beside or texts else ()

    # What the client sends back.

    def _model_messages(self) -> Sequence[tuple[int, JsonMessage]]:
        """Return the messages of the model, each with its position."""
        return [(at, message) for at, message in enumerate(self.messages) if self.speaker(message) == "model"]

    def returned_calls(self) -> Sequence[ReturnedCalls]:
        found = []
        for position, message in self._model_messages():
            if ids := frozenset([call_id for call_id, _ in self._calls(message) if call_id]):
                found.append(ReturnedCalls(position, ids))
        return found

    def answers(self) -> Sequence[Answer]:
        found = []
        for position, message in self._model_messages():
            if not self._has_calls(message) and (text := self._text(message)):
                found.append(Answer(position, text))
        return found

    # The digests of the conversation.

    def answer_keys(
        self, caller: str, shape: str, answers: Sequence[tuple[int | None, str]], rule: SystemRule = "clock"
    ) -> list[str]:
        system, digest = self._system_text(rule), self._beginnings.digest
        beside = () if system is None else (system,)
        words = (f"{self.dialect_name} answer", caller, self.people, shape, self.model, *beside)
        return conversation_digests(
            words, [(encoded(text.strip()), digest(upto, rule)) for upto, text in answers]
        )

    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        words = (self.dialect_name, caller, self.people, self.model, *sorted(call_ids))
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def identity_words(self, caller: str) -> tuple[str, ...]:
        return (self.dialect_name, caller, self.people, self.model)

    def places(self, ends: Sequence[int], rule: SystemRule = "clock") -> Iterator[Place | None]:
        system = encoded(self._system_text(rule) or "")
        for end in ends:
            found = self._beginnings.place(end, rule)
            yield found._replace(system=found.system + system) if system and found else found

    def evidence(self, upto: int | None = None, rule: SystemRule = "clock") -> Evidence | None:
        return self._beginnings.evidence(upto, rule, encoded(self._system_text(rule) or ""))


def _canonical(identity: Any) -> str:
    return orjson.dumps(identity, option=orjson.OPT_SORT_KEYS).decode()


class CallsWithIdsRequest(MessageListRequest):
    """A request in a dialect whose calls have ids, which their results repeat."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def _call_identity(cls, call: Any) -> Any:
        """Return the parts of a call, other than its id, that must stay the same; ``None`` if invalid."""

    def used_ids(self) -> frozenset[str]:
        """Return the call ids in the history; a new call must have another id."""
        return frozenset().union(*[dict(self._calls(message)) for _, message in self._model_messages()])

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        message = self.messages[position]
        calls = self._calls(message)
        if not calls:
            return True
        if (text := self._text(message)) != "" and not is_shown(text or ""):
            return False
        made = dict(self._calls(orjson.loads(held["messages"][-1])))
        shown = {call["client_id"]: made.get(call["call_id"]) for call in held["calls"]}
        shown.pop(None, None)
        if len(calls) != len(shown) or not self._answered_once(position + 1, shown):
            return False
        programs = {call["client_id"]: call["made"] for call in held["calls"] if "made" in call}
        return all(
            (identity := self._call_identity(call)) is not None
            and identity == (tuple(programs.get(call_id, ())) or self._call_identity(shown.get(call_id)))
            for call_id, call in calls
        )

    def _answered_once(self, start: int, shown: Collection[str]) -> bool:
        """Return whether the results from a position on belong to these calls alone, at most one to each."""
        answered: list[str] = []
        for at in range(start, len(self.messages)):
            ids = self.answered_ids(self.messages[at])
            if ids is None:
                break
            answered += ids
        return len(set(answered)) == len(answered) and set(answered) <= set(shown)
