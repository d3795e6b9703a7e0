"""Write the access log: one line for each request.

Such a line repeats most of the previous one. The repeated part is encoded as JSON, and checked to be safe,
only once. This form and the event's numbers and ids make a line, faster than structlog's loggers do.
"""

import logging
import re
from collections.abc import Container, Hashable
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from proxy.base.caches import CacheSize, declare
from proxy.telemetry.hooks import RequestFacts
from proxy.telemetry.log.json_lines import ID, NOW, NUMBER, STAMP, TENTHS, JsonLines
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


_OPEN = {"ms": TENTHS, "ttfb_ms": TENTHS, "bytes": NUMBER, "upstream_ms": TENTHS, "request_id": ID}
"""The fields that differ between lines whose other fields are the same."""


_MODEL_NAME = re.compile(r"(?!(?:sk|tr|trt)[-_])[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,99}\Z")
"""The form of a model's name. It has no space, because a client may send a whole sentence, and is not a
key."""
_MOST_MODELS = 500
"""The most names that are accepted from clients; later ones are logged as ``other``."""


class AccessLog:
    """Writes one line for each request, at its end.

    A line contains the model's name only if it is one of ``models`` or has the form of a name, because a
    client may send any text. A process logs at most ``_MOST_MODELS`` names that only clients use.
    """

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._seen: set[str] = set()
        declare("log_models", self._cache_size)
        self._log = EventWriter("proxy.access")

    def write(self, facts: RequestFacts) -> None:
        """Write the line of a request.

        Times are milliseconds; ``bytes`` counts the bytes sent, including the head. ``ttfb_ms`` is the time
        until the first byte of a relayed body was sent. ``upstream_ms`` is the time until the head of the
        last upstream response arrived.
        """
        log = self._log
        if not log.enabled:
            return
        model = facts.model
        if model and model not in self._seen and model not in self._models:
            model = self._checked_name(model)
        first, head, run_id, prompt = facts.first_byte_s, facts.upstream_s, facts.run_id, facts.prompt_hash
        # A line recurs, and is safe, only if the path is the name of its class and the proxy made the id.
        if first is None or head is None or facts.path != facts.endpoint or facts.id_given or not facts.sent:
            log.write(_event(facts, model))
            return
        key = (
            facts.method, facts.path, facts.status, facts.caller, model,
            facts.upstream, facts.upstream_status, run_id == "", prompt == "", facts.error_code,
        )  # fmt: skip
        form = log.form(key)
        if form is None:
            given = {"run_id": run_id, "prompt_hash": prompt}
            left_open = {**_OPEN, **{name: ID for name, value in given.items() if value}}
            form = log.make_form(key, {**_event(facts, model), **left_open})
        if not form:
            log.write(_event(facts, model))
            return
        ms, ttfb, upstream = _tenths(facts.seconds), _tenths(first), _tenths(head)
        request_id = facts.request_id.encode()
        times = (ms // 10, ms % 10, ttfb // 10, ttfb % 10, facts.sent, upstream // 10, upstream % 10)
        of_run = [value.encode() for value in (run_id, prompt) if value]
        log.write_form(form, (*times, request_id, *of_run))

    def _cache_size(self) -> CacheSize:
        return CacheSize(250 * len(self._seen), 250 * _MOST_MODELS)

    def _checked_name(self, model: str) -> str:
        """Return the name to log for a model that was not seen before."""
        if len(self._seen) >= _MOST_MODELS or _MODEL_NAME.match(model) is None:
            return "other"
        self._seen.add(model)
        return model


def _event(facts: RequestFacts, model: str) -> dict[str, Any]:
    """Return all fields of a line; ``model`` is the checked name of the model."""
    line: dict[str, Any] = {
        "event": "request",
        "method": facts.method,
        "path": facts.path,
        "status": facts.status,
        "ms": _tenths(facts.seconds) / 10,
    }
    if facts.error_code:
        line["error_code"] = facts.error_code
    if facts.caller:
        line["caller"] = facts.caller
    if model:
        line["model"] = model
    if facts.first_byte_s is not None:
        line["ttfb_ms"] = _tenths(facts.first_byte_s) / 10
    if facts.sent:
        line["bytes"] = facts.sent
    if facts.upstream:
        line["upstream"] = facts.upstream
    if facts.upstream_status:
        line["upstream_status"] = facts.upstream_status
    if facts.upstream_s is not None:
        line["upstream_ms"] = _tenths(facts.upstream_s) / 10
    line["request_id"] = facts.request_id
    if facts.run_id:
        line["run_id"] = facts.run_id
    if facts.prompt_hash:
        line["prompt_hash"] = facts.prompt_hash
    return line


def _tenths(seconds: float) -> int:
    """Convert seconds to tenths of a millisecond; ``round`` would take as long as a line's other fields."""
    return int(seconds * 10_000 + 0.5)
