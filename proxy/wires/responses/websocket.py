"""The messages of clients in the WebSocket mode of Responses.

Source: OpenAI's guide "WebSocket mode" and the SDK's ``responses_client_event``.
"""

import re
from typing import Any, Final, NamedTuple

from proxy.base.errors import RequestError
from proxy.json.splice import join_object, members
from proxy.wires.responses.dialect import RESPONSES

_LANE: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
_PROTOCOL_MEMBERS: Final = frozenset({"type", "stream_id", "generate", "stream", RESPONSES.fields.background})
"""Members of a message that do not belong to the request in it."""


class CreateRequest(NamedTuple):
    """A client's message that asks for a response; ``previous`` is the id of the response it continues."""

    body: bytes
    lane: str
    generates: bool
    previous: str


def lane_of(said: dict[str, Any]) -> str:
    """Return the ``stream_id`` of a message, which names its lane on the connection; empty without one.

    Raises :class:`~proxy.base.errors.RequestError` (400) if it is malformed.
    """
    lane = said.get("stream_id")
    if lane is None:
        return ""
    if not isinstance(lane, str) or not _LANE.match(lane):
        raise RequestError(
            400,
            "stream_id must be 1 to 256 letters, digits, '_', '.' or '-'.",
            param="stream_id",
            code="invalid_stream_id",
        )
    return lane


def create_request(said: dict[str, Any], raw: bytes, lane: str) -> CreateRequest:
    """Extract the request from a message; raises :class:`~proxy.base.errors.RequestError` (400) for other
    kinds."""
    kind = said.get("type")
    if kind != "response.create":
        raise RequestError(
            400,
            f"Messages of the type {str(kind)[:80]!r} are not supported. Send response.create.",
            param="type",
            code="unsupported_event",
        )
    background = RESPONSES.fields.background
    if said.get(background) not in (None, False):
        raise RequestError(
            400,
            f"Background responses are not possible on a WebSocket. Leave {background} out, or use HTTP.",
            param=background,
        )
    generate = said.get("generate")
    if generate not in (None, True, False) or type(generate) is int:
        raise RequestError(400, "generate must be true or false.", param="generate")
    kept = {name: value for name, value in members(raw).items() if name not in _PROTOCOL_MEMBERS}
    previous = said.get(RESPONSES.fields.continues)
    return CreateRequest(
        join_object({**kept, "stream": b"true"}),
        lane,
        generate is not False,
        previous if isinstance(previous, str) else "",
    )
