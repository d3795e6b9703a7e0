"""``images__generate``: makes an image at an upstream, for clients that declare their provider's tool.

The client gets the image, the model words about it. It is offered only to such clients, or by its name:
nobody else would see the image. It changes nothing, so a client that leaves ends it, and calls of one turn
run at the same time.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from proxy.base.errors import ToolFailure
from proxy.base.events import MOST_SOURCES, ResultImage, SourceImages, ToolProgress
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.results.images import Image
from proxy.tools.contract.results.results import RichResult
from proxy.tools.contract.spec import Redaction
from proxy.tools.images.maker import MOST_PARTIAL_IMAGES, ImageMaker, ImageOrder, MadeImage, OnPartialImage
from proxy.tools.providers.function import FunctionProvider, tool

_TIMEOUT_S: Final = 240.0
"""OpenAI's guide speaks of two minutes for a complex prompt."""
_LONGEST_PROMPT: Final = 32000
_SHOWN: Final = ("size", "quality", "background", "output_format", "revised_prompt", "usage", "action")


_Size = Annotated[
    str, Field(description="auto, or WIDTHxHEIGHT", pattern=r"^(auto|[1-9]\d{1,4}x[1-9]\d{1,4})$")
]
_EditImages = Annotated[
    int,
    Field(
        description="How many of the newest images of the conversation to change or to combine; 0 makes a "
        "new image",
        ge=0,
        le=MOST_SOURCES,
    ),
]


def image_provider(capabilities: Capabilities, maker: ImageMaker) -> FunctionProvider:
    """Build the provider ``images``, whose tool makes images with ``maker``."""

    @tool(
        name="generate",
        description="Make an image from a description, or change images of the conversation, and show it to "
        "the user. You get words about it only",
        effect="read_only",
        redaction=Redaction(output=_SHOWN),
        timeout_s=_TIMEOUT_S,
    )
    async def generate(
        context: CallContext,
        prompt: Annotated[
            str,
            Field(description="What the image shows, in detail", min_length=1, max_length=_LONGEST_PROMPT),
        ],
        size: _Size = "auto",
        quality: Literal["auto", "low", "medium", "high", "xhigh", "max", "standard", "hd"] = "auto",
        background: Literal["auto", "opaque", "transparent"] = "auto",
        output_format: Literal["png", "jpeg", "webp"] = "png",
        output_compression: Annotated[int, Field(ge=0, le=100)] = 100,
        moderation: Literal["auto", "low"] = "auto",
        model: Annotated[str, Field(description="Leave it out", max_length=200)] = "",
        partial_images: Annotated[int, Field(ge=0, le=MOST_PARTIAL_IMAGES)] = 0,
        edit_images: _EditImages = 0,
        action: Annotated[Literal["auto", "generate", "edit"], Field(description="Leave it out")] = "auto",
        input_fidelity: Annotated[Literal["auto", "low", "high"], Field(description="Leave it out")] = "auto",
    ) -> RichResult:
        """Return the image, with its size, quality, background and format as far as they are known."""
        fields = {
            "size": size,
            "quality": quality,
            "background": background,
            "output_format": output_format,
            "output_compression": output_compression,
            "moderation": moderation,
        }
        partial = partial_images if context.on_progress is not None else 0
        edits = action == "edit" or (action == "auto" and edit_images > 0)
        sources = await _sources(context, edit_images) if edits else SourceImages()
        if edits:
            fields |= {"input_fidelity": input_fidelity, "moderation": "auto"}  # Edits take no moderation.
        order = ImageOrder(prompt, model, _changed(fields), partial, context.max_image_bytes, sources)
        made = await maker.make(order, _reporter(context, partial, output_format))
        if len(made.data) * 3 // 4 - 2 > context.max_image_bytes:
            raise ToolFailure(
                f"the image has more than {context.max_image_bytes} bytes (policy.max_image_bytes)",
                code="result_too_large",
            )
        facts = {name: made.facts[name] for name in _SHOWN if name in made.facts}
        facts["action"] = "edit" if edits else "generate"
        return RichResult(
            "The image was made.", (Image(url=_url(made, output_format)),), data={**_asked(fields), **facts}
        )

    return FunctionProvider("images", [generate], capabilities)


async def _sources(context: CallContext, most: int) -> SourceImages:
    """Return the images to change; raise :class:`~proxy.base.errors.ToolFailure` if there are none."""
    sources = SourceImages() if context.images is None else await context.images(most)
    if not sources.images:
        raise ToolFailure(
            "the conversation has no image that can be changed. Make a new one, or ask the user for an image",
            code="invalid_arguments",
        )
    return sources


def _reporter(context: CallContext, most: int, output_format: str) -> OnPartialImage:
    """Return a function that reports the first ``most`` partial images as progress of the call."""

    def report(number: int, image: MadeImage) -> None:
        if context.on_progress is not None and number < most:
            shown = ResultImage(_url(image, output_format), f"image/{output_format}", 0)
            context.on_progress(ToolProgress(number + 1, most, image=shown, facts=image.facts))

    return report


def _changed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that say more than their defaults: not every server knows all of them."""
    return {name: value for name, value in fields.items() if value not in ("auto", "png", 100)}


def _asked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked for as facts about the image, for servers that say nothing about it."""
    return {name: value for name, value in fields.items() if name in _SHOWN and value != "auto"}


def _url(image: MadeImage, output_format: str) -> str:
    """Return an image as a ``data:`` URL; its bytes are checked later, like those of any tool."""
    kind = image.facts.get("output_format", output_format)
    return f"data:image/{kind};base64,{image.data}"
