"""Makes images at an upstream, for the tool ``images__generate``."""

from collections.abc import Callable
from typing import Final

from proxy.base.errors import FrameTooLarge, ToolFailure, UpstreamError
from proxy.relay.routing.fallback import ask
from proxy.relay.routing.router import ServedUpstream
from proxy.tools.images.maker import ImageOrder, MadeImage, OnPartialImage
from proxy.upstreams.base import UpstreamRequest, UpstreamResponse
from proxy.wires.openai.dialect import read_error
from proxy.wires.openai.images import EDIT_PATH, PATH, ImageReader, SentImage, edit_body, generation_body

_JSON: Final = "application/json"
_MAX_ERROR_BYTES: Final = 64 << 10
_MOST_WORDS: Final = 300
"""Characters of an upstream's error that the model reads."""


class UpstreamImages:
    """An :class:`~proxy.tools.images.maker.ImageMaker` that asks one upstream.

    ``served`` returns the upstream, which may be opened later than this is made. ``model`` is what it is
    asked for if an order names no model; empty if the upstream chooses.
    """

    def __init__(self, served: Callable[[], ServedUpstream], model: str = "") -> None:
        self._served = served
        self._model = model

    async def make(self, order: ImageOrder, on_partial: OnPartialImage) -> MadeImage:
        served, named = self._served(), order.model or self._model
        model = served.model_name(named) if named else ""
        if model is None:
            raise ToolFailure(
                f"the upstream does not serve the model {named[:100]!r}", code="invalid_arguments"
            )
        request = _request(order, model)
        try:
            response = await ask(served, request)
            try:
                return await _read(response, order, on_partial)
            finally:
                await response.aclose()
        except (UpstreamError, FrameTooLarge) as error:
            raise ToolFailure(f"no image was made: {str(error)[:_MOST_WORDS]}") from None


def _request(order: ImageOrder, model: str) -> UpstreamRequest:
    asked = (order.prompt, model, order.fields, order.partial_images)
    path, kind, body = PATH, _JSON, b""
    if order.sources.images:
        files = [(image.media_type, image.data) for image in order.sources.images]
        mask = order.sources.mask
        kind, body = edit_body(*asked, files, None if mask is None else (mask.media_type, mask.data))
        path = EDIT_PATH
    else:
        body = generation_body(*asked)
    return UpstreamRequest("POST", path, headers=(("Content-Type", kind),), body=body, expect_stream=True)


async def _read(response: UpstreamResponse, order: ImageOrder, on_partial: OnPartialImage) -> MadeImage:
    if response.status >= 400:
        said = read_error(await response.read(_MAX_ERROR_BYTES))
        # The provider's own words say what the model may change, such as a prompt that it does not allow.
        words = f": {said.message[:_MOST_WORDS]}" if response.status in (400, 422) and said.message else ""
        raise ToolFailure(
            f"the upstream answered {response.status}{words}",
            code="rate_limited" if response.status == 429 else "execution_failed",
        )
    reader = ImageReader(response.content_type, order.most_bytes)
    made: SentImage | None = None
    async for chunk in response.chunks():
        for image in reader.feed(chunk):
            made = _take(image, made, on_partial)
    for image in reader.close():
        made = _take(image, made, on_partial)
    if made is None:
        raise ToolFailure("the upstream answered without an image")
    return MadeImage(made.data, made.facts)


def _take(image: SentImage, made: SentImage | None, on_partial: OnPartialImage) -> SentImage | None:
    """Pass a partial image on, and return the image itself as soon as it is there."""
    if image.number is None:
        return image
    on_partial(image.number, MadeImage(image.data, image.facts))
    return made
