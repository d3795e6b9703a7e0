"""Chat and Responses behind one interface: what an upstream sends, and what a client understands.

A test is written once over a :class:`Kit` and runs with both dialects. This module does not use the package
under test: ``sse_check`` and ``responses_check`` read the streams.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import chat_script as chat
import responses_check
import responses_script as responses
import sse_check
from raw_upstream import RawRequest, Step, chunked, whole

Call = tuple[str, str, str]
"""(id, name, arguments) of a call."""
DONE = b"data: [DONE]\n\n"


@dataclass
class Said:
    """What a client understands of an answer."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    error: dict[str, Any] | None = None
    finish: str = ""


class Kit(ABC):
    """One dialect."""

    name: str
    path: str

    @abstractmethod
    def ask(self, *, stream: bool = True, tools: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        """Return a request whose client declares functions of these names."""

    @abstractmethod
    def text(self, *texts: str) -> bytes:
        """Return a whole streamed turn of text with the dialect's last event and the end mark."""

    @abstractmethod
    def begun(self, text: str) -> bytes:
        """Return the first events of such a turn, up to the one that has ``text``."""

    @abstractmethod
    def calling(self, *calls: Call, text: str = "", end: str = "") -> bytes:
        """Return a whole streamed turn that makes calls; ``end`` is the dialect's reason why it ended."""

    @abstractmethod
    def half_call(self, name: str, arguments: str) -> bytes:
        """Return the first events of a turn with a call, which stop within the arguments."""

    @abstractmethod
    def reply(self, text: str, *calls: Call) -> bytes:
        """Return a whole turn that is not streamed."""

    @abstractmethod
    def error_event(self, message: str) -> bytes:
        """Return an upstream's own error inside a stream."""

    @abstractmethod
    def read(self, body: bytes, hidden: tuple[str, ...] = ()) -> Said:
        """Read a composed stream, check the dialect's rules, and that no text of ``hidden`` is in it."""

    @abstractmethod
    def read_reply(self, body: bytes) -> Said:
        """Read an answer that is not streamed."""

    @abstractmethod
    def answered(self, request: RawRequest) -> list[tuple[str, str]]:
        """Return (call id, output) of the last turn's results in a follow-up, which must be well formed."""

    def stream(self, *texts: str) -> list[Step]:
        """Return the steps of an upstream that sends :meth:`text`."""
        return chunked(self.text(*(texts or ("fine",))))

    def turn(self, *calls: Call, **more: str) -> list[Step]:
        """Return the steps of an upstream that sends :meth:`calling`."""
        return chunked(self.calling(*calls, **more))

    def whole(self, text: str, *calls: Call) -> list[Step]:
        """Return the steps of an upstream that sends :meth:`reply`."""
        return whole(self.reply(text, *calls))

    def result(self, stream: bool, text: str, *calls: Call) -> list[Step]:
        """Return the steps of a turn, streamed or not."""
        if not stream:
            return self.whole(text, *calls)
        return self.turn(*calls, text=text) if calls else self.stream(text)

    def said(self, stream: bool, body: bytes, hidden: tuple[str, ...] = ()) -> Said:
        """Read an answer, streamed or not."""
        if stream:
            return self.read(body, hidden)
        assert not any(text in body.decode() for text in hidden)
        return self.read_reply(body)

    def check_broken(self, body: bytes, sent: bytes) -> None:
        """Check that whole events of ``sent`` are followed by an error event and one end mark only."""
        assert body.endswith(DONE)
        assert body.count(b"[DONE]") == 1
        head, mark, _ = body.rpartition(self.error_mark)
        assert mark, f"no error event: {body[-200:]!r}"
        assert sent.startswith(head), "bytes that the upstream did not send"
        assert not head or head.endswith((b"\n\n", b"\r\n\r\n"))
        assert b'"finish_reason":"stop"' not in body
        assert b"response.completed" not in body

    @property
    @abstractmethod
    def error_mark(self) -> bytes:
        """The first bytes of the proxy's own error event."""


class ChatKit(Kit):
    """Chat Completions."""

    name = "chat"
    path = "/v1/chat/completions"
    error_mark = b'data: {"error":'

    def ask(self, *, stream: bool = True, tools: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        declared = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
        request = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}], **more}
        return {**request, "tools": declared} if declared else request

    def text(self, *texts: str) -> bytes:
        return chat.role() + chat.content(*texts) + chat.finish() + DONE

    def begun(self, text: str) -> bytes:
        return chat.role() + chat.content(text)

    def calling(self, *calls: Call, text: str = "", end: str = "tool_calls") -> bytes:
        begun = chat.role() + (chat.content(text) if text else b"")
        made = [chat.call(i, n, a, at) for at, (i, n, a) in enumerate(calls)]
        return begun + b"".join(made) + chat.finish(end or "tool_calls") + DONE

    def half_call(self, name: str, arguments: str) -> bytes:
        return chat.role() + chat.call("call_h", name, arguments)

    def reply(self, text: str, *calls: Call) -> bytes:
        (data, _) = chat.reply(text or None, *calls)
        assert isinstance(data, bytes)
        return data.partition(b"\r\n\r\n")[2]

    def error_event(self, message: str) -> bytes:
        return chat.sse({"error": {"message": message, "type": "server_error", "code": "busy"}})

    def read(self, body: bytes, hidden: tuple[str, ...] = ()) -> Said:
        read = sse_check.check_chat_stream(body, wants_usage=False, hidden=hidden)
        calls = [(call.id, call.name, call.arguments) for call in read.calls]
        return Said(read.text, calls, read.error, read.finish or "")

    def read_reply(self, body: bytes) -> Said:
        (choice,) = json.loads(body)["choices"]
        made = [
            (c["id"], c["function"]["name"], c["function"]["arguments"])
            for c in choice["message"].get("tool_calls") or ()
        ]
        return Said(choice["message"]["content"] or "", made, None, choice["finish_reason"])

    def answered(self, request: RawRequest) -> list[tuple[str, str]]:
        results: list[tuple[str, str]] = []
        waiting: list[str] = []
        for message in json.loads(request.body)["messages"]:
            if message["role"] == "tool":
                waiting.remove(message["tool_call_id"])
                results.append((message["tool_call_id"], message["content"]))
                continue
            assert not waiting, f"calls without a result: {waiting}"
            if message["role"] == "assistant":
                results = []
                waiting = [c["id"] for c in message.get("tool_calls") or ()]
                assert all(waiting)
                assert len(set(waiting)) == len(waiting)
                for made in message.get("tool_calls") or ():
                    assert isinstance(made["function"]["arguments"], str)
        assert not waiting, f"calls without a result: {waiting}"
        return results


class ResponsesKit(Kit):
    """Responses."""

    name = "responses"
    path = "/v1/responses"
    error_mark = b"event: error\n"

    def ask(self, *, stream: bool = True, tools: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        declared = [responses.function(name) for name in tools]
        request = {"model": "m", "stream": stream, "input": "hi", **more}
        return {**request, "tools": declared} if declared else request

    def text(self, *texts: str) -> bytes:
        return responses.turn(responses.message("".join(texts))) + DONE

    def begun(self, text: str) -> bytes:
        item = responses.message(text)
        life = responses.item_events(item, 0)
        last = max(at for at, event in enumerate(life) if event["type"].endswith(".delta"))
        return responses.encode([*responses.opening(), *life[: last + 1]])

    def calling(self, *calls: Call, text: str = "", end: str = "completed") -> bytes:
        items = [responses.message(text)] if text else []
        items += [responses.function_call(i, n, a) for i, n, a in calls]
        return responses.turn(*items, status=end or "completed") + DONE

    def half_call(self, name: str, arguments: str) -> bytes:
        item = {**responses.function_call("call_h", name, ""), "arguments": "", "status": "in_progress"}
        place = {"item_id": item["id"], "output_index": 0}
        added = responses.event("response.output_item.added", output_index=0, item=item)
        delta = responses.event("response.function_call_arguments.delta", **place, delta=arguments)
        return responses.encode([*responses.opening(), added, delta])

    def reply(self, text: str, *calls: Call) -> bytes:
        items = [responses.message(text)] if text else []
        items += [responses.function_call(i, n, a) for i, n, a in calls]
        return json.dumps(responses.resource(items)).encode()

    def error_event(self, message: str) -> bytes:
        body = {"type": "error", "code": "busy", "message": message, "param": None}
        return f"event: error\ndata: {json.dumps(body)}\n\n".encode()

    def read(self, body: bytes, hidden: tuple[str, ...] = ()) -> Said:
        read = responses_check.check_response_stream(body, hidden=hidden, complete=False)
        return Said(read.text, read.calls, read.error, str(read.response["status"]))

    def check_broken(self, body: bytes, sent: bytes) -> None:
        if b"response.failed" not in body:
            super().check_broken(body, sent)
            return
        # A composed stream closes its open items before it reports the failure.
        read = self.read(body)
        assert read.error is not None
        assert read.finish == "failed"
        whole_events = sent[: sent.rfind(b"\n\n") + 2]
        assert body.startswith(whole_events), "events that the upstream did not send"

    def read_reply(self, body: bytes) -> Said:
        read = responses_check.Reading(response=json.loads(body))
        texts = [part["text"] for item in read.of_type("message") for part in item["content"]]
        return Said("".join(texts), read.calls, None, str(read.response["status"]))

    def answered(self, request: RawRequest) -> list[tuple[str, str]]:
        body = json.loads(request.body)
        chained = body.get("previous_response_id") is not None
        waiting: list[str] = []
        results: list[tuple[str, str]] = []
        for item in body["input"] if isinstance(body["input"], list) else ():
            if item.get("type") == "function_call":
                assert item["call_id"]
                assert item["call_id"] not in waiting, "a call id twice"
                assert isinstance(item["arguments"], str)
                waiting.append(item["call_id"])
            elif item.get("type") == "function_call_output":
                if not chained:
                    waiting.remove(item["call_id"])
                assert item["call_id"] not in [known for known, _ in results], "two outputs for one call"
                results.append((item["call_id"], item["output"]))
        assert not waiting, f"calls without an output: {waiting}"
        return results


KITS: dict[str, Kit] = {kit.name: kit for kit in (ChatKit(), ResponsesKit())}
