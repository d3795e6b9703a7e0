"""How a client sees the calls that the proxy runs in its provider's place: items or blocks of its dialect."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from proxy.base.events import ToolCall, ToolResult

Part = dict[str, Any]
"""An item of Responses or a content block of Messages."""


class CallForm(ABC):
    """Shows the calls of one tool, at every trace level, in place of the proxy's own traces."""

    def begun(self, call: ToolCall, arguments: Any) -> Part | None:
        """Return the part that shows that a call begins; ``None`` if the dialect shows only its end.

        ``arguments`` are redacted.
        """
        return None

    @abstractmethod
    def ended(self, begun: Part | None, call: ToolCall, result: ToolResult) -> Sequence[Part]:
        """Return the parts that show how a call ended.

        In a dialect whose items change while they run, the first one takes the place of ``begun``.
        """

    def usage(self, result: ToolResult) -> dict[str, Any]:
        """Return what a call adds to the usage of the answer."""
        return {}
