"""The stream of one turn: read and written to the client as it arrives, a bounded part at a time."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from proxy.errors import UpstreamError
from proxy.events import Frame
from proxy.http.secrets import Secrets, UncutSecrets
from proxy.in_thread import in_thread
from proxy.relay.passthrough import AFTER_END_S, flush_soon
from proxy.relay.run.state import State
from proxy.upstreams.base import UpstreamResponse
from proxy.wires.dialect import Framing
from proxy.wires.stream.fast_path import FastPath
from proxy.wires.upstream_port import TurnReader

__all__ = ["MOST_EVENTS", "read_stream"]

MOST_EVENTS: Final = 128
"""Events that are read and written in one turn of the loop, some milliseconds of work at most."""

_LINE_END: Final = ord("\n")
"""Where a piece ends with it, no secret has begun there: none has a line break in it."""
_AFTER_REASON_S = 5.0
"""For the usage and the end mark that come after a finish reason."""
_AFTER_HIDDEN_END_S = 0.05
"""For the end of the HTTP message, so that its connection can be used for the next turn."""


async def read_stream(
    state: State,
    reader: TurnReader,
    response: UpstreamResponse,
    framing: Framing,
    secrets: Secrets | None = None,
) -> None:
    """Read one turn's stream to its end; send what the writer lets through, when it comes.

    What ``secrets`` has is blanked out before anything is read: what is read is kept on record, too.

    Raises :class:`~proxy.errors.UpstreamError` and :class:`~proxy.errors.WireError`.
    """
    await _TurnStream(state, reader, framing, secrets).read(response)


class _TurnStream:
    """One turn's stream on its way to the client."""

    def __init__(self, state: State, reader: TurnReader, framing: Framing, secrets: Secrets | None) -> None:
        self._clock = state.clock
        self._turn = state.turn
        self._output = state.output
        self._is_limited = state.usage.is_limited
        # What it holds at the end of a stream is a part of a line, and no event.
        self._uncut = UncutSecrets(secrets) if secrets is not None else None
        self._run = state.run
        self._writer = state.output.writer
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._event_sign = framing.event_sign
        self._fast = fast = FastPath.of(reader, state.output.writer)
        self._feed = reader.feed if fast is None else fast.feed
        self._ended = False
        self._waited = False
        self._until: float | None = None
        self._patience: asyncio.Timeout | None = None

    async def read(self, response: UpstreamResponse) -> None:
        """The stream to its end."""
        run, writer, reader = self._run, self._writer, self._reader
        try:
            if (rest := response.push(self._relay)) is not None:
                self._output.client.flush()
                async with asyncio.timeout_at(self._until) as self._patience:
                    await rest
        except TimeoutError:
            if not self._ended and run.turn.reason is None:
                raise
        except UpstreamError:
            if not self._ended:
                raise
        finally:
            for frame in () if self._fast is None else self._fast.reader.catch_up():
                run.observe(frame.events)
                writer.write(frame)
        frames = reader.close()
        if reader.fault is not None:
            raise reader.fault
        self._ended, out = self._written(frames)
        if self._ended:
            run.saw_end_mark()
        # What a lost upstream said last may be half an event, and an error follows: it does not go out.
        is_whole = self._ended or run.turn.reason is not None or run.turn.error is not None
        if is_whole and (last := b"".join(out)):
            await self._output.send(last)

    def _relay(self, chunk: bytes) -> Awaitable[None] | None:
        """Take a piece of the stream; what is returned is waited for before the next one."""
        reader, fast, turn = self._reader, self._fast, self._turn
        # Without a call for a piece that ends in a line's end and has nothing of a secret, as nearly all do.
        if (uncut := self._uncut) is not None and (
            chunk[-1] != _LINE_END
            or (uncut.secrets.sign in chunk and uncut.secrets.beginning in chunk)
            or b"\\u00" in chunk
            or uncut.held
        ):
            chunk = uncut.feed(chunk)
            if not chunk:
                return None
        if self._is_limited:
            turn.events += chunk.count(self._event_sign)
        if fast is not None and (passing := fast.passing) is not None and fast.take_unread(chunk):
            return self._output.client.push(passing(chunk))
        # The first chunk always comes by here: nothing is known that it could be like.
        if not turn.first_chunk_at:
            turn.first_chunk_at = self._clock.now()
        wait = self._write(self._feed(chunk, most=MOST_EVENTS))
        # What came before a fault has gone out, however the stream was cut (rule W6).
        if reader.behind or reader.fault is not None or (wait is not None and self._until is not None):
            return self._go_on(wait)
        return wait

    async def _go_on(self, wait: Awaitable[None] | None) -> None:
        """Read what is left of a piece, and let others have their turn before each part.

        Meanwhile the upstream is not read, so that no more comes in than can be worked off.
        """
        reader = self._reader
        while True:
            if wait is not None:
                await self._sent(wait)
            if reader.fault is not None:
                raise reader.fault
            if not reader.behind:
                return
            if reader.large_next:
                ended, out = await in_thread(self._read_large)
                wait = self._send(out, ended)
                continue
            await asyncio.sleep(0)
            wait = self._write(self._feed(b"", most=MOST_EVENTS))

    def _read_large(self) -> tuple[bool, list[bytes]]:
        """Read a large event and write what comes of it; called in a thread while the stream waits."""
        return self._written(self._feed(b"", most=1, large=True))

    async def _sent(self, wait: Awaitable[None]) -> None:
        """Wait for the client, whose time is not the upstream's: what that has said last is not lost."""
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
        """Give frames to the run and the writer, and send what comes of them."""
        ended, out = self._written(frames)
        return self._send(out, ended)

    def _written(self, frames: Sequence[Frame]) -> tuple[bool, list[bytes]]:
        """Whether the turn has ended with these frames, and what the client gets of them."""
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
            self._fast.passing = self._fast.writer.passing()
        if ended or (writer.composing and run.turn.reason is not None):
            self._wait_no_longer()
        last = ended and not had_ended and not writer.composing and not self._reader.behind
        if last and self._patience is not None:
            flush_soon(self._output.client, self._loop)
        return self._output.push(out[0] if len(out) == 1 else b"".join(out), last=last)

    def _wait_no_longer(self) -> None:
        """Bound the wait for what follows: some upstreams never close, and some never send an end mark."""
        patience = self._patience
        if (self._until is not None and self._waited) or (patience is not None and patience.expired()):
            return
        self._waited = self._ended
        self._until = self._loop.time() + _patience_s(self._ended, self._writer.composing)
        if patience is not None:
            patience.reschedule(self._until)


def _patience_s(ended: bool, composing: bool) -> float:
    """How long a turn that has said its last word may stay open."""
    if not ended:
        return _AFTER_REASON_S
    return _AFTER_HIDDEN_END_S if composing else AFTER_END_S
