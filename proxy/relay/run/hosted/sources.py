"""Finds the images of a conversation that a call of the provider's image generation may change.

These are the images that the client sent, those that earlier calls made, as the client sends them back or as
the record has them of the response that the request continues, and those of this run.
"""

import base64
import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from proxy.base.errors import StoreError, ToolFailure
from proxy.base.events import MOST_SOURCES, ImageSource, SourceImage, SourceImages, ToolResult
from proxy.json.in_thread import in_thread
from proxy.relay.memory.references import ItemReferences
from proxy.relay.run.job import Job
from proxy.relay.run.state import State

_TYPES: Final = ("image/png", "image/jpeg", "image/webp")
"""What OpenAI's edits take."""
_MOST_BYTES: Final = 20 << 20
_MOST_MASK: Final = 4 << 20
"""Bytes of all images of a call, and of its mask, which OpenAI's edits do not take larger."""


def image_source(job: Job, state: State, items: ItemReferences) -> ImageSource | None:
    """Return what gives calls the images of the conversation; ``None`` if no call may have any."""
    tool = next(
        (tool for tool in state.tools.offer.shown.hosted.values() if tool.kind == "image_generation"), None
    )
    if tool is None:
        return None
    earlier = list(state.outcome.found.images)

    async def images(most: int) -> SourceImages:
        groups = [*await _before(job, items), *([url] for url in earlier)]
        return await in_thread(_read, _newest(groups, most, first=bool(tool.mask)), tool.mask)

    return images


def note_images(state: State, result: ToolResult) -> None:
    """Note the images of a result, which later calls of the run may change."""
    urls = [image.url for image in result.images if image.url.startswith("data:")]
    state.outcome.found.images = [*state.outcome.found.images, *urls][-MOST_SOURCES:]


async def _before(job: Job, items: ItemReferences) -> list[list[str]]:
    """Return the images of the conversation before this run as URLs, those of one item together."""
    port, request = job.client.port, job.client.request
    history = await in_thread(lambda: port.shown_images(orjson.loads(job.upstream.editor.history())))
    made: Sequence[Sequence[str]] = ()
    if request.continues is not None:
        try:
            made = await items.images_before(
                port, request.continues, job.identity.caller, job.client.ask.local
            )
        except StoreError:
            raise ToolFailure("the images of the conversation cannot be read now", transient=True) from None
    sent = port.shown_images(job.client.ask.body.payload)
    known = set(itertools.chain.from_iterable(sent))
    return [*([url for url in group if url not in known] for group in (*history, *made)), *map(list, sent)]


def _newest(groups: Iterable[Sequence[str]], most: int, *, first: bool) -> list[str]:
    """Return the newest images, each once; with 0 those of the newest item that has any.

    ``first``: those of the newest item come first, since a mask belongs to the first image (OpenAI's API
    reference, "Create image edit"). Its client declares it with that item.
    """
    groups = [group for group in groups if group]
    chosen = list(itertools.chain.from_iterable(groups)) if most else [*groups[-1]] if groups else []
    # The newest place of an image counts.
    found = list(reversed(dict.fromkeys(reversed(chosen))))[-(most or MOST_SOURCES) :]
    newest = groups[-1] if first and groups else ()
    return [*(one for one in found if one in newest), *(one for one in found if one not in newest)]


def _read(urls: Sequence[str], mask: str) -> SourceImages:
    images = [_image(url) for url in urls]
    if sum(len(image.data) for image in images) > _MOST_BYTES:
        raise ToolFailure(
            f"the images have more than {_MOST_BYTES} bytes together; change fewer of them",
            code="invalid_arguments",
        )
    cut = _image(mask) if mask and images else None
    if cut is not None and len(cut.data) > _MOST_MASK:
        raise ToolFailure(f"the mask has more than {_MOST_MASK} bytes", code="invalid_arguments")
    return SourceImages(images, cut)


def _image(url: str) -> SourceImage:
    """Return an image; raise :class:`~proxy.base.errors.ToolFailure` for one that cannot be changed."""
    head, _, written = url.partition(";base64,")
    kind = head.removeprefix("data:").lower()
    if kind == "image/jpg":
        kind = "image/jpeg"
    if not head.startswith("data:") or kind not in _TYPES:
        raise ToolFailure(
            "an image of the conversation cannot be changed: it must be PNG, JPEG or WebP, and sent itself "
            "(data:image/png;base64,…), not as an address or a file's id",
            code="invalid_arguments",
        )
    try:
        return SourceImage(kind, base64.b64decode(written, validate=True))
    except ValueError:  # No base64, or no ASCII.
        raise ToolFailure("an image of the conversation is no image", code="invalid_arguments") from None
