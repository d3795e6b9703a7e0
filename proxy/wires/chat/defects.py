"""Chat Completions: finds defects in the calls of a stream that break its clients.

openai-python puts calls together by their place in a list and joins repeated ids and names.  openai-node
throws for a call without ``type`` and for a stream without a finish reason.  Observed with openai-python 3.54
and openai-node 6.49, and in their sources: ``lib/streaming/_deltas.py`` and ``lib/ChatCompletionStream.ts``.
"""

from collections.abc import Mapping
from typing import Any, Final

from proxy.base.events import Frame

__all__ = ["SIGN", "CallDefects"]

SIGN: Final = b'"tool_calls"'
"""Text in every event that may hold a call.  Before the first such event there can be no defect."""

_KINDS = ("function", "custom")


class CallDefects:
    """A check of the chunks of one stream, up to its first defect.

    With ``stop_is_right`` calls may end with the finish reason ``stop``: OpenAI itself sends it if the
    request forces the call of one function.
    """

    def __init__(self, *, stop_is_right: bool) -> None:
        self._stop_is_right = stop_is_right
        self._ids: list[str] = []
        self._names: list[str] = []
        self._finished = False
        self._failed = False

    @property
    def has_calls(self) -> bool:
        """Whether any call has begun."""
        return bool(self._ids)

    def shown_by(self, frame: Frame) -> bool:
        """Return whether a frame shows a defect of a call, or of the end of a stream that has calls.

        Nothing is repaired behind an error: a finish reason would make calls that broke off look complete.
        """
        self._failed = self._failed or bool(frame.payload and frame.payload.get("error"))
        if self._failed:
            return False
        if frame.payload is None:
            return frame.is_end_mark and self.has_calls and not self._finished
        return self._in_chunk(frame.payload)

    def _in_chunk(self, payload: Mapping[str, Any]) -> bool:
        """Return whether a chunk shows a defect of the calls in its first choice."""
        choices = payload.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return False
        delta = choice.get("delta")
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        if calls and not (isinstance(calls, list) and all(map(self._is_sound, calls))):
            return True
        reason = choice.get("finish_reason")
        self._finished = self._finished or bool(reason)
        return reason == "stop" and bool(self._ids) and not self._stop_is_right

    def _is_sound(self, call: Any) -> bool:
        """Return whether one element of ``delta.tool_calls`` is as clients need it."""
        index = call.get("index") if isinstance(call, dict) else None
        if type(index) is not int or not 0 <= index <= len(self._ids):
            return False
        inner = call.get("custom") if call.get("type") == "custom" else call.get("function")
        if inner is not None and not isinstance(inner, dict):
            return False
        if not isinstance((inner or {}).get("arguments", ""), str | None):
            return False
        if index == len(self._ids):
            return self._opens(call, inner or {})
        return self._goes_on(index, call, inner or {})

    def _opens(self, call: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
        call_id, name = call.get("id"), inner.get("name")
        self._ids.append(str(call_id))
        self._names.append(str(name))
        new = isinstance(call_id, str) and call_id.strip() != "" and call_id not in self._ids[:-1]
        return new and call.get("type") in _KINDS and isinstance(name, str) and name != ""

    def _goes_on(self, index: int, call: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
        name = inner.get("name")
        if call.get("id") or (isinstance(name, str) and name.startswith(self._names[index])):
            return False
        if isinstance(name, str):
            self._names[index] += name
        return True
