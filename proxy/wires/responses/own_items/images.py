"""Images that a server tool makes in OpenAI's place: how requests declare the tool, and the items of calls.

Sources: OpenAI's API reference, "Create a model response" and "Streaming events"; the guide "Image
generation"; the types of openai 3.57.0. The order of the events is that of its recorded streams.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.base.errors import RequestError
from proxy.base.events import ToolCall, ToolProgress, ToolResult
from proxy.wires.hosted.forms import SignedForm
from proxy.wires.hosted.tools import HostedTool
from proxy.wires.openai.images import image_usage
from proxy.wires.responses.items import own_mark
from proxy.wires.responses.own_items.outputs import image_message

Item = dict[str, Any]

CALL: Final = "image_generation_call"
MOST_STORED: Final = 8 << 20
"""The characters of base64 of all images that the record keeps of one response."""
_SIZE: Final = re.compile(r"auto|[1-9]\d{1,4}x[1-9]\d{1,4}")
_LONGEST_MODEL: Final = 200
_CHOICES: Final[Mapping[str, Sequence[Any]]] = {
    "action": ("generate", "edit", "auto"),
    "input_fidelity": ("low", "high"),
    "quality": ("low", "medium", "high", "xhigh", "max", "auto"),
    "background": ("transparent", "opaque", "auto"),
    "output_format": ("png", "webp", "jpeg"),
    "moderation": ("low", "auto"),
}
_RANGES: Final[Mapping[str, tuple[int, int]]] = {"output_compression": (0, 100), "partial_images": (0, 3)}
_OF_THE_MODEL: Final = ("size", "background")
"""What the model may choose if the declaration does not."""
_SET: Final = (
    *("quality", "output_format", "output_compression", "moderation", "model", "action", "input_fidelity"),
)
"""What only the declaration sets."""
_UNSERVED: Final = ("complexity", "frame_count", "frame_duration_ms", "svg")
_MASK: Final = "input_image_mask"
_WORDS: Final = ("size", "quality", "background", "revised_prompt")


def image_generation(at: str, tool: Mapping[str, Any], *, streams: bool) -> HostedTool:
    """Read a declaration; raise :class:`~proxy.base.errors.RequestError` for one that cannot be served.

    Partial images come only if the client ``streams``.
    """
    given = {name: value for name, value in tool.items() if value is not None and name != "type"}
    mask = _mask(f"{at}.{_MASK}", given.pop(_MASK, None))
    for name, value in given.items():
        _check(f"{at}.{name}", name, value)
    bound: dict[str, Any] = {name: given[name] for name in _OF_THE_MODEL if given.get(name, "auto") != "auto"}
    bound |= {name: given.get(name) for name in _SET}
    limits = {name: f"{at}.{name}" for name in bound if given.get(name, "auto") != "auto"}
    bound["partial_images"] = given.get("partial_images") or None if streams else None
    if mask:
        limits["edit_images"] = f"{at}.{_MASK}"
    return HostedTool("image_generation", at, tool, ImageForm(), bound, limits, mask=mask)


def _mask(field: str, value: Any) -> str:
    """Return the mask of a declaration as a data URL; ``""`` for none. A file of the provider's is refused:
    the proxy cannot read it."""
    url = value.get("image_url") if isinstance(value, dict) else None
    if value is not None and not (isinstance(url, str) and url.startswith("data:image/png;base64,")):
        raise RequestError(
            400, f"{field}.image_url must be a PNG as a data URL (data:image/png;base64,…).", param=field
        )
    return url or ""


def shown_images(payload: Mapping[str, Any]) -> list[list[str]]:
    """Return the images in the input of a request as URLs, those of one item together, in their order."""
    given = payload.get("input")
    found = (list(_images_in(item)) for item in (given if isinstance(given, list) else ()))
    return [images for images in found if images]


def _images_in(item: Any) -> Iterator[str]:
    if not isinstance(item, dict):
        return
    if (message := image_message(item)) is not None:
        item = message
    for holder in (item.get("content"), item.get("output")):
        for part in holder if isinstance(holder, list) else ():
            if isinstance(part, dict) and part.get("type") == "input_image":
                url, file = part.get("image_url"), part.get("file_id")
                if isinstance(url, str):
                    yield url
                elif isinstance(file, str):
                    yield f"file:{file}"  # Nobody but the provider can read it; who wants it is told so.


def _check(field: str, name: str, value: Any) -> None:
    if name in _CHOICES:
        fits, wanted = value in _CHOICES[name], f"must be one of {', '.join(_CHOICES[name])}"
    elif name in _RANGES:
        least, most = _RANGES[name]
        fits = type(value) is int and least <= value <= most
        wanted = f"must be a number from {least} to {most}"
    elif name == "size":
        fits, wanted = isinstance(value, str) and bool(_SIZE.fullmatch(value)), "must be auto or WIDTHxHEIGHT"
    elif name == "model":
        fits = isinstance(value, str) and 0 < len(value) <= _LONGEST_MODEL
        wanted = f"must be a name of at most {_LONGEST_MODEL} characters"
    else:
        known = name in _UNSERVED
        fits, wanted = False, "cannot be applied by this proxy. Leave it out" if known else ""
    if not fits:
        said = f"{field} {wanted}." if wanted else f"Unknown parameter: '{field}'."
        raise RequestError(400, said, param=field)


class ImageForm(SignedForm):
    """Shows the images that calls make, which the model does not get."""

    shows_images = True

    def begun(self, call: ToolCall, arguments: Any) -> Item:
        item_id = self.ids.make(own_mark("ig"))
        return {"id": item_id, "type": CALL, "status": "in_progress"}

    def progressed(self, progress: ToolProgress) -> Sequence[Item]:
        if progress.image is None:
            return ()
        return [
            {
                "type": f"response.{CALL}.partial_image",
                "partial_image_index": int(progress.done) - 1,
                "partial_image_b64": _base64(progress.image.url),
                **{name: progress.facts[name] for name in _WORDS[:3] if name in progress.facts},
                "output_format": progress.image.media_type.removeprefix("image/"),
            }
        ]

    def ended(self, begun: Item | None, call: ToolCall, result: ToolResult) -> Sequence[Item]:
        item = dict(begun or {})
        image = next((image for image in result.images if _base64(image.url)), None)
        if not result.ok or image is None:
            message = result.safe_message or "The tool made no image that can be shown."
            error = {
                "code": result.error_code or "execution_failed",
                "message": message,
                "type": "image_generation_error",
            }
            return [{**item, "status": "failed", "result": "", "error": error}]
        facts = result.redacted if isinstance(result.redacted, dict) else {}
        words = {name: facts[name] for name in _WORDS if isinstance(facts.get(name), str)}
        form = image.media_type.removeprefix("image/")
        action = "edit" if facts.get("action") == "edit" else "generate"
        made = {"action": action, **words, "output_format": form, "result": _base64(image.url)}
        return [{**item, "status": "completed", **made}]

    def usage(self, result: ToolResult) -> dict[str, Any]:
        facts = result.redacted if result.ok and isinstance(result.redacted, dict) else {}
        usage = facts.get("usage")
        return {"image_gen": image_usage(usage if isinstance(usage, dict) else {})}


def with_bounded_images(response: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a response for the record: its newest images stay, as far as they have room.

    The items of all others have the ``result`` ``null``.
    """
    output = None if response is None else response.get("output")
    if response is None or not isinstance(output, list) or not any(map(_is_call, output)):
        return response
    room, kept = MOST_STORED, []
    for item in reversed(output):
        if _is_call(item):
            room -= len(str(item.get("result") or ""))
            item = item if room >= 0 else {**item, "result": None}
        kept.append(item)
    return {**response, "output": kept[::-1]}


def _is_call(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == CALL


def _base64(url: str) -> str:
    """Return the data of a ``data:`` URL; ``""`` for an address."""
    head, _, data = url.partition(";base64,")
    return data if head.startswith("data:") else ""
