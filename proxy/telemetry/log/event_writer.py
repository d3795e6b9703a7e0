"""Write events that occur with every request faster than structlog's loggers do.

Such an event repeats most of the previous one. The repeated part is encoded as JSON, and checked to be safe,
only once. This form and the event's numbers and ids make a line.
"""

import logging
from collections.abc import Hashable
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from proxy.base.caches import CacheSize, declare
from proxy.telemetry.log.json_lines import NOW, STAMP, JsonLines
from proxy.telemetry.log.setup import REPLAY, Timestamper, WorkerNumber, add_origin

_MOST_FORMS = 256
_MAX_FORM = 4096
"""The most bytes of a form that is cached; its key is not longer."""
_FORM_BYTES = 2000


class EventWriter:
    """Writes events of one logger at level info; it may change the dictionaries that it is given.

    It calls the processors that structlog is configured with, without the three copies that structlog's
    loggers make. It skips the steps that do nothing for an event without an exception.
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
        # A replayed request comes from no client.
        replays = REPLAY in structlog.contextvars.get_contextvars()
        is_wanted = structlog.get_logger(name).bind().is_enabled_for(logging.INFO)
        self.enabled: bool = is_wanted and not replays

    def write(self, event: EventDict) -> None:
        """Write one event, whose name is in the field ``event``."""
        if self._configured != self._known:
            self._update_steps()
        made: Any = event
        try:
            for step in self._steps:
                made = step(self._out, "info", made)
        except structlog.DropEvent:
            return
        self._out.info(made)

    def _update_steps(self) -> None:
        """Update the steps from the current configuration; structlog's way to capture events changes that
        list."""
        self._known = list(self._configured)
        self._steps = [step for step in self._known if _is_needed(step)]
        self._forms.clear()

    def form(self, key: Hashable) -> bytes | None:
        """Return the form that :meth:`make_form` made for ``key``, or ``None`` if there is none yet."""
        if self._configured != self._known:
            self._update_steps()
        return self._forms.get(key)

    def make_form(self, key: Hashable, event: EventDict) -> bytes:
        """Make the form of the line of all events that differ from this one only in its :class:`Open` values.

        The form is empty if each of these events must be checked; use :meth:`write` for them.
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
        """Write a line from a form, with values for its open places except the time."""
        text, micros = self._stamp.now()
        self._out.info(form % (*values, text.encode(), micros))


def _is_needed(step: Processor) -> bool:
    """Return whether a step of the chain is needed for an event that has its ids and no exception."""
    faults = (structlog.processors.StackInfoRenderer, structlog.processors.ExceptionRenderer)
    return step is not structlog.contextvars.merge_contextvars and not isinstance(step, faults)
