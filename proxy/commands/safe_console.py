"""A console for tables on which no text acts, whoever wrote it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from proxy.base.plain_text import printable


class SafeConsole(Console):
    """A console that prints each character which acts or hides as an escape.

    Cells escape what they quote, so that columns fit. This is the last barrier, for text that a command did
    not escape.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable; the escapes of rich's own styles are not in their text."""
        for segment in super().render(renderable, options):
            safe = segment.text if segment.control else printable(segment.text)
            yield segment if safe == segment.text else Segment(safe, segment.style)
