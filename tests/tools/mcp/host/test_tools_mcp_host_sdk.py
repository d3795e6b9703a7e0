"""What is used of the SDK beyond its public names: an update that changes it has to be looked at."""

import inspect

import mcp.client._probe as probe
from mcp.client.session import ClientSession
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher


def test_the_session_stamps_requests_as_we_call_it() -> None:
    """``_stamp`` is set at the handshake and takes the request and its options."""
    source = inspect.getsource(ClientSession)
    assert "self._stamp: Callable[[dict[str, Any], CallOptions], None]" in source
    assert "self._stamp(data, opts)" in source


def test_the_dispatcher_sends_raw_requests() -> None:
    """And gives the result as it came."""
    assert list(inspect.signature(JSONRPCDispatcher.send_raw_request).parameters)[:4] == [
        "self",
        "method",
        "params",
        "opts",
    ]


def test_the_negotiation_is_where_it_was() -> None:
    """One function that takes a session."""
    assert list(inspect.signature(probe.negotiate_auto).parameters) == ["session"]
