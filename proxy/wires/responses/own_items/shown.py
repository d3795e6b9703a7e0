"""Items that the proxy adds to a client's stream, such as a server call or a line of text.

Each comes as the events that a provider would send for it, in the official order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from proxy.base.events import ToolCall, ToolResult
from proxy.wires.chosen import ShownServer, ShownTools
from proxy.wires.client_port import ApprovedCallResult, Trace
from proxy.wires.responses.items import (
    SERVER_LABEL,
    mcp_call,
    mcp_list,
    message_item,
    own_item_id,
    reasoning_item,
    request_id_of,
    sealed_turn_item,
    text_part,
)
from proxy.wires.responses.own_items.signing import ItemSigner
from proxy.wires.turn.trace import reasoning_line, status_line

__all__ = [
    "EventObject",
    "approval_events",
    "call_events",
    "message_events",
    "opening_events",
    "reasoning_events",
    "sealed_turn_events",
    "traced_events",
]

EventObject = dict[str, Any]
"""An event without its numbers; the writer adds ``output_index`` and ``sequence_number``."""


def list_events(server: ShownServer) -> Iterator[EventObject]:
    """Yield the tools that a server adds to the request, as a hosted MCP server lists its tools."""
    item_id = own_item_id("mcpl")
    yield {"type": "response.output_item.added", "item": mcp_list(item_id, server.label, ())}
    yield {"type": "response.mcp_list_tools.in_progress", "item_id": item_id}
    yield {"type": "response.mcp_list_tools.completed", "item_id": item_id}
    yield {"type": "response.output_item.done", "item": mcp_list(item_id, server.label, server.tools)}


def call_events(
    call: ToolCall,
    result: ToolResult,
    signer: ItemSigner,
    served: tuple[str, str] | None = None,
    asked_by: str | None = None,
) -> Iterator[EventObject]:
    """Yield a finished server call, redacted, as a hosted MCP call.

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
    opened = mcp_call(item_id, name, "", status="in_progress", label=label, asked_by=asked_by)
    yield {"type": "response.output_item.added", "item": opened}
    yield {"type": "response.mcp_call.in_progress", "item_id": item_id}
    yield {"type": "response.mcp_call_arguments.delta", "item_id": item_id, "delta": arguments}
    yield {"type": "response.mcp_call_arguments.done", "item_id": item_id, "arguments": arguments}
    status = "completed" if result.ok else "failed"
    done = mcp_call(item_id, name, arguments, status=status, label=label, asked_by=asked_by)
    done |= {"output": output, "error": error}
    yield {"type": f"response.mcp_call.{status}", "item_id": item_id}
    yield {"type": "response.output_item.done", "item": done}


def opening_events(
    lists: Sequence[ShownServer],
    approved: Sequence[ApprovedCallResult],
    shown: ShownTools,
    signer: ItemSigner,
) -> Sequence[Sequence[EventObject]]:
    """Return what the client sees before the model's output: the tools of servers, and approved calls.

    Approved calls are shown only for tools that the client chose by their server, since items asked about
    these.
    """
    calls = [(one, shown.called(one.call.name)) for one in approved]
    return [
        *(list(list_events(server)) for server in lists),
        *(
            list(call_events(one.call, one.result, signer, served, request_id_of(one.approval_id)))
            for one, served in calls
            if served is not None
        ),
    ]


def approval_events(item_id: str, label: str, name: str, arguments: str) -> Iterator[EventObject]:
    """Yield a call that waits for approval, as a hosted MCP server's. It has no events of its own."""
    item = {
        "id": item_id,
        "type": "mcp_approval_request",
        "server_label": label,
        "name": name,
        "arguments": arguments,
    }
    yield {"type": "response.output_item.added", "item": item}
    yield {"type": "response.output_item.done", "item": item}


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def traced_events(
    trace: Trace,
    call: ToolCall,
    result: ToolResult,
    signer: ItemSigner,
    *,
    served: tuple[str, str] | None,
    texts: bool,
) -> Sequence[EventObject]:
    """Return what a trace shows of a finished server call, possibly nothing.

    A tool that is ``served`` by a server that the client chose is shown at every trace level. ``texts``
    allows a message beside the answer. A waiting call is shown only after it has ended.
    """
    if result.awaits_approval:
        return ()
    if served is not None or trace == "events":
        return list(call_events(call, result, signer, served))
    if trace == "reasoning":
        return list(reasoning_events(reasoning_line(call, result)))
    if trace == "status" and texts:
        return list(message_events(status_line(call, result) + "\n\n"))
    return ()


def message_events(text: str) -> Iterator[EventObject]:
    """Yield a message of the assistant with this text."""
    item_id = own_item_id("msg")
    place = {"item_id": item_id, "content_index": 0}
    yield {"type": "response.output_item.added", "item": message_item(item_id, None, status="in_progress")}
    yield {"type": "response.content_part.added", **place, "part": text_part("")}
    yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": text_part(text)}
    yield {"type": "response.output_item.done", "item": message_item(item_id, text, status="completed")}


def reasoning_events(text: str) -> Iterator[EventObject]:
    """Yield a reasoning item with this summary."""
    item_id = own_item_id("rs")
    place = {"item_id": item_id, "summary_index": 0}
    part = {"type": "summary_text", "text": text}
    yield {"type": "response.output_item.added", "item": reasoning_item(item_id, None)}
    yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": "response.reasoning_summary_text.delta", **place, "delta": text}
    yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
    yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", "item": reasoning_item(item_id, text)}


def sealed_turn_events(sealed: str) -> Iterator[EventObject]:
    """Yield a reasoning item with an encrypted turn, which the client sends back with its conversation."""
    item_id = own_item_id("rs")
    yield {"type": "response.output_item.added", "item": sealed_turn_item(item_id, None)}
    yield {"type": "response.output_item.done", "item": sealed_turn_item(item_id, sealed)}
