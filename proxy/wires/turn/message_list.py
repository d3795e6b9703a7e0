"""The editor of a request body that holds its conversation as a list of messages.

Most dialects have such a list.  This module has their common part: it cuts the body, offers tools, and adds,
keeps and restores turns.  Each dialect defines the form of a tool, a message and a result.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import orjson

from proxy.events import ToolDefinition
from proxy.wires.json.splice import elements, extend_array, extend_object, join_array, members
from proxy.wires.turn.refused_fields import RefusedFields
from proxy.wires.turn.restored import RestoredMessages, restored_size, with_restored
from proxy.wires.upstream_port import Mask, SuspendedCall

__all__ = ["LEAST_TOKENS", "MessageListBody", "tokens_left"]

LEAST_TOKENS: Final = 16
"""The number of tokens that a turn may always use, whatever the earlier turns of its run used."""
_BY_NAME = attrgetter("name")


def tokens_left(bound: int, used: int, least: int = LEAST_TOKENS) -> bytes:
    """Return, as JSON text, the client's ``bound`` on output tokens minus the tokens ``used``.

    The result is at least ``least``, or ``bound`` if that is lower still.
    """
    return str(max(bound - used, min(least, bound))).encode()


class MessageListBody(ABC):
    """A part of :class:`~proxy.wires.upstream_port.BodyEditor`, which describes the public methods.

    The body is cut into the raw values of its members only when a member that the client sent must change.
    Until then ``_added_members`` holds the added members.
    """

    def __init__(
        self, raw: bytes, named: Collection[str], refused: RefusedFields, *, tools_key: str = "tools"
    ) -> None:
        """Take ``named``, the member names of ``raw``, and ``tools_key``, the member that holds tools."""
        self._raw = raw
        self._named = named
        self._added_members: dict[str, bytes] = {}
        self._cut: dict[str, bytes] | None = None
        self._client_messages: list[bytes] | None = None
        self._tools_key = tools_key
        self._declared = self._members.get(tools_key) if tools_key in named else None
        self._restored: dict[int, RestoredMessages] = {}
        self._added: list[bytes] = []
        self._masked: dict[bytes, bytes] = {}
        self._used_tokens = 0
        self._refused = refused
        self._withheld: frozenset[str] = frozenset()
        self._translated = False

    # Methods that differ between the dialects.

    @abstractmethod
    def _definition(self, definition: ToolDefinition) -> bytes:
        """Return one element of the list of tools."""

    @abstractmethod
    def _declared_name(self, tool: Any) -> str | None:
        """Return the name of a tool in the client's list."""

    @abstractmethod
    def _masked_turn(self, raw: bytes, mask: Mask) -> bytes:
        """Return a message with the private arguments of its calls masked; the same bytes if it has none."""

    def _replacement(self, declared: bytes, definition: ToolDefinition) -> bytes:
        """Return what replaces a tool that the client ``declared`` under the name of a server tool."""
        return self._definition(definition)

    def _stripped(self, messages: Sequence[bytes], theirs: Sequence[bytes] = ()) -> Sequence[bytes]:
        """Return messages without refused fields. The client's own messages, ``theirs``, stay complete."""
        return self._refused.strip(messages, theirs)

    # The members of the body.

    @property
    def _members(self) -> dict[str, bytes]:
        """The raw values of the body's members. Callers may change this mapping."""
        if self._cut is None:
            self._cut = {**members(self._raw), **self._added_members}
            self._raw = b""
        return self._cut

    @property
    def _messages(self) -> list[bytes]:
        """The raw messages that the client sent."""
        if self._client_messages is None:
            self._client_messages = elements(self._members.get("messages", b"[]"))
        return self._client_messages

    def _set(self, name: str, value: bytes) -> None:
        """Set a member that the client may have sent, too."""
        if self._cut is None and name not in self._named:
            self._added_members[name] = value
        else:
            self._members[name] = value

    def _uncut(self) -> bytes | None:
        """Return the client's bytes and the added members; ``None`` if anything else has changed."""
        changed = self._restored or self._added or self._withheld or self._used_tokens or self._strips_all
        if self._cut is None and not changed:
            return extend_object(self._raw, self._added_members)
        return None

    def _put_messages(self, parts: dict[str, bytes]) -> None:
        """Set the conversation in ``parts``, the members of the next request."""
        if self._restored or self._strips_all:
            parts["messages"] = join_array(self._stripped(self._whole(), self._theirs))
        elif self._added:
            parts["messages"] = extend_array(parts.get("messages", b"[]"), self._stripped(self._added))

    def rename_model(self, model: str) -> None:
        self._members["model"] = orjson.dumps(model)

    # Tools.

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        new = [self._definition(definition) for definition in sorted(added, key=_BY_NAME)]
        tools = self._declared if self._declared and self._declared[:1] == b"[" else b"[]"
        if replaced:
            ours = {definition.name: definition for definition in replaced}
            tools = join_array(self._replaced(raw, ours) for raw in elements(tools))
        if new or replaced:
            self._set(self._tools_key, extend_array(tools, new))

    def _replaced(self, raw: bytes, ours: Mapping[str, ToolDefinition]) -> bytes:
        definition = ours.get(self._declared_name(orjson.loads(raw)) or "")
        return raw if definition is None else self._replacement(raw, definition)

    def withhold(self, names: Collection[str]) -> None:
        self._withheld = frozenset(names)

    def withdraw(self) -> None:
        self._withheld = frozenset()
        if self._declared is not None:
            self._members[self._tools_key] = self._declared
        elif self._cut is None:
            self._added_members.pop(self._tools_key, None)
        else:
            self._cut.pop(self._tools_key, None)

    # Turns.

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        self._added += [message, *results]

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        return orjson.dumps(
            {
                "messages": [self._shown(part, mask).decode() for part in (*self._added, message)],
                "calls": [
                    {
                        "call_id": call.call_id,
                        "client_id": call.client_id,
                        "result": call.result.decode() if call.result is not None else None,
                    }
                    for call in calls
                ],
            }
        )

    @property
    def restored(self) -> tuple[int, int]:
        return restored_size(self._restored)

    def _shown(self, raw: bytes, mask: Mask) -> bytes:
        """Return one of the proxy's messages as the store may hold it, for later restoring and the record."""
        masked = self._masked.get(raw)
        if masked is None:
            masked = self._masked[raw] = self._masked_turn(raw, mask)
        return masked

    def _whole(self) -> list[bytes]:
        """Return the whole conversation as the upstream gets it, before anything is left out."""
        return [*with_restored(self._messages, self._restored), *self._added]

    def _ours(self) -> list[bytes]:
        """Return the messages of the next request that the client did not send in this request."""
        return [
            *self._added,
            *(one for replacement in self._restored.values() for one in replacement.messages),
        ]

    def lower_token_limit(self, used: int) -> None:
        self._used_tokens = used

    # Refused fields.

    def mark_translated(self) -> None:
        """See :meth:`proxy.wires.upstream_port.TranslatedEditor.mark_translated`."""
        self._translated = True

    @property
    def _theirs(self) -> Sequence[bytes]:
        """The messages that the client wrote itself. Nothing is left out of them."""
        return () if self._translated else self._messages

    @property
    def _strips_all(self) -> bool:
        """Whether fields are left out of messages that the request held from the beginning."""
        return self._translated and bool(self._refused)

    def _may_learn(self) -> bool:
        """Return whether a refusal may concern something that the client did not write itself."""
        return bool(self._restored or self._added or self._translated)

    def leave_out_fields(self, names: Collection[str]) -> None:
        self._refused.leave_out(names)

    @property
    def fields_refused(self) -> frozenset[str]:
        return self._refused.learned
