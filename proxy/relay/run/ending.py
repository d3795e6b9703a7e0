"""The end of a run: what is stored for the client's next request, and the last bytes of the answer."""

from msgspec import structs

from proxy.base.events import FinishReason
from proxy.records.result_for_model import ResultForModel
from proxy.relay.base import RunSettings
from proxy.relay.memory.hidden.turns import LastTurn, unchanged
from proxy.relay.memory.threads import threads_of
from proxy.relay.run.hosted.pausing import paused_calls, shown_paused
from proxy.relay.run.job import Job
from proxy.relay.run.keepalive import with_keepalive
from proxy.relay.run.stand_in import stand_in
from proxy.relay.run.state import State
from proxy.relay.run_memory import RunMemory
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.upstream_port import SuspendedCall


class RunEnding:
    """Ends runs. The process has one."""

    def __init__(self, memory: RunMemory, settings: RunSettings) -> None:
        self._history = memory.history
        self._threads = memory.threads
        self._commits = memory.commits
        self._settings = settings

    async def finish(self, job: Job, state: State, reason: FinishReason | None) -> None:
        """End the response of a client that has no calls to answer.

        The client gets the finish reason ``reason``; with ``None`` it gets the upstream's own.
        """
        if reason is None and state.output.passed is not None and _only_passes(job):
            await self._finish_plain(job, state, state.output.passed)
            return
        if state.run.turns_hidden and state.tools.offer.shown.hosted and not state.run.turn.calls:
            await self._give_answer(job, state)
        data = self._last_bytes(job, state, reason)
        if _has_unreturnable_content(job, state):
            await self._hold(job, state, needed=False)
        if state.outcome.has_data_for_next_request:
            # The client may send its next request as soon as it has this end, and another process may get it.
            state.output.client.flush()
            await self._commits.wait_before_end()
        await _send_end(job, state, data)

    async def _finish_plain(self, job: Job, state: State, plain: PlainTurn) -> None:
        """End the response that was one turn of plain text: of a stream the client has got all already."""
        state.outcome.finish_reason = state.run.turn.word or None
        if (fingerprint := job.continuity.offer_fingerprint) is not None:
            self._note_plain(job, state, plain.text, fingerprint)
        await _send_end(job, state, plain.reply)

    async def suspend(self, job: Job, state: State) -> None:
        """End the response with the client's own calls, and hold the turn until the client returns.

        Raises :class:`~proxy.base.errors.NotOnRecord` if the turn could be stored nowhere.
        """
        output = state.output
        await output.send(output.writer.turn_ended("suspended") + shown_paused(state))
        is_carried = await self._give(job, state)
        data = self._last_bytes(job, state, FinishReason.TOOL_CALLS)
        output.client.flush()
        held = self._commits.wait_before_suspend(lambda: self._hold(job, state, needed=not is_carried))
        await with_keepalive(held, self._settings.keepalive_s, output.keep_alive)
        await _send_end(job, state, data)

    async def _give(self, job: Job, state: State) -> bool:
        """Give the client the encrypted turn to carry, if the record does not keep it.

        Return whether the client got it.
        """
        if not job.continuity.is_person:
            return False
        sealed = await self._history.seal(
            job.client.request,
            job.upstream.editor,
            _last_turn(job, state),
            visible=state.output.writer.visible,
            shown=state.run.client_calls,
        )
        return await _carried(job, state, sealed)

    async def _give_answer(self, job: Job, state: State) -> None:
        """Give the client what the provider's tools found for this answer, if the record does not keep it."""
        fingerprint, output = job.continuity.offer_fingerprint, state.output
        if fingerprint is None or state.outcome.reader is None:
            return
        await output.send(output.writer.turn_ended("final"))
        sealed = await self._history.seal_answer(
            job.client.request,
            job.upstream.editor,
            _last_turn(job, state),
            visible=output.writer.visible,
            offer_fingerprint=fingerprint,
        )
        await _carried(job, state, sealed)

    async def wait(self, job: Job, state: State) -> None:
        """End the response to a client whose results let a program go on, which waits for the next ones."""
        state.outcome.has_data_for_next_request = True
        await self.finish(job, state, FinishReason.TOOL_CALLS)

    async def ask(self, job: Job, state: State) -> None:
        """End the response that told the client which calls wait for approvals, and hold the turn.

        Raises :class:`~proxy.base.errors.NotOnRecord` if the turn could be stored nowhere.
        """
        output = state.output
        data = self._last_bytes(
            job, state, FinishReason.TOOL_CALLS if state.turn.asks_by_call else FinishReason.STOP
        )
        output.client.flush()
        held = self._commits.wait_before_suspend(lambda: self._hold_asked(job, state))
        await with_keepalive(held, self._settings.keepalive_s, output.keep_alive)
        await _send_end(job, state, data)

    async def ask_again(self, job: Job, state: State, text: str) -> None:
        """Answer in the model's place that calls of an earlier turn still wait for approvals."""
        await stand_in(job, state, text)
        await self.finish(job, state, FinishReason.STOP)

    async def _hold_asked(self, job: Job, state: State) -> bool:
        """Hold a turn that waits for approvals until the client sends back the text about them.

        Return whether the record holds something for the client's next request.
        """
        if not job.client.request.continues or job.upstream.editor.body.chain is None:
            # If no model was asked, only the place of the question is held.
            is_model = not job.continuity.approvals.asked
            state.outcome.has_data_for_next_request |= self._history.hold_asked(
                job.client.request,
                job.upstream.editor if is_model else None,
                _last_turn(job, state),
                visible=state.turn.text_sent_back or state.output.writer.visible,
                keeps=job.keeps,
            )
        return state.outcome.has_data_for_next_request

    def _last_bytes(self, job: Job, state: State, reason: FinishReason | None) -> bytes:
        """Return the bytes that release what was held back and end the stream; store the answer as needed."""
        writer = state.output.writer
        state.outcome.finish_reason = str(reason or state.run.turn.word) or None
        data = writer.turn_ended("final") + writer.finish(reason)
        self._keep_response(job, state)
        self._remember_answer(job, state)
        self._note_threads(job, state)
        return data

    def _keep_response(self, job: Job, state: State) -> None:
        """Store a response that has its own id and that only the proxy knows as a whole."""
        writer, reader, keeps = state.output.writer, state.outcome.reader, job.client.request.may_store
        # If the client wants nothing stored, only its own connection keeps the response, to continue it
        # there.
        local = None if keeps else job.continuity.connection_responses
        detached = job.client.ask.options.detached
        if reader is None:
            return
        typed = job.client.typed
        only_here = (
            typed is not None
            or writer.composing
            or job.continuity.restored
            or job.upstream.crossed
            or reader.rewritten
            or local is not None
            or detached is not None
        )
        if not only_here or not (keeps or local is not None):
            return
        if (resource := writer.result()) is not None:
            if typed is not None:
                resource = typed.resource(resource)
            if detached is not None:
                own = {"id": detached.response_id, "created_at": int(detached.asked_at)}
                resource = {**resource, **own, "background": True}
            client = job.client
            turn = structs.replace(
                _last_turn(job, state),
                with_tools=client.port.items_with_tools(client.ask.body.payload, client.with_tools),
                input_items=None if typed is None else typed.input_items(),
            )
            state.outcome.has_data_for_next_request |= self._history.keep(
                job.client.request, job.upstream.editor, turn, resource, local=local
            )

    def _remember_answer(self, job: Job, state: State) -> None:
        """Store the hidden turns behind an answer with no calls."""
        run, fingerprint = state.run, job.continuity.offer_fingerprint
        if fingerprint is None or run.turn.calls or state.outcome.reader is None:
            return
        if not run.turns_hidden:
            # Store a note only, and nothing of the turn itself.
            self._note_plain(job, state, state.output.writer.visible, fingerprint)
            return
        state.outcome.has_data_for_next_request |= self._history.remember(
            job.client.request,
            job.upstream.editor,
            _last_turn(job, state),
            visible=state.output.writer.visible,
            offer_fingerprint=fingerprint,
        )

    def _note_plain(self, job: Job, state: State, visible: str, fingerprint: str) -> None:
        identity, client = job.identity, job.client
        turn = LastTurn(identity.run_id, identity.caller, client.port.dialect.name, b"", state.tools.mask)
        self._history.note_plain(client.request, turn, visible=visible, offer_fingerprint=fingerprint)

    def _note_threads(self, job: Job, state: State) -> None:
        """Note which untrusted result the model has read, for the threads that the upstream keeps of this
        run."""
        if not job.continuity.notes_threads:
            return
        request = job.client.request
        kept = threads_of(state.output.writer.result()) if request.may_store else []
        ids = [one for one in (request.conversation, *kept) if one]
        if ids:
            self._threads.note(ids, job.identity.caller, state.tools.untrusted_read())
            state.outcome.has_data_for_next_request = True

    async def _hold(self, job: Job, state: State, *, needed: bool = True) -> bool:
        """Hold what the client does not see of this turn until it returns, if the caller is one person.

        The client can continue without a turn that is not ``needed``. Return whether the record holds
        something for the client's next request.
        """
        outcome = state.outcome
        if job.continuity.is_person:
            outcome.has_data_for_next_request |= await self._history.hold(
                job.client.request,
                job.upstream.editor,
                _last_turn(job, state),
                visible=state.output.writer.visible,
                shown=[*state.run.client_calls, *paused_calls(state)],
                needed=needed,
            )
        return outcome.has_data_for_next_request


async def _carried(job: Job, state: State, sealed: str | None) -> bool:
    """Give the client an encrypted turn to carry, if there is one; return whether there is."""
    if sealed is None:
        return False
    job.continuity.recall.given_bytes = len(sealed)
    await state.output.send(state.output.writer.carry(sealed))
    return True


def _only_passes(job: Job) -> bool:
    """Return whether nothing but the answer's text is to be kept of a plain turn."""
    continuity = job.continuity
    return not (
        continuity.restored
        # Only what can be continued by an id is part of a thread.
        or (continuity.notes_threads and job.upstream.editor.body.chain is not None)
        or continuity.connection_responses is not None
        or job.client.ask.options.detached is not None
    )


def _has_unreturnable_content(job: Job, state: State) -> bool:
    """Return whether the turn has calls for the client and content that the client cannot send back."""
    reason = state.run.turn.reason
    calls = bool(state.run.client_calls) and (reason is None or reason.is_complete)
    return calls and job.upstream.editor.body.has_unreturnable_content(state.outcome.message())


def _last_turn(job: Job, state: State) -> LastTurn:
    """Return the turn that was read last, in the form in which it is stored."""
    ids = state.output.writer.client_ids()
    results: dict[str, bytes | ResultForModel] = {**state.turn.results, **state.turn.unfilled}
    calls = [
        SuspendedCall(call.call_id, ids.get(call.call_id), results.get(call.call_id))
        for call in state.run.turn.calls
    ]
    calls += [
        SuspendedCall(call.call_id, call.call_id, None, made_by_program=call) for call in paused_calls(state)
    ]
    typed = job.client.typed
    message = b"" if state.outcome.reader is None else state.outcome.message()
    if typed is not None and message and not job.upstream.crossed:
        message = typed.as_asked(message)
    return LastTurn(
        job.identity.run_id,
        job.identity.caller,
        job.client.port.dialect.name,
        message,
        state.tools.mask,
        calls,
        returned=unchanged if typed is None else typed.returned,
        untrusted=state.tools.untrusted_read(),
        upstream=job.upstream.route.served.upstream.name,
        asked_in=[
            *job.continuity.approvals.asked_in,
            # An agent asks in its own run.
            *(one.run_id for one in (*job.continuity.approvals.asked, *state.turn.approvals)),
        ],
        loaded=state.tools.offer.loaded,
        part_ids=() if (shown := state.output.writer.part_ids) is None else shown.made,
    )


async def _send_end(job: Job, state: State, data: bytes) -> None:
    output = state.output
    if not job.client.request.stream:
        if output.typed is not None:
            data, output.typed = output.typed.reply(data), None
        output.client.start(200, [*output.head, ("Content-Length", str(len(data)))])
    if data:
        await output.send(data, last=True)
    output.client.finish()
