"""Makes the proxy's own lines in a client's stream, and removes hidden calls from a line.

It also answers requests that only make a server load a model, or release its memory. Source: Ollama's API
reference, "Load a model" and "Unload a model": a chat without messages, or a completion without a prompt;
``keep_alive`` 0 unloads. The answer to both is one object, even if the client asked for a stream.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from proxy.base.chance import replayable
from proxy.base.errors import RequestError
from proxy.base.events import FinishReason, FinishWords, Frame, ToolCallDelta, ToolCallStarted
from proxy.wires.ollama.dialect import line
from proxy.wires.ollama.request import Call
from proxy.wires.stream.template import split_text

_COUNTS: Final = ("prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


FINISH_WORDS: Final = FinishWords(
    {
        FinishReason.STOP: "stop",
        FinishReason.TOOL_CALLS: "stop",
        FinishReason.LENGTH: "length",
        FinishReason.CONTENT_FILTER: "length",
        FinishReason.PAUSE: "stop",
    }
)
"""The dialect has no word for calls, and of its two words only ``length`` says that an answer is not whole.

Source: Ollama's ``llm/server.go``, ``DoneReason``.
"""


class LineMaker:
    """A maker of lines in a server's form, for one model; ``began_ns`` is the start time of the run."""

    __slots__ = ("_fixed", "began_ns", "model")

    def __init__(self, model: str) -> None:
        self.model = model
        self.began_ns = time.monotonic_ns()
        self._fixed: dict[tuple[str, str], tuple[bytes, bytes, bytes]] = {}

    def payload(self, **said: Any) -> dict[str, Any]:
        """Return a line with these members of a message; role and content are never left out."""
        return {"model": self.model, "created_at": created_at(), **self._saying(said), "done": False}

    def around(self, name: str) -> tuple[bytes, bytes]:
        """Return the bytes around a text that is alone in a line; ``name`` is ``content`` or ``thinking``."""
        fixed = self._fixed.get((name, self.model))
        if fixed is None:
            empty = line({**self.payload(**{name: ""}), "created_at": ""})
            before, rest = split_text(empty, "created_at")
            fixed = self._fixed[name, self.model] = (before, *split_text(rest, self._member_of(name)))
        before, between, after = fixed
        return before + created_at().encode() + between, after

    def _member_of(self, name: str) -> str:
        """Return the member of a line that holds this member of a message."""
        return name

    def _saying(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of a line that hold a message."""
        return {"message": {"role": "assistant", "content": "", **said}}

    def message_of(self, payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the message in a line; ``None`` if there is none."""
        message = payload.get("message")
        return message if isinstance(message, dict) else None


def between(before: str, after: str) -> str:
    """Return what makes two turns' texts two paragraphs; nothing if white space separates them already."""
    joined = not before or not after or before[-1:].isspace() or after[:1].isspace()
    return "" if joined else "\n\n"


def created_at() -> str:
    """Return the time in the servers' form (RFC 3339)."""
    return replayable("created_at", lambda: datetime.now(UTC).isoformat(timespec="microseconds")).replace(
        "+00:00", "Z"
    )


def last_line(maker: LineMaker, reason: str, usage: Mapping[str, Any], **said: Any) -> dict[str, Any]:
    """Return the line that ends an answer, with the time of the run and the counts of all turns."""
    return {
        **maker.payload(**said),
        "done": True,
        "done_reason": reason,
        "total_duration": replayable("total_duration", lambda: time.monotonic_ns() - maker.began_ns),
        "load_duration": usage.get("load_duration", 0),
        **{name: usage[name] for name in (*_COUNTS, "server_tool_use_details") if name in usage},
    }


def called_in(frame: Frame) -> Sequence[Call]:
    """Return the calls in a frame, in the order of those of its message that name a tool."""
    started = [event for event in frame.events if isinstance(event, ToolCallStarted)]
    said: dict[int, str] = {}
    for event in frame.events:
        if isinstance(event, ToolCallDelta):
            said[event.seq] = said.get(event.seq, "") + event.arguments
    return [Call(event.call_id, event.name, said.get(event.seq) or "{}") for event in started]


def without_calls(message: Mapping[str, Any], is_hidden: Callable[[str], bool]) -> dict[str, Any]:
    """Return a message without hidden calls and calls without a name."""
    kept = [call for call in _listed(message) if (name := _name(call)) and not is_hidden(name)]
    less = {key: said for key, said in message.items() if key != "tool_calls"}
    return {**less, "tool_calls": kept} if kept else less


def indexed(message: Mapping[str, Any], start: int, ids: Sequence[str]) -> dict[str, Any]:
    """Return a message whose calls have indices from ``start`` on, and these ids."""
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


# ---------------------------------------------------------------- requests that only load a model


_DURATION: Final = re.compile(r"[+-]?(?:0|(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)")
"""Matches a duration as Go writes it, such as ``1h30m``."""


def load_answer(payload: Mapping[str, Any], lines: LineMaker) -> bytes:
    """Return the answer to a request that loads a model, as JSON, as if models were always loaded.

    Raises :class:`RequestError` for a ``keep_alive`` that is no time.
    """
    reason = "unload" if _is_zero(payload.get("keep_alive")) else "load"
    return orjson.dumps({**lines.payload(), "done": True, "done_reason": reason})


def _is_zero(keep_alive: Any) -> bool:
    if keep_alive is None:
        return False
    if type(keep_alive) in (int, float):
        return bool(keep_alive == 0)
    if isinstance(keep_alive, str) and _DURATION.fullmatch(keep_alive):
        return re.search("[1-9]", keep_alive) is None
    message = 'keep_alive must be a number of seconds, or a duration such as "5m".'
    raise RequestError(400, message, param="keep_alive")
