"""The line that the log has for each request."""

import re
from collections.abc import Container
from typing import Any

from proxy.caches import CacheSize, declare
from proxy.server.telemetry.event_writer import EventWriter
from proxy.server.telemetry.hooks import RequestFacts
from proxy.server.telemetry.json_lines import ID, NUMBER, TENTHS

__all__ = ["AccessLog"]

_OPEN = {"ms": TENTHS, "ttfb_ms": TENTHS, "bytes": NUMBER, "upstream_ms": TENTHS, "request_id": ID}
"""What differs from line to line where the rest comes again and again."""


_MODEL_NAME = re.compile(r"(?!(?:sk|tr|trt)[-_])[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,99}\Z")
"""What a model's name looks like: no blank, since a client may write a whole sentence there, and no key."""
_MOST_MODELS = 500
"""Names that are taken from clients; any other is ``other`` from then on."""


class AccessLog:
    """Writes one line for each request, at its end.

    A line names a model that is one of ``models``, or has the form of a name: what a client writes there
    may be anything.  A process logs at most ``_MOST_MODELS`` names that it has from clients alone.
    """

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._seen: set[str] = set()
        declare("log_models", self._cache_size)
        self._log = EventWriter("proxy.access")

    def write(self, facts: RequestFacts) -> None:
        """Say what became of a request.  Times are milliseconds, ``bytes`` those sent, head included.

        ``ttfb_ms`` is until the first byte of a relayed body left, ``upstream_ms`` until the head of the
        last response upstream was there.
        """
        log = self._log
        if not log.enabled:
            return
        model = facts.model
        if model and model not in self._seen and model not in self._models:
            model = self._named(model)
        first, head, run_id = facts.first_byte_s, facts.upstream_s, facts.run_id
        # A path that is the name of its class comes again, and nobody else made up our own ids.
        if first is None or head is None or facts.path != facts.endpoint or facts.id_given or not facts.sent:
            log.write(_event(facts, model))
            return
        key = (
            facts.method, facts.path, facts.status, facts.caller, model,
            facts.upstream, facts.upstream_status, run_id == "", facts.error_code,
        )  # fmt: skip
        form = log.form(key)
        if form is None:
            left_open = {**_OPEN, "run_id": ID} if run_id else _OPEN
            form = log.make_form(key, {**_event(facts, model), **left_open})
        if not form:
            log.write(_event(facts, model))
            return
        ms, ttfb, upstream = _tenths(facts.seconds), _tenths(first), _tenths(head)
        request_id = facts.request_id.encode()
        times = (ms // 10, ms % 10, ttfb // 10, ttfb % 10, facts.sent, upstream // 10, upstream % 10)
        log.write_form(form, (*times, request_id, run_id.encode()) if run_id else (*times, request_id))

    def _cache_size(self) -> CacheSize:
        return CacheSize(250 * len(self._seen), 250 * _MOST_MODELS)

    def _named(self, model: str) -> str:
        """The word for a model that is met for the first time."""
        if len(self._seen) >= _MOST_MODELS or _MODEL_NAME.match(model) is None:
            return "other"
        self._seen.add(model)
        return model


def _event(facts: RequestFacts, model: str) -> dict[str, Any]:
    """All that a line says; ``model`` is the word for the client's that may stand in it."""
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
    return line


def _tenths(seconds: float) -> int:
    """Tenths of a millisecond; ``round`` would take as long as the rest of a line's fields."""
    return int(seconds * 10_000 + 0.5)
