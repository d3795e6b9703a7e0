"""Reads JSON-RPC messages of clients, in their revision of the protocol.

Up to revision 2025-11-25 a client makes a handshake (``initialize``), and a header of each later request
names the revision. From 2026-07-28 on there is no handshake: ``params._meta`` of each request holds all
facts, and headers repeat them for intermediaries. This module reads both, and refuses a request whose
headers and body differ. Sources: JSON-RPC 2.0; the specification's pages "Base protocol" and "Transports"
of these revisions.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from proxy.base.errors import ToolRelayError
from proxy.wires.mcp.dialect import INVALID_REQUEST

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that begin with a handshake, from the oldest."""

LATEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]
MODERN_VERSIONS: Final = ("2026-07-28",)
"""Revisions without a handshake: each request is self-contained."""

_UNSAID: Final = "2025-03-26"
"""The revision of a client that sends no version header: the specification says to assume this one."""

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
HEADER_MISMATCH: Final = -32020
UNSUPPORTED_VERSION: Final = -32022

_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
_NAMED_BY: Final[Mapping[str, str]] = {"tools/call": "name"}
"""Methods, and the member of their parameters that the header ``Mcp-Name`` repeats."""

_BASE64: Final = re.compile(r"=\?base64\?(.*)\?=\Z", re.DOTALL)
_LONGEST_ID: Final = 256

RequestId = str | int


class ProtocolFault(ToolRelayError):
    """A message that the server refuses, as the JSON-RPC error that answers it.

    ``status`` is the HTTP status of the answer. ``number`` is the id of the request, ``None`` if it has
    none.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        status: int = 400,
        number: RequestId | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.code = code
        self.message = message
        self.status = status
        self.number = number
        self.data = data
        super().__init__(message)


class RoutingHeaders(Struct, frozen=True):
    """The headers that repeat what a message is. Each holds the values of all its header lines.

    ``version`` is ``MCP-Protocol-Version``, ``method`` is ``Mcp-Method``, ``name`` is ``Mcp-Name``.
    """

    version: Sequence[str] = ()
    method: Sequence[str] = ()
    name: Sequence[str] = ()


class Message(Struct, frozen=True):
    """One message of a client.

    ``id`` is ``None`` for a message that wants no answer. ``modern`` means that the message is
    self-contained: no handshake came before it. ``progress_token`` is the client's token for progress
    notifications, ``None`` if it wants none.
    """

    method: str
    params: Mapping[str, Any]
    id: RequestId | None
    version: str
    modern: bool
    progress_token: RequestId | None = None

    @property
    def is_request(self) -> bool:
        """Whether the client waits for an answer."""
        return self.id is not None


def read_message(body: Mapping[str, Any], headers: RoutingHeaders) -> Message | None:
    """Return the message in a body; ``None`` for a client's answer, since the server never asks clients.

    Raises :class:`ProtocolFault` for a message that the server refuses.
    """
    number, asks = _request_id(body)
    if body.get("jsonrpc") != "2.0":
        raise ProtocolFault(INVALID_REQUEST, 'jsonrpc must be "2.0"', number=number)
    method = body.get("method")
    if method is None and ("result" in body or "error" in body):
        return None
    if not isinstance(method, str) or not method:
        raise ProtocolFault(INVALID_REQUEST, "method must be the name of a method", number=number)
    params = body.get("params", {})
    if not isinstance(params, dict):
        raise ProtocolFault(INVALID_PARAMS, "params must be an object", number=number)
    meta = params.get("_meta", {})
    if not isinstance(meta, dict):
        raise ProtocolFault(INVALID_PARAMS, "params._meta must be an object", number=number)
    version = headers.version[0].strip() if headers.version else None
    # A client that names its revision in the body makes no handshake, whatever its headers say.
    modern = _VERSION in meta or (version is not None and version not in HANDSHAKE_VERSIONS)
    token = meta.get("progressToken")
    message = Message(
        method=method,
        params=params,
        id=number if asks else None,
        version=version or _UNSAID,
        modern=modern,
        progress_token=token if _is_id(token) else None,
    )
    _check_headers(message, headers, meta)
    return message


def _request_id(body: Mapping[str, Any]) -> tuple[RequestId | None, bool]:
    """Return the id of a request, and whether the body has an id at all."""
    if "id" not in body:
        return None, False
    number = body["id"]
    if not _is_id(number):
        raise ProtocolFault(
            INVALID_REQUEST, f"id must be a number without a fraction, or a text of up to {_LONGEST_ID} bytes"
        )
    return number, True


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_ID
    return isinstance(value, int) and not isinstance(value, bool)


def _check_headers(message: Message, headers: RoutingHeaders, meta: Mapping[str, Any]) -> None:
    """Raise if parts of the message contradict each other, or if its revision is not served."""
    named = {"MCP-Protocol-Version": headers.version, "Mcp-Method": headers.method, "Mcp-Name": headers.name}
    for name, lines in named.items():
        if len(lines) > 1:
            raise ProtocolFault(HEADER_MISMATCH, f"send {name} once", number=message.id)
    if not message.modern:
        return
    if message.is_request:
        _check_envelope(message, headers, meta)
    if message.version not in MODERN_VERSIONS:
        raise ProtocolFault(
            UNSUPPORTED_VERSION,
            f"this revision of the protocol is not served: {message.version[:40]}",
            number=message.id,
            data={"supported": list(MODERN_VERSIONS), "requested": message.version[:40]},
        )


def _check_envelope(message: Message, headers: RoutingHeaders, meta: Mapping[str, Any]) -> None:
    """Raise unless ``params._meta`` is complete and the headers name the same revision, method and tool."""
    missing = [name for name in (_VERSION, _CAPABILITIES) if name not in meta]
    if missing:
        raise ProtocolFault(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}", number=message.id)
    if not headers.version or message.version != meta[_VERSION]:
        raise _mismatch(message, "MCP-Protocol-Version", f"params._meta.{_VERSION}")
    if not headers.method or headers.method[0].strip() != message.method:
        raise _mismatch(message, "Mcp-Method", "method")
    member = _NAMED_BY.get(message.method)
    named = message.params.get(member) if member is not None else None
    if named is not None and (not headers.name or _decoded(headers.name[0].strip()) != named):
        raise _mismatch(message, "Mcp-Name", f"params.{member}")


def _mismatch(message: Message, header: str, member: str) -> ProtocolFault:
    return ProtocolFault(
        HEADER_MISMATCH, f"the header {header} is missing, or differs from {member}", number=message.id
    )


def _decoded(value: str) -> str | None:
    """Return a header's value. One that is not plain ASCII is in base64; ``None`` if that is malformed."""
    match = _BASE64.match(value)
    if match is None:
        return value
    try:
        decoded = base64.b64decode(match[1], validate=True)
        # An intermediary that does not decode would take two spellings of one value for two values.
        return decoded.decode() if base64.b64encode(decoded).decode() == match[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None
