"""Makes the lines of a completion: a line itself holds what a chat has in a message.

Source: Ollama's API reference, "Generate a completion", and its type ``GenerateResponse``.
"""

from collections.abc import Mapping
from typing import Any

from proxy.wires.ollama.lines import LineMaker


class CompletionLines(LineMaker):
    """A maker of lines of completions.  They have no calls."""

    __slots__ = ()

    def _saying(self, said: Mapping[str, Any]) -> dict[str, Any]:
        line = {"response": said.get("content", "")}
        return {**line, "thinking": said["thinking"]} if "thinking" in said else line

    def _member_of(self, name: str) -> str:
        return "response" if name == "content" else name

    def message_of(self, payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
        text = payload.get("response")
        if not isinstance(text, str):
            return None
        thinking = payload.get("thinking")
        return {"content": text, "thinking": thinking} if thinking else {"content": text}
