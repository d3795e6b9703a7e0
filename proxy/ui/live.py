"""Answer ``/ui/api/events``: an event stream of changes, for open pages."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from multidict import istr

from proxy.base.errors import RequestError
from proxy.base.globs import fits
from proxy.server.connections.draining import Draining
from proxy.server.messages.response import HttpClientStream
from proxy.ui.feed import POLL_S, Feed, FeedEvent
from proxy.ui.sessions import UiSession
from proxy.ui.static_files import PAGE_HEADERS
from proxy.ui.surface import UiRequest
from proxy.wires.stream.sse import CONTENT_TYPE

_MOST_LISTENERS: Final = 20
_MOST_OF_A_SESSION: Final = 4
_MOST_OF_A_USER: Final = 8
"""Of all sessions of a user, so that nobody takes every place by signing in again."""
_MOST_OF_APPROVERS: Final = 12
"""Of all approvers together; the other places are for administrators."""
_COMMENT_S: Final = 15.0
_LAST_ID: Final = istr("Last-Event-ID")


class Live:
    """Sends events to each page. ``still_valid`` returns whether a session is still valid."""

    def __init__(
        self, feed: Feed, still_valid: Callable[[UiSession], Awaitable[bool]], draining: Draining
    ) -> None:
        self._feed = feed
        self._still_valid = still_valid
        self._draining = draining
        self._open: Counter[str] = Counter()

    async def answer(self, request: UiRequest) -> web.StreamResponse:
        """Send the stream until the page closes it, the session ends or this process stops.

        Raises :class:`~proxy.base.errors.RequestError` (429) if too many pages listen.
        """
        request.allow("GET")
        if request.rest or request.target.query:
            raise request.unknown()
        places = _places(request.session)
        if any(self._open[place] >= most for place, most in places.items()):
            raise RequestError(
                429,
                f"Too many pages are open: at most {_MOST_OF_A_SESSION} of a session, {_MOST_OF_A_USER} of a "
                f"user and {_MOST_LISTENERS} in total get events. Close one of them.",
                type="rate_limit_error",
                code="too_many_listeners",
                headers={"Retry-After": "5"},
            )
        headers = [("Content-Type", CONTENT_TYPE), ("Cache-Control", "no-store"), *PAGE_HEADERS.items()]
        if request.edge_request.method == "HEAD":
            return web.Response(headers=dict(headers))
        client = HttpClientStream(
            request.edge_request,
            {"x-request-id": request.facts.request_id, "Server": "toolrelay"},
            last=self._draining.closing,
        )
        after = request.edge_request.headers.get(_LAST_ID)
        request.facts.client = client
        self._open.update(places.keys())
        try:
            client.start(200, headers)
            await self._tell(request.session, client, after)
            client.finish()
        finally:
            self._open.subtract(places.keys())
            self._open = +self._open  # Without what has no page any more.
        return client.response

    async def _tell(self, session: UiSession, client: HttpClientStream, after: str | None) -> None:
        listener = await self._feed.join(after)
        # A draining process ends each connection after its next response. This stream does not end by
        # itself, so wake it.
        wake = listener.woken.set
        self._draining.watch(wake)
        loop = asyncio.get_running_loop()
        check_at = loop.time() + _COMMENT_S
        try:
            hello = f'{{"cursor":"{self._feed.cursor}","poll_s":{POLL_S}}}'
            await client.write(f"retry: 2000\nevent: hello\ndata: {hello}\n\n".encode())
            while not self._draining.closing:
                events, missed = listener.take()
                if missed:
                    await client.write(_framed("reset", "{}", self._feed.cursor))
                for event in events:
                    data = event.data if session.role == "admin" else self._for_others(event, session)
                    if data is not None:
                        await client.write(_framed(event.name, data, self._feed.id_of(event)))
                try:
                    async with asyncio.timeout_at(check_at):
                        await listener.woken.wait()
                except TimeoutError:
                    pass
                # Check even while events keep arriving: a session must not outlive its key on a busy server.
                if loop.time() >= check_at:
                    if not await self._still_valid(session):
                        await client.write(_framed("end", '{"code":"not_signed_in"}', ""))
                        return
                    await client.write(b": \n\n")
                    check_at = loop.time() + _COMMENT_S
        finally:
            self._draining.unwatch(wake)
            self._feed.leave(listener)

    def _for_others(self, event: FeedEvent, session: UiSession) -> str | None:
        """Return the data of an event for who is no administrator: their own runs, approvals of their tools,
        and how many of these wait."""
        if event.name == "approval":
            return event.data if _approves(session, event.tool) else None
        if event.name == "stats":
            waiting = sum(_approves(session, tool) for tool in self._feed.waiting)
            return f'{{"approvals_pending":{waiting}}}'
        return event.data if event.name == "run" and session.sees(event.caller) else None


def _places(session: UiSession) -> dict[str, int]:
    """Return what a page of a session counts for, each with the most pages that may listen."""
    places = {
        f"session {session.nonce}": _MOST_OF_A_SESSION,
        f"user {session.caller}": _MOST_OF_A_USER,
        "all": _MOST_LISTENERS,
    }
    return places if session.role == "admin" else {**places, "approvers": _MOST_OF_APPROVERS}


def _approves(session: UiSession, tool: str) -> bool:
    return any(fits(tool, pattern) for pattern in session.approves)


def _framed(name: str, data: str, cursor: str) -> bytes:
    """Encode an event; its data is one line of ASCII, so nothing in it can end the event."""
    identity = f"id: {cursor}\n" if cursor else ""
    return f"{identity}event: {name}\ndata: {data}\n\n".encode("ascii")
