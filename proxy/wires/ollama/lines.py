"""Lines of the proxy's own in a client's stream, and what of a line a client may see."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from proxy.chance import drawn
from proxy.events import Frame, ToolCallDelta, ToolCallStarted
from proxy.wires.dialects.ollama import line
from proxy.wires.ollama.calls import Call
from proxy.wires.stream.template import split_text

__all__ = ["LineMaker", "called_in", "created_at", "indexed", "last_line", "stop_reason", "without_calls"]

_COUNTS: Final = ("prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


def stop_reason(word: str | None) -> str:
    """Why a run stops; this dialect knows two reasons, and calls are none."""
    return "length" if word == "length" else "stop"


class LineMaker:
    """Makes lines as a server makes them, of one model; ``began_ns`` is when the run began."""

    __slots__ = ("_fixed", "began_ns", "model")

    def __init__(self, model: str) -> None:
        self.model = model
        self.began_ns = time.monotonic_ns()
        self._fixed: dict[tuple[str, str], tuple[bytes, bytes, bytes]] = {}

    def payload(self, **said: Any) -> dict[str, Any]:
        """A line that says these members of a message, beside its role and a content, which is never left
        out."""
        return {"model": self.model, "created_at": created_at(), **self._saying(said), "done": False}

    def around(self, name: str) -> tuple[bytes, bytes]:
        """What stands around a text in a line that says it alone; ``name`` is ``content`` or ``thinking``."""
        fixed = self._fixed.get((name, self.model))
        if fixed is None:
            empty = line({**self.payload(**{name: ""}), "created_at": ""})
            before, rest = split_text(empty, "created_at")
            fixed = self._fixed[name, self.model] = (before, *split_text(rest, self._member_of(name)))
        before, between, after = fixed
        return before + created_at().encode() + between, after

    def _member_of(self, name: str) -> str:
        """The member of a line that has this one of a message."""
        return name

    def _saying(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """The members of a line that says a message."""
        return {"message": {"role": "assistant", "content": "", **said}}

    def message_of(self, payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The message that a line says; ``None`` for none."""
        message = payload.get("message")
        return message if isinstance(message, dict) else None


def created_at() -> str:
    """The time as servers write it (RFC 3339)."""
    return drawn("created_at", lambda: datetime.now(UTC).isoformat(timespec="microseconds")).replace(
        "+00:00", "Z"
    )


def last_line(maker: LineMaker, reason: str, usage: Mapping[str, Any], **said: Any) -> dict[str, Any]:
    """The line that ends an answer: its time is the run's, and its counts are those of all turns."""
    return {
        **maker.payload(**said),
        "done": True,
        "done_reason": reason,
        "total_duration": drawn("total_duration", lambda: time.monotonic_ns() - maker.began_ns),
        "load_duration": usage.get("load_duration", 0),
        **{name: usage[name] for name in (*_COUNTS, "server_tool_use_details") if name in usage},
    }


def called_in(frame: Frame) -> Sequence[Call]:
    """The calls that a frame tells of, in the order of those of its message that name a tool."""
    started = [event for event in frame.events if isinstance(event, ToolCallStarted)]
    said: dict[int, str] = {}
    for event in frame.events:
        if isinstance(event, ToolCallDelta):
            said[event.seq] = said.get(event.seq, "") + event.arguments
    return [Call(event.call_id, event.name, said.get(event.seq) or "{}") for event in started]


def without_calls(message: Mapping[str, Any], is_hidden: Callable[[str], bool]) -> dict[str, Any]:
    """A message less the calls that the client must not see, and those that name nothing."""
    kept = [call for call in _listed(message) if (name := _name(call)) and not is_hidden(name)]
    less = {key: said for key, said in message.items() if key != "tool_calls"}
    return {**less, "tool_calls": kept} if kept else less


def indexed(message: Mapping[str, Any], start: int, ids: Sequence[str]) -> dict[str, Any]:
    """A message whose calls have their places from ``start`` on, and these ids."""
    calls = [
        {**call, "id": call_id, "function": {**call["function"], "index": start + place}}
        for place, (call, call_id) in enumerate(zip(_listed(message), ids, strict=True))
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _listed(message: Mapping[str, Any]) -> Sequence[Any]:
    listed = message.get("tool_calls")
    return listed if isinstance(listed, list) else ()


def _name(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) and name.strip() else ""
