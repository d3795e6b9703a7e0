"""The lines of a completion: what a chat says in a message stands in the line itself.

Source: Ollama's API reference, "Generate a completion", and its type ``GenerateResponse``.
"""

from collections.abc import Mapping
from typing import Any

from proxy.wires.ollama.lines import LineMaker

__all__ = ["CompletionLines"]


class CompletionLines(LineMaker):
    """Makes lines of completions.  There are no calls in them."""

    __slots__ = ()

    def _saying(self, said: Mapping[str, Any]) -> dict[str, Any]:
        line = {"response": said.get("content", "")}
        return {**line, "thinking": said["thinking"]} if "thinking" in said else line

    def _member_of(self, name: str) -> str:
        return "response" if name == "content" else name

    def message_of(self, payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """See :meth:`proxy.wires.ollama.lines.LineMaker.message_of`."""
        text = payload.get("response")
        if not isinstance(text, str):
            return None
        thinking = payload.get("thinking")
        return {"content": text, "thinking": thinking} if thinking else {"content": text}
