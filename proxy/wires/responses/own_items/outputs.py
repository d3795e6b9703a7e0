"""Writes server tools and their results for an upstream of the Responses wire, with the results' images.

An ``input_image`` follows a line of text that describes it. This line distinguishes the proxy's images from
a client's, also in what an earlier request left. So the proxy can remove them again, here or for a file
that may hold no image.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from proxy.base.events import ResultImage, ToolDefinition, left_out
from proxy.json.splice import join_object, members
from proxy.records.rows import MessageRecord
from proxy.wires.responses.items import is_ours, item_text
from proxy.wires.upstream_port import Mask

_LABEL = "[toolrelay: image "
_SIGN = orjson.dumps(_LABEL)[:-1]

_BEGINNINGS = (
    *(("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg")),
    *(("UklGR", "image/webp"), ("R0lGOD", "image/gif")),
)
"""How images of these types begin in base64."""

Part = dict[str, Any]


def output_item(call_id: str, content: str, images: Sequence[ResultImage] = ()) -> bytes:
    """Return a ``function_call_output``. Its output is a list only if there are images."""
    output: str | list[Part] = content
    if images:
        output = [{"type": "input_text", "text": content}] if content else []
        for image in images:
            output.append({"type": "input_text", "text": f"{_LABEL}{image.words}]"})
            # Official clients leave ``detail`` out, but some servers require it.
            output.append({"type": "input_image", "image_url": image.url, "detail": "auto"})
    return orjson.dumps({"type": "function_call_output", "call_id": call_id, "output": output})


def image_message(item: Mapping[str, Any]) -> Part | None:
    """Return the message that shows a model an image that it made earlier; ``None`` for any other item."""
    data = item.get("result")
    if item.get("type") != "image_generation_call" or not isinstance(data, str):
        return None
    kind = next((kind for beginning, kind in _BEGINNINGS if data.startswith(beginning)), "")
    if not kind:
        return None
    content = [
        {"type": "input_text", "text": f"{_LABEL}that you made earlier in this conversation]"},
        {"type": "input_image", "image_url": f"data:{kind};base64,{data}", "detail": "auto"},
    ]
    return {"type": "message", "role": "user", "content": content}


def image_messages(items: Sequence[bytes]) -> list[bytes]:
    """Return the messages of all images among items that the proxy has made."""
    ours = (orjson.loads(raw) for raw in items if b"image_generation_call" in raw)
    found = [image_message(item) for item in ours if is_ours(item)]
    return [orjson.dumps(message) for message in found if message is not None]


def image_bytes(items: Sequence[bytes]) -> int:
    """Return the size of the items that hold images of the proxy, which is little more than the images."""
    return sum(len(item) for item in items if _SIGN in item and b'"input_image"' in item)


def without_images(item: bytes) -> bytes:
    """Return the item with text in place of the proxy's images. A client's own images stay."""
    if _SIGN not in item:
        return item
    read = orjson.loads(item)
    field = "content" if read.get("type") == "message" else "output"
    output = read.get(field)
    if not isinstance(output, list):
        return item
    text = _as_text(output, lambda words, _: left_out(words))
    return item if text is None else join_object({**members(item), field: orjson.dumps(text)})


def recorded_output(output: Any) -> str:
    """Return an output as the record keeps it: its text, with a placeholder for each image."""
    if isinstance(output, str):
        return output
    text = _as_text(output, lambda _, url: _placeholder(url)) if isinstance(output, list) else None
    return orjson.dumps(output).decode() if text is None else text


def _as_text(parts: Sequence[Any], say: Callable[[str, str], str]) -> str | None:
    """Return a content list as one text. ``say`` gets the description and the URL of an image.

    Return ``None`` if the list holds anything that is not the proxy's.
    """
    lines: list[str] = []
    words = ""
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "input_text" and isinstance(part.get("text"), str):
            text = part["text"]
            words = text.removeprefix(_LABEL)[:-1] if text.startswith(_LABEL) else ""
            lines.append(text)
        elif kind == "input_image" and words and isinstance(part.get("image_url"), str):
            lines[-1] = say(words, part["image_url"])
            words = ""
        else:
            return None
    return "\n".join(lines)


def _placeholder(url: str) -> str:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:"):
        return f"[image {url}]"
    size = len(data) * 3 // 4 - data[-2:].count("=")
    return f"[image {head[5:].removesuffix(';base64')} {size} bytes]"


def recorded_item(run_id: str, turn: int, seq: int, item: Mapping[str, Any]) -> MessageRecord:
    """Return an item as a row of the record, in the terms that all wires share."""
    kind = item.get("type") or "message"
    if kind == "function_call_output":
        return MessageRecord(
            run_id,
            turn,
            seq,
            "tool",
            content=recorded_output(item.get("output")),
            tool_call_id=str(item.get("call_id")),
        )
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        calls = [{"id": item.get("call_id"), "type": "function", "function": function}]
        return MessageRecord(run_id, turn, seq, "assistant", tool_calls=orjson.dumps(calls).decode())
    if kind == "message":
        return MessageRecord(run_id, turn, seq, "assistant", content=item_text(item))
    return MessageRecord(run_id, turn, seq, "assistant", content_json=orjson.dumps(item).decode())


def masked_item(raw: bytes, mask: Mask) -> bytes:
    """Return an item with the private arguments of a call masked; the same bytes if there are none."""
    item = orjson.loads(raw)
    if item.get("type") != "function_call":
        return raw
    masked = mask(str(item.get("name")), str(item.get("arguments")))
    if masked == item.get("arguments"):
        return raw
    return join_object({**members(raw), "arguments": orjson.dumps(masked)})


# ---------------------------------------------------------------- declared tools


def definition_of(definition: ToolDefinition) -> bytes:
    """Return one element of ``tools``, flat as in this dialect. ``strict`` is always explicit."""
    written = definition.written.get("responses")
    if written is None:
        tool = {
            "type": "function",
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.parameters,
            "strict": definition.strict,
        }
        written = definition.written["responses"] = orjson.dumps(tool)
    return written


def function_name(raw: bytes) -> str:
    tool = orjson.loads(raw)
    name = tool.get("name") if isinstance(tool, dict) and tool.get("type") == "function" else None
    return name if isinstance(name, str) else ""


def called_by(tool: Any) -> str | None:
    """Return the name by which a model calls a tool, from its declaration or from a choice."""
    callable_ = isinstance(tool, dict) and tool.get("type") in ("function", "custom")
    name = tool.get("name") if callable_ else None
    return name if isinstance(name, str) else None
