"""The private parts of the MCP SDK that the proxy uses: an update that changes them fails here."""

import inspect

import mcp.client._probe as probe
from mcp.client.session import ClientSession
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher


def test_the_session_stamps_requests_as_we_call_it() -> None:
    """A session has ``_stamp``, which takes the data of a request and its options."""
    source = inspect.getsource(ClientSession)
    assert "self._stamp: Callable[[dict[str, Any], CallOptions], None]" in source
    assert "self._stamp(data, opts)" in source


def test_the_dispatcher_sends_raw_requests() -> None:
    """The dispatcher has ``send_raw_request`` with the parameters that the proxy passes."""
    assert list(inspect.signature(JSONRPCDispatcher.send_raw_request).parameters)[:4] == [
        "self",
        "method",
        "params",
        "opts",
    ]


def test_the_negotiation_is_where_it_was() -> None:
    """``negotiate_auto`` takes a session as its only parameter."""
    assert list(inspect.signature(probe.negotiate_auto).parameters) == ["session"]
