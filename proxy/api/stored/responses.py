"""``/v1/responses/{id}``: answers from the record for responses that used server tools.

An upstream knows only the turns of such a response, one by one and under other ids. A request for a response
that is not the proxy's own goes to the upstream unchanged.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import orjson
from aiohttp import web

from proxy.base.errors import RequestError
from proxy.http.headers import Headers
from proxy.records.rows import ResponseRecord
from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.server.auth.body_rights import not_found
from proxy.store.base import Store
from proxy.wires.dialect import Endpoint

StreamOfStored = Callable[[Mapping[str, Any], int | None], bytes]
"""Called as ``(response, starting_after)``; returns the response's event stream from there on."""

DeleteUpstream = Callable[[ResponseRecord, Headers], Awaitable[None]]
"""Deletes the parts of a response that the upstream keeps; the client's key in the headers may be used for
it."""

_MOST = 100
_DEFAULT = 20


class StoredResponses:
    """The proxy's own responses, over HTTP. ``stream_of_stored`` makes a stream of an ended response."""

    def __init__(
        self, store: Store, commits: CommitWaiter, stream_of_stored: StreamOfStored, forget: DeleteUpstream
    ) -> None:
        self._store = store
        self._commits = commits
        self._stream_of_stored = stream_of_stored
        self._forget = forget

    async def own(
        self,
        endpoint: Endpoint,
        response_id: str,
        query: str,
        caller: str,
        headers: Headers = (),
        *,
        isolated: bool,
    ) -> web.Response | None:
        """Answer as :meth:`answer` does; ``None`` means that the request goes to an upstream. With
        ``isolated`` only requests for the caller's own responses do.

        Raises :class:`RequestError` (404) for a response that does not exist or is another caller's, and
        :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """

        async def look() -> web.Response | bool | None:
            own = await self.answer(endpoint, response_id, query, caller, headers)
            if own is not None or not isolated:
                return own or True
            return await self._store.is_response_owner(response_id, caller) or None

        # Another process may have given it to the client a moment ago.
        stored = await self._commits.look_again(look)
        if stored is None:
            raise not_found(response_id)
        return stored if isinstance(stored, web.Response) else None

    async def answer(
        self, endpoint: Endpoint, response_id: str, query: str, caller: str, headers: Headers = ()
    ) -> web.Response | None:
        """Answer for one of this caller's responses; return ``None`` if the proxy does not keep it.

        Raises :class:`RequestError` for an action that this response does not allow.
        """
        record = await self._store.find_response(response_id, caller)
        if record is None:
            return None
        if endpoint.action == "input_items":
            return _json(_input_items(record, values_of(query)))
        if endpoint.action == "cancel":
            raise RequestError(400, "Only background responses can be cancelled.", param="response_id")
        if endpoint.action == "delete":
            await self._store.delete_response(response_id, caller)
            await self._forget(record, headers)
            return _json({"id": response_id, "object": "response", "deleted": True})
        return self._retrieved(record, values_of(query), endpoint.dialect.framing.content_type)

    def _retrieved(self, record: ResponseRecord, query: Mapping[str, str], kind: str) -> web.Response:
        if query.get("stream") != "true":
            return web.Response(body=record.response, content_type="application/json")
        after = number_of(query, "starting_after")
        return web.Response(
            body=self._stream_of_stored(orjson.loads(record.response), after),
            headers={"Content-Type": kind, "Cache-Control": "no-cache"},
        )


def values_of(query: str) -> dict[str, str]:
    """Return the last value of each parameter."""
    return {key: values[-1] for key, values in parse_qs(query).items()}


def _json(payload: Mapping[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(payload), content_type="application/json")


def number_of(query: Mapping[str, str], name: str) -> int | None:
    """Return a number of a query, ``None`` if it is absent; raise RequestError (400) for anything else."""
    text = query.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9:
        raise RequestError(400, f"{name} must be a number.", param=name)
    return int(text)


def _input_items(record: ResponseRecord, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the input items, newest first as in the API, unless ``order`` is ``asc``."""
    limit = number_of(query, "limit") or _DEFAULT
    if limit > _MOST:
        raise RequestError(400, f"limit must be {_MOST} or less.", param="limit")
    items = [
        _identified(record.id, place, item) for place, item in enumerate(orjson.loads(record.input_items))
    ]
    if query.get("order", "desc") != "asc":
        items.reverse()
    if (after := query.get("after")) is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise RequestError(404, f"There is no input item {after[:80]!r}.", param="after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


def _identified(response_id: str, place: int, item: dict[str, Any]) -> dict[str, Any]:
    """Return an input item as the API shows it: with a type, an id, and content in parts."""
    shown = dict(item)
    kind = shown.setdefault("type", "message")
    shown.setdefault("id", f"{'msg' if kind == 'message' else 'item'}_{response_id[-24:]}_{place}")
    if kind == "message" and isinstance(shown.get("content"), str):
        part = "output_text" if shown.get("role") == "assistant" else "input_text"
        shown["content"] = [{"type": part, "text": shown["content"]}]
    return shown
