"""The short way for events that come with every request: past structlog's loggers, and by forms.

Of such an event nearly everything comes again in the next one.  What does is made into JSON, and found
to be safe, once; a line is that form with its numbers and ids.
"""

import logging
from collections.abc import Hashable
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from proxy.caches import CacheSize, declare
from proxy.server.telemetry.json_lines import NOW, STAMP, JsonLines
from proxy.server.telemetry.logging import REPLAY, Timestamper, WorkerNumber, add_origin

__all__ = ["EventWriter"]

_MOST_FORMS = 256
_MAX_FORM = 4096
"""Bytes of a form that is kept, of which its key has no more."""
_FORM_BYTES = 2000


class EventWriter:
    """Writes events of one logger at level info, each a dictionary that is the writer's from then on.

    It goes the way that structlog is configured for, without the three copies of an event's values that
    its own loggers make.  Left out is what an event with its ids and without an exception does not need.
    """

    def __init__(self, name: str) -> None:
        config = structlog.get_config()
        self._configured: list[Processor] = config["processors"]
        self._known: list[Processor] = []
        self._steps: list[Processor] = []
        self._forms: dict[Hashable, bytes] = {}
        declare("log_forms", self._cache_size)
        self._stamp = Timestamper()
        self._out = config["logger_factory"](name)
        # What is replayed is no request of anybody's.
        replays = REPLAY in structlog.contextvars.get_contextvars()
        is_wanted = structlog.get_logger(name).bind().is_enabled_for(logging.INFO)
        self.enabled: bool = is_wanted and not replays

    def write(self, event: EventDict) -> None:
        """Write one event; its name is under ``event``."""
        if self._configured != self._known:
            self._follow()
        made: Any = event
        try:
            for step in self._steps:
                made = step(self._out, "info", made)
        except structlog.DropEvent:
            return
        self._out.info(made)

    def _follow(self) -> None:
        """Go the way that is configured now: structlog's own way to capture events changes the list."""
        self._known = list(self._configured)
        self._steps = [step for step in self._known if _concerns_events(step)]
        self._forms.clear()

    def form(self, key: Hashable) -> bytes | None:
        """What :meth:`make_form` made for ``key``; ``None`` where it made nothing yet."""
        if self._configured != self._known:
            self._follow()
        return self._forms.get(key)

    def make_form(self, key: Hashable, event: EventDict) -> bytes:
        """The line of all events that are like this one but in what it leaves :class:`Open`.

        Empty where each of them has to be looked at, and so goes to :meth:`write`.
        """
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        form = self._formed(event)
        if len(form) <= _MAX_FORM:
            self._forms[key] = form
        return form

    def _cache_size(self) -> CacheSize:
        held = sum(_FORM_BYTES + 2 * len(form) for form in self._forms.values())
        return CacheSize(held, _MOST_FORMS * (_FORM_BYTES + 2 * _MAX_FORM))

    def _formed(self, event: EventDict) -> bytes:
        *before, last = self._steps
        lines = getattr(last, "__self__", None)
        if not isinstance(lines, JsonLines):
            return b""
        for step in before:
            if isinstance(step, Timestamper):
                self._stamp = step
                event[STAMP] = NOW
            elif step is add_origin or isinstance(step, WorkerNumber):
                step(self._out, "info", event)
            else:
                return b""
        return lines.form(event)

    def write_form(self, form: bytes, values: tuple[int | bytes, ...]) -> None:
        """Write a line of a form, with values for what it leaves open, the time excepted."""
        text, micros = self._stamp.now()
        self._out.info(form % (*values, text.encode(), micros))


def _concerns_events(step: Processor) -> bool:
    """Whether a step of the chain has something to do for an event with its ids and without an exception."""
    faults = (structlog.processors.StackInfoRenderer, structlog.processors.ExceptionRenderer)
    return step is not structlog.contextvars.merge_contextvars and not isinstance(step, faults)
