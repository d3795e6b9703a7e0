"""Both ports of an upstream whose dialect is not the client's, as the client's dialect would offer them.

The proxy reads the request into a :class:`Conversation`. The upstream's dialect writes a
body from it, and its editor changes that body turn after turn. The upstream's reader reads the answer, and
the client's encoder encodes its events as frames of the client's dialect. Neither dialect knows the other.
The run and the writer do not know that there are two.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from proxy.base.conversation import Conversation, Message
from proxy.base.events import ResultImage, ToolCall, ToolDefinition
from proxy.records.rows import MessageRecord
from proxy.wires.client_port import ClientRequest
from proxy.wires.crossed_texts import crossed_reader
from proxy.wires.crossing.exact import read_exactly
from proxy.wires.crossing.ledger import Ledger, LeftOut, Written
from proxy.wires.crossing.native_turns import NativeTurns
from proxy.wires.crossing.reasoning import asks_for_reasoning
from proxy.wires.crossing.translation import Translation
from proxy.wires.dialect import Dialect
from proxy.wires.profile import Profile
from proxy.wires.turn.restored import is_too_long_error
from proxy.wires.upstream_port import (
    BodyEditor,
    CachingEditor,
    ChainedEditor,
    LossyClientEditor,
    Mask,
    StateHabit,
    SuspendedCall,
    TranslatedEditor,
    TurnReader,
)
from proxy.wires.wire import CrossableWire

__all__ = ["CrossedEditor", "Crossing"]


class Crossing:
    """The port of an upstream whose dialect is not the client's, for one request."""

    def __init__(
        self,
        client: CrossableWire,
        upstream: CrossableWire,
        request: ClientRequest,
        profile: Profile | None = None,
        *,
        strict: bool = False,
    ) -> None:
        """``profile`` is what the upstream's model takes; without it, what is known of the model by its name.

        With ``strict`` the proxy refuses a request instead of leaving a field of the client's out.
        """
        self._profile = profile
        self._strict = strict
        self._client = client
        self._upstream = upstream
        self._request = request
        self._model = request.model
        self._max_tokens: int | None = None
        self._editor: CrossedEditor | None = None

    def ask_for(self, model: str, max_tokens: int | None = None) -> None:
        """Set the upstream's own name of the model, and the token limit to send if the client sets none.

        ``max_tokens=None`` leaves that limit to the upstream's dialect.
        """
        self._model, self._max_tokens = model, max_tokens

    @property
    def dialect(self) -> Dialect:
        """The upstream's dialect."""
        return self._upstream.dialect

    def editor(
        self, raw: bytes, request: ClientRequest, state: StateHabit = "auto", *, caller: str = ""
    ) -> BodyEditor:
        """See :meth:`proxy.wires.upstream_port.UpstreamPort.editor`."""
        own = self._client.editor(raw, request, "stateless", caller=caller)
        kind = _ChainedCrossedEditor if isinstance(own, ChainedEditor) else CrossedEditor
        translation = Translation(self._upstream.codec, self._profile, strict=self._strict)
        self._editor = editor = kind(own, self._client, self._upstream, state, translation, caller=caller)
        editor.ask_for(self._model, self._max_tokens)
        return editor

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        """See :meth:`proxy.wires.upstream_port.UpstreamPort.reader`."""
        renamed = self._editor.renamed if self._editor is not None else {}
        if renamed:
            theirs = {name: written for written, name in renamed.items()}
            declared = [theirs.get(name, name) for name in declared]
        reader = self.turn_reader(
            declared, lambda name: is_hidden(renamed.get(name, name)), max_argument_bytes
        )
        return crossed_reader(reader, self._client.encoder(self._request), renamed)

    def write_turn(self, message: Message) -> bytes:
        """Write a turn of a model as the reader of the upstream's dialect would return it."""
        return self._upstream.write_turn(message)

    def turn_reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        """Return the reader of the upstream's own dialect; tools have the names of the upstream's request."""
        return self._upstream.reader(declared, is_hidden, max_argument_bytes)


class CrossedEditor(LossyClientEditor):
    """Two editors in step: the client's editor keeps the turns, and the upstream's body is sent.

    A held turn is put back into the client's own body before that body is translated. So an upstream of any
    dialect gets it, whichever upstream made it. If both speak the same dialect, the upstream gets the turn
    in its own form (:mod:`proxy.wires.crossing.native_turns`).
    """

    def __init__(
        self,
        own: BodyEditor,
        client: CrossableWire,
        upstream: CrossableWire,
        state: StateHabit,
        translation: Translation,
        *,
        caller: str,
    ) -> None:
        self._own = own
        self._client = client
        self._upstream = upstream
        self._state = state
        self._translation = translation
        self._caller = caller
        self._changes: list[Callable[[BodyEditor], object]] = []
        self._own_results: dict[bytes, bytes] = {}
        self._natives = NativeTurns(upstream)
        self._turns: list[bytes] = []
        self._own_turns: list[tuple[bytes, Sequence[bytes]]] = []
        self._lacks_reasoning = False
        self._model = ""
        self._max_tokens: int | None = None
        self._has_own_limit = False
        self._sent: BodyEditor | None = None
        self._written: Written | None = None

    def _translate(self) -> BodyEditor:
        """Return the upstream's editor over the body as it is now."""
        conversation = self._conversation()
        conversation = replace(conversation, model=self._model or conversation.model)
        self._has_own_limit = conversation.output.max_tokens is not None
        if not self._has_own_limit and self._max_tokens is not None:
            output = replace(conversation.output, max_tokens=self._max_tokens)
            conversation = replace(conversation, output=output)
        if self._lacks_reasoning:
            conversation = self._upstream.codec.repair_missing_reasoning(conversation)
        self._written = written = self._translation.write(conversation)
        request = self._upstream.parse(orjson.loads(written.body))
        editor = self._upstream.editor(written.body, request, self._state, caller=self._caller)
        if isinstance(editor, CachingEditor):
            editor.mark_cache()
        if isinstance(editor, TranslatedEditor):
            editor.mark_translated()
        return editor

    def _conversation(self) -> Conversation:
        """Return the client's request with the held turns that were put back."""
        raw = self._own.render()
        payload = orjson.loads(raw)
        self._check(payload)
        conversation = read_exactly(self._client.codec, raw, payload)
        if conversation.output.logprobs:
            # Every dialect can ask for them, but no encoder writes those of another dialect's answer.
            ledger = Ledger(self._upstream.codec.fields, conversation.names)
            raise ledger.refuse(
                ledger.name_of("output.logprobs"),
                "The proxy does not translate log probabilities. Use an upstream that speaks "
                f"{self._client.dialect.wire}, or do not ask for them.",
            )
        return self._natives.put_into(conversation)

    def ask_for(self, model: str, max_tokens: int | None) -> None:
        """See :meth:`Crossing.ask_for`."""
        self._model, self._max_tokens = model, max_tokens

    def _check(self, payload: Mapping[str, Any]) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` for a complete client body that no model accepts."""

    @property
    def left_out(self) -> Sequence[LeftOut]:
        """The parts of the client's request that the last translation left out; none before the first."""
        return () if self._written is None else self._written.left_out

    @property
    def renamed(self) -> Mapping[str, str]:
        """The upstream's names → the client's, of the tools whose names the upstream does not accept."""
        self.translate()
        return {} if self._written is None else self._written.renamed

    def translate(self) -> None:
        """Write the upstream's body from the client's request and the turns put back, if not yet done.

        Raises :class:`~proxy.base.errors.RequestError` for what the upstream's dialect cannot express.
        """
        _ = self._editor

    @property
    def _editor(self) -> BodyEditor:
        """The upstream's editor, with all changes so far."""
        if self._sent is None:
            self._sent = self._translate()
            for change in self._changes:
                change(self._sent)
        return self._sent

    def _change(self, change: Callable[[BodyEditor], object]) -> None:
        """Change the upstream's body, and repeat the change whenever the body is translated anew."""
        self._changes.append(change)
        if self._sent is not None:
            change(self._sent)

    # Kept in the client's own form.

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.restore`."""
        self._own.restore(position, payload, needed=needed)
        self._natives.restore(payload)
        self._sent = None

    @property
    def restored(self) -> tuple[int, int]:
        """See :attr:`proxy.wires.upstream_port.BodyEditor.restored`."""
        return self._own.restored

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.append_turn`."""
        self._change(lambda editor: editor.append_turn(message, results))
        self._turns.append(message)
        self._own_turns.append((message, results))

    def _append_own_turns(self) -> None:
        """Add the turns to the client's own body, before it is stored.

        They are not added earlier: a new translation gets them as changes of the upstream's body.
        """
        for message, results in self._own_turns:
            answers = [self._own_results[result] for result in results]
            self._own.append_turn(self._own_message(message), answers)
        self._own_turns.clear()

    def _own_message(self, message: bytes) -> bytes:
        """Return an upstream's turn in the client's form."""
        return self._client.write_turn(self._upstream.read_turn(message))

    def _own_calls(self, calls: Sequence[SuspendedCall]) -> list[SuspendedCall]:
        return [
            SuspendedCall(
                call.call_id,
                call.client_id,
                self._own_results[call.result] if isinstance(call.result, bytes) else call.result,
            )
            for call in calls
        ]

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.suspend`."""
        self._append_own_turns()
        payload = self._own.suspend(self._own_message(message), self._own_calls(calls), mask)
        return self._natives.add_to_stored(payload, [*self._turns, message], mask)

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.result_message`."""
        result = self._editor.result_message(call, content, images)
        self._own_results[result] = self._own.result_message(call, content, images)
        return result

    # Changes of the upstream's body alone.

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.offer`."""
        self._change(lambda editor: editor.offer(added, replaced))

    def withdraw(self) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.withdraw`."""
        self._change(lambda editor: editor.withdraw())

    def withhold(self, names: Collection[str]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.withhold`."""
        self._change(lambda editor: editor.withhold(names))

    def rename_model(self, model: str) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.rename_model`."""
        self._change(lambda editor: editor.rename_model(model))

    def ask_usage(self) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.ask_usage`."""
        self._change(self._ask_usage)

    def _ask_usage(self, editor: BodyEditor) -> None:
        if "stream_usage" not in self._translation.profile.without:
            editor.ask_usage()

    def leave_out_images(self) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.leave_out_images`."""
        self._change(lambda editor: editor.leave_out_images())

    def leave_out_fields(self, names: Collection[str]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.leave_out_fields`."""
        if self._translation.leave_out(names):
            self._sent = None
        self._change(lambda editor: editor.leave_out_fields(names))

    def tools_named(self, message: str) -> frozenset[str]:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.tools_named`."""
        return self._editor.tools_named(message)

    def relax_tool_choice(self, called: Collection[str]) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.relax_tool_choice`."""
        self._change(lambda editor: editor.relax_tool_choice(called))

    def forbid_tools(self) -> bool:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.forbid_tools`."""
        left_out = self._editor.forbid_tools()
        self._changes.append(lambda editor: editor.forbid_tools())
        return left_out

    def lower_token_limit(self, used: int) -> None:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.lower_token_limit`.

        A limit that is not the client's applies to each turn, so it stays as it is.
        """
        self.translate()
        if self._has_own_limit:
            self._change(lambda editor: editor.lower_token_limit(used))

    @property
    def images_refused(self) -> bool:
        """See :attr:`proxy.wires.upstream_port.BodyEditor.images_refused`."""
        return self._editor.images_refused

    @property
    def fields_refused(self) -> frozenset[str]:
        """See :attr:`proxy.wires.upstream_port.BodyEditor.fields_refused`."""
        return self._editor.fields_refused | self._translation.learned

    def render(self) -> bytes:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.render`."""
        return self._editor.render()

    def recover(self, message: str, code: str | None) -> bool:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.recover`."""
        if self._translation.learn(message):
            self._sent = None
            return True
        if self._editor.recover(message, code):
            return True
        if asks_for_reasoning(message):
            return self._repair_missing_reasoning()
        if not is_too_long_error(message, code) and self._natives.forget():
            # The upstream may be another one of the same dialect, which rejects what it did not sign itself.
            self._sent = None
            return True
        restored = self._own.restored
        # The client's editor sees no body of the upstream's, so it can only remove restored turns.
        if not self._own.recover(message, code) or self._own.restored == restored:
            return False
        self._sent = None
        return True

    def _repair_missing_reasoning(self) -> bool:
        """Write the request for an upstream that misses reasoning; return whether that changes anything."""
        conversation = self._conversation()
        if (
            self._lacks_reasoning
            or self._upstream.codec.repair_missing_reasoning(conversation) == conversation
        ):
            return False
        self._lacks_reasoning = True
        self._sent = None
        return True

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        """See :meth:`proxy.wires.upstream_port.BodyEditor.records`."""
        return self._editor.records(run_id, mask) if self._turns else ()

    def has_unreturnable_content(self, message: bytes) -> bool:
        """See :meth:`proxy.wires.upstream_port.LossyClientEditor.has_unreturnable_content`."""
        return self._natives.has_unreturnable_content(
            message, reasoning=not self._client.codec.returns_reasoning
        )


class _ChainedCrossedEditor(CrossedEditor, ChainedEditor):
    """An editor whose client continues responses by their ids, which the upstream does not know."""

    @property
    def _chained(self) -> ChainedEditor:
        if not isinstance(self._own, ChainedEditor):
            raise TypeError("the client's dialect has no responses with ids")
        return self._own

    def _check(self, payload: Mapping[str, Any]) -> None:
        """Check the history: the body has all calls by now, so each result must answer one of them."""
        self._client.parse(payload).check_history(lambda name: False)

    def resume(self, continuation: bytes) -> None:
        """See :meth:`proxy.wires.upstream_port.ChainedEditor.resume`."""
        self._chained.resume(continuation)
        self._natives.restore(continuation)
        self._sent = None

    def continuation(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        """See :meth:`proxy.wires.upstream_port.ChainedEditor.continuation`."""
        self._append_own_turns()
        payload = self._chained.continuation(self._own_message(message), self._own_calls(calls), mask)
        return self._natives.add_to_stored(payload, [*self._turns, message], mask)

    def input_items(self) -> bytes:
        """See :meth:`proxy.wires.upstream_port.ChainedEditor.input_items`."""
        return self._chained.input_items()
