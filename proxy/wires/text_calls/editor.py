"""The editor of a request for a model that cannot take tools.

The client's own editor edits the request, turn after turn, as if the model took tools. Before each sending,
the request is read as a conversation; its tools, calls and results become text; and the upstream's dialect
writes the body. So everything kept for later requests has the client's form, as usual.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import orjson

from proxy.base.conversation import Conversation
from proxy.base.events import ResultImage, ToolCall, ToolDefinition
from proxy.records.rows import MessageRecord
from proxy.wires.crossing.exact import read_exactly
from proxy.wires.crossing.ledger import LeftOut
from proxy.wires.crossing.translation import Translation
from proxy.wires.upstream_port import BodyEditor, ChainedEditor, Mask, SuspendedCall
from proxy.wires.wire import CrossableWire

__all__ = ["PromptedEditor", "prompted_editor"]


class PromptedEditor:
    """An editor of bodies whose tools are in the prompt. ``own`` is the client's editor; ``change`` turns
    tools into text, and ``translation`` writes the bodies."""

    def __init__(
        self,
        own: BodyEditor,
        client: CrossableWire,
        translation: Translation,
        change: Callable[[Conversation], Conversation],
    ) -> None:
        self._own = own
        self._client = client
        self._translation = translation
        self._change = change
        self._asks_usage = False
        self._left_out: Sequence[LeftOut] = ()

    @property
    def left_out(self) -> Sequence[LeftOut]:
        """The fields of the client's request that the last body leaves out; none before the first."""
        return self._left_out

    def translate(self) -> None:
        """Raise :class:`RequestError` if the upstream's dialect cannot express the request."""
        self.render()

    def conversation(self) -> Conversation:
        """Return the current request with its tools."""
        return read_exactly(self._client.codec, self._own.render())

    def render(self) -> bytes:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.render`."""
        asked = self.conversation()
        if self._asks_usage and asked.stream:
            asked = replace(asked, stream_usage=True)
        written = self._translation.write(self._change(asked))
        self._left_out = written.left_out
        return written.body

    def ask_usage(self) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.ask_usage`."""
        self._asks_usage = True

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.offer`."""
        self._own.offer(added, replaced)

    def withdraw(self) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.withdraw`."""
        self._own.withdraw()

    def withhold(self, names: Collection[str]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.withhold`."""
        self._own.withhold(names)

    def rename_model(self, model: str) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.rename_model`."""
        self._own.rename_model(model)

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.restore`."""
        self._own.restore(position, payload, needed=needed)

    @property
    def restored(self) -> tuple[int, int]:
        """See :attr:`proxy.wires.upstream_port.BodyEditor.restored`."""
        return self._own.restored

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.append_turn`."""
        self._own.append_turn(message, results)

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.suspend`."""
        return self._own.suspend(message, calls, mask)

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.result_message`."""
        return self._own.result_message(call, content, images)

    def leave_out_images(self) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.leave_out_images`."""
        self._own.leave_out_images()

    @property
    def images_refused(self) -> bool:
        """See :attr:`proxy.wires.upstream_port.BodyEditor.images_refused`."""
        return self._own.images_refused

    def leave_out_fields(self, names: Collection[str]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.leave_out_fields`."""
        self._translation.leave_out(names)
        self._own.leave_out_fields(names)

    @property
    def fields_refused(self) -> frozenset[str]:
        """See :attr:`proxy.wires.upstream_port.BodyEditor.fields_refused`."""
        return self._own.fields_refused | self._translation.learned

    def tools_named(self, message: str) -> frozenset[str]:
        """Return nothing: the upstream gets no definition of a tool."""
        return frozenset()

    def relax_tool_choice(self, called: Collection[str]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.relax_tool_choice`."""
        self._own.relax_tool_choice(called)

    def forbid_tools(self) -> bool:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.forbid_tools`."""
        return self._own.forbid_tools()

    def lower_token_limit(self, used: int) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.lower_token_limit`."""
        self._own.lower_token_limit(used)

    def recover(self, message: str, code: str | None) -> bool:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.recover`."""
        if self._own.recover(message, code):
            return True
        return self._translation.learn(message)

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.records`."""
        return self._own.records(run_id, mask)


class _ChainedPromptedEditor(PromptedEditor, ChainedEditor):
    """The editor for a client that continues responses by their ids."""

    @property
    def _chained(self) -> ChainedEditor:
        if not isinstance(self._own, ChainedEditor):
            raise TypeError("the client's dialect has no responses with ids")
        return self._own

    def translate(self) -> None:
        """See :meth:`PromptedEditor.translate`. All calls are known by now, so also check that results
        answer them."""
        self._client.parse(orjson.loads(self._own.render())).check_history(lambda name: False)
        super().translate()

    def resume(self, continuation: bytes) -> None:
        """See :meth:`proxy.wires.upstream_port.ChainedEditor.resume`."""
        self._chained.resume(continuation)

    def continuation(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """See :meth:`proxy.wires.upstream_port.ChainedEditor.continuation`."""
        return self._chained.continuation(message, calls, mask)

    def input_items(self) -> bytes:
        """See :meth:`proxy.wires.upstream_port.ChainedEditor.input_items`."""
        return self._chained.input_items()


def prompted_editor(
    own: BodyEditor,
    client: CrossableWire,
    translation: Translation,
    change: Callable[[Conversation], Conversation],
) -> PromptedEditor:
    """Return an editor around the client's ``own``. It can continue responses by their ids if ``own`` can."""
    kind = _ChainedPromptedEditor if isinstance(own, ChainedEditor) else PromptedEditor
    return kind(own, client, translation, change)
