"""Images of tool results: how many fit into a request, and which of them an upstream refuses."""

import re
from collections.abc import Callable, Sequence

from proxy.base.events import ResultImage, left_out

_ONE_IMAGE = re.compile(
    r"(valid|corrupt\w*|process|parse|decode|download\w*|fetch\w*|load\w*|read)\b[^.]{0,40}\bimages?\b"
    r"|\bimages?\b[^.]{0,40}\b(data|format|url|bytes|size|dimensions?|large|small|pixels?|\d+ ?mb)\b"
    r"|image_(parse|too|content|file)|too (large|long|many)|at most|\bsize\b"
)


def takes_no_images(message: str, code: str | None) -> bool:
    """Return whether an upstream's error says that it takes no images, not only that one is bad."""
    return bool(message) and _ONE_IMAGE.search(f"{code or ''} {message}".lower()) is None


def choose_images(
    content: str, images: Sequence[ResultImage], fits: Callable[[ResultImage], bool]
) -> tuple[str, list[ResultImage]]:
    """Return the text of a result and the images that are sent with it.

    ``fits`` decides about each image in order. The text describes the images that are left out.
    """
    passed: list[ResultImage] = []
    lines = [content]
    for image in images:
        if fits(image):
            passed.append(image)
        else:
            lines.append(left_out(image.words))
    return "\n".join(line for line in lines if line), passed


class ImageBudget:
    """The room for result images in the requests of one run: ``most_bytes``, counted in base64."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    def take(self, size: int) -> bool:
        """Reserve ``size`` bytes. Return whether there was enough room."""
        if size > self._left:
            return False
        self._left -= size
        return True
