"""How a client sees the calls that the proxy runs in its provider's place: items or blocks of its dialect."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any, Self

from msgspec.structs import replace

from proxy.base.events import ToolCall, ToolProgress, ToolResult
from proxy.wires.hosted.part_ids import PartIds

Part = dict[str, Any]
"""An item of Responses or a content block of Messages."""


class CallForm(ABC):
    """Shows the calls of one tool, at every trace level, in place of the proxy's own traces.

    If it ``shows_images``, the client gets the images of a result, and the model words about them.
    """

    shows_images = False
    begun_is_whole = False
    """Whether the part that shows how a call begins never changes; the part with its end comes later."""

    def signed(self, ids: PartIds) -> Self:
        """Return the form for one answer, whose parts get these ids."""
        return self

    def begun(self, call: ToolCall, arguments: Any) -> Part | None:
        """Return the part that shows that a call begins; ``None`` if the dialect shows only its end.

        ``arguments`` are redacted.
        """
        return None

    def progressed(self, progress: ToolProgress) -> Sequence[Part]:
        """Return the events that show how far a call has come, without their place in the answer."""
        return ()

    @abstractmethod
    def ended(self, begun: Part | None, call: ToolCall, result: ToolResult) -> Sequence[Part]:
        """Return the parts that show how a call ended.

        In a dialect whose items change while they run, the first one takes the place of ``begun``.
        """

    def for_model(self, result: ToolResult) -> ToolResult:
        """Return what the model gets of a result."""
        if not self.shows_images or not result.images:
            return result
        said = [f"[toolrelay: the user sees the image {image.words}]" for image in result.images]
        content = "\n".join(part for part in (result.content, *said) if part)
        return replace(result, content=content, images=())

    def part_id(self, call_id: str) -> str:
        """Return the id of the part that shows a call, if calls of the client refer to it; else empty."""
        return ""

    def call_id(self) -> str:
        """Return an id for a call that a program makes of the client."""
        raise NotImplementedError

    def usage(self, result: ToolResult) -> dict[str, Any]:
        """Return what a call adds to the usage of the answer."""
        return {}


class SignedForm(CallForm):
    """A form whose parts have signed ids, so that the record finds what is behind them."""

    ids: PartIds

    def signed(self, ids: PartIds) -> Self:
        form = copy(self)
        form.ids = ids
        return form
