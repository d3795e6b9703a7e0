"""Conversations with hidden turns in each dialect, as different kinds of clients send them back.

A :class:`Chat` has what really happened in one conversation. A :class:`Habit` makes from it what a client
sends with its next request. The tests compare what the proxy restores with what happened.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.relay.memory.hidden.history import History, LastTurn, Restored
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire

Line = tuple[str, str]
"""The role of a speaker (system, user or assistant), and the text."""


@dataclass
class Exchange:
    """A question, the result of the hidden call for it (``None`` if there was no call), and the answer."""

    question: str
    result: str | None
    answer: str


@dataclass
class Sent:
    """What a client sends: all lines, and the exchange of each answer among them.

    ``beside`` says that Responses gets the first line as ``instructions`` and not as an item of the input.
    """

    lines: list[Line]
    exchanges: list[Exchange] = field(default_factory=list)
    beside: bool = True


@dataclass
class Chat:
    """One conversation as it happened."""

    system: str
    exchanges: list[Exchange] = field(default_factory=list)


class Dialect:
    """Writes a conversation and a hidden turn in one dialect."""

    def __init__(self, name: str, wire: Any) -> None:
        self.name = name
        self.wire = wire

    def body(self, sent: Sent) -> dict[str, Any]:
        """Return a request that sends these lines."""
        lines = sent.lines
        messages = [{"role": role, "content": text} for role, text in lines]
        if self.name == "anthropic" and lines[0][0] in ("system", "developer"):
            return {"model": "m", "system": lines[0][1], "messages": messages[1:], "max_tokens": 10}
        if self.name == "responses":
            told = sent.beside
            rest: dict[str, Any] = {"instructions": lines[0][1]} if told else {}
            return {"model": "m", **rest, "input": [self._item(*line) for line in lines[told:]]}
        return {"model": "m", "messages": messages}

    @staticmethod
    def _item(role: str, text: str) -> dict[str, Any]:
        if role != "assistant":
            return {"role": role, "content": text}
        return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}

    def hidden(self, call_id: str, result: str) -> tuple[Any, Any]:
        """Return the model's message with a call, and the result of the call."""
        if self.name == "anthropic":
            use = {"type": "tool_use", "id": call_id, "name": "core__look", "input": {"q": 1}}
            thought = {"type": "thinking", "thinking": call_id, "signature": call_id}
            return (
                {"role": "assistant", "content": [thought, use]},
                {"type": "tool_result", "tool_use_id": call_id, "content": result},
            )
        if self.name == "responses":
            item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id}
            return (
                {
                    "id": "resp_1",
                    "store": False,
                    "output": [{**item, "name": "core__look", "arguments": "{}"}],
                },
                {"type": "function_call_output", "call_id": call_id, "output": result},
            )
        arguments: Any = {"q": 1} if self.name == "ollama" else '{"q":1}'
        call = {"id": call_id, "type": "function", "function": {"name": "core__look", "arguments": arguments}}
        return (
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": result},
        )

    def answer(self, text: str) -> Any:
        """Return the model's message with an answer."""
        if self.name == "responses":
            return {"id": "resp_2", "store": False, "output": [self._item("assistant", text)]}
        if self.name == "anthropic":
            return {"role": "assistant", "content": [{"type": "text", "text": text}]}
        return {"role": "assistant", "content": text}

    def visible(self, text: str) -> str:
        """Return an answer in the form in which the dialect's writer reports it to the memory."""
        return f"{len(text.strip())}:{text.strip()}" if self.name == "responses" else text


DIALECTS: Mapping[str, Dialect] = {
    name: Dialect(name, wire)
    for name, wire in {
        "chat": ChatWire(),
        "responses": ResponsesWire(),
        "anthropic": AnthropicWire(),
        "ollama": OllamaWire(),
    }.items()
}


class _Spy:
    """Wraps an editor and notes what is restored at which position."""

    def __init__(self, editor: Any) -> None:
        self._editor = editor
        self.put: dict[int, bytes] = {}

    @property
    def restored(self) -> tuple[int, int]:
        restored: tuple[int, int] = self._editor.restored
        return restored

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        self.put[position] = payload
        self._editor.restore(position, payload, needed=needed)


class Memory:
    """The proxy's memory of hidden turns, for one dialect and one caller."""

    def __init__(self, history: History, dialect: Dialect, caller: str = "ann") -> None:
        self._history = history
        self._dialect = dialect
        self._caller = caller
        self._ids = 0
        self._happened: dict[tuple[Line, ...], set[str | None]] = {}

    async def asked(self, sent: Sent, exchange: Exchange) -> tuple[int, int, int]:
        """Send a request whose answer is the exchange's.

        Returns how many answers in it have a hidden turn, how many of these got it back, and how many answers
        got a hidden turn that is not theirs. If another conversation was word for word what the client sends
        now, its turn counts as theirs: nobody can tell the two apart.
        """
        had, right, wrong = 0, 0, 0
        request, spy, restored = await self.look(sent)
        places = [answer.position for answer in request.answers()]
        assert len(places) == len(sent.exchanges), "an answer is not seen as one"
        ends = [at for at, (role, _) in enumerate(sent.lines) if role == "assistant"]
        for place, end, past in zip(places, ends, sent.exchanges, strict=True):
            put = spy.put.get(place)
            had += past.result is not None
            if put is None:
                continue
            right += _holds(put, past.result)
            same = self._happened.get(_words(sent.lines[: end + 1]), set())
            wrong += not any(_holds(put, result) for result in {past.result, *same})
        assert restored.turns == len(spy.put)
        self.remember(sent, exchange)
        return had, right, wrong

    async def look(self, sent: Sent) -> tuple[Any, _Spy, Restored]:
        """Restore hidden turns in a request; return the parsed request, what was put where, and counts."""
        body = self._dialect.body(sent)
        request = self._dialect.wire.parse(body)
        spy = _Spy(self._dialect.wire.editor(json.dumps(body).encode(), request))
        restored = await self._history.restore(request, spy, self._caller, "tools")  # type: ignore[arg-type]
        return request, spy, restored

    def remember(self, sent: Sent, exchange: Exchange) -> None:
        """Store an answer to a request together with its hidden turn."""
        words = _words([*sent.lines, ("assistant", exchange.answer)])
        self._happened.setdefault(words, set()).add(exchange.result)
        body = self._dialect.body(sent)
        request = self._dialect.wire.parse(body)
        editor = self._dialect.wire.editor(json.dumps(body).encode(), request)
        turn = LastTurn(
            run_id="run_1",
            caller=self._caller,
            wire=self._dialect.name,
            message=json.dumps(self._dialect.answer(exchange.answer)).encode(),
            mask=lambda name, arguments: arguments,
        )
        visible = self._dialect.visible(exchange.answer)
        if exchange.result is None:
            self._history.note_plain(request, turn, visible=visible, offer_fingerprint="tools")
            return
        self._ids += 1
        message, result = self._dialect.hidden(f"call_{self._ids}", exchange.result)
        editor.append_turn(json.dumps(message).encode(), [json.dumps(result).encode()])
        self._history.remember(request, editor, turn, visible=visible, offer_fingerprint="tools")


def _holds(put: bytes, result: str | None) -> bool:
    return result is not None and json.dumps(result)[1:-1].encode() in put


def _words(lines: Sequence[Line]) -> tuple[Line, ...]:
    """What must be the same in two conversations that nobody can tell apart."""
    system = lines[0][1].splitlines()[0]
    return (("system", system), *((role, text.strip()) for role, text in lines[1:]))


Habit = Callable[[Chat, str, int], Sent]
"""Makes what a client sends of a conversation with a new question; the number is that of the request."""
