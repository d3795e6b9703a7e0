"""The common part of all writers of answers without streaming."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import orjson

from proxy.base.events import Frame, ToolCall, ToolCallFinished, ToolResult, UsageReported
from proxy.wires.chosen import usage_of_call
from proxy.wires.client_port import ClientView, StreamWriter, TurnEnd
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.trace import reasoning_line, status_line, trace_call, trace_result
from proxy.wires.turn.usage import add_usage


class ReplyWriter(StreamWriter):
    """A writer of one object for all turns of its run.

    It sends nothing before :meth:`finish`. ``last_text_only`` drops the text of hidden turns, because only
    the last of several turns may contribute JSON output. ``used_ids`` are call ids in the request's
    history.
    """

    _error_body: ClassVar[Callable[..., Any]]
    _ID_PREFIX: ClassVar[str] = "call_"
    _AFTER_STATUS: ClassVar[str] = "\n\n"
    """The text between the status line of a call and the text after it."""

    def __init__(
        self, view: ClientView, *, last_text_only: bool = False, used_ids: frozenset[str] = frozenset()
    ) -> None:
        self._model = view.model
        self._is_hidden = view.is_hidden
        self._trace = view.trace
        self._shown = view.shown
        self._last_text_only = last_text_only
        self._used_ids = used_ids
        self._composing = False
        self._last = Frame(b"")
        self._usage: dict[str, Any] | None = None
        self._client_ids: dict[str, str] = {}
        self._traces: list[dict[str, Any]] = []

    @property
    def composing(self) -> bool:
        return self._composing

    def client_ids(self) -> Mapping[str, str]:
        return self._client_ids

    def write(self, frame: Frame) -> bytes:
        """Take a whole reply. Return no bytes."""
        self._last = frame
        calls = [event.call for event in frame.events if isinstance(event, ToolCallFinished)]
        self._composing = self._composing or any(self._is_hidden(call.name) for call in calls)
        for event in frame.events:
            if isinstance(event, UsageReported):
                self._count(event.usage.native)
        self._take(frame.payload or {}, calls)
        return b""

    @abstractmethod
    def _take(self, payload: Mapping[str, Any], calls: list[ToolCall]) -> None:
        """Keep the part of a reply with these calls that the client may see."""

    def _count(self, usage: Mapping[str, Any]) -> None:
        self._usage = add_usage(self._usage or {}, usage)

    def _free_id(self, call: ToolCall) -> str:
        return call.call_id if call.call_id not in self._used_ids else mint_call_id(self._ID_PREFIX)

    def turn_ended(self, end: TurnEnd) -> bytes:
        if end == "hidden":
            self._composing = True
            if self._last_text_only:
                self._drop_texts()
        return b""

    @abstractmethod
    def _drop_texts(self) -> None:
        """Forget the text of the answer so far."""

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        if self._trace == "events":
            self._traces.append(trace_call(call, arguments))
        return b""

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        if told := usage_of_call(self._shown, result):
            self._count(told)
        self._show_result(call, result)
        return b""

    def _show_result(self, call: ToolCall, result: ToolResult) -> None:
        """Show the result of a server call, as far as the trace level allows."""
        if self._trace == "events":
            self._traces.append(trace_result(call, result))
        elif self._trace == "reasoning":
            self._think(reasoning_line(call, result))
        elif self._trace == "status" and not self._last_text_only:
            self._say(status_line(call, result) + self._AFTER_STATUS)

    @abstractmethod
    def _think(self, text: str) -> None:
        """Add to the reasoning that the client sees."""

    def note(self, text: str) -> bytes:
        if not self._last_text_only:
            self._say(text)
        return b""

    @abstractmethod
    def _say(self, text: str) -> None:
        """Add to the text of the answer."""

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        return orjson.dumps(self._error_body(message, type=type, code=code))
