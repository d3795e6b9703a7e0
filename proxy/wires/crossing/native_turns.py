"""Keeps turns in their upstream's own form, beside the form in which the client will send them back.

A turn that is held for a client is stored in the client's dialect, so that it can be found. Some parts exist
only in the upstream's dialect, such as the signature of a thought or the permitted callers of a tool. They
are stored beside the turn, with the dialect's name. If the next request goes to that dialect, the upstream
gets them back; any other upstream gets the client's form, translated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import orjson

from proxy.base.conversation import Conversation, Message, Native, Part, Reasoning, ToolCallPart
from proxy.wires.crossing.reasoning import is_plain
from proxy.wires.dialect import NATIVE


class NativeTurns:
    """The turns with calls of one request's upstream, identified by the ids of these calls."""

    def __init__(
        self,
        dialect: str,
        read: Callable[[bytes], Message],
        masked: Callable[[bytes, Callable[[str, str], str]], bytes],
    ) -> None:
        """``dialect`` is the name of the upstream's dialect, which reads a turn and masks one for storage."""
        self._dialect = dialect
        self._read = read
        self._masked = masked
        self._restored: dict[tuple[str, ...], bytes] = {}

    def add_to_stored(self, payload: bytes, turns: Sequence[bytes], mask: Callable[[str, str], str]) -> bytes:
        """Add the upstream's own ``turns`` to the JSON object that is stored for a turn."""
        kept = [self._masked(turn, mask).decode() for turn in turns if _calls(self._read(turn))]
        if not kept:
            return payload
        said = orjson.dumps({NATIVE: {"dialect": self._dialect, "turns": kept}})
        # The object that an editor stores is never empty.
        return payload[:-1] + b"," + said[1:]

    def has_unreturnable_content(self, message: bytes, *, reasoning: bool) -> bool:
        """Return whether a turn with calls has content that a client of another dialect cannot send back.

        That is what its provider signed or encrypted and what only its dialect has; with ``reasoning`` also
        the text of reasoning.
        """
        turn = self._read(message)
        more = _is_only_here(turn.native) or any(
            _is_unreturnable(part, reasoning=reasoning) for part in turn.parts
        )
        return more and bool(_calls(turn))

    def restore(self, payload: bytes) -> None:
        """Restore the native form of a turn that is put back, if it is of this upstream's dialect."""
        said = orjson.loads(payload).get(NATIVE)
        if said is None or said["dialect"] != self._dialect:
            return
        for turn in said["turns"]:
            raw = turn.encode()
            self._restored[_calls(self._read(raw))] = raw

    def forget(self) -> bool:
        """Translate all turns from now on; return whether that changes anything."""
        known = bool(self._restored)
        self._restored.clear()
        return known

    def put_into(self, conversation: Conversation) -> Conversation:
        """Replace the turns of a conversation that were put back by the upstream's own form."""
        if not self._restored:
            return conversation
        return replace(conversation, messages=tuple(self._with_native_turns(conversation.messages)))

    def _with_native_turns(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Yield the messages with native turns; some dialects spread a turn over several messages."""
        for role, said in groupby(messages, key=lambda message: message.role):
            turn = list(said)
            calls = tuple(call for message in turn for call in _calls(message))
            raw = self._restored.get(calls) if role == "assistant" else None
            if raw is None:
                yield from turn
            else:
                yield replace(self._read(raw), at=turn[0].at)


def _calls(message: Message) -> tuple[str, ...]:
    """Return the ids of a turn's calls."""
    return tuple(part.call_id for part in message.parts if isinstance(part, ToolCallPart))


def _is_unreturnable(part: Part, *, reasoning: bool) -> bool:
    if isinstance(part, ToolCallPart):
        # For example the signature of the thought that led to the call.
        return _is_only_here(part.native)
    return isinstance(part, Reasoning) and (reasoning or not is_plain(part))


def _is_only_here(natives: Sequence[Native]) -> bool:
    """Return whether other dialects cannot express some of this and lose meaning without it."""
    return any(native.loss != "unneeded" for native in natives)
