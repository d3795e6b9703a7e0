"""Items that the proxy adds to a client's answer, such as a server call or a line of text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from proxy.base.events import ToolCall, ToolResult
from proxy.wires.chosen import ShownServer, ShownTools
from proxy.wires.client_port import ApprovedCallResult, ClientCall, Trace
from proxy.wires.responses.items import (
    SERVER_LABEL,
    mcp_call,
    mcp_list,
    message_item,
    own_item_id,
    reasoning_item,
    request_id_of,
    sealed_turn_item,
)
from proxy.wires.responses.own_items.programs import call_item
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.turn.trace import reasoning_line, status_line

Item = dict[str, Any]


def _call_item(
    call: ToolCall,
    result: ToolResult,
    signer: ItemSigner,
    served: tuple[str, str] | None = None,
    asked_by: str | None = None,
) -> Item:
    """Return a finished server call, redacted, as a hosted MCP call.

    ``served`` are the client's name of the server, and the server's name of its tool; ``None`` if the
    client did not choose the tool by its server. ``asked_by`` is the id of the item that asked for
    approval.
    """
    label, name = served or (SERVER_LABEL, call.name)
    shown = {} if result.arguments_redacted is None else result.arguments_redacted
    arguments = orjson.dumps(shown).decode()
    output = error = None
    if result.ok:
        output = result.redacted if isinstance(result.redacted, str) else _text(result.redacted)
    else:
        error = f"{result.error_code}: {result.safe_message}"
    item_id = signer.item_id(name, arguments, output=output, error=error, label=label)
    status = "completed" if result.ok else "failed"
    item = mcp_call(item_id, name, arguments, status=status, label=label, asked_by=asked_by)
    return {**item, "output": output, "error": error}


def opening_items(
    lists: Sequence[ShownServer],
    approved: Sequence[ApprovedCallResult],
    shown: ShownTools,
    signer: ItemSigner,
) -> Sequence[Item]:
    """Return what the client sees before the model's output: the tools of servers, and approved calls.

    Approved calls are shown only for tools that the client chose by their server, since items asked about
    these.
    """
    calls = [(done, shown.called(done.call.name)) for done in approved]
    return [
        *(mcp_list(own_item_id("mcpl"), server.label, server.tools) for server in lists),
        *(
            _call_item(done.call, done.result, signer, served, request_id_of(done.approval_id))
            for done, served in calls
            if served is not None
        ),
    ]


class OwnItems(ABC):
    """The methods of a writer whose items come whole, each shown by :meth:`_show`."""

    @abstractmethod
    def _show(self, item: Item) -> bytes:
        """Write an item at the next place; return the bytes to send now."""

    def approval_requested(self, item_id: str, label: str, name: str, arguments: str) -> bytes:
        """See :meth:`proxy.wires.client_port.StreamWriter.approval_requested`."""
        return self._show(approval_item(item_id, label, name, arguments))

    def carry(self, sealed: str) -> bytes:
        """See :meth:`proxy.wires.client_port.StreamWriter.carry`."""
        return self._show(sealed_turn_item(own_item_id("rs"), sealed))

    def client_called(self, name: str, calls: Sequence[ClientCall]) -> bytes:
        """See :meth:`proxy.wires.client_port.StreamWriter.client_called`."""
        return b"".join([self._show(call_item(call)) for call in calls])


def approval_item(item_id: str, label: str, name: str, arguments: str) -> Item:
    """Return a call that waits for approval, as a hosted MCP server's."""
    return {
        "id": item_id,
        "type": "mcp_approval_request",
        "server_label": label,
        "name": name,
        "arguments": arguments,
    }


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def traced_item(
    trace: Trace,
    call: ToolCall,
    result: ToolResult,
    signer: ItemSigner,
    *,
    served: tuple[str, str] | None,
    texts: bool,
) -> Item | None:
    """Return what a trace shows of a finished server call; ``None`` for nothing.

    A tool that is ``served`` by a server that the client chose is shown at every trace level. ``texts``
    allows a message beside the answer. A waiting call is shown only after it has ended.
    """
    if result.awaits_approval:
        return None
    if served is not None or trace == "events":
        return _call_item(call, result, signer, served)
    if trace == "reasoning":
        return reasoning_item(own_item_id("rs"), reasoning_line(call, result))
    if trace == "status" and texts:
        text = status_line(call, result) + "\n\n"
        return message_item(own_item_id("msg"), text, status="completed")
    return None
