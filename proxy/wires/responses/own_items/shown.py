"""Items of the proxy's own making in a client's stream: a server call shown, a line of text.

Each comes as the events that a provider would send for it, in the official order.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from proxy.events import ToolCall, ToolResult
from proxy.wires.responses.items import mcp_call, message_item, own_item_id, reasoning_item, text_part
from proxy.wires.responses.own_items.signing import ItemSigner

__all__ = ["Event", "call_events", "message_events", "reasoning_events"]

Event = dict[str, Any]
"""An event without its numbers; ``output_index`` and ``sequence_number`` are the writer's to give."""


def call_events(call: ToolCall, result: ToolResult, signer: ItemSigner) -> Iterator[Event]:
    """A server call that has come to something, redacted, as a hosted MCP call."""
    shown = {} if result.arguments_redacted is None else result.arguments_redacted
    arguments = orjson.dumps(shown).decode()
    output = error = None
    if result.ok:
        output = result.redacted if isinstance(result.redacted, str) else _text(result.redacted)
    else:
        error = f"{result.error_code}: {result.safe_message}"
    item_id = signer.item_id(call.name, arguments, output=output, error=error)
    opened = mcp_call(item_id, call.name, "", status="in_progress")
    yield {"type": "response.output_item.added", "item": opened}
    yield {"type": "response.mcp_call.in_progress", "item_id": item_id}
    yield {"type": "response.mcp_call_arguments.delta", "item_id": item_id, "delta": arguments}
    yield {"type": "response.mcp_call_arguments.done", "item_id": item_id, "arguments": arguments}
    status = "completed" if result.ok else "failed"
    done = mcp_call(item_id, call.name, arguments, status=status) | {"output": output, "error": error}
    yield {"type": f"response.mcp_call.{status}", "item_id": item_id}
    yield {"type": "response.output_item.done", "item": done}


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def message_events(text: str) -> Iterator[Event]:
    """A message of the assistant that says ``text``."""
    item_id = own_item_id("msg")
    place = {"item_id": item_id, "content_index": 0}
    yield {"type": "response.output_item.added", "item": message_item(item_id, None, status="in_progress")}
    yield {"type": "response.content_part.added", **place, "part": text_part("")}
    yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": text_part(text)}
    yield {"type": "response.output_item.done", "item": message_item(item_id, text, status="completed")}


def reasoning_events(text: str) -> Iterator[Event]:
    """A reasoning item whose summary says ``text``."""
    item_id = own_item_id("rs")
    place = {"item_id": item_id, "summary_index": 0}
    part = {"type": "summary_text", "text": text}
    yield {"type": "response.output_item.added", "item": reasoning_item(item_id, None)}
    yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": "response.reasoning_summary_text.delta", **place, "delta": text}
    yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
    yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", "item": reasoning_item(item_id, text)}
