"""Format the log for a terminal: the most important values come first, and the rest is short.

JSON lines keep every field. On a terminal, a line of the access log begins with the status, and omits what
only machines need (bytes, the upstream's times, ids of successful requests).
"""

from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
_COLOURS = {2: "\x1b[32m", 3: "\x1b[36m", 4: "\x1b[33m", 5: "\x1b[31m"}
_ACCESS = "proxy.access"
_SHORT_ID = 16
"""Characters of a run's id on a terminal: enough to find the run."""
_LONGEST_PATH = 60
_LONGEST_VALUE = 40
_NAMED = ("error_code", "model", "caller", "upstream", "upstream_status", "worker")


class TerminalLines:
    """The last processor of a log on a terminal: it turns an event into one line."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._others = structlog.dev.ConsoleRenderer(
            colors=colours,
            pad_event_to=0,
            pad_level=False,
            exception_formatter=structlog.dev.plain_traceback,
        )

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        stamp = str(event.get("timestamp", ""))
        # Only JSON lines contain the day and the microseconds.
        event["timestamp"] = stamp[11:19] or stamp
        if event.get("event") == "request" and event.get("logger") == _ACCESS:
            return self._request(event)
        return str(self._others(logger, method, event))

    def _request(self, event: EventDict) -> str:
        """Return the line of a request, such as ``14:05:01 200 POST /v1/chat/completions 812 ms model=m``."""
        status = event.get("status", 0)
        shown = [
            self._painted(event["timestamp"], _DIM),
            self._painted(str(status), _COLOURS.get(status // 100, "")),
            str(event.get("method")),
            _cut(str(event.get("path")), _LONGEST_PATH),
            f"{event.get('ms', 0):.0f} ms",
        ]
        for name in _NAMED:
            value = event.get(name)
            # The upstream's status is of interest only if the client got another one.
            if value is not None and not (name == "upstream_status" and value == status):
                shown.append(self._field(name, _cut(str(value), _LONGEST_VALUE)))
        if run_id := event.get("run_id"):
            shown.append(self._field("run", str(run_id)[:_SHORT_ID]))
        if status >= 500:
            shown.append(self._field("request_id", event.get("request_id")))
        return " ".join(shown)

    def _field(self, name: str, value: Any) -> str:
        return f"{self._painted(name + '=', _DIM)}{value}"

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colours and colour else text


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
