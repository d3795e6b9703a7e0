"""Collect the output of a background response, its resource and its events, and send it to clients.

Source: OpenAI's guide "Background mode": events have a ``sequence_number``, and the resource has
``background: true`` and a status that is ``queued`` at first.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import orjson

from proxy.api.detached.kept_states import first_number
from proxy.api.detached.logs.event_log import Event, EventLog
from proxy.http.headers import Headers
from proxy.http.rules import media_type
from proxy.relay.base import ClientStream, NoClientStream
from proxy.relay.memory.steps import Place
from proxy.wires.responses.dialect import RESPONSES
from proxy.wires.stream.sse import END_MARK, KEEP_ALIVE, SSEEvent, SSEParser, encode_event

_HEAD: Final[Headers] = (
    ("Content-Type", RESPONSES.framing.content_type),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)


async def send_events(client: ClientStream, events: AsyncIterator[bytes]) -> None:
    """Send each event as it arrives, and a keep-alive comment for each empty one. Raises
    ``ConnectionError``."""
    client.start(200, _HEAD)
    client.flush()
    async for event in events:
        await client.write(event or KEEP_ALIVE)
    await client.write(END_MARK)
    client.finish()


ENDED: Final = frozenset({"completed", "failed", "incomplete", "cancelled"})
"""The statuses of a response that has ended."""

LEADING: Final = ("response.created", "response.queued", "response.in_progress")
"""The events that contain nothing of the answer; a stream begins with some of them."""

_MAX_BODY_BYTES: Final = 1 << 20
_MAX_GAP: Final = 1000
"""The most numbers that an upstream may leave out at a time; each attempt has a range of numbers."""
_BROKEN: Final = {"code": "server_error", "message": "The response ended before it was finished."}


class BackgroundStream(NoClientStream):
    """A :class:`~proxy.relay.base.ClientStream` without a client: it collects the response.

    The last event waits for :meth:`close`: before that, the end is not on record, so a client that has seen
    it could not find the response.

    ``resource`` is the response so far, with an ``id`` that the proxy made. ``changed`` is called when
    ``resource`` changes. ``log`` gets the events, with numbers of the range of ``attempt``. The first
    ``leading`` events contain nothing of the answer. With ``again`` the stream is written again, so it is
    held until :meth:`go_live`; this is a :class:`~proxy.relay.memory.steps.StepOutput`.
    """

    def __init__(
        self,
        resource: dict[str, Any],
        log: EventLog,
        changed: Callable[[], None],
        attempt: int = 1,
        *,
        again: bool = False,
    ) -> None:
        super().__init__()
        self.resource = resource
        self.leading = 0
        self._attempt = attempt
        self._first = self._next = first_number(attempt)
        self._held: list[Event] | None = [] if again else None
        self._digest = hashlib.blake2b(digest_size=16)
        self._shown = -1
        self.log = log
        self._changed = changed
        self._output: list[Any] = []
        self._events: SSEParser | None = None
        self._body = bytearray()
        self._error: Any = None
        self._end: tuple[dict[str, Any], int, bytes] | None = None
        """The whole response, and its last event with its number, before :meth:`finish`."""
        self._last: tuple[int, bytes] | None = None
        self._status = 0

    @property
    def ended(self) -> bool:
        """Whether the response has ended."""
        return self.resource["status"] in ENDED

    def start(self, status: int, headers: Headers) -> None:
        super().start(status, headers)
        self._status = status
        if status < 300 and media_type(headers) == RESPONSES.framing.content_type:
            self._events = SSEParser()

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        if self._secrets is not None:
            data = self._secrets.blanked(data)
        if self._events is None:
            self._body += data[: _MAX_BODY_BYTES - len(self._body)]
            return None
        self._events.take(data)
        while (event := self._events.next()) is not None:
            self._take(event)
        return None

    def place(self) -> Place:
        return Place(self._attempt, self._shown, self._digest.hexdigest())

    def number_as(self, attempt: int) -> None:
        moved = first_number(attempt) - first_number(self._attempt)
        self._attempt = attempt
        self._first += moved
        self._next += moved

    def go_live(self) -> None:
        held, self._held = self._held, None
        for number, event in held or ():
            self.log.put(number, event)

    def drop(self, attempt: int) -> None:
        """Drop what was written again: an attempt could not go on with it."""
        self.number_as(attempt)
        self._end, self._held = None, None

    def finish(self) -> None:
        if self.ended or self._held is not None:
            return
        if self._end is None:
            self.fail(self._error or _error_in(bytes(self._body)) or _unreadable(self._status))
            return
        self.resource, number, event = self._end
        self._last = number, event
        self._changed()

    def close(self) -> None:
        """Write the last event of a response that has ended, and close the log."""
        if self._last is not None:
            self.log.put(*self._last)
        self.log.close()

    def abort(self) -> None:
        self._end = None
        self.finish()

    def fail(self, error: Any) -> None:
        """End the response with an error, unless it has ended."""
        if self.ended:
            return
        said = error if isinstance(error, dict) else _BROKEN
        code, message = said.get("code") or "server_error", said.get("message") or _BROKEN["message"]
        self.resource |= {"status": "failed", "error": {"code": str(code), "message": str(message)}}
        event = {"type": "response.failed", "sequence_number": self._next, "response": self.resource}
        self._last = self._next, encode_event(orjson.dumps(event), b"response.failed")
        self._changed()

    def cancel(self) -> None:
        """End the response as cancelled, with its output so far, unless it has ended."""
        if not self.ended:
            self.resource["status"] = "cancelled"
            self._changed()

    def release(self) -> None:
        """Reset the response, so that another process can run it from the start; discard the output so
        far."""
        if not self.ended:
            self.resource |= {"status": "queued", "output": [], "usage": None}
            self._changed()

    def _take(self, event: SSEEvent) -> None:
        if not event.data or event.is_end_mark or self.ended:
            return
        payload = orjson.loads(event.data)
        if not isinstance(payload, dict):
            return
        kind, raw = str(payload.get("type", "")), event.raw
        if kind == "error":
            self._end, self._error = None, payload.get("error")
            return
        response = payload.get("response")
        status = response.get("status") if isinstance(response, dict) else None
        is_end = isinstance(status, str) and status in ENDED
        if self._end is not None and not is_end:
            return
        if kind == "response.output_item.done":
            self._output.append(payload.get("item"))
            self.resource["output"] = [*self._output]
            self._changed()
        resource = self.resource
        if isinstance(response, dict):
            # The client got the proxy's id and time before the upstream sent its own.
            own = {"id": resource["id"], "created_at": resource["created_at"]}
            resource = {**response, **own, "background": True}
            if not is_end:
                resource |= {"status": "in_progress", "output": [*self._output]}
            payload["response"] = resource
        given = payload.get("sequence_number")
        number = self._number(given)
        if "response" in payload or number != given:
            payload["sequence_number"] = number
            raw = encode_event(orjson.dumps(payload), kind.encode())
        if kind in LEADING and number == self._first + self.leading:
            self.leading += 1
        self._next = number + 1
        if is_end:
            self._end = resource, number, raw
            return
        if resource is not self.resource:
            self.resource = resource
            self._changed()
        self._put(number, raw)

    def _put(self, number: int, event: bytes) -> None:
        self._shown = number
        self._digest.update(b"%d %d " % (number, len(event)) + event)
        if self._held is not None:
            self._held.append((number, event))
        else:
            self.log.put(number, event)

    def _number(self, given: Any) -> int:
        """Return the number of an event: the upstream's, or the next one if readers could not use that.

        Readers skip a number that is not above the one before.
        """
        if type(given) is int and 0 <= self._first + given - self._next <= _MAX_GAP:
            return self._first + given
        return self._next


def _unreadable(status: int) -> dict[str, str]:
    """Return the error for a response that ended early and named no error itself."""
    if status < 400:
        return _BROKEN
    return {
        "code": "server_error",
        "message": f"The upstream answered with status {status} and no error that the proxy can read.",
    }


def _error_in(body: bytes) -> Any:
    """Return the error in a body that is not a stream, or ``None`` if there is none."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return said.get("error") if isinstance(said, dict) else None
