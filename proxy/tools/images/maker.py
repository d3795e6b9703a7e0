"""The interface by which a tool makes images at a model's provider."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct, field

from proxy.base.events import SourceImages

MOST_PARTIAL_IMAGES = 3


class ImageOrder(Struct, frozen=True):
    """An image to be made, from the images in ``sources`` if there are any.

    ``model`` is empty for the configured one. ``fields`` are further members of the request, such as
    ``size``. ``partial_images`` is how many images may come before it is complete. It may have at most
    ``most_bytes``.
    """

    prompt: str
    model: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    partial_images: int = 0
    most_bytes: int = 4 << 20
    sources: SourceImages = SourceImages()


class MadeImage(Struct, frozen=True):
    """An image in base64, not decoded yet; ``facts`` are its ``size``, ``quality``, ``background``,
    ``output_format``, ``revised_prompt`` and ``usage``, as far as they are known."""

    data: str
    facts: Mapping[str, Any]


OnPartialImage = Callable[[int, MadeImage], None]
"""Called with the number of a partial image, from 0, and the image."""


class ImageMaker(Protocol):
    """Makes images."""

    async def make(self, order: ImageOrder, on_partial: OnPartialImage) -> MadeImage:
        """Make one image; raise :class:`~proxy.base.errors.ToolFailure` if that fails."""
