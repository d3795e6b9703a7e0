"""Runs one turn of the model: sends its request and reads the response to the end."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from proxy.base.errors import Unreadable, UpstreamError, WireError
from proxy.base.events import Frame
from proxy.http.headers import Columns, Headers, HeaderSection, by_names, is_encoded
from proxy.http.own_headers import LEFT_OUT
from proxy.json.in_thread import LARGE_EVENT_BYTES, in_thread
from proxy.relay.base import OnBroken, RunSettings, ignore_broken
from proxy.relay.headers import of_any_dialect, returned
from proxy.relay.memory.refusals import RefusalCache
from proxy.relay.passing.passthrough import pump
from proxy.relay.passing.sniffing import SniffedResponse
from proxy.relay.routing.fallback import BufferedResponse
from proxy.relay.run.job import Job
from proxy.relay.run.run import CallModel, Command, Finish
from proxy.relay.run.state import State, TurnProgress
from proxy.relay.run.turn.rejection import (
    NotedResponse,
    TurnRejected,
    read_first_turn_error,
    read_in_place_of_stream,
    unexpected,
)
from proxy.relay.run.turn.request import TurnRequests
from proxy.relay.run.turn.stream import MOST_EVENTS, read_stream
from proxy.upstreams.base import UpstreamResponse
from proxy.wires.client_port import StreamWriter
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.upstream_port import TurnReader

_STREAMED: Final = (
    ("cache-control", ("Cache-Control", "no-cache")),
    ("x-accel-buffering", ("X-Accel-Buffering", "no")),
)


class ModelTurns:
    """Runs turns of models. The process has one."""

    def __init__(
        self, settings: RunSettings, refusals: RefusalCache, broken: OnBroken = ignore_broken
    ) -> None:
        self._settings = settings
        self._requests = TurnRequests(settings, refusals)
        self._broken = broken

    async def call(self, job: Job, state: State, command: CallModel) -> Command:
        """Carry out a :class:`CallModel`; return the run's next command.

        Raises :class:`~proxy.relay.routing.fallback.NextUpstream` if another upstream may serve the run,
        :class:`UpstreamError`, :class:`~proxy.base.errors.WireError` and :class:`TurnRejected`.
        """
        state.turn = TurnProgress(state.clock.now())
        response = await self._requests.open(job, state, command)
        try:
            if response.status >= 300:
                # Only the first turn can have an error status here; the client gets it.
                return await self._relay_refusal(job, state, response)
            if not await self._read(job, state, response, is_first=command.number == 1):
                # The client has the response as it came. The record must still get an error under a 200.
                return Finish(error=state.run.turn.error, answered=True)
        except UpstreamError as error:
            self._broken(error)
            raise
        finally:
            await response.aclose()
        return state.run.turn_ended()

    async def _relay_refusal(self, job: Job, state: State, response: UpstreamResponse) -> Finish:
        if job.upstream.crossed:
            types = dict(job.client.port.dialect.errors.types)
            raise await read_first_turn_error(response, job.upstream.port.dialect.errors, types)
        noted = NotedResponse(response)
        await self._relay(job, state, noted)
        secrets, body = job.upstream.route.served.secrets, noted.noted
        reason = job.upstream.port.dialect.errors.read(body if secrets is None else secrets.blanked(body))
        message = reason.message or f"The upstream answered {response.status}."
        state.run.turn.error = {"code": f"http_{response.status}", "message": message}
        return Finish(error=state.run.turn.error, answered=True)

    async def _read(self, job: Job, state: State, response: UpstreamResponse, *, is_first: bool) -> bool:
        """Read the turn; return whether the client still waits for its answer."""
        streams, framing = job.client.request.stream, job.upstream.port.dialect.framing
        # Later turns, and turns of another dialect, cannot go to the client unchanged.
        may_relay = is_first and not job.upstream.crossed
        if is_first:
            state.output.head = _answer_head(job, response)
        plain = state.output.plain if is_first else None
        # A plain turn needs no reader.
        reader = state.outcome.read_by(self._reader(job, state)) if plain is None else None
        if is_encoded(response.headers):
            if not may_relay or state.tools.offer:
                # The proxy cannot see whether a call of a server tool is in it (rule W5).
                raise TurnRejected(502, "The upstream's response is compressed.", "upstream_malformed")
            return await self._relay(job, state, response)
        streamed = response.content_type == framing.content_type
        if streams and not streamed:
            # Some servers do not label their streams, and a client that got only the whole body would not
            # stream.
            response = SniffedResponse(response, job.upstream.route.served.upstream.name)
            if streamed := await response.is_stream(framing):
                state.output.head = _labelled(state.output.head, job.client.port.dialect.framing.content_type)
        if streams and streamed:
            secrets, keepalive_s = job.upstream.route.served.secrets, self._settings.keepalive_s
            make_reader = self._making(job, state) if reader is None else lambda: reader
            await read_stream(state, make_reader, response, framing, secrets, keepalive_s, plain=plain)
            return True
        if streams and not may_relay:
            raise await read_in_place_of_stream(response, job.upstream.port.dialect.errors)
        if streamed:
            raise TurnRejected(502, unexpected(response), "upstream_malformed")
        return await self._read_reply(
            job, state, response, may_relay=may_relay, plain=None if streams else plain
        )

    async def _read_reply(
        self,
        job: Job,
        state: State,
        response: UpstreamResponse,
        *,
        may_relay: bool,
        plain: PlainTurn | None,
    ) -> bool:
        """Read a turn that came as one object; return as :meth:`_read` does."""
        body = await response.read(self._settings.max_reply_bytes)
        large = len(body) > LARGE_EVENT_BYTES
        if (secrets := job.upstream.route.served.secrets) is not None:
            # This protects the record, too; the client's stream blanks out secrets again.
            body = await in_thread(secrets.blanked, body) if large else secrets.blanked(body)
        if plain is not None and not large and plain.take_reply(body):
            _note_reply(state, plain, self._making(job, state))
            return True
        reader = state.outcome.reader or state.outcome.read_by(self._reader(job, state))
        try:
            frame = await in_thread(reader.read_reply, body) if large else reader.read_reply(body)
        except Unreadable:
            raise
        except WireError:
            if not may_relay or await self._calls_ours(job, state, body):
                raise
            return await self._relay(job, state, BufferedResponse(response, body))
        state.run.observe(frame.events)
        if job.client.request.stream:
            # The client asked for a stream and gets one object, unless that calls a server tool.
            if state.run.hidden_calls:
                raise TurnRejected(502, unexpected(response), "upstream_malformed")
            return await self._relay(job, state, BufferedResponse(response, body))
        state.run.saw_end_mark()
        state.output.writer.write(frame)
        if lost := state.outcome.left_out:
            # For a stream this would be too late: its head has been sent.
            state.output.client.set_header(LEFT_OUT, ", ".join([*job.upstream.left_out, *lost]))
        return True

    def _reader(self, job: Job, state: State) -> TurnReader:
        return self._making(job, state)()

    def _making(self, job: Job, state: State) -> Callable[[], TurnReader]:
        """Return what makes the reader of the turn."""
        offer, port = state.tools.offer, job.upstream.port
        return partial(port.reader, offer.declared, offer.is_hidden, self._settings.max_argument_bytes)

    async def _calls_ours(self, job: Job, state: State, body: bytes) -> bool:
        """Return whether a body of an unknown kind is a stream that calls a server tool (rule W5)."""
        reader = self._reader(job, state)
        frames = reader.feed(body, most=MOST_EVENTS)
        while frames or reader.has_unread:
            for frame in frames:
                state.run.observe(frame.events)
            await asyncio.sleep(0)
            if reader.large_next:
                frames = await in_thread(reader.feed, b"", most=1, large=True)
            else:
                frames = reader.feed(b"", most=MOST_EVENTS) if reader.has_unread else []
        for frame in reader.close():
            state.run.observe(frame.events)
        return bool(state.run.hidden_calls) or reader.fault is not None

    async def _relay(self, job: Job, state: State, response: UpstreamResponse) -> bool:
        """Relay a first turn that cannot be read, or need not be read (rule W2); return ``False``."""
        secrets = job.upstream.route.served.secrets
        await pump(response, state.output.client, dialect=None, broken=self._broken, secrets=secrets)
        return False


def _note_reply(state: State, plain: PlainTurn, make_reader: Callable[[], TurnReader]) -> None:
    """Note a turn of plain text in one object. A reader and a writer get it only when one is asked for."""
    run, output, make_writer = state.run, state.output, state.output.make_writer

    def read() -> tuple[TurnReader, Frame]:
        reader = make_reader()
        return reader, reader.read_reply(plain.reply)

    def written() -> StreamWriter:
        writer = make_writer()
        writer.write(read()[1])
        return writer

    plain.whole, output.make_writer = True, written
    state.outcome.was_plain(lambda: read()[0])
    run.observe(plain.events())
    run.saw_end_mark()


def _answer_head(job: Job, response: UpstreamResponse) -> Headers:
    """Return the head of the client's response: the first turn's, for streams with headers for buffers."""
    section, streams = returned(response.headers), job.client.request.stream
    kept, more = _readable(section.names)
    names, values = kept.names, kept.take(section.values)
    if streams:
        names, values = names + more.names, (*values, *more.values)
    head = HeaderSection(names, values)
    if not job.upstream.crossed:
        return head
    content_type = job.client.port.dialect.framing.content_type if streams else "application/json"
    return _labelled(of_any_dialect(head), content_type)


@by_names
def _readable(names: tuple[str, ...]) -> tuple[Columns, HeaderSection]:
    """Return the headers of a body that the proxy reads, and those that a stream needs beside them."""
    present = {name.lower() for name in names}
    more = HeaderSection.of([pair for name, pair in _STREAMED if name not in present])
    return Columns.where(names, lambda name: name.lower() != "content-encoding"), more


def _labelled(headers: Headers, content_type: str) -> list[tuple[str, str]]:
    """Return a response's head with another content type."""
    kept = [pair for pair in headers if pair[0].lower() != "content-type"]
    return [*kept, ("Content-Type", content_type)]
