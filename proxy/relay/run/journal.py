"""Writes the record of a run while it runs. Nothing here waits for the store."""

from collections.abc import Sequence

from proxy.base.events import Usage
from proxy.records.rows import MessageRecord, RunRecord, RunStatus, TurnRecord
from proxy.relay.base import ClientStream, RunEvents
from proxy.relay.memory.hidden.outcomes import Recall
from proxy.relay.run.job import Job
from proxy.relay.run.state import State
from proxy.relay.run.tapes import NoTapes, Tape, Tapes
from proxy.relay.run.usage import Used
from proxy.store.base import Store

_MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""A longer request is not stored, because it would displace everything else in the record."""
_MOST_FAILURE = 4096
"""Only so many characters of the message of a failed run are recorded."""
_MOST_LEFT_OUT = 100
_MOST_NAME = 200
"""Only so many left-out fields of a request are recorded, and only so many characters of each name."""
_FAILURE_SEQ = 1_000_000
"""The place of the message of a failure in its turn: after all others."""


class Journal:
    """Writes the rows of runs, and reports their events to ``watch``."""

    def __init__(self, store: Store, watch: RunEvents, tapes: Tapes | None = None) -> None:
        """``tapes`` note the bytes of runs; the default notes nothing."""
        self._store = store
        self.watch = watch
        self._tapes: Tapes = tapes or NoTapes()
        self.now = store.now
        """The clock of the record."""
        self.sealed = store.sealed
        """Whether the store encrypts all content; see :class:`~proxy.store.base.Store`."""

    def tape(self, job: Job, client: ClientStream) -> Tape | None:
        """Begin to note the bytes of a run; ``None`` if this run is not noted."""
        return self._tapes.begin(job, client)

    def began(self, job: Job, state: State) -> None:
        """Record that a run begins, and its request if requests are stored."""
        run_id, request, kept = job.identity.run_id, job.client.request, job.recording.request
        record = self._row(job, state)
        self._store.put_run(record)
        if kept and len(kept) <= _MAX_REQUEST_BYTES and job.keeps:
            row = MessageRecord(run_id, 0, 0, "request", content_json=kept.decode())
            self._store.put_messages([row])
        facts = {
            "run_id": run_id,
            "model": request.model,
            "preview": request.preview,
            "agent": record.agent,
            "may_store": request.may_store,
        }
        self.watch("run_started", facts)

    def turn_ended(self, job: Job, state: State, error: str | None = None) -> None:
        """Record the turn. ``error`` is the run's error code if the turn failed."""
        turn = state.run.turn
        usage = turn.usage
        if usage is None:
            state.run.silent_turns.add(turn.number)
        else:
            state.run.count_usage()
        used: Usage | Used | None = usage
        cost, steps = turn.cost, job.client.ask.options.steps
        if steps is not None and steps.replaying:
            used, cost = _again(state), cost and 0
        failed = str(turn.error.get("code") or "upstream_error")[:64] if turn.error else error
        self._store.put_turn(
            TurnRecord(
                run_id=job.identity.run_id,
                number=turn.number,
                upstream_id=turn.upstream_id[:200],
                finish_reason=turn.word[:64] or None,
                started_at=state.turn.started_at,
                ended_at=state.clock.now(),
                input_tokens=used.input_tokens if used else None,
                output_tokens=used.output_tokens if used else None,
                total_tokens=used.total_tokens if used else None,
                tool_calls=len(turn.calls),
                error_code=failed,
                cost=cost,
                withheld=state.tools.withheld,
                first_at=state.turn.first_chunk_at or None,
            )
        )
        self._tell_turn(job, state, error)

    def _tell_turn(self, job: Job, state: State, error: str | None) -> None:
        """Report once to the observers that the turn is over."""
        turn = state.run.turn
        if state.outcome.turns_told >= turn.number:
            return
        state.outcome.turns_told = turn.number
        usage = turn.usage
        self.watch(
            "turn_finished",
            {
                "run_id": job.identity.run_id,
                "number": turn.number,
                "response_id": turn.upstream_id[:200],
                "response_model": turn.upstream_model[:200],
                "finish_reason": turn.word[:64] or None,
                "first_chunk_at": state.turn.first_chunk_at,
                "input_tokens": usage.input_tokens if usage else None,
                "output_tokens": usage.output_tokens if usage else None,
                "cached_tokens": usage.cached_tokens if usage else 0,
                "cache_write_tokens": usage.cache_write_tokens if usage else 0,
                "reasoning_tokens": usage.reasoning_tokens if usage else 0,
                "cost": turn.cost,
                "error_code": "upstream_error" if turn.error and not error else error,
            },
        )

    def ended(self, job: Job, state: State, status: RunStatus, error: str | None) -> None:
        """Close the run in the record.

        The record gets its messages if server tools took part, because nothing else remembers them, and if
        requests are stored. It gets none if the client asked that nothing be stored (rules R2 and R3).
        """
        run = state.run
        if state.outcome.turns_told < run.turn.number:
            # The client left, or the run was ended, in the middle of a turn.
            self.turn_ended(job, state, error)
        ended_at = state.clock.now()
        record = self._row(job, state, status, error, ended_at)
        is_kept = run.turns_hidden or run.hidden_calls or job.recording.request
        if is_kept and job.keeps:
            self._store.put_messages(_messages(job, state, status))
        if status == "failed" and job.keeps and (failure := state.outcome.failure):
            # An upstream's message may quote the conversation, so it is content (rule R3).
            row = MessageRecord(record.id, run.turn.number, _FAILURE_SEQ, "error", failure[:_MOST_FAILURE])
            self._store.put_messages([row])
        self._store.put_run(record)
        memory = {} if record.memory is None else {"memory": record.memory["counts"]}
        self.watch(
            "run_finished",
            memory
            | {
                "run_id": job.identity.run_id,
                "status": status,
                "error_code": error,
                "turns": record.turns,
                "tool_calls": record.tool_calls,
                "ms": (ended_at - state.clock.started_at) * 1000,
                "agent": record.agent,
            },
        )

    def _row(
        self,
        job: Job,
        state: State,
        status: RunStatus = "running",
        error: str | None = None,
        ended_at: float | None = None,
    ) -> RunRecord:
        """Return the row of a run as it is now."""
        identity, client, nested = job.identity, job.client, job.client.ask.nested
        detached, recall, offer = client.ask.options.detached, _recall(job), state.tools.offer
        run, agent, before = state.run, None if nested is None else nested.agent, state.usage.before
        # By their places: msgspec takes several times as long to find so many names.
        return RunRecord(
            identity.run_id,
            identity.request_id,
            identity.caller,
            client.port.dialect.name,
            client.request.model[:200],
            job.upstream.route.served.upstream.name,
            client.request.stream,
            status,
            state.clock.started_at,
            ended_at,
            error,
            state.outcome.finish_reason,
            run.turn.number,
            run.calls_run,
            run.input_tokens - before.input_tokens,
            run.output_tokens - before.output_tokens,
            run.total_tokens - before.total_tokens,
            offer.tool_ids(),
            offer.withheld,
            client.trace,
            job.recording.prompt_hash,
            run.cost and run.cost - before.cost,
            run.spent or None,
            len(run.silent_turns),
            _left_out(job, state),
            "" if agent is None else agent.name,
            "" if nested is None else nested.parent_run,
            "" if nested is None else nested.parent_call,
            recall.written(),
            recall.continues if recall.put_back else "",
            "" if detached is None else detached.takes_over,
            "" if agent is None else agent.version,
        )


def _again(state: State) -> Used:
    """Note that the run before this one has used what this turn says, and return what this one uses."""
    before, turn = state.usage.before, state.run.turn
    if turn.usage is not None:
        before.input_tokens += turn.usage.input_tokens
        before.output_tokens += turn.usage.output_tokens
        before.total_tokens += turn.usage.total_tokens
    before.cost += turn.cost or 0
    return Used()


def _left_out(job: Job, state: State) -> tuple[str, ...]:
    """Return the request fields that were not sent to the upstream, and the answer fields not sent to the
    client."""
    if not job.upstream.crossed or job.continuity.approvals.stops:
        # While calls wait for approvals or the client no upstream is asked.
        return tuple(state.outcome.left_out)
    asked = (name[:_MOST_NAME] for name in job.upstream.left_out[:_MOST_LEFT_OUT])
    return (*asked, *state.outcome.left_out)


def _messages(job: Job, state: State, status: RunStatus) -> Sequence[MessageRecord]:
    """Return the model's messages and the results of its calls, as they are at the end of the run."""
    run_id, run, reader = job.identity.run_id, state.run, state.outcome.reader
    editor = job.upstream.editor
    ends_in_calls = bool(run.turn.calls) and status in ("suspended", "completed")
    if reader is not None and ends_in_calls:
        # The run is over, so only the record gets the last message: with the client's calls, the calls that a
        # spent budget refused, and the results so far.
        results = state.turn.results
        there = [results[call.call_id] for call in run.turn.calls if call.call_id in results]
        editor.append_turn(reader.message(), there)
    rows = list(editor.records(run_id, state.tools.mask))
    if reader is not None and not ends_in_calls and (text := reader.text):
        rows.append(MessageRecord(run_id, run.turn.number, len(rows), "assistant", content=text))
    return rows


def _recall(job: Job) -> Recall:
    """Return what was put back into the request, without what was removed again because it was too long."""
    recall = job.continuity.recall
    if not recall.put_back:
        return recall
    answers = sum(one.kind == "answer" for one in recall.put_back)
    if answers and job.upstream.editor.restored[0] <= len(recall.put_back) - answers:
        return recall.left_out()
    return recall
