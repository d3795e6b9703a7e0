"""The line that the log has for each request."""

from collections.abc import Container
from typing import Any

from proxy.server.observing import RequestFacts
from proxy.server.telemetry import EventWriter

__all__ = ["AccessLog"]


class AccessLog:
    """Writes one line for each request, at its end.

    A line names a model that is one of ``models``: what a client writes there may be anything.
    """

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._log = EventWriter("proxy.access")

    def write(self, facts: RequestFacts) -> None:
        """Say what became of a request.  Times are milliseconds, ``bytes`` those sent, head included.

        ``ttfb_ms`` is until the first byte of a relayed body left, ``upstream_ms`` until the head of the
        last response upstream was there.
        """
        if not self._log.enabled:
            return
        line: dict[str, Any] = {
            "event": "request",
            "method": facts.method,
            "path": facts.path,
            "status": facts.status,
            "ms": _ms(facts.seconds),
        }
        if facts.caller:
            line["caller"] = facts.caller
        if facts.model:
            line["model"] = facts.model if facts.model in self._models else "other"
        if facts.first_byte_s is not None:
            line["ttfb_ms"] = _ms(facts.first_byte_s)
        if facts.sent:
            line["bytes"] = facts.sent
        if facts.upstream:
            line["upstream"] = facts.upstream
        if facts.upstream_status:
            line["upstream_status"] = facts.upstream_status
        if facts.upstream_s is not None:
            line["upstream_ms"] = _ms(facts.upstream_s)
        line["request_id"] = facts.request_id
        if facts.run_id:
            line["run_id"] = facts.run_id
        self._log.write(line)


def _ms(seconds: float) -> float:
    """Milliseconds to a tenth; ``round`` would take as long as the rest of a line's fields."""
    return (seconds * 10_000 + 0.5) // 1 / 10
