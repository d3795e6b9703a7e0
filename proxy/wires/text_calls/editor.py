"""The request body for upstreams whose models find their tools in the prompt.

The client's body keeps the conversation with its tools and calls, and gets every edit. What is sent is read
from it: the conversation with tools in the prompt, and calls and results as text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace as with_changes

from msgspec.structs import replace

from proxy.base.conversation import Conversation
from proxy.wires.crossed import TranslatedBody
from proxy.wires.crossing.exact import read_exactly
from proxy.wires.crossing.translation import Translation
from proxy.wires.turn.edits import Edits
from proxy.wires.upstream_port import RequestBody
from proxy.wires.wire import Wire


class PromptedBody(TranslatedBody):
    """A body whose tools are in the prompt: ``change`` turns them into text."""

    def __init__(
        self,
        own: RequestBody,
        client: Wire,
        translation: Translation,
        change: Callable[[Conversation], Conversation],
    ) -> None:
        super().__init__(own, client, translation)
        self._change = change

    def left_out(self, edits: Edits) -> Sequence[str]:
        self._learn_fields(edits)
        if self._written is None:
            self._check_history(self._own.render(edits))
            self.render(edits)
        return self._left_out_fields()

    def conversation(self, edits: Edits) -> Conversation:
        """Return the current request with its tools."""
        return read_exactly(self._client.codec, self._own.render(replace(edits, asks_usage=False)))

    def render(self, edits: Edits) -> bytes:
        self._learn_fields(edits)
        asked = self.conversation(edits)
        if edits.asks_usage and asked.stream:
            asked = with_changes(asked, stream_usage=True)
        self._written = self._translation.write(self._change(asked))
        return self._written.body

    def history(self, edits: Edits) -> bytes:
        return self._own.render(edits)

    def tools_named(self, edits: Edits, message: str) -> frozenset[str]:
        """Return nothing: the upstream gets no definition of a tool."""
        return frozenset()

    def recover(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        changed = self._own.recover(edits, message, code)
        if changed is None and self._translation.learn(message):
            changed = edits
        self._written = None
        return self._with_lessons(changed) if changed is not None else None
