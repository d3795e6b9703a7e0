"""A dialect that clients speak to the proxy and the proxy speaks to upstreams."""

from typing import Protocol, runtime_checkable

from proxy.base.conversation import Message
from proxy.wires.client_port import ClientPort, ClientRequest, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.upstream_port import UpstreamPort

__all__ = ["CrossableWire", "Wire"]


class Wire(ClientPort, UpstreamPort, Protocol):
    """Both ports of a dialect, in one object.

    If client and upstream speak the same dialect, everything that is not edited keeps its bytes.
    """


@runtime_checkable
class CrossableWire(Wire, Protocol):
    """A dialect that can be translated: its clients may use upstreams of other dialects, and its upstreams
    may serve clients of other dialects.

    ``codec`` translates requests; the methods translate turns.
    """

    @property
    def codec(self) -> ConversationCodec: ...

    def encoder(self, request: ClientRequest) -> TurnEncoder:
        """Return an encoder of frames in this dialect, for one turn of an upstream of another dialect."""
        ...

    def read_turn(self, message: bytes) -> Message:
        """Read a turn that this dialect's :meth:`~proxy.wires.upstream_port.TurnReader.message` returned."""
        ...

    def write_turn(self, message: Message) -> bytes:
        """Write a turn as this dialect's :meth:`~proxy.wires.upstream_port.TurnReader.message` returns it."""
        ...
