"""Store a background request, so that another process can run it again without its client.

A stored request contains no secret. A ticket replaces the client's credential, and the only headers are
those that upstreams may see.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.base.errors import StoreError
from proxy.http.rules import HeaderRules
from proxy.relay.ask import Ask
from proxy.relay.memory.idempotency import Attempt
from proxy.relay.offering.wanted import Wanted
from proxy.wires.client_port import Trace
from proxy.wires.registry.hosted_tools import acting_tool
from proxy.wires.registry.requests import conversation_of

_MAX_BYTES: Final = 4 << 20


class StoredRequest(Struct, frozen=True):
    """A background request and its caller.

    ``body`` holds the bytes that the client sent. ``ticket`` finds the caller again
    (:class:`~proxy.server.auth.tickets.Tickets`). ``refusal_reason`` says why the request cannot be run
    again; if it is set, all other fields are empty.
    """

    refusal_reason: str = ""
    body: bytes = b""
    ticket: Mapping[str, Any] | None = None
    caller: str = ""
    key: str = ""
    is_person: bool = False
    request_id: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    query: str = ""
    wanted: Wanted | None = None
    trace: Trace = "silent"
    history: bool = True
    attempt: Attempt = Attempt()
    asks_by_call: bool = False

    def to_json(self) -> bytes:
        """Return the request as JSON in UTF-8; raises ``TypeError`` or ``ValueError`` if it is not text."""
        if self.refusal_reason:
            return orjson.dumps({"why_not": self.refusal_reason})
        wanted = None if self.wanted is None else [self.wanted.every, self.wanted.names, self.wanted.param]
        return orjson.dumps(
            {
                "body": self.body.decode(),
                "ticket": self.ticket,
                "caller": self.caller,
                "key": self.key,
                "is_person": self.is_person,
                "request_id": self.request_id,
                "headers": self.headers,
                "query": self.query,
                "wanted": wanted,
                "trace": self.trace,
                "history": self.history,
                "attempt": [self.attempt.key, list(self.attempt.counts), self.attempt.session],
                "asks_by_call": self.asks_by_call,
            }
        )


def stored_request(ask: Ask, ticket: Mapping[str, Any] | None, rules: HeaderRules) -> StoredRequest:
    """Return the stored form of a request; ``ticket`` is ``None`` if its caller cannot be found again.

    ``rules`` select the headers that any upstream may see.
    """
    identity, options = ask.identity, ask.options
    refusal_reason = _refusal_reason(ask, ticket)
    if refusal_reason:
        return StoredRequest(refusal_reason)
    request = StoredRequest(
        body=ask.body.raw,
        ticket=ticket,
        caller=identity.caller,
        key=identity.key,
        is_person=identity.is_person,
        request_id=identity.request_id,
        headers=tuple(rules.request_headers(ask.head.headers)),
        query=ask.head.query,
        wanted=options.wanted,
        trace=options.trace,
        history=options.history,
        attempt=options.attempt,
        asks_by_call=options.asks_by_call,
    )
    try:
        request.to_json()
    except (TypeError, ValueError):  # A part of it is not Unicode.
        return StoredRequest("it is not text")
    return request


def _refusal_reason(ask: Ask, ticket: Mapping[str, Any] | None) -> str:
    """Return why a request cannot be run again, or an empty string if it can."""
    payload = ask.body.payload
    if ticket is None:
        return "it came with a credential that the server does not keep"
    if len(ask.body.raw) > _MAX_BYTES:
        return f"it is larger than {_MAX_BYTES >> 20} MiB"
    if conversation_of(payload) is not None:
        return "the provider may have added its input to the conversation already"
    if (kind := acting_tool(payload)) is not None:
        return f"the provider may have run a tool of the type {kind[:100]}"
    return ""


def read_request(data: bytes) -> StoredRequest:
    """Parse the output of :meth:`StoredRequest.to_json`; raises :class:`StoreError` for other
    data."""
    try:
        said = orjson.loads(data)
        if "why_not" in said:
            return StoredRequest(str(said["why_not"]))
        wanted, (key, counts, session) = said.pop("wanted"), said.pop("attempt")
        return StoredRequest(
            **said
            | {
                "body": said["body"].encode(),
                "headers": tuple((name, value) for name, value in said["headers"]),
                "wanted": None if wanted is None else Wanted(wanted[0], tuple(wanted[1]), wanted[2]),
                "attempt": Attempt(key, tuple(counts), session),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError("a stored background request cannot be read") from error
