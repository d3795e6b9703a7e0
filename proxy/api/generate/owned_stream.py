"""A response whose id is recorded as the client's own, while its bytes pass unchanged.

A client continues from a response as soon as it has all of it, and its next request may reach another
process. So if there are other processes, the end of the response waits until the note of the owner is
committed.
"""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import orjson

from proxy.api.context import Context
from proxy.base.errors import WireError
from proxy.http.headers import Headers
from proxy.http.rules import first, media_type
from proxy.json.in_thread import LARGE_EVENT_BYTES, in_thread
from proxy.json.size import MOST_READ_VALUES, count_values
from proxy.relay.base import ClientStream
from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.relay.memory.threads import Threads
from proxy.server.auth.principals import Principals
from proxy.server.connections.draining import Draining
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.response import HttpClientStream
from proxy.server.messages.tee import Listen, TeeStream
from proxy.server.websockets.stream import StoreOwner, WaitForOwners, WebSocketStream
from proxy.store.base import Store
from proxy.wires.dialect import Framing
from proxy.wires.stream.sse import SSEParser, decode_event

_MOST_EVENTS: Final = 256
"""The most events that are searched for the id; no upstream sends as many before it."""
_MAX_BYTES: Final = 8 << 20
"""The most bytes of a response that are searched for its id, which is in the first event or in the object."""

_ENDING: Final = re.compile(rb"response\.(?:completed|incomplete|failed)")
"""The types of the events after which a client need not wait for the stream's end."""

_MOST_READ_AT_END: Final = 50_000
"""The most values of an object that is read on the event loop, when the response ends without notice."""
_OVERLAP: Final = 32
"""The last bytes of a piece that are kept, because an end event's name may begin in them."""


class OwnedClientStream(HttpClientStream):
    """A response to a client that notes its own id. It calls ``store_owner`` once with the id: before the
    event with the id goes out, or before the end of an object does. With ``wait_for_owners`` the end waits
    for that first."""

    def __init__(
        self,
        request: EdgeRequest,
        headers: dict[str, str],
        store_owner: StoreOwner,
        wait_for_owners: WaitForOwners | None = None,
        *,
        framing: Framing,
        last: bool = False,
    ) -> None:
        super().__init__(request, headers, last=last)
        self._store_owner = store_owner
        self._wait_for_owners = wait_for_owners
        self._framing = framing
        self._pending = False
        self._streams = False
        self._before = b""
        self._events: SSEParser | None = None
        self._seen = bytearray()
        self._size = 0
        self._length = ""
        self._again = 0
        self._large: Callable[[], dict[str, Any] | None] | None = None
        self._looking = False
        self._events_left = _MOST_EVENTS

    def start(self, status: int, headers: Headers) -> None:
        self._looking = status < 300
        self._streams = media_type(headers) == self._framing.content_type
        self._events = SSEParser() if self._streams else None
        self._length = first(headers, "content-length")
        super().start(status, headers)

    def _push(self, data: bytes, last: bool) -> Awaitable[None] | None:
        if self._looking:
            self._look(data)
        if self._large:
            return self._push_read(data, last)
        return self._push_known(data, last)

    def _push_known(self, data: bytes, last: bool) -> Awaitable[None] | None:
        if self._pending and data and (last or not self._streams or self._ends(data)):
            return self._push_settled(data, last)
        return self._push_on(data, last)

    def _push_on(self, data: bytes, last: bool) -> Awaitable[None] | None:
        wait = super()._push(data, last)
        # While the id is unknown, or its note is not committed, each piece has to pass through here.
        self._flows = self._flows and not (self._looking or self._pending)
        return wait

    async def _push_read(self, data: bytes, last: bool) -> None:
        read, self._large = self._large, None
        if read is not None:
            self._found(await in_thread(read))
        if (wait := self._push_known(data, last)) is not None:
            await wait

    async def _push_settled(self, data: bytes, last: bool) -> None:
        await self._settled()
        if (wait := self._push_on(data, last)) is not None:
            await wait

    def _ends(self, data: bytes) -> bool:
        """Return whether a piece may end the response, even if an event's name is cut between two pieces."""
        seen = self._before + data
        self._before = seen[-_OVERLAP:]
        return _ENDING.search(seen) is not None

    def before_finish(self) -> Awaitable[None] | None:
        self._look_once_more()
        return self._settled() if self._pending else None

    async def _settled(self) -> None:
        if self._wait_for_owners is not None and self._pending:
            await self._wait_for_owners()
        self._pending = False

    def _noted(self, committed: bool) -> None:
        # Waiting would not help: a note that is lost stays lost.
        self._pending = False

    def _look(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _MAX_BYTES:
            self._stop()
            return
        if self._events is not None:
            try:
                self._events.take(data)
                while self._looking and not self._large:
                    event = self._events.next(LARGE_EVENT_BYTES)
                    if event is None and not self._events.too_large:
                        break
                    self._events_left -= 1
                    if event is None:
                        self._large = partial(_object_in_event, self._events.skip())
                    else:
                        self._found(_object_in(event.data))
                    if not self._events_left:
                        self._stop()
            except WireError:
                self._stop()
            return
        self._seen += data
        # Every piece may end like an object. Parsing all of it each time would take quadratic time.
        if str(self._size) == self._length or (self._size >= self._again and data.rstrip().endswith(b"}")):
            self._again = 2 * self._size
            self._read(bytes(self._seen))

    def finish(self) -> None:
        self._look_once_more()
        super().finish()

    def _look_once_more(self) -> None:
        """Read an object that was not known to be complete before the response ended."""
        if self._looking and self._seen:
            self._found(_object_in(bytes(self._seen), _MOST_READ_AT_END))

    def _read(self, text: bytes) -> None:
        if len(text) > LARGE_EVENT_BYTES:
            self._large = partial(_object_in, text)
        else:
            self._found(_object_in(text))

    def _found(self, said: dict[str, Any] | None) -> None:
        """Take note of the response's id in an event or an object, if it has one."""
        if said is None or not self._looking:
            return
        response = said.get("response", said)
        found = response.get("id") if isinstance(response, dict) else None
        if isinstance(found, str) and found:
            self._stop()
            self._pending = self._wait_for_owners is not None
            self._store_owner(found, self._noted)

    def _stop(self) -> None:
        self._looking = False
        self._seen.clear()
        self._events = None


def _object_in(text: bytes, most_values: int = MOST_READ_VALUES) -> dict[str, Any] | None:
    """Return the JSON object in a text; ``None`` if it is none or has more than ``most_values`` values."""
    if count_values(text, most_values) > most_values:
        return None
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return said if isinstance(said, dict) else None


def _object_in_event(raw: bytes) -> dict[str, Any] | None:
    return _object_in(decode_event(raw).data)


AnyClientStream = HttpClientStream | WebSocketStream
"""A response over HTTP, or as messages of a WebSocket."""


class ClientStreams:
    """The factory of responses to clients. ``listen`` gets the answers to requests whose bodies the proxy
    reads."""

    def __init__(
        self,
        store: Store,
        threads: Threads,
        commits: CommitWaiter,
        draining: Draining,
        principals: Principals,
        listen: Listen | None = None,
    ) -> None:
        self._store = store
        self._threads = threads
        self._wait_for_owners: WaitForOwners | None = (
            partial(commits.wait_before_end, "owner") if commits.shared else None
        )
        self._draining = draining
        self._principals = principals
        self._listen = listen

    def open(self, context: Context, caller: str) -> AnyClientStream:
        """Open a response to a client; it notes its id if the proxy records whose response it is."""
        request, endpoint = context.request, context.target.endpoint
        sent = {"x-request-id": context.facts.request_id, "Server": "toolrelay"}
        if request.page_headers:
            sent.update(request.page_headers)
        store_owner: StoreOwner | None = None
        if caller and endpoint.creates == "response" and context.caller.rights.isolated:
            # The upstream keeps this response under the proxy's key; from now on only this caller may use it.
            store_owner = partial(self._note_owner, caller)
        elif endpoint.creates == "conversation":
            store_owner = partial(self._note_thread, self._principals.of(request, context.caller, {}).name)
        framing, last = endpoint.dialect.framing, self._draining.closing
        client: AnyClientStream
        if request.websocket is not None:
            client = WebSocketStream(request, request.websocket, framing, store_owner, self._wait_for_owners)
        elif store_owner is None:
            client = HttpClientStream(request, sent, last=last)
        else:
            client = OwnedClientStream(
                request, sent, store_owner, self._wait_for_owners, framing=framing, last=last
            )
        context.facts.client = client
        return client

    def with_listener(self, client: ClientStream, path: str, body: bytes) -> ClientStream:
        """Return the response, with the listener attached if there is one.

        ``path``, below the prefix of its dialect, and ``body`` are the request's.
        """
        return client if self._listen is None else TeeStream(client, self._listen(path, body))

    def _note_owner(self, caller: str, response_id: str, noted: Callable[[bool], None]) -> None:
        self._store.put_response_owner(response_id, caller, noted)

    def _note_thread(self, caller: str, thread: str, noted: Callable[[bool], None]) -> None:
        self._threads.remember_new(thread, caller, noted)
