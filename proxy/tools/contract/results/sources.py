"""Images of the conversation that a tool may change."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct, field

MOST_SOURCES = 16
"""The most images of a conversation that one call gets; OpenAI's edits take as many."""


class SourceImage(Struct, frozen=True):
    """An image with its media type, such as ``image/png``."""

    media_type: str
    data: bytes = field(default=b"")


class SourceImages(Struct, frozen=True):
    """Images in the order of the conversation, and the mask that says where the first one may change."""

    images: Sequence[SourceImage] = ()
    mask: SourceImage | None = None


ImageSource = Callable[[int], Awaitable[SourceImages]]
"""Returns the newest images of the conversation, as many as are asked for; with 0 those of the newest message
or result that has any.  Raises :class:`~proxy.base.errors.ToolFailure` for images that cannot be used."""
