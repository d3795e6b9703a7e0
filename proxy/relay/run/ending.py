"""The end of a run: what is kept for the client's next request, and the last bytes of its answer."""

from dataclasses import replace

from proxy.relay.base import RunSettings
from proxy.relay.memory.history import LastTurn
from proxy.relay.memory.run_memory import RunMemory
from proxy.relay.memory.threads import threads_of
from proxy.relay.run.job import Job
from proxy.relay.run.keepalive import with_keepalive
from proxy.relay.run.run import UNRUN
from proxy.relay.run.stand_in import stand_in
from proxy.relay.run.state import State
from proxy.wires.client_port import CarryingWriter
from proxy.wires.upstream_port import ChainedEditor, RewritingReader, SuspendedCall, TellingEditor

__all__ = ["RunEnding"]


class RunEnding:
    """Ends runs.  One for the process."""

    def __init__(self, memory: RunMemory, settings: RunSettings) -> None:
        self._history = memory.history
        self._threads = memory.threads
        self._commits = memory.commits
        self._settings = settings

    async def finish(self, job: Job, state: State, reason: str | None) -> None:
        """End the client's response; the client has nothing left to do.

        ``reason`` is the finish reason to tell, ``None`` for the upstream's own.
        """
        data = self._last_bytes(job, state, reason)
        if _tells_more(job, state):
            await self._hold(job, state, needed=False)
        if state.outcome.to_find:
            # The client goes on as soon as it has this end, and may reach another process.
            state.output.client.flush()
            await self._commits.wait_before_end()
        await _send_end(job, state, data)

    async def suspend(self, job: Job, state: State) -> None:
        """End the client's response with calls of its own, and hold the turn until it returns.

        Raises :class:`~proxy.errors.NotOnRecord` where the turn is nowhere kept.
        """
        output = state.output
        await output.send(output.writer.turn_ended("suspended"))
        is_carried = await self._give(job, state)
        data = self._last_bytes(job, state, "tool_calls")
        output.client.flush()
        held = self._commits.wait_before_suspend(lambda: self._hold(job, state, needed=not is_carried))
        await with_keepalive(held, self._settings.keepalive_s, output.keep_alive)
        await _send_end(job, state, data)

    async def _give(self, job: Job, state: State) -> bool:
        """Give the client the turn to carry, if the record is not to keep it; whether it was given."""
        writer = state.output.writer
        if not (job.conversation.is_person and isinstance(writer, CarryingWriter)):
            return False
        sealed = await self._history.seal(
            job.client.request,
            job.upstream.editor,
            _last_turn(job, state),
            visible=writer.visible,
            shown=state.run.client_calls,
        )
        if sealed is None:
            return False
        job.conversation.recall.given_bytes = len(sealed)
        await state.output.send(writer.carry(sealed))
        return True

    async def ask(self, job: Job, state: State) -> None:
        """End the client's response, in which it was told that calls wait for approvals; hold the turn.

        Raises :class:`~proxy.errors.NotOnRecord` where the turn is nowhere kept.
        """
        output = state.output
        data = self._last_bytes(job, state, "tool_calls" if state.turn.asks_by_call else "stop")
        output.client.flush()
        held = self._commits.wait_before_suspend(lambda: self._hold_asked(job, state))
        await with_keepalive(held, self._settings.keepalive_s, output.keep_alive)
        await _send_end(job, state, data)

    async def ask_again(self, job: Job, state: State, text: str) -> None:
        """Answer, in place of a model, that calls of an earlier turn wait for approvals still."""
        await stand_in(job, state, text)
        await self.finish(job, state, "stop")

    async def _hold_asked(self, job: Job, state: State) -> bool:
        """Keep a turn that waits for approvals until its client sends back what it was told."""
        if not job.client.request.continues or not isinstance(job.upstream.editor, ChainedEditor):
            # Of a model that was not asked nothing is held but the place of the question.
            is_model = not job.conversation.approvals.asked
            state.outcome.to_find |= self._history.hold_asked(
                job.client.request,
                job.upstream.editor if is_model else None,
                _last_turn(job, state),
                visible=state.turn.seen or state.output.writer.visible,
                keeps=job.keeps,
            )
        return state.outcome.to_find

    def _last_bytes(self, job: Job, state: State, reason: str | None) -> bytes:
        """Let go what is held back, end the stream, and keep what the record is to have of the answer."""
        writer = state.output.writer
        state.outcome.finish_reason = reason or state.run.turn.reason
        data = writer.turn_ended("final") + writer.finish(reason)
        self._keep_response(job, state)
        self._remember_answer(job, state)
        self._note_threads(job, state)
        return data

    def _keep_response(self, job: Job, state: State) -> None:
        """Keep a response that has an id of its own and that only we know whole."""
        writer, reader, keeps = state.output.writer, state.outcome.reader, job.client.request.keeps
        # What is not to be kept is kept by the client's own connection alone, if that goes on from it.
        local = None if keeps else job.conversation.local
        detached = job.client.ask.options.detached
        is_rewritten = isinstance(reader, RewritingReader) and reader.rewritten
        only_here = (
            writer.composing
            or job.conversation.restored
            or job.upstream.crossed
            or is_rewritten
            or local is not None
            or detached is not None
        )
        if not only_here or not (keeps or local is not None) or reader is None:
            return
        if (resource := writer.result()) is not None:
            if detached is not None:
                resource = {**resource, "id": detached.response_id, "background": True}
            turn = _last_turn(job, state)
            state.outcome.to_find |= self._history.keep(job.upstream.editor, turn, resource, local=local)

    def _remember_answer(self, job: Job, state: State) -> None:
        """Keep the hidden turns behind an answer that leaves the client nothing to do."""
        run, fingerprint = state.run, job.conversation.offer_fingerprint
        if fingerprint is None or run.turn.calls or state.outcome.reader is None:
            return
        if not run.turns_hidden:
            # Nothing of the turn itself is kept.
            self._history.note_plain(
                job.client.request,
                _turn_of(job, state),
                visible=state.output.writer.visible,
                offer_fingerprint=fingerprint,
            )
            return
        state.outcome.to_find |= self._history.remember(
            job.client.request,
            job.upstream.editor,
            _last_turn(job, state),
            visible=state.output.writer.visible,
            offer_fingerprint=fingerprint,
        )

    def _note_threads(self, job: Job, state: State) -> None:
        """Note what the model has read in what the upstream keeps of this run."""
        if not job.conversation.notes_threads:
            return
        request = job.client.request
        kept = threads_of(state.output.writer.result()) if request.keeps else []
        ids = [one for one in (request.conversation, *kept) if one]
        self._threads.note(ids, job.identity.caller, state.tools.untrusted_read())
        state.outcome.to_find |= bool(ids)

    async def _hold(self, job: Job, state: State, *, needed: bool = True) -> bool:
        """Keep what the client does not see of this turn until it returns, if one person is who asks.

        The client can go on without one that is not ``needed``.  Returns whether the record has something to
        be found.
        """
        outcome = state.outcome
        if job.conversation.is_person:
            outcome.to_find |= await self._history.hold(
                job.client.request,
                job.upstream.editor,
                _last_turn(job, state),
                visible=state.output.writer.visible,
                shown=state.run.client_calls,
                needed=needed,
            )
        return outcome.to_find


def _tells_more(job: Job, state: State) -> bool:
    """Whether the client has to act on a turn of which it cannot send everything back."""
    calls = bool(state.run.client_calls) and state.outcome.finish_reason not in UNRUN
    editor = job.upstream.editor
    return calls and isinstance(editor, TellingEditor) and editor.tells_more(state.outcome.message())


def _last_turn(job: Job, state: State) -> LastTurn:
    """The turn that was read last, as it is kept."""
    ids = state.output.writer.client_ids()
    calls = [
        SuspendedCall(call.call_id, ids.get(call.call_id), state.turn.results.get(call.call_id))
        for call in state.run.turn.calls
    ]
    return replace(
        _turn_of(job, state),
        message=b"" if state.outcome.reader is None else state.outcome.message(),
        calls=calls,
        untrusted=state.tools.untrusted_read(),
        upstream=job.upstream.route.served.upstream.name,
        waiting=[*job.conversation.approvals.waits, *state.turn.waits],
        asked_in=[
            *job.conversation.approvals.asked_in,
            # An agent asks in a run of its own.
            *(one.run_id for one in (*job.conversation.approvals.asked, *state.turn.approvals)),
        ],
    )


def _turn_of(job: Job, state: State) -> LastTurn:
    """The turn that was read last, without what the model said in it."""
    wire = job.client.port.dialect.name
    return LastTurn(job.identity.run_id, job.identity.caller, wire, b"", state.tools.mask)


async def _send_end(job: Job, state: State, data: bytes) -> None:
    output = state.output
    if not job.client.request.stream:
        output.client.start(200, [*output.head, ("Content-Length", str(len(data)))])
    await output.send(data, last=True)
    output.client.finish()
