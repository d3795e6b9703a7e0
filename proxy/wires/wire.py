"""A dialect in which clients ask and upstreams are asked."""

from typing import Protocol, runtime_checkable

from proxy.conversation import Message
from proxy.wires.client_port import ClientPort, ClientRequest, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.upstream_port import UpstreamPort

__all__ = ["CrossableWire", "Wire"]


class Wire(ClientPort, UpstreamPort, Protocol):
    """Both ports of a dialect, in one object.

    Where client and upstream speak the same dialect, what is not edited keeps its bytes.
    """


@runtime_checkable
class CrossableWire(Wire, Protocol):
    """A dialect whose clients may ask upstreams of another one, and whose upstreams may answer such clients.

    ``codec`` reads and writes requests, the rest of this turns.
    """

    @property
    def codec(self) -> ConversationCodec: ...

    def encoder(self, request: ClientRequest) -> TurnEncoder:
        """Makes frames of this dialect for one turn of an upstream of another one."""
        ...

    def read_turn(self, message: bytes) -> Message:
        """A turn of a model, as :meth:`~proxy.wires.upstream_port.TurnReader.message` gives it in this
        dialect."""
        ...

    def write_turn(self, message: Message) -> bytes:
        """A turn of a model, as :meth:`~proxy.wires.upstream_port.TurnReader.message` would give it in this
        dialect."""
        ...
