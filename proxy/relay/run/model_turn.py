"""One turn of the model: the request upstream, and its response read to the end."""

import asyncio
import time
from typing import Literal

from proxy.caches import CacheSize, declare, text_bytes
from proxy.errors import ToolRelayError, Unreadable, UpstreamError, WireError
from proxy.http.headers import Headers
from proxy.in_thread import LARGE_EVENT_BYTES, in_thread
from proxy.relay.base import OnBroken, RunSettings, ignore_broken
from proxy.relay.begun import Begun
from proxy.relay.headers import RESTORED, is_coded, restored_words, returned
from proxy.relay.offer import Offer
from proxy.relay.passthrough import pump
from proxy.relay.routing.fallback import Reread, ask
from proxy.relay.run.job import Job, State
from proxy.relay.run.keepalive import keeping_alive
from proxy.relay.run.run import CallModel, Command, Finish
from proxy.relay.run.turn_stream import MOST_EVENTS, read_stream
from proxy.upstreams.base import UpstreamRequest, UpstreamResponse
from proxy.wires.dialect import Errors

__all__ = ["ModelTurns", "ToolMemory", "TurnRejected"]

_MAX_ERROR_BYTES = 1024 * 1024
_MAX_WAIT_S = 5.0
_WAITS = ("retry-after", "retry-after-ms")
_REFUSALS = (400, 404, 413, 422)
_MOST_FIELDS = 32
"""Remembered for one model; real ones refuse one or two."""
_STREAMED = (
    ("cache-control", ("Cache-Control", "no-cache")),
    ("x-accel-buffering", ("X-Accel-Buffering", "no")),
)


class TurnRejected(ToolRelayError):
    """A later turn was answered with something other than a turn.

    ``said`` are the upstream's own words, ``headers`` those of its answer that the client's own carries.
    """

    def __init__(
        self, status: int, message: str, code: str | None, said: str = "", headers: Headers = ()
    ) -> None:
        self.status = status
        self.message = message
        self.said = said
        self.headers = headers
        self.code = code or "upstream_error"
        super().__init__(message)


Refused = Literal["tools", "images"]


_MAX_MODEL_CHARS = 200
_MAX_FIELDS_BYTES = 2000


class ToolMemory:
    """Which models of which upstreams were seen to take no tools, or no images in their results, and
    which fields of their own messages they do not take back.

    Bounded, and forgotten in time.
    """

    def __init__(self, *, keep_s: float = 3600.0, most: int = 1024) -> None:
        self._keep_s = keep_s
        self._most = most
        self._refused: dict[tuple[str, str, Refused], float] = {}
        self._fields: dict[tuple[str, str], tuple[float, frozenset[str]]] = {}
        self.knows_fields = False
        """Whether any model was seen to refuse one."""
        declare("refusals", self._cache_size)

    def refuses(self, upstream: str, model: str, what: Refused = "tools") -> bool:
        """Whether this model was seen lately to refuse them."""
        until = self._refused.get((upstream, model, what))
        return until is not None and until > time.monotonic()

    def remember(self, upstream: str, model: str, what: Refused = "tools") -> None:
        if len(model) > _MAX_MODEL_CHARS:
            return  # What a client makes up is not kept.
        if len(self._refused) >= self._most:
            self._refused.pop(next(iter(self._refused)))
        self._refused[upstream, model, what] = time.monotonic() + self._keep_s

    def refused_fields(self, upstream: str, model: str) -> frozenset[str]:
        """What this model was seen lately to refuse of its own messages."""
        until, names = self._fields.get((upstream, model), (0.0, frozenset()))
        return names if until > time.monotonic() else frozenset()

    def remember_fields(self, upstream: str, model: str, names: frozenset[str]) -> None:
        if len(model) > _MAX_MODEL_CHARS:
            return
        known = self.refused_fields(upstream, model) | names
        self._fields.pop((upstream, model), None)
        if len(self._fields) >= self._most:
            self._fields.pop(next(iter(self._fields)))
        if len(known) <= _MOST_FIELDS and text_bytes(known) <= _MAX_FIELDS_BYTES:
            self._fields[upstream, model] = time.monotonic() + self._keep_s, known
            self.knows_fields = True

    def _cache_size(self) -> CacheSize:
        entry = 400 + 4 * _MAX_MODEL_CHARS
        fields = sum(entry + 100 * len(names) + text_bytes(names) for _, names in self._fields.values())
        more = 100 * _MOST_FIELDS + _MAX_FIELDS_BYTES
        return CacheSize(entry * len(self._refused) + fields, (2 * entry + more) * self._most)


class ModelTurns:
    """Asks models."""

    def __init__(self, settings: RunSettings, memory: ToolMemory, broken: OnBroken = ignore_broken) -> None:
        self._settings = settings
        self._memory = memory
        self._broken = broken

    async def call(self, job: Job, state: State, command: CallModel) -> Command:
        """Carry out a :class:`CallModel`; what the run wants next.

        Raises :class:`~proxy.relay.routing.fallback.NextUpstream` where another upstream may have the run,
        :class:`UpstreamError`, :class:`~proxy.errors.WireError` and :class:`TurnRejected`.
        """
        state.turn_started_at = state.now()
        state.first_chunk_at = 0.0
        state.events = 0
        state.answers = {}
        if command.number > 1:
            job.editor.spend_tokens(state.run.output_tokens)
        if command.last and job.editor.forbid_tools():
            rule = f"{state.run.spent} is spent, and the client forces a call of its own tool"
            state.withheld = {**state.withheld, **dict.fromkeys(state.offer.tool_ids(), rule)}
        place = job.route.served.upstream.name, job.route.model
        if command.number == 1 and self._memory.refuses(*place, "images"):
            job.editor.leave_out_images()
        if self._memory.knows_fields and (fields := self._memory.refused_fields(*place)):
            job.editor.leave_out_fields(fields)
        response = await self._open(job, state, command)
        if response.status < 300 and job.editor.images_refused:
            # It took without them what it had refused with them.
            self._memory.remember(*place, "images")
        if state.recovered and response.status < 300 and job.editor.fields_refused:
            # As with tools: what an error says may be the client's own words, so success decides.
            self._memory.remember_fields(*place, job.editor.fields_refused)
        try:
            if response.status >= 300:
                # Only the first turn comes back with an error status; it is the client's to see.
                return await self._relay_refusal(job, state, response)
            if not await self._read(job, state, command, response):
                # The client has it as it came; of an error under a 200 the record is to say so.
                return Finish(error=state.run.turn.error, answered=True)
        except UpstreamError as error:
            self._broken(error)
            raise
        finally:
            await response.aclose()
        return state.run.turn_ended()

    async def _open(self, job: Job, state: State, command: CallModel) -> UpstreamResponse:
        """Send the turn's request.  Later turns are retried, since no SDK can do it (rule E2)."""
        if command.number == 1:
            response = await self._request(job, first=True)
            refused = response.status in _REFUSALS and (bool(state.offer) or job.put_back)
            return await self._ask_again(job, state, response) if refused else response
        attempt = 0
        while True:
            response = await keeping_alive(
                self._request(job), self._settings.keepalive_s, state.keep_alive, let_go=_close
            )
            if response.status < 300:
                return response
            retry = response.status == 429 or response.status >= 500
            wait = _retry_wait(response, attempt)
            if not retry or attempt >= job.route.served.retries or wait is None:
                rejection = await _rejection(response, job.wire.dialect.errors)
                refused = response.status in _REFUSALS
                if not refused or not _recover(job, state, rejection.said, rejection.code):
                    raise rejection
                continue
            await response.aclose()
            await keeping_alive(asyncio.sleep(wait), self._settings.keepalive_s, state.keep_alive)
            attempt += 1

    async def _request(self, job: Job, *, first: bool = False) -> UpstreamResponse:
        body = await in_thread(job.editor.render) if job.large else job.editor.render()
        request = UpstreamRequest(
            "POST",
            job.wire.dialect.path,
            query=job.query,
            headers=job.headers,
            body=body,
            # What comes back has to be read here, streamed or not, so it must not be compressed.
            expect_stream=True,
        )
        if first and job.candidates is not None:
            return await job.candidates.ask(job.route, request)
        return await ask(job.route.served, request)

    async def _ask_again(self, job: Job, state: State, response: UpstreamResponse) -> UpstreamResponse:
        """Ask again, once, without what was refused, if it was something of ours.

        Any other refusal goes back as it came, so what was read of it is put back in front.
        """
        body = await response.read(_MAX_ERROR_BYTES)
        dialect = job.wire.dialect
        message, code = dialect.errors.read(body)
        no_tools = bool(state.offer) and dialect.quirks.refuses_tools(message)
        # What is said of images in results of tools sounds much the same.
        if not (no_tools and "image" not in message.lower()) and _recover(job, state, message, code):
            await response.aclose()
            state.client.tell(RESTORED, restored_words(*job.editor.put_back))
            return await self._request(job)
        if no_tools:
            await response.aclose()
            return await self._without_tools(job, state)
        return Reread(response, body)

    async def _without_tools(self, job: Job, state: State) -> UpstreamResponse:
        """The model says that it takes no tools: none for this request, and none for a while.

        That is remembered only where it was true: what an error says may be the client's own words, and
        nobody is to turn off the tools of others.
        """
        job.editor.withdraw()
        reason = "the model was seen to take no tools"
        withheld = {**state.offer.withheld, **dict.fromkeys(state.offer.tool_ids(), reason)}
        state.offered.offer = Offer(
            client_names=frozenset(job.request.declared),
            withheld=withheld,
            open_names=job.request.open_names,
        )
        response = await self._request(job)
        if response.status < 300:
            self._memory.remember(job.route.served.upstream.name, job.route.model)
        return response

    async def _relay_refusal(self, job: Job, state: State, response: UpstreamResponse) -> Finish:
        secrets = job.route.served.secrets
        await pump(response, state.client, error_event=None, broken=self._broken, secrets=secrets)
        state.run.turn.error = {"code": f"http_{response.status}"}
        return Finish(error=state.run.turn.error, answered=True)

    async def _read(self, job: Job, state: State, command: CallModel, response: UpstreamResponse) -> bool:
        """Read the turn.  Returns whether the client still waits for its answer."""
        if command.number == 1:
            state.answer = _answer_head(response, job.request.stream)
        state.reader = job.wire.reader(
            state.offer.declared, state.offer.is_hidden, self._settings.max_argument_bytes
        )
        if is_coded(response.headers):
            if command.number > 1 or state.offer:
                # Nobody here can tell whether a server's call hides in it (rule W5).
                raise TurnRejected(502, "The upstream's response is compressed.", "upstream_malformed")
            return await self._relay(job, state, response)
        streamed = response.content_type == job.wire.dialect.framing.content_type
        if job.request.stream and not streamed:
            # Not every server says that it streams, and whoever waited for the end would stream nothing.
            response = Begun(response, job.route.served.upstream.name)
            if streamed := await response.is_stream():
                state.answer = _labelled(state.answer, job.wire.dialect.framing.content_type)
        if job.request.stream and streamed:
            await read_stream(state, state.reader, response, job.route.served.secrets)
            return True
        if streamed or (job.request.stream and command.number > 1):
            raise TurnRejected(502, _unexpected(response), "upstream_malformed")
        body = await response.read(self._settings.max_reply_bytes)
        large = len(body) > LARGE_EVENT_BYTES
        if (secrets := job.route.served.secrets) is not None:
            # Not for the client alone, whose stream does it again: what is read is kept on record, too.
            body = await in_thread(secrets.blanked, body) if large else secrets.blanked(body)
        try:
            read = state.reader.read_reply
            frame = await in_thread(read, body) if large else read(body)
        except Unreadable:
            raise
        except WireError:
            if command.number > 1 or await self._calls_ours(job, state, body):
                raise
            return await self._relay(job, state, Reread(response, body))
        state.run.observe(frame.events)
        if job.request.stream:
            # A stream was asked for and one object came: theirs to read, unless it calls our tools.
            if state.run.hidden_calls:
                raise TurnRejected(502, _unexpected(response), "upstream_malformed")
            return await self._relay(job, state, Reread(response, body))
        state.run.saw_end_mark()
        state.writer.write(frame)
        return True

    async def _calls_ours(self, job: Job, state: State, body: bytes) -> bool:
        """Whether a body of an unknown kind is a stream in which a tool of ours is called (rule W5)."""
        reader = job.wire.reader(
            state.offer.declared, state.offer.is_hidden, self._settings.max_argument_bytes
        )
        frames = reader.feed(body, most=MOST_EVENTS)
        while frames or reader.behind:
            for frame in frames:
                state.run.observe(frame.events)
            await asyncio.sleep(0)
            if reader.large_next:
                frames = await in_thread(reader.feed, b"", most=1, large=True)
            else:
                frames = reader.feed(b"", most=MOST_EVENTS) if reader.behind else []
        for frame in reader.close():
            state.run.observe(frame.events)
        return bool(state.run.hidden_calls) or reader.fault is not None

    async def _relay(self, job: Job, state: State, response: UpstreamResponse) -> bool:
        """Hand on a first turn that cannot be read here, or need not be (rule W2)."""
        secrets = job.route.served.secrets
        await pump(response, state.client, error_event=None, broken=self._broken, secrets=secrets)
        return False


def _recover(job: Job, state: State, message: str, code: str | None) -> bool:
    """Change what the upstream refused; whether there is something to change."""
    known = job.editor.fields_refused
    changed = job.editor.recover(message, code)
    # What helps after something else was changed as well says nothing of the fields.
    state.recovered = changed and job.editor.fields_refused != known
    return changed


async def _close(response: UpstreamResponse) -> None:
    await response.aclose()


def _answer_head(response: UpstreamResponse, stream: bool) -> list[tuple[str, str]]:
    """The head of the client's response: the first turn's, and for a stream a word to buffers."""
    headers = []
    present = set()
    for pair in returned(response.headers):
        name = pair[0].lower()
        if name != "content-encoding":
            headers.append(pair)
            present.add(name)
    if stream:
        headers += [pair for name, pair in _STREAMED if name not in present]
    return headers


def _labelled(headers: Headers, content_type: str) -> list[tuple[str, str]]:
    """The head of a stream whose upstream did not say that it is one."""
    kept = [pair for pair in headers if pair[0].lower() != "content-type"]
    return [*kept, ("Content-Type", content_type)]


def _retry_wait(response: UpstreamResponse, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; ``None`` where the upstream wants longer than we do."""
    for name, value in response.headers:
        lower = name.lower()
        if lower in _WAITS:
            try:
                wait = float(value) / (1000 if lower.endswith("ms") else 1)
            except ValueError:
                break
            return wait if 0 <= wait <= _MAX_WAIT_S else None
    return min(0.5 * 2.0**attempt, _MAX_WAIT_S)


async def _rejection(response: UpstreamResponse, errors: Errors) -> TurnRejected:
    """The upstream's own words on why a later turn failed, without its markup."""
    body = await response.read(_MAX_ERROR_BYTES)
    await response.aclose()
    message, code = errors.read(body)
    words = f": {message}" if message else ""
    # An SDK that is not told how long its provider wants it to wait asks again at once.
    waits = [pair for pair in response.headers if pair[0].lower() in _WAITS]
    said = f"The upstream answered {response.status}{words}"[:1000]
    return TurnRejected(response.status, said, code, message, waits)


def _unexpected(response: UpstreamResponse) -> str:
    kind = response.content_type or "no content type"
    return f"The upstream answered with {kind[:100]}, which does not fit the request."
