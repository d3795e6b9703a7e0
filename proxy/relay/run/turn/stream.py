"""The stream of one turn, read and written to the client as it arrives, in parts of bounded size."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from proxy.base.errors import UpstreamError
from proxy.base.events import Frame
from proxy.http.secrets import SecretFilter, Secrets
from proxy.json.in_thread import in_thread
from proxy.relay.passing.passthrough import AFTER_END_S, flush_soon
from proxy.relay.run.state import State
from proxy.upstreams.base import UpstreamResponse
from proxy.wires.dialect import Framing
from proxy.wires.stream.fast_path import FastPath, FastReader
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.upstream_port import TurnReader

MOST_EVENTS: Final = 128
"""Events that are read and written in one turn of the event loop: some milliseconds of work at most."""

_LINE_END: Final = ord("\n")
"""No secret contains a line break, so none can begin in a piece that ends with one and go on after it."""
_AFTER_REASON_S = 5.0
"""Seconds to wait for the usage and the end mark after a finish reason."""
_AFTER_HIDDEN_END_S = 0.05
"""Seconds to wait for the end of the HTTP message, so that the next turn can reuse its connection."""


async def read_stream(
    state: State,
    make_reader: Callable[[], TurnReader],
    response: UpstreamResponse,
    framing: Framing,
    secrets: Secrets | None = None,
    keepalive_s: float = 10.0,
    *,
    plain: PlainTurn | None = None,
) -> None:
    """Read one turn's stream to its end; send what the writer lets through as soon as it comes.

    ``plain`` reads the turn as long as it is plain text; a reader and a writer are made only if it is not.
    ``secrets`` are blanked out before anything is read, because what is read is also recorded. While the
    proxy composes the client's stream, or holds something of it back, the client gets a keep-alive before
    ``keepalive_s`` seconds of silence have passed.

    Raises :class:`~proxy.base.errors.UpstreamError` and :class:`~proxy.base.errors.WireError`.
    """
    await _TurnStream(state, make_reader, framing, secrets, keepalive_s, plain).read(response)


class _TurnStream:
    """One turn's stream on its way to the client."""

    def __init__(
        self,
        state: State,
        make_reader: Callable[[], TurnReader],
        framing: Framing,
        secrets: Secrets | None,
        keepalive_s: float,
        plain: PlainTurn | None,
    ) -> None:
        self._clock = state.clock
        self._turn = state.turn
        self._output = state.output
        self._outcome = state.outcome
        self._is_limited = state.usage.is_limited
        # If it still holds bytes at the end of a stream, they are part of a line and no event.
        self._secret_filter = SecretFilter(secrets) if secrets is not None else None
        self._run = state.run
        self._make_reader = make_reader
        self._plain = plain
        self._fast: FastPath | None = None
        self._loop = asyncio.get_running_loop()
        self._event_sign = framing.event_sign
        self._ended = False
        self._waited = False
        self._until: float | None = None
        self._patience: asyncio.Timeout | None = None
        self._keepalive_s = keepalive_s
        self._holds = False
        self._unsent: asyncio.Future[None] | None = None
        if plain is None:
            self._begin(make_reader())

    def _begin(self, reader: TurnReader) -> None:
        """Read the turn with a reader from now on, and write it with the writer."""
        output = self._output
        self._writer = output.writer
        self._reader = reader
        self._silence = output.silence
        # Text that is not read could not be numbered anew after an item that became several events.
        fast = self._fast = FastPath.of(reader, output.writer) if output.typed is None else None
        self._feed = reader.feed if fast is None else fast.feed

    async def read(self, response: UpstreamResponse) -> None:
        """Read the stream to its end."""
        run = self._run
        if self._plain is None and self._writer.composing:
            self._watch()
        try:
            if (rest := response.push(self._relay)) is not None:
                self._output.client.flush()
                async with asyncio.timeout_at(self._until) as self._patience:
                    await rest
        except TimeoutError:
            if self._plain is not None and not self._plain.ended:
                self._leave_plain(self._plain)
            if not self._ended and run.turn.reason is None:
                raise
        except UpstreamError:
            if not self._ended:
                raise
        finally:
            self._end_turn()
        if self._plain is not None:
            return
        reader = self._reader
        frames = reader.close()
        if reader.fault is not None:
            raise reader.fault
        self._ended, out = self._written(frames)
        if self._ended:
            run.saw_end_mark()
        # The last bytes of a lost upstream may be half an event, and an error follows: they are not sent.
        is_whole = self._ended or run.turn.reason is not None or run.turn.error is not None
        if is_whole and (last := b"".join(out)):
            await self._output.send(last)

    def _relay(self, chunk: bytes) -> Awaitable[None] | None:
        """Take a piece of the stream; return what to await before the next one."""
        fast, turn = self._fast, self._turn
        # Nearly all pieces end with a line and contain no part of a secret; they skip this call.
        if (secret_filter := self._secret_filter) is not None and (
            chunk[-1] != _LINE_END
            or (secret_filter.secrets.sign in chunk and secret_filter.secrets.beginning in chunk)
            or chunk.find(b"\\u00") >= 0
            or secret_filter.held
        ):
            chunk = secret_filter.feed(chunk)
            if not chunk:
                return None
        if self._is_limited:
            turn.events += chunk.count(self._event_sign)
        if (plain := self._plain) is not None:
            if plain.take(chunk):
                if turn.first_chunk_at and not plain.ended:
                    return self._output.client.push(chunk)
                return self._pass(chunk, plain)
            self._leave_plain(plain)
            fast = self._fast
        reader = self._reader
        if fast is not None and (transform := fast.transform) is not None and fast.take_unread(chunk):
            return self._output.client.push(transform(chunk))
        # The first chunk always gets here, because there is no earlier event that it could be like.
        if not turn.first_chunk_at:
            turn.first_chunk_at = self._clock.now()
        wait = self._write(self._feed(chunk, most=MOST_EVENTS))
        # What came before a fault is sent first, in whichever pieces the stream came (rule W6).
        if reader.has_unread or reader.fault is not None or (wait is not None and self._until is not None):
            return self._go_on(wait)
        return wait

    def _pass(self, chunk: bytes, plain: PlainTurn) -> Awaitable[None] | None:
        """Send the first or the last piece of a plain turn."""
        self._turn.first_chunk_at = self._turn.first_chunk_at or self._clock.now()
        if not plain.ended:
            return self._output.push(chunk)
        self._ended = True
        self._wait_no_longer(composing=False)
        if self._patience is not None:
            flush_soon(self._output.client, self._loop)
        return self._output.push(chunk, last=True)

    def _leave_plain(self, plain: PlainTurn) -> None:
        """Let a reader read the turn from its beginning. The client has got it so far as it came."""
        self._plain = self._output.plain = None
        self._begin(self._outcome.read_by(self._make_reader()))
        if taken := plain.taken():
            self._written(self._feed(taken))
        if (fast := self._fast) is not None:
            fast.transform = fast.writer.transform()

    def _end_turn(self) -> None:
        """Note the end of the turn, however it came: a turn of plain text to its end mark needs no reader."""
        if (plain := self._plain) is not None:
            if plain.ended:
                plain.whole = True
                self._outcome.was_plain(partial(_reader_of, self._make_reader, plain))
                self._run.observe(plain.events())
                self._run.saw_end_mark()
                return
            self._leave_plain(plain)
        if self._silence.runs:
            self._silence.stop()
        for frame in () if self._fast is None else self._fast.reader.catch_up():
            self._run.observe(frame.events)
            self._writer.write(frame)

    async def _go_on(self, wait: Awaitable[None] | None) -> None:
        """Read the rest of a piece, and let other tasks run before each part.

        The upstream is not read meanwhile, so that no more comes in than can be processed.
        """
        reader = self._reader
        while True:
            if wait is not None:
                await self._sent(wait)
            if reader.fault is not None:
                raise reader.fault
            if not reader.has_unread:
                return
            if reader.large_next:
                ended, out = await in_thread(self._read_large)
                wait = self._send(out, ended)
                continue
            await asyncio.sleep(0)
            wait = self._write(self._feed(b"", most=MOST_EVENTS))

    def _read_large(self) -> tuple[bool, list[bytes]]:
        """Read a large event and write its result. This runs in a thread while the stream waits."""
        return self._written(self._feed(b"", most=1, large=True))

    async def _sent(self, wait: Awaitable[None]) -> None:
        """Wait for the client. This time does not count for the upstream, so its last bytes are not lost."""
        patience, until = self._patience, self._until
        if patience is None or until is None or self._ended or patience.expired():
            await wait
            return
        patience.reschedule(None)
        left_s = until - self._loop.time()
        await wait
        if not patience.expired():
            self._until = self._loop.time() + left_s
            patience.reschedule(self._until)

    def _write(self, frames: Sequence[Frame]) -> Awaitable[None] | None:
        """Give frames to the run and the writer, and send the result."""
        ended, out = self._written(frames)
        return self._send(out, ended)

    def _written(self, frames: Sequence[Frame]) -> tuple[bool, list[bytes]]:
        """Give frames to the run and the writer; return whether the turn has ended, and what to send."""
        run, writer = self._run, self._writer
        out = []
        ended = self._ended
        for frame in frames:
            run.observe(frame.events)
            ended = ended or frame.is_end_mark
            out.append(writer.write(frame))
        return ended, out

    def _send(self, out: Sequence[bytes], ended: bool) -> Awaitable[None] | None:
        """Send what was written."""
        run, writer = self._run, self._writer
        had_ended, self._ended = self._ended, ended
        if self._fast is not None:
            self._fast.transform = self._fast.writer.transform()
        if ended or (writer.composing and run.turn.reason is not None):
            self._wait_no_longer(composing=writer.composing)
        last = ended and not had_ended and not writer.composing and not self._reader.has_unread
        if last and self._patience is not None:
            flush_soon(self._output.client, self._loop)
        data = out[0] if len(out) == 1 else b"".join(out)
        if out:
            self._holds = not out[-1]
        if (self._fast is None or self._fast.transform is None or self._holds) and not self._silence.runs:
            self._watch()
        return self._output.push(data, last=last)

    def _watch(self) -> None:
        """Begin to keep the client's connection alive."""
        self._silence.start(self._keepalive_s, self._break_silence)

    def _break_silence(self) -> None:
        """Send a keep-alive between two events, unless the client does not read."""
        passes = not self._holds and self._fast is not None and self._fast.transform is not None
        if passes or self._ended or self._run.turn.error is not None:
            # Only the upstream can be silent now; or an end mark or an error was sent, the last of a stream.
            self._silence.stop()
        elif self._unsent is None or self._unsent.done():
            try:
                wait = self._output.push(self._writer.keep_alive())
            except ConnectionError:
                # The client has gone; the run learns it from its own next piece, or is cancelled.
                self._silence.stop()
                return
            self._unsent = None if wait is None else asyncio.ensure_future(_ignore_gone(wait))

    def _wait_no_longer(self, *, composing: bool) -> None:
        """Limit the wait for what follows: some upstreams never close, and some never send an end mark."""
        patience = self._patience
        if (self._until is not None and self._waited) or (patience is not None and patience.expired()):
            return
        self._waited = self._ended
        self._until = self._loop.time() + _patience_s(self._ended, composing)
        if patience is not None:
            patience.reschedule(self._until)


def _patience_s(ended: bool, composing: bool) -> float:
    """Return the seconds that a turn may stay open after its finish reason or its end mark."""
    if not ended:
        return _AFTER_REASON_S
    return _AFTER_HIDDEN_END_S if composing else AFTER_END_S


def _reader_of(make_reader: Callable[[], TurnReader], plain: PlainTurn) -> TurnReader:
    """Return the reader of a turn that was plain text."""
    reader = make_reader()
    if isinstance(reader, FastReader):
        reader.note_plain(plain)
    return reader


async def _ignore_gone(wait: Awaitable[None]) -> None:
    """Wait for a client that does not read; one that has gone is no failure of the keep-alive."""
    with contextlib.suppress(ConnectionError):
        await wait
