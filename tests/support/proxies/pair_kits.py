"""Each dialect behind the interface :class:`~speaker.Speaker`, as client and as upstream.

A test of what all pairs of dialects have in common is written once over two speakers. This module does not
use the package under test.
"""

import json
from collections.abc import Sequence
from typing import Any

import chat_script as chat
import messages_script as messages
import ollama_script as ollama
import responses_script as responses
from raw_upstream import Step, chunked
from responses_check import Reading, check_response_stream
from speaker import Call, Got, Message, Object, Seen, Speaker, Turn
from sse_check import check_chat_stream

__all__ = ["PAIRS", "SPEAKERS", "Call", "Got", "Message", "Seen", "Speaker", "Turn"]


def _object(text: str) -> Object:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


PARAMETERS: Object = {"type": "object", "properties": {}}


class Chat(Speaker):
    """OpenAI's Chat Completions."""

    name, path = "chat", "/v1/chat/completions"
    model = "gpt-4o-mini"

    def ask(
        self, said: Sequence[Message], *, stream: bool = True, tools: Sequence[str] = (), system: str = ""
    ) -> Object:
        listed: list[Object] = [{"role": "system", "content": system}] if system else []
        for one in said:
            if one.role == "tool":
                listed.append({"role": "tool", "tool_call_id": one.call_id, "content": one.text})
                continue
            message: Object = {"role": one.role, "content": one.text or None}
            if one.calls:
                message["tool_calls"] = [self._call(call) for call in one.calls]
            listed.append(message)
        body: Object = {"model": self.model, "messages": listed, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        if tools:
            body["tools"] = [
                {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in tools
            ]
        return body

    @staticmethod
    def _call(call: Call) -> Object:
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        return {"id": call.id, "type": "function", "function": function}

    @staticmethod
    def _made(call: Object) -> Call:
        return Call(call["id"], call["function"]["name"], _object(call["function"]["arguments"]))

    def read_stream(self, body: bytes, hidden: tuple[str, ...]) -> Seen:
        read = check_chat_stream(body, wants_usage=True, hidden=hidden)
        calls = [Call(one.id, one.name, _object(one.arguments)) for one in read.calls]
        used = (read.usage["prompt_tokens"], read.usage["completion_tokens"]) if read.usage else None
        error = str(read.error["message"]) if read.error else ""
        return Seen(read.text, calls, self._finish(read.finish), used, error)

    @staticmethod
    def _finish(reason: str | None) -> str:
        return {"tool_calls": "calls", None: ""}.get(reason, str(reason))

    def read_reply(self, body: Object) -> Seen:
        assert body["object"] == "chat.completion"
        (choice,) = body["choices"]
        calls = [self._made(call) for call in choice["message"].get("tool_calls") or ()]
        used = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
        return Seen(choice["message"]["content"] or "", calls, self._finish(choice["finish_reason"]), used)

    def error(self, body: Object) -> str:
        assert set(body) == {"error"}
        assert set(body["error"]) - {"doc_url"} == {"message", "type", "param", "code"}
        return str(body["error"]["message"])

    def events(self, turn: Turn) -> list[bytes]:
        said = [chat.content(piece) for piece in _pieces(turn.text)]
        for index, call in enumerate(turn.calls):
            text = json.dumps(call.arguments)
            said.append(chat.call(call.id, call.name, "", index))
            said += [chat.call(None, None, piece, index) for piece in _pieces(text)]
        reason = "tool_calls" if turn.calls else "stop"
        return [chat.role(), *said, chat.finish(reason), chat.usage(*turn.used), chat.DONE]

    def reply(self, turn: Turn) -> Object:
        message: Object = {"role": "assistant", "content": turn.text or None}
        if turn.calls:
            message["tool_calls"] = [self._call(call) for call in turn.calls]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn.calls else "stop"}
        took, gave = turn.used
        counted = {"prompt_tokens": took, "completion_tokens": gave, "total_tokens": took + gave}
        known = {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m"}
        return {**known, "choices": [choice], "usage": counted}

    def begun(self, text: str) -> list[bytes]:
        return [chat.role(), chat.content(text)]

    def failing(self, text: str, message: str) -> list[Step]:
        return chunked(*self.begun(text), chat.sse(self.refusal(message)))

    def refusal(self, message: str) -> Object:
        return {"error": {"message": message, "type": "server_error", "param": None, "code": "hot"}}

    def got(self, body: Object) -> Got:
        said, system, waiting = [], [], set[str]()
        for message in body["messages"]:
            text = _text_of(message.get("content"))
            if message["role"] in ("system", "developer"):
                system.append(text)
                continue
            calls = tuple(self._made(call) for call in message.get("tool_calls") or ())
            if message["role"] == "tool":
                waiting.remove(message["tool_call_id"])
            else:
                assert not waiting, "a call without a result"
            waiting |= {call.id for call in calls}
            said.append(Message(message["role"], text, calls, message.get("tool_call_id", "")))
        tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools", [])}
        return Got(body, "\n".join(system), said, tools)


WHOLE: Object = {
    "completed_at": 7, "presence_penalty": 0, "frequency_penalty": 0, "top_logprobs": 0, "reasoning": None,
    "user": None, "max_output_tokens": None, "max_tool_calls": None, "store": False, "background": False,
    "service_tier": "default", "safety_identifier": None, "prompt_cache_key": None,
}  # fmt: skip
"""The members that a response of OpenAI's has beside those of :mod:`responses_script`."""


class Responses(Speaker):
    """OpenAI's Responses."""

    name, path = "responses", "/v1/responses"
    model = "gpt-4o-mini"

    def ask(
        self, said: Sequence[Message], *, stream: bool = True, tools: Sequence[str] = (), system: str = ""
    ) -> Object:
        items: list[Object] = []
        for one in said:
            if one.role == "tool":
                items.append(responses.output(one.call_id, one.text))
                continue
            if one.text:
                items.append({"role": one.role, "content": one.text})
            items += [self._call(call) for call in one.calls]
        body: Object = {"model": self.model, "input": items, "stream": stream}
        if system:
            body["instructions"] = system
        if tools:
            body["tools"] = [responses.function(name) for name in tools]
        return body

    @staticmethod
    def _call(call: Call) -> Object:
        return responses.function_call(call.id, call.name, json.dumps(call.arguments))

    def read_stream(self, body: bytes, hidden: tuple[str, ...]) -> Seen:
        read = check_response_stream(body, hidden=hidden)
        return self._seen(read)

    def _seen(self, read: Reading) -> Seen:
        calls = [Call(call_id, name, _object(text)) for call_id, name, text in read.calls]
        usage, status = read.response.get("usage"), read.response["status"]
        finish = {"completed": "calls" if calls else "stop", "incomplete": "length"}.get(status, "")
        used = (usage["input_tokens"], usage["output_tokens"]) if usage else None
        error = str(read.error["message"]) if read.error else ""
        texts = [
            "".join(part["text"] for part in item["content"])
            for item in read.response["output"]
            if item["type"] == "message"
        ]
        return Seen("".join(texts), calls, finish, used, error, texts)

    def read_reply(self, body: Object) -> Seen:
        assert body["object"] == "response"
        return self._seen(Reading(response=body))

    def error(self, body: Object) -> str:
        return SPEAKERS["chat"].error(body)

    def _items(self, turn: Turn) -> list[Object]:
        said = [responses.message(turn.text, f"msg_{turn.id}")] if turn.text else []
        if turn.thought:
            thought = responses.reasoning(turn.thought, f"rs_{turn.id}", encrypted_content="gAAAA")
            said = [thought, *said]
        return [*said, *[self._call(call) for call in turn.calls]]

    @staticmethod
    def _usage(turn: Turn) -> Object:
        took, gave = turn.used
        return {
            "input_tokens": took,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": gave,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": took + gave,
        }

    def events(self, turn: Turn) -> list[bytes]:
        return _split(responses.turn(*self._items(turn), **self._whole(turn)))

    def reply(self, turn: Turn) -> Object:
        return responses.resource(self._items(turn), **self._whole(turn))

    def _whole(self, turn: Turn) -> Object:
        return {"id": f"resp_{turn.id}", "usage": self._usage(turn), **WHOLE}

    def begun(self, text: str) -> list[bytes]:
        life = responses.item_events(responses.message(text), 0)
        last = max(at for at, event in enumerate(life) if event["type"].endswith(".delta"))
        return _split(responses.encode([*responses.opening(), *life[: last + 1]]))

    def failing(self, text: str, message: str) -> list[Step]:
        item = responses.message(text)
        error = {"code": "hot", "message": message}
        events = [
            *responses.opening(),
            *responses.item_events(item, 0),
            responses.event("error", error={"type": "server_error", "param": None, **error}),
            responses.closing([item], status="failed", error=error, usage=self._usage(Turn()), **WHOLE),
        ]
        return chunked(*_split(responses.encode(events)))

    def refusal(self, message: str) -> Object:
        return SPEAKERS["chat"].refusal(message)

    def got(self, body: Object) -> Got:
        said: list[Message] = []
        system = [body["instructions"]] if body.get("instructions") else []
        waiting = set[str]()
        items = (
            [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]
        )
        for item in items:
            kind = item.get("type", "message")
            if kind == "reasoning":
                continue
            if kind == "function_call_output":
                waiting.remove(item["call_id"])
                said.append(Message("tool", _text_of(item["output"]), call_id=item["call_id"]))
            elif kind == "function_call":
                call = Call(item["call_id"], item["name"], _object(item["arguments"]))
                waiting.add(call.id)
                if said and said[-1].role == "assistant":
                    said[-1] = said[-1]._replace(calls=(*said[-1].calls, call))
                else:
                    said.append(Message("assistant", calls=(call,)))
            elif item["role"] in ("system", "developer"):
                system.append(_text_of(item["content"]))
            else:
                assert not waiting, "a call without a result"
                said.append(Message(item["role"], _text_of(item["content"])))
        tools = {tool["name"]: tool for tool in body.get("tools", []) if "name" in tool}
        return Got(body, "\n".join(system), said, tools)


class Anthropic(Speaker):
    """Anthropic's Messages."""

    name, path = "anthropic", "/v1/messages"
    model = "claude-sonnet-4-5"

    def ask(
        self, said: Sequence[Message], *, stream: bool = True, tools: Sequence[str] = (), system: str = ""
    ) -> Object:
        listed: list[Object] = []
        for one in said:
            if one.role == "tool":
                block = {"type": "tool_result", "tool_use_id": one.call_id, "content": one.text}
                if listed and listed[-1]["role"] == "user" and isinstance(listed[-1]["content"], list):
                    listed[-1]["content"].append(block)
                else:
                    listed.append({"role": "user", "content": [block]})
                continue
            blocks: list[Object] = [messages.text(one.text)] if one.text else []
            blocks += [messages.tool_use(*call) for call in one.calls]
            listed.append({"role": one.role, "content": blocks})
        body: Object = {"model": self.model, "max_tokens": 500, "messages": listed, "stream": stream}
        if system:
            body["system"] = system
        if tools:
            body["tools"] = [messages.tool(name) for name in tools]
        return body

    def read_stream(self, body: bytes, hidden: tuple[str, ...]) -> Seen:
        assert not [text for text in hidden if text in body.decode()]
        read = messages.read_stream(body)
        error = str(read.error["message"]) if read.error else ""
        return self._seen({**read.message, "content": read.blocks}, error)

    def _seen(self, message: Object, error: str = "") -> Seen:
        texts = [block["text"] for block in message["content"] if block["type"] == "text"]
        calls = [
            Call(block["id"], block["name"], block["input"])
            for block in message["content"]
            if block["type"] == "tool_use"
        ]
        reasons = {"tool_use": "calls", "end_turn": "stop", "max_tokens": "length"}
        usage = message.get("usage") or {}
        used = (usage["input_tokens"], usage["output_tokens"]) if usage else None
        return Seen("".join(texts), calls, reasons.get(message.get("stop_reason") or "", ""), used, error)

    def read_reply(self, body: Object) -> Seen:
        assert (body["type"], body["role"]) == ("message", "assistant")
        return self._seen(body)

    def error(self, body: Object) -> str:
        assert body["type"] == "error"
        assert set(body["error"]) >= {"type", "message"}
        return str(body["error"]["message"])

    def _blocks(self, turn: Turn) -> list[Object]:
        said = [messages.thinking(turn.thought)] if turn.thought else []
        said += [messages.text(turn.text)] if turn.text else []
        return [*said, *[messages.tool_use(*call) for call in turn.calls]]

    def events(self, turn: Turn) -> list[bytes]:
        took, gave = turn.used
        said = messages.turn(*self._blocks(turn), id=f"msg_{turn.id}", output=gave, input_tokens=took)
        return _split(said)

    def reply(self, turn: Turn) -> Object:
        took, gave = turn.used
        return {
            "id": f"msg_{turn.id}", "type": "message", "role": "assistant", "model": "m",
            "content": self._blocks(turn), "stop_reason": "tool_use" if turn.calls else "end_turn",
            "stop_sequence": None, "usage": {"input_tokens": took, "output_tokens": gave},
        }  # fmt: skip

    def begun(self, text: str) -> list[bytes]:
        return [messages.start(), *messages.block_events(0, messages.text(text))[:-1]]

    def failing(self, text: str, message: str) -> list[Step]:
        return chunked(*self.begun(text), messages.error_event("overloaded_error", message))

    def refusal(self, message: str) -> Object:
        return {"type": "error", "error": {"type": "overloaded_error", "message": message}}

    def got(self, body: Object) -> Got:
        said: list[Message] = []
        waiting = set[str]()
        # A client of Anthropic's may send system messages between the others.
        turns = [message for message in body["messages"] if message["role"] != "system"]
        for at, message in enumerate(turns):
            assert message["role"] == ("assistant" if at % 2 else "user"), "they do not take turns"
            content = message["content"]
            blocks: list[Object] = (
                [{"type": "text", "text": content}] if isinstance(content, str) else content
            )
            assert blocks
            results = [block for block in blocks if block["type"] == "tool_result"]
            assert blocks[: len(results)] == results, "results do not stand first"
            for block in results:
                waiting.remove(block["tool_use_id"])
                said.append(Message("tool", _text_of(block.get("content")), call_id=block["tool_use_id"]))
            assert not waiting, "a call without a result"
            calls = tuple(
                Call(block["id"], block["name"], block["input"])
                for block in blocks
                if block["type"] == "tool_use"
            )
            waiting |= {call.id for call in calls}
            text = _text_of([block for block in blocks if block["type"] == "text"])
            if text or calls:
                said.append(Message(message["role"], text, calls))
        tools = {tool["name"]: tool for tool in body.get("tools", [])}
        return Got(body, _text_of(body.get("system")), said, tools)


class Ollama(Speaker):
    """Ollama's chat API."""

    name, path, content_type = "ollama", "/api/chat", ollama.LINES
    model = "qwen3"

    def ask(
        self, said: Sequence[Message], *, stream: bool = True, tools: Sequence[str] = (), system: str = ""
    ) -> Object:
        listed: list[Object] = [{"role": "system", "content": system}] if system else []
        names = {call.id: call.name for one in said for call in one.calls}
        for one in said:
            if one.role == "tool":
                known = {"tool_name": names[one.call_id], "tool_call_id": one.call_id}
                listed.append({"role": "tool", "content": one.text, **known})
            elif one.role == "assistant":
                listed.append(ollama.assistant(one.text, *self._calls(one.calls)))
            else:
                listed.append({"role": one.role, "content": one.text})
        body: Object = {"model": self.model, "messages": listed, "stream": stream}
        if tools:
            body["tools"] = [ollama.tool(name) for name in tools]
        return body

    @staticmethod
    def _calls(calls: Sequence[Call]) -> list[Object]:
        return [ollama.call(one.name, one.arguments, one.id, place) for place, one in enumerate(calls)]

    @staticmethod
    def _made(calls: Sequence[Object]) -> list[Call]:
        return [Call(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in calls]

    def read_stream(self, body: bytes, hidden: tuple[str, ...]) -> Seen:
        assert not [text for text in hidden if text in body.decode()]
        return self._seen(ollama.read_stream(body))

    def _seen(self, read: ollama.Read) -> Seen:
        calls, last = self._made(read.calls), read.last
        finish = "calls" if calls and last.get("done_reason") == "stop" else last.get("done_reason", "")
        used = (last["prompt_eval_count"], last["eval_count"]) if "eval_count" in last else None
        return Seen(read.text, calls, finish, used, read.error)

    def read_reply(self, body: Object) -> Seen:
        return self._seen(ollama.read_reply(json.dumps(body).encode()))

    def error(self, body: Object) -> str:
        assert set(body) == {"error"}
        assert isinstance(body["error"], str)
        return body["error"]

    @staticmethod
    def _counts(turn: Turn) -> Object:
        took, gave = turn.used
        return {"prompt_eval_count": took, "eval_count": gave}

    def events(self, turn: Turn) -> list[bytes]:
        calls = self._calls(turn.calls)
        lines = ollama.turn(turn.text, *calls, thinking=turn.thought, **self._counts(turn))
        return lines.splitlines(keepends=True)

    def reply(self, turn: Turn) -> Object:
        return _object(
            ollama.done("stop", turn.text, *self._calls(turn.calls), **self._counts(turn)).decode()
        )

    def begun(self, text: str) -> list[bytes]:
        return [ollama.said(text)]

    def failing(self, text: str, message: str) -> list[Step]:
        return chunked(*self.begun(text), ollama.error(message), content_type=ollama.LINES)

    def refusal(self, message: str) -> Object:
        return {"error": message}

    def got(self, body: Object) -> Got:
        said, system, waiting = [], [], list[str]()
        for message in body["messages"]:
            assert isinstance(message.get("content", ""), str)
            text = message.get("content", "")
            if message["role"] == "system":
                system.append(text)
                continue
            calls = tuple(self._made(message.get("tool_calls") or ()))
            call_id = ""
            if message["role"] == "tool":
                # Libraries leave the id out; then results come in the order of the calls.
                call_id = message.get("tool_call_id") or waiting[0]
                waiting.remove(call_id)
            else:
                assert not waiting, "a call without a result"
            waiting += [call.id for call in calls]
            said.append(Message(message["role"], text, calls, call_id))
        tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools", [])}
        return Got(body, "\n".join(system), said, tools)


def _pieces(text: str) -> list[str]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _split(stream: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]


def _text_of(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(part["text"] for part in content if "text" in part)


SPEAKERS: dict[str, Speaker] = {one.name: one for one in (Chat(), Responses(), Anthropic(), Ollama())}
PAIRS = [(client, upstream) for client in SPEAKERS for upstream in SPEAKERS]
"""All pairs of a client's dialect and an upstream's dialect."""
