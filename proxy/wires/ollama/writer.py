"""Ollama's chat: writes the client's stream.

The writer begins by forwarding the upstream's bytes, and does so to the end of a run without server calls.
From the first server call on it composes one answer with one last line. Its calls are numbered without gaps.
It has no server calls, and the counts of all turns. Every line is complete and has a message, because
clients fail on anything else.
"""

from collections.abc import Mapping
from typing import Any

from proxy.base.events import FinishReason, Frame, ToolCallStarted, pauses
from proxy.wires.client_port import ClientView
from proxy.wires.ollama.dialect import error_line, line
from proxy.wires.ollama.lines import (
    FINISH_WORDS,
    LineMaker,
    between,
    called_in,
    indexed,
    last_line,
    without_calls,
)
from proxy.wires.ollama.request import Call, keys_of
from proxy.wires.stream.composing import ComposingWriter
from proxy.wires.stream.phases import HIDDEN, Sign
from proxy.wires.turn.assembler import mint_call_id


class OllamaStreamWriter(ComposingWriter):
    """A writer of one client's stream, over all turns of its run.

    ``lines`` is the class that makes and reads lines; the other options are those of
    :class:`ComposingWriter`.
    """

    def __init__(self, view: ClientView, *, lines: type[LineMaker] = LineMaker, **options: Any) -> None:
        super().__init__(view, **options)
        self._lines = lines(view.model)
        self._theirs: list[Call] = []
        self._reason: str | None = None
        self._turn_ended = False

    def client_ids(self) -> Mapping[str, str]:
        """Return keys from names and arguments as the client's ids, because clients may drop ids."""
        keys = keys_of([call.identity for call in self._theirs])
        return {call.call_id: key for call, key in zip(self._theirs, keys, strict=True)}

    def _sign(self, frame: Frame) -> Sign | None:
        is_ours = any(
            isinstance(event, ToolCallStarted) and self._is_hidden(event.name) for event in frame.events
        )
        return HIDDEN if is_ours or pauses(frame.events) else None

    # The upstream's own bytes.

    def _note_forwarded(self, frame: Frame) -> None:
        if frame.payload is not None:
            # A call that has only begun has no line yet.
            self._theirs += called_in(frame)

    def _is_readable_error(self, frame: Frame) -> bool:
        """Return whether the error is a text: clients can show no other."""
        return frame.payload is not None and isinstance(frame.payload.get("error"), str)

    def _error(self, message: str, *, type: str, code: str | None) -> bytes:
        return error_line(message, type=type, code=code)

    def _note(self, frame: Frame) -> None:
        """Remember the turn's usage, its stop reason, and the model."""
        super()._note(frame)
        payload = frame.payload
        if payload is not None and payload.get("done") is True:
            self._reason = str(payload.get("done_reason") or "stop")
        if payload is not None and isinstance(payload.get("model"), str) and payload["model"]:
            self._lines.model = payload["model"]

    # The composed stream.

    def _compose(self, frame: Frame) -> bytes:
        """Write a frame as part of the composed stream: without hidden parts, and never the last line."""
        self._note(frame)
        payload = frame.payload
        message = self._lines.message_of(payload) if payload is not None else None
        if payload is None or message is None:
            return b""
        theirs = [call for call in called_in(frame) if not self._is_hidden(call.name)]
        shown = without_calls(message, self._is_hidden)
        if self._drop_text:
            shown["content"] = ""
        joint = self._joint(shown) if self._turn_ended else b""
        self._texts += [shown["content"]] if isinstance(shown.get("content"), str) else []
        changed = payload.get("done") is True or shown.get("tool_calls") != message.get("tool_calls")
        if not theirs and not changed and not self._drop_text:
            return joint + frame.raw
        if not (theirs or shown.get("content") or shown.get("thinking")):
            return b""
        ids = [mint_call_id() if call.call_id in self._used_ids else call.call_id for call in theirs]
        if len(ids) == len(shown.get("tool_calls") or ()):
            shown = indexed(shown, len(self._theirs), ids)
        self._theirs += theirs
        return joint + line(self._lines.payload(**shown))

    def _close_turn(self) -> bytes:
        self._turn_ended = True
        return b""

    def _joint(self, shown: Mapping[str, Any]) -> bytes:
        """Return a line that begins a paragraph if a turn's first text follows another turn's."""
        said = shown.get("content")
        if not isinstance(said, str) or not said:
            return b""
        self._turn_ended = False
        text = between(self.visible, said)
        return self._say(text) if text else b""

    def _say(self, text: str) -> bytes:
        if text:
            self._texts.append(text)
        return line(self._lines.payload(content=text))

    def _think(self, text: str) -> bytes:
        return line(self._lines.payload(thinking=text))

    def _tell(self, trace: Mapping[str, Any]) -> bytes:
        """Write an empty line that carries the trace."""
        return line({**self._lines.payload(), "x_toolrelay": trace})

    # What the run reports.

    def keep_alive(self) -> bytes:
        """Write a line with an empty content: the only line without meaning that every client accepts."""
        return line(self._lines.payload())

    def finish(self, reason: FinishReason | None) -> bytes:
        if self._over:
            return b""
        self._over = True
        return line(last_line(self._lines, FINISH_WORDS.write(reason, self._reason), self._usage))
