"""Both ports of an upstream whose dialect is not the client's, as the client's dialect would offer them.

The proxy reads the request into a :class:`Conversation`. The upstream's dialect writes a
body from it, and its editor changes that body turn after turn. The upstream's reader reads the answer, and
the client's encoder encodes its events as frames of the client's dialect. Neither dialect knows the other.
The run and the writer do not know that there are two.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace as with_changes

import orjson
from msgspec.structs import replace

from proxy.base.conversation import Conversation, Message
from proxy.base.events import ResultImage, ToolCall
from proxy.records.rows import MessageRecord
from proxy.wires.client_port import ClientRequest
from proxy.wires.crossed_links import LinkingPort
from proxy.wires.crossed_texts import crossed_reader
from proxy.wires.crossing.codec import read_exactly
from proxy.wires.crossing.ledger import Ledger, Written
from proxy.wires.crossing.native_turns import NativeTurns
from proxy.wires.crossing.reasoning import asks_for_reasoning
from proxy.wires.crossing.translation import Translation
from proxy.wires.dialect import Dialect
from proxy.wires.profile import Profile
from proxy.wires.turn.edits import AppendedTurn, Edits, RestoredMessages, is_too_long_error
from proxy.wires.turn.result_images import takes_no_images
from proxy.wires.upstream_port import (
    BodyEditor,
    Mask,
    RequestBody,
    ResponseChain,
    StateHabit,
    SuspendedCall,
    TurnReader,
    UpstreamPort,
)
from proxy.wires.wire import Wire

_Keep = Callable[[Edits, bytes, Sequence[SuspendedCall], Mask], bytes]


class Crossing(LinkingPort, UpstreamPort):
    """The port of an upstream whose dialect is not the client's, for one request."""

    def __init__(
        self,
        client: Wire,
        upstream: Wire,
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
        super().__init__(request)
        self._model = request.model
        self._max_tokens: int | None = None
        self._body: _CrossedBody | None = None
        self._editor: BodyEditor | None = None

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
        own = self._client.body(raw, request, "stateless", caller=caller)
        translation = Translation(self._upstream.codec, self._profile, strict=self._strict)
        self._body = body = _CrossedBody(own, self._client, self._upstream, state, translation, caller=caller)
        body.ask_for(self._model, self._max_tokens)
        self._editor = editor = BodyEditor(body)
        return editor

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        renamed: Mapping[str, str] = {}
        if self._editor is not None and self._body is not None:
            renamed = self._body.renamed(self._editor.edits)
        if renamed:
            theirs = {name: written for written, name in renamed.items()}
            declared = [theirs.get(name, name) for name in declared]
        reader = self.turn_reader(
            declared, lambda name: is_hidden(renamed.get(name, name)), max_argument_bytes
        )
        return crossed_reader(self.linking(reader), self._client.encoder(self._request), renamed)

    def write_turn(self, message: Message) -> bytes:
        """Write a turn of a model as the reader of the upstream's dialect would return it."""
        return self._upstream.write_turn(message)

    def turn_reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> TurnReader:
        """Return the reader of the upstream's own dialect; tools have the names of the upstream's request."""
        return self._upstream.reader(declared, is_hidden, max_argument_bytes)


class TranslatedBody(RequestBody):
    """The client's ``own`` body, which keeps the turns, and the ``translation`` that the upstream gets."""

    translates = True

    def __init__(self, own: RequestBody, client: Wire, translation: Translation) -> None:
        self._own = own
        self._client = client
        self._translation = translation
        self._written: Written | None = None
        self._known_fields: frozenset[str] = frozenset()

    @property
    def chain(self) -> ResponseChain | None:
        return self._own.chain

    def restore(self, position: int, payload: bytes, *, needed: bool) -> RestoredMessages:
        return self._own.restore(position, payload, needed=needed)

    def turn(self, edits: Edits, message: bytes, results: Sequence[bytes]) -> AppendedTurn:
        return self._own.turn(edits, message, results)

    def suspend(self, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        return self._own.suspend(edits, message, calls, mask)

    def records(self, edits: Edits, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        return self._own.records(edits, run_id, mask)

    def result_message(
        self, edits: Edits, call: ToolCall, content: str, images: Sequence[ResultImage]
    ) -> bytes:
        return self._own.result_message(edits, call, content, images)

    def forces_own_call(self, edits: Edits) -> bool:
        return self._own.forces_own_call(edits)

    def _check_history(self, raw: bytes) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` for a complete body that no model accepts."""
        if self.chain is not None:
            # The body has all calls by now, so each result must answer one of them.
            self._client.parse(orjson.loads(raw)).check_history(lambda name: False)

    def _learn_fields(self, edits: Edits) -> None:
        """Apply what the upstream refused before, and translate anew if that changes anything."""
        if edits.fields_left_out != self._known_fields:
            self._known_fields = edits.fields_left_out
            if self._translation.leave_out(self._known_fields):
                self._written = None

    def _left_out_fields(self) -> Sequence[str]:
        return [left.field for left in self._written.left_out] if self._written is not None else ()

    def _with_lessons(self, edits: Edits) -> Edits:
        return replace(edits, fields_refused=edits.fields_refused | self._translation.learned)


class _CrossedChain(ResponseChain):
    """The chain of the client's ``own`` body, which keeps the turns in the upstream's form, too."""

    def __init__(self, body: "_CrossedBody", own: ResponseChain) -> None:
        self._body = body
        self._own = own

    def continuation(self, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        return self._body.stored(self._own.continuation, edits, message, calls, mask)

    def input_items(self) -> bytes:
        return self._own.input_items()


class _CrossedBody(TranslatedBody):
    """Two bodies: the client's keeps the turns, and the upstream's is sent.

    A held turn is put back into the client's own body before that body is translated. So an upstream of any
    dialect gets it, whichever upstream made it. If both speak the same dialect, the upstream gets the turn
    in its own form (:mod:`proxy.wires.crossing.native_turns`).
    """

    def __init__(
        self,
        own: RequestBody,
        client: Wire,
        upstream: Wire,
        state: StateHabit,
        translation: Translation,
        *,
        caller: str,
    ) -> None:
        super().__init__(own, client, translation)
        self._upstream = upstream
        self._state = state
        self._caller = caller
        self._own_results: dict[bytes, bytes] = {}
        self._own_turns: list[AppendedTurn] = []
        self._natives = NativeTurns(upstream.dialect.name, upstream.read_turn, upstream.masked_turn)
        self._lacks_reasoning = False
        self._model = ""
        self._max_tokens: int | None = None
        self._has_own_limit = False
        self._source: tuple[object, bytes, bool] = None, b"", False
        self._sent: RequestBody | None = None

    @property
    def chain(self) -> ResponseChain | None:
        own = self._own.chain
        return None if own is None else _CrossedChain(self, own)

    def ask_for(self, model: str, max_tokens: int | None) -> None:
        """See :meth:`Crossing.ask_for`."""
        self._model, self._max_tokens = model, max_tokens

    def _upstream_body(self, edits: Edits) -> RequestBody:
        """Return the upstream's body, which is translated anew after turns were put back or a refusal."""
        self._learn_fields(edits)
        if self._sent is None or self._written is None or self._source != _source_of(edits):
            if edits.resumed != self._source[1]:
                self._natives.restore(edits.resumed)
            self._sent = self._translate(edits)
            self._source = _source_of(edits)
        return self._sent

    def _translate(self, edits: Edits) -> RequestBody:
        conversation = self._conversation(edits)
        conversation = with_changes(conversation, model=self._model or conversation.model)
        self._has_own_limit = conversation.output.max_tokens is not None
        if not self._has_own_limit and self._max_tokens is not None:
            output = with_changes(conversation.output, max_tokens=self._max_tokens)
            conversation = with_changes(conversation, output=output)
        if self._lacks_reasoning:
            conversation = self._upstream.codec.repair_missing_reasoning(conversation)
        self._written = written = self._translation.write(conversation)
        request = self._upstream.parse(orjson.loads(written.body))
        return self._upstream.body(written.body, request, self._state, caller=self._caller, translated=True)

    def _conversation(self, edits: Edits) -> Conversation:
        """Return the client's request with the held turns that were put back."""
        raw = self._own.render(_put_back(edits))
        self._check_history(raw)
        conversation = read_exactly(self._client.codec, raw)
        if conversation.output.logprobs:
            # Every dialect can ask for them, but no encoder writes those of another dialect's answer.
            ledger = Ledger(self._upstream.codec.fields, conversation.names)
            raise ledger.refuse(
                ledger.name_of("output.logprobs"),
                "The proxy does not translate log probabilities. Use an upstream that speaks "
                f"{self._client.dialect.wire}, or do not ask for them.",
            )
        return self._natives.put_into(conversation)

    def _theirs(self, edits: Edits) -> Edits:
        """Return the edits of the upstream's body. The turns that were put back are in it already."""
        return replace(
            edits,
            restored={},
            resumed=b"",
            asks_usage=edits.asks_usage and "stream_usage" not in self._translation.profile.without,
            # A limit that is not the client's applies to each turn.
            used_tokens=edits.used_tokens if self._has_own_limit else 0,
            fields_refused=edits.fields_refused - self._translation.learned,
        )

    def left_out(self, edits: Edits) -> Sequence[str]:
        self._upstream_body(edits)
        return self._left_out_fields()

    def renamed(self, edits: Edits) -> Mapping[str, str]:
        """The upstream's names → the client's, of the tools whose names the upstream does not accept."""
        self._upstream_body(edits)
        return self._written.renamed if self._written is not None else {}

    def render(self, edits: Edits) -> bytes:
        return self._upstream_body(edits).render(self._theirs(edits))

    def history(self, edits: Edits) -> bytes:
        return self._own.render(self._own_edits(edits))

    def restore(self, position: int, payload: bytes, *, needed: bool) -> RestoredMessages:
        self._natives.restore(payload)
        return super().restore(position, payload, needed=needed)

    def turn(self, edits: Edits, message: bytes, results: Sequence[bytes]) -> AppendedTurn:
        return self._upstream_body(edits).turn(edits, message, results)

    def tools_named(self, edits: Edits, message: str) -> frozenset[str]:
        return self._upstream_body(edits).tools_named(self._theirs(edits), message)

    def forces_own_call(self, edits: Edits) -> bool:
        return self._upstream_body(edits).forces_own_call(self._theirs(edits))

    def records(self, edits: Edits, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        if not edits.turns:
            return ()
        return self._upstream_body(edits).records(self._theirs(edits), run_id, mask)

    def result_message(
        self, edits: Edits, call: ToolCall, content: str, images: Sequence[ResultImage]
    ) -> bytes:
        result = self._upstream_body(edits).result_message(edits, call, content, images)
        self._own_results[result] = self._own.result_message(Edits(), call, content, images)
        return result

    # What is stored has the client's own form.

    def _own_message(self, message: bytes) -> bytes:
        """Return an upstream's turn in the client's form."""
        return self._client.write_turn(self._upstream.read_turn(message))

    def _own_edits(self, edits: Edits) -> Edits:
        kept = Edits(restored=edits.restored, resumed=edits.resumed)
        for turn in edits.turns[len(self._own_turns) :]:
            results = [self._own_results[result] for result in turn.results]
            self._own_turns.append(self._own.turn(kept, self._own_message(turn.message), results))
        return replace(kept, turns=tuple(self._own_turns))

    def _own_calls(self, calls: Sequence[SuspendedCall]) -> list[SuspendedCall]:
        return [
            SuspendedCall(
                call.call_id,
                call.client_id,
                self._own_results[call.result] if isinstance(call.result, bytes) else call.result,
                call.made_by_program,
            )
            for call in calls
        ]

    def stored(
        self, keep: _Keep, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask
    ) -> bytes:
        """Return what the client's body keeps of the run, with the turns in the upstream's form beside it."""
        payload = keep(self._own_edits(edits), self._own_message(message), self._own_calls(calls), mask)
        return self._natives.add_to_stored(payload, [*(turn.message for turn in edits.turns), message], mask)

    def suspend(self, edits: Edits, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        return self.stored(self._own.suspend, edits, message, calls, mask)

    def has_unreturnable_content(self, message: bytes) -> bool:
        return self._natives.has_unreturnable_content(
            message, reasoning=not self._client.codec.returns_reasoning
        )

    # What the upstream refuses.

    def recover(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        if self._translation.learn(message):
            self._written = None
            return self._with_lessons(edits)
        learned = self._upstream_body(edits).recover(self._theirs(edits), message, code)
        if learned is not None:
            return self._with_lessons(
                replace(
                    learned,
                    restored=edits.restored,
                    resumed=edits.resumed,
                    asks_usage=edits.asks_usage,
                    used_tokens=edits.used_tokens,
                )
            )
        if (without := self._without_images(edits, message, code)) is not None:
            return without
        if asks_for_reasoning(message):
            return self._repair_missing_reasoning(edits)
        if not is_too_long_error(message, code) and self._natives.forget():
            # The upstream may be another one of the same dialect, which rejects what it did not sign itself.
            self._written = None
            return edits
        # The client's body is not what the upstream refused, so only restored turns can be removed.
        return edits.without_unneeded() if is_too_long_error(message, code) else None

    def _without_images(self, edits: Edits, message: str, code: str | None) -> Edits | None:
        """Leave out the images of the proxy that the client's body brings, if the upstream takes none."""
        if edits.images_left_out or "image" not in message.lower() or not takes_no_images(message, code):
            return None
        without = replace(edits, images_left_out=True, images_refused=True)
        if self._own.render(_put_back(without)) == self._own.render(_put_back(edits)):
            return None
        return self._with_lessons(without)

    def _repair_missing_reasoning(self, edits: Edits) -> Edits | None:
        """Write the request for an upstream that misses reasoning, if that changes anything."""
        conversation = self._conversation(edits)
        if (
            self._lacks_reasoning
            or self._upstream.codec.repair_missing_reasoning(conversation) == conversation
        ):
            return None
        self._lacks_reasoning = True
        self._written = None
        return edits


def _put_back(edits: Edits) -> Edits:
    """Return the edits of the client's body before it is translated."""
    return Edits(restored=edits.restored, resumed=edits.resumed, images_left_out=edits.images_left_out)


def _source_of(edits: Edits) -> tuple[object, bytes, bool]:
    """Return what a translation depends on."""
    return edits.restored, edits.resumed, edits.images_left_out
