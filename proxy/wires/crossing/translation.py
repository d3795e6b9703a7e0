"""Writes the requests of one run for an upstream of another dialect, and learns from its refusals."""

from collections.abc import Collection
from typing import Final

from proxy.base.conversation import Conversation
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.crossing.ledger import Written
from proxy.wires.crossing.reasoning import asks_for_reasoning
from proxy.wires.crossing.refused import after_refusal
from proxy.wires.profile import Profile
from proxy.wires.providers import known_profile

_MOST: Final = 4
"""Learn from no more refusals in a run: a provider names one field at a time."""


class Translation:
    """The requests of one run, written for what the upstream's model takes.

    Without a ``profile`` that is what is known of the model by its name. With ``strict`` nothing may be left
    out, so nothing is learnt either.
    """

    def __init__(self, codec: ConversationCodec, profile: Profile | None, *, strict: bool) -> None:
        self._codec = codec
        self._profile = profile
        self._strict = strict
        self._refusals = 0
        self._asked: Conversation | None = None
        self.learned: frozenset[str] = frozenset()
        """What was learnt in this run and holds for other requests, too: see :meth:`Profile.lessons`."""

    def write(self, conversation: Conversation) -> Written:
        """Write a body; see :meth:`~proxy.wires.crossing.codec.ConversationCodec.write`."""
        self._asked = conversation
        return self._codec.write(conversation, self.profile, strict=self._strict)

    @property
    def profile(self) -> Profile:
        """What the model takes, as far as it is known by now."""
        if self._profile is None:
            model = self._asked.model if self._asked is not None else ""
            return known_profile(self._codec.fields.dialect, model)
        return self._profile

    def leave_out(self, names: Collection[str]) -> bool:
        """Apply what other runs have learnt; return whether that changes anything."""
        return not self._strict and self._take(self.profile.learned(names))

    def learn(self, message: str) -> bool:
        """Learn from the text of a refusal what the model does not take; return whether that is new."""
        if self._strict or self._asked is None or self._refusals >= _MOST or asks_for_reasoning(message):
            return False
        before = self.profile
        found = after_refusal(message, self._asked, before, self._codec.fields)
        if found is None or not self._take(found.profile):
            return False
        self._refusals += 1
        if found.lasts:
            self.learned |= found.profile.lessons(before)
        return True

    def _take(self, profile: Profile) -> bool:
        is_new = profile != self.profile
        self._profile = profile
        return is_new
