"""Finds what an upstream's refusal says about the tools of the proxy, and offers the rest.

One tool with a schema that a provider cannot read, or one tool too many, fails a whole request.
"""

import re
from collections.abc import Collection
from typing import Final

from proxy.relay.offering.offer import Offer
from proxy.relay.offering.tool_limits import REFUSED, ToolLesson, too_many
from proxy.relay.run.job import Job
from proxy.relay.run.state import State

_MOST_LESSONS: Final = 4
"""Withhold all tools after this many refusals of a turn: some providers name one tool at a time."""

_STRICT: Final = re.compile(r"\bstrict\b|compiled grammar", re.IGNORECASE)
"""Source: "'claude-...' does not support strict tools", "The compiled grammar is too large" (Anthropic)."""

_TOO_MANY: Final = re.compile(r"\btools?\b[^.]{0,80}(too (long|many)|at most|maximum|exceed)", re.IGNORECASE)
_NUMBER: Final = re.compile(
    r"(?:max\w{0,20}|at most|limit|up to|exceed\w{0,20})\D{0,30}(\d{1,4})\b", re.IGNORECASE
)
"""Source: "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with
length 131 instead." (OpenAI, code ``array_above_max_length``)."""


def adapt_tools(job: Job, state: State, message: str) -> bool:
    """Offer less of the proxy's tools if a refusal is about them; return whether it is.

    The run's record says which tools are withheld, and why.
    """
    learned = _learn(job, state, message) if state.tools.offer else None
    if learned is None:
        return False
    offer, lesson = learned
    state.turn.lessons.append(lesson)
    tools, editor = state.tools, job.upstream.editor
    tools.offer = offer
    later = {name for name, tool in offer.names.items() if tool in tools.withheld}
    editor.offer(offer.added, offer.replaced, withheld=offer.guarded | later)
    return True


def _learn(job: Job, state: State, message: str) -> tuple[Offer, ToolLesson] | None:
    """Return the offer without what the refusal is about, and the lesson; ``None`` for another refusal."""
    offer, catalog, editor = state.tools.offer, state.tools.catalog, job.upstream.editor
    if any(tool.strict for tool in (*offer.added, *offer.replaced)) and _STRICT.search(message):
        return offer.loosened(), ToolLesson(strict=True)
    named = editor.body.tools_named(editor.edits, message)
    if not named.issubset(offer.names):
        return None  # A tool of the client's own, which a search has found: the client has to correct it.
    if named := named or _suspected(state, message):
        specs = [catalog.get(offer.names[name]) for name in named]
        lesson = ToolLesson(frozenset(spec.digest for spec in specs if spec is not None))
        return _rest(state, named, REFUSED), lesson
    most = _limit(message) if _TOO_MANY.search(message) else None
    sent = job.client.request.tool_count + len(offer.added) - len(offer.guarded)
    if most is None or most >= sent or not offer.added:
        return None
    kept = len(offer.added) - (sent - most)
    surplus = sorted(tool.name for tool in offer.added if tool.name not in offer.guarded)[max(0, kept) :]
    return _rest(state, surplus, too_many(most)), ToolLesson(most=most)


def _suspected(state: State, message: str) -> frozenset[str]:
    """Return the tools that an error about a schema may mean if it names none.

    Source: "tools.function.parameters is not a valid moonshot flavored json schema, details: <At path ...>"
    (Moonshot).
    """
    if "json schema" not in message.lower():
        return frozenset()
    found = ((name, state.tools.catalog.get(tool)) for name, tool in state.tools.offer.names.items())
    return frozenset(name for name, spec in found if spec is not None and spec.unportable)


def _rest(state: State, names: Collection[str], reason: str) -> Offer:
    """Return the offer without these names, or without any after too many refusals."""
    offer = state.tools.offer
    return offer.without(offer.names if len(state.turn.lessons) >= _MOST_LESSONS else names, reason)


def _limit(message: str) -> int | None:
    found = _NUMBER.search(message)
    return int(found[1]) if found else None
