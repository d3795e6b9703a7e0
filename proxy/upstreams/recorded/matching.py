"""Finds the recorded turn that answers a request, and the one that comes nearest to it."""

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.base.errors import ConfigError
from proxy.upstreams.recorded.fixtures import RecordedTurn
from proxy.wires.registry.comparing import (
    Varying,
    comparable_conversation,
    meaning_of,
    results_of,
    without_varying,
)

_MOST_COMPARED: Final = 50
"""At most so many turns are compared word by word with a request that fits none."""
_MOST_LIKENESS_CHARS: Final = 1000

TOO_DEEP: Final = (RecursionError, orjson.JSONEncodeError)
"""What is raised for JSON that is nested too deeply. orjson reads a depth of 1024, but writes one of 254."""

Meaning = Mapping[str, Any]
"""The members of a request that are compared, by name, in comparable form."""


class Candidate(Struct, frozen=True):
    """A recorded turn, and what its request means."""

    turn: RecordedTurn
    meaning: Meaning


class Asked:
    """A request that looks for its turn."""

    def __init__(self, body: Mapping[str, Any], *, stream: bool, whole: bool) -> None:
        """``stream`` says whether the answer must be a stream, ``whole`` whether tools and instructions
        count."""
        self.body = body
        self.stream = stream
        self.results = results_of(body)
        self._meaning = compared(body, whole=whole)
        self._varied: dict[tuple[Varying, ...], Meaning] = {}

    def meaning(self, may_differ: tuple[Varying, ...] = ()) -> Meaning:
        """Return what the request means, without the kinds of text that may differ."""
        if may_differ not in self._varied:
            self._varied[may_differ] = without_varying(self._meaning, may_differ)
        return self._varied[may_differ]


def compared(body: Mapping[str, Any], *, whole: bool) -> Meaning:
    """Return what is compared of a request: model and conversation, or with ``whole`` all that it means."""
    if whole:
        return meaning_of(body)
    field, conversation = comparable_conversation(body)
    return {"model": body.get("model"), field: conversation}


class Matcher:
    """The turns that may answer, by method and path."""

    def __init__(self, turns: Sequence[RecordedTurn], *, whole: bool = False) -> None:
        """With ``whole``, instructions and tools count, too."""
        self._whole = whole
        self._known: dict[tuple[str, str], list[Candidate]] = {}
        for turn in turns:
            self.add(turn)

    def add(self, turn: RecordedTurn) -> None:
        """Let one more turn answer. Raises :class:`~proxy.base.errors.ConfigError` if it is nested too
        deeply."""
        try:
            meaning = without_varying(compared(turn.request, whole=self._whole), turn.may_differ)
        except TOO_DEEP:
            raise ConfigError(turn.label, "its request is nested too deeply", "Remove this fixture") from None
        self._known.setdefault((turn.method, turn.path), []).append(Candidate(turn, meaning))

    def asked(self, body: Mapping[str, Any], *, stream: bool) -> Asked:
        """Return a request in the form in which it is compared. Raises one of :data:`TOO_DEEP`."""
        return Asked(body, stream=stream, whole=self._whole)

    def find(self, method: str, path: str, asked: Asked) -> RecordedTurn | None:
        """Return the turn that answers: of several that fit, the one that asks for most, then the one whose
        other fields are most alike."""
        fitting = [
            known.turn
            for known in self._known.get((method, path), ())
            if known.meaning == asked.meaning(known.turn.may_differ)
            and all(known.turn.request.get(field) == asked.body.get(field) for field in known.turn.match)
            and known.turn.fits_results(asked.results)
            and known.turn.body(stream=asked.stream) is not None
        ]

        def order(turn: RecordedTurn) -> tuple[int, int]:
            return len(turn.match) + len(turn.results), _likeness(turn.request, asked.body)

        return max(fitting, key=order, default=None)

    def nearest(self, method: str, path: str, asked: Asked) -> Candidate | None:
        """Return the turn that differs least: same model, then the longest common beginning of the
        conversation, then the most similar next message; ``None`` if none has this method and path."""
        known = self._known.get((method, path), [])
        ranked = sorted(known, key=lambda candidate: _nearness(candidate, asked), reverse=True)
        return max(ranked[:_MOST_COMPARED], key=lambda candidate: _order(candidate, asked), default=None)


def differences(known: Candidate, asked: Asked) -> list[tuple[str, Any, Any]]:
    """Return in what a request differs from a recorded one, as (place, recorded value, value asked)."""
    turn, given = known.turn, asked.meaning(known.turn.may_differ)
    names = dict.fromkeys([*known.meaning, *given])
    pairs = [(name, known.meaning.get(name), given.get(name)) for name in names]
    pairs += [(name, turn.request.get(name), asked.body.get(name)) for name in turn.match]
    found = [pair for pair in pairs if pair[1] != pair[2]]
    if not turn.fits_results(asked.results):
        found.append(("the results of tools", list(turn.results), asked.results))
    return found or [("stream", turn.request.get("stream"), asked.body.get("stream"))]


def first_difference(path: str, recorded: Any, given: Any) -> tuple[str, Any, Any]:
    """Return the innermost place of the first difference of two unequal values, with both values there."""
    steps: list[tuple[str, Any, Any]] = []
    if isinstance(recorded, dict) and isinstance(given, dict):
        steps = [(f"{path}.{k}", recorded.get(k), given.get(k)) for k in [*recorded, *given]]
    elif isinstance(recorded, list) and isinstance(given, list):
        steps = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(recorded, given, strict=False))]
    for step in steps:
        if step[1] != step[2]:
            return first_difference(*step)
    if isinstance(recorded, list) and isinstance(given, list):
        return path, f"{len(recorded)} entries", f"{len(given)} entries"
    return path[:200], recorded, given


def _likeness(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> int:
    """Return the number of fields that two requests agree on, minus the number that they do not."""
    return sum(1 if recorded.get(f) == asked.get(f) else -1 for f in {*recorded, *asked})


def _nearness(known: Candidate, asked: Asked) -> tuple[bool, int, int]:
    """Return whether the models are the same, and how many messages and how many members are."""
    theirs, ours = _conversations(known, asked)
    common = 0
    for left, other in zip(theirs, ours, strict=False):
        if left != other:
            break
        common += 1
    given = asked.meaning(known.turn.may_differ)
    members = sum(known.meaning.get(name) == value for name, value in given.items())
    return known.turn.request.get("model") == asked.body.get("model"), common, members


def _order(known: Candidate, asked: Asked) -> tuple[bool, int, float, int]:
    same_model, common, members = _nearness(known, asked)
    return same_model, common, _similarity(known, asked), members


def _similarity(known: Candidate, asked: Asked) -> float:
    """Return how alike the first messages are that differ: from 0 to 1, by what letters they have.

    To align the letters takes seconds for a text that repeats itself.
    """
    theirs, ours = _conversations(known, asked)
    common = _nearness(known, asked)[1]
    left, right = (repr(messages[common : common + 1])[:_MOST_LIKENESS_CHARS] for messages in (theirs, ours))
    return SequenceMatcher(None, left, right).quick_ratio()


def _conversations(known: Candidate, asked: Asked) -> tuple[list[Any], list[Any]]:
    return _conversation(known.meaning), _conversation(asked.meaning(known.turn.may_differ))


def _conversation(meaning: Meaning) -> list[Any]:
    return next((meaning[name] for name in ("messages", "input") if name in meaning), [])


def parsed(body: bytes, clean: Callable[[bytes], bytes] = bytes) -> dict[str, Any] | None:
    """Return the JSON object of a body, after ``clean`` has removed secrets; ``None`` if it is none."""
    try:
        value = orjson.loads(clean(body) or b"{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
