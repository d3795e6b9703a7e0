"""One turn of the model: the request upstream, and its response read to the end."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable

import orjson

from proxy.errors import ToolRelayError, UpstreamError, WireError
from proxy.relay.base import RunSettings
from proxy.relay.headers import returned
from proxy.relay.job import Job, State
from proxy.relay.offer import Offer
from proxy.relay.passthrough import AFTER_END_S, pump
from proxy.relay.run import CallModel, Command, Finish
from proxy.relay.waiting import keeping_alive
from proxy.upstreams.base import UpstreamRequest, UpstreamResponse
from proxy.wires.base import TurnReader

__all__ = ["ModelTurns", "ToolMemory", "TurnRejected"]

_MAX_ERROR_BYTES = 1024 * 1024
_MAX_WAIT_S = 5.0
_REFUSALS = (400, 404, 422)
_NO_TOOLS = re.compile(
    r"(does not|doesn't|not|no|cannot|can't|without|support\w*)[^.]{0,60}"
    r"\b(tools?|tool[_ ](use|choice|calling|calls?)|functions?|function[_ ]call\w*)\b"
    r"|\b(tools?|tool[_ ](use|choice|calling|calls?)|function[_ ]call\w*)\b[^.]{0,60}"
    r"(not|n't|un)[- ]?(support|allow|available|enabled|permit)"
    r"|--enable-auto-tool-choice",
    re.IGNORECASE,
)
_MISSING = re.compile(r"\bno tool (output|call)s? (was |were )?found\b", re.IGNORECASE)
"""About a call or an output that the input lacks, which says nothing about the model."""


class TurnRejected(ToolRelayError):
    """A later turn was answered with something other than a turn."""

    def __init__(self, status: int, message: str, code: str | None) -> None:
        self.status = status
        self.message = message
        self.code = code or "upstream_error"
        super().__init__(message)


class ToolMemory:
    """Which models of which upstreams were seen to take no tools; bounded, forgotten in time."""

    def __init__(self, *, keep_s: float = 3600.0, most: int = 1024) -> None:
        self._keep_s = keep_s
        self._most = most
        self._refused: dict[tuple[str, str], float] = {}

    def refuses(self, upstream: str, model: str) -> bool:
        """Whether this model said lately that it takes no tools."""
        until = self._refused.get((upstream, model))
        return until is not None and until > time.monotonic()

    def remember(self, upstream: str, model: str) -> None:
        if len(self._refused) >= self._most:
            self._refused.pop(next(iter(self._refused)))
        self._refused[upstream, model] = time.monotonic() + self._keep_s


class ModelTurns:
    """Asks models."""

    def __init__(self, settings: RunSettings, memory: ToolMemory, now: Callable[[], float]) -> None:
        self._settings = settings
        self._memory = memory
        self._now = now

    async def call(self, job: Job, state: State, command: CallModel) -> Command:
        """Carry out a :class:`CallModel`; what the run wants next.

        Raises :class:`UpstreamError`, :class:`~proxy.errors.WireError` and :class:`TurnRejected`.
        """
        state.turn_started_at = self._now()
        state.answers = {}
        if command.number > 1:
            job.editor.spend_tokens(state.run.output_tokens)
        if command.last:
            job.editor.forbid_tools()
        response = await self._open(job, state, command)
        try:
            if response.status >= 300:
                # Only the first turn comes back with an error status; it is the client's to see.
                return await self._relay_refusal(state, response)
            if not await self._read(job, state, command, response):
                return Finish(answered=True)
        finally:
            await response.aclose()
        return state.run.turn_ended()

    async def _open(self, job: Job, state: State, command: CallModel) -> UpstreamResponse:
        """Send the turn's request.  Later turns are retried, since no SDK can do it (rule E2)."""
        if command.number == 1:
            response = await self._request(job)
            refused = response.status in _REFUSALS and (bool(state.offer) or job.put_back)
            return await self._ask_again(job, state, response) if refused else response
        attempt = 0
        while True:
            response = await keeping_alive(self._request(job), self._settings.keepalive_s, state.keep_alive)
            if response.status < 300:
                return response
            retry = response.status == 429 or response.status >= 500
            wait = _retry_wait(response, attempt)
            if not retry or attempt >= job.route.served.retries or wait is None:
                rejection = await _rejection(response)
                refused = response.status in _REFUSALS
                if not refused or not job.editor.recover(rejection.message, rejection.code):
                    raise rejection
                continue
            await response.aclose()
            await keeping_alive(asyncio.sleep(wait), self._settings.keepalive_s, state.keep_alive)
            attempt += 1

    async def _request(self, job: Job) -> UpstreamResponse:
        request = UpstreamRequest(
            "POST",
            job.wire.path,
            query=job.query,
            headers=job.headers,
            body=job.editor.render(),
            # What comes back has to be read here, streamed or not, so it must not be compressed.
            expect_stream=True,
        )
        return await job.route.served.upstream.open(request)

    async def _ask_again(self, job: Job, state: State, response: UpstreamResponse) -> UpstreamResponse:
        """Ask again, once, without what was refused, if it was something of ours.

        Any other refusal goes back as it came, so what was read of it is put back in front.
        """
        body = await response.read(_MAX_ERROR_BYTES)
        message, code = _error_message(body)
        if state.offer and _NO_TOOLS.search(message) and not _MISSING.search(message):
            await response.aclose()
            return await self._without_tools(job, state)
        if job.editor.recover(message, code):
            await response.aclose()
            return await self._request(job)
        return _Reread(response, body)

    async def _without_tools(self, job: Job, state: State) -> UpstreamResponse:
        """The model says that it takes no tools: none for this request, and none for a while."""
        self._memory.remember(job.route.served.upstream.name, job.route.model)
        job.editor.withdraw()
        reason = "the model was seen to take no tools"
        withheld = {**state.offer.withheld, **dict.fromkeys(state.offer.tool_ids(), reason)}
        state.offer = Offer(
            client_names=frozenset(job.request.declared),
            withheld=withheld,
            open_names=job.request.open_names,
        )
        return await self._request(job)

    async def _relay_refusal(self, state: State, response: UpstreamResponse) -> Finish:
        await pump(response, state.client, error_event=None)
        return Finish(error={"code": f"http_{response.status}"}, answered=True)

    async def _read(self, job: Job, state: State, command: CallModel, response: UpstreamResponse) -> bool:
        """Read the turn.  Returns whether the client still waits for its answer."""
        if command.number == 1:
            state.answer = _answer_head(response, job.request.stream)
        state.reader = job.wire.reader(
            state.offer.declared, state.offer.is_hidden, self._settings.max_argument_bytes
        )
        if _is_coded(response):
            if command.number > 1:
                raise TurnRejected(502, "The upstream's response is compressed.", "upstream_malformed")
            return await self._relay(state, response)
        streamed = response.content_type == "text/event-stream"
        if job.request.stream and streamed:
            await self._read_stream(state, state.reader, response)
            return True
        if streamed or (job.request.stream and command.number > 1):
            raise TurnRejected(502, _unexpected(response), "upstream_malformed")
        body = await response.read(self._settings.max_reply_bytes)
        try:
            frame = state.reader.read_reply(body)
        except WireError:
            if command.number > 1 or self._calls_ours(job, state, body):
                raise
            return await self._relay(state, _Reread(response, body))
        state.run.observe(frame.events)
        if job.request.stream:
            # A stream was asked for and one object came: theirs to read, unless it calls our tools.
            if state.run.hidden_calls:
                raise TurnRejected(502, _unexpected(response), "upstream_malformed")
            return await self._relay(state, _Reread(response, body))
        state.run.saw_end_mark()
        state.writer.write(frame)
        return True

    def _calls_ours(self, job: Job, state: State, body: bytes) -> bool:
        """Whether a body of an unknown kind is a stream in which a tool of ours is called (rule W5)."""
        reader = job.wire.reader(
            state.offer.declared, state.offer.is_hidden, self._settings.max_argument_bytes
        )
        for frame in (*reader.feed(body), *reader.close()):
            state.run.observe(frame.events)
        return bool(state.run.hidden_calls)

    @staticmethod
    async def _relay(state: State, response: UpstreamResponse) -> bool:
        """Hand on a first turn that cannot be read here, or need not be (rule W2)."""
        await pump(response, state.client, error_event=None)
        return False

    async def _read_stream(self, state: State, reader: TurnReader, response: UpstreamResponse) -> None:
        """Read one turn's stream to its end; send what the writer lets through, when it comes."""
        run, writer = state.run, state.writer
        ended = False
        try:
            async with asyncio.timeout(None) as patience:
                async for chunk in response.chunks():
                    out = []
                    for frame in reader.feed(chunk):
                        run.observe(frame.events)
                        ended = ended or frame.is_end_mark
                        out.append(writer.write(frame))
                    await state.send(b"".join(out))
                    if ended:
                        if writer.composing:
                            # Nothing more is needed, and some upstreams never close.
                            break
                        if patience.when() is None:
                            patience.reschedule(asyncio.get_running_loop().time() + AFTER_END_S)
        except (TimeoutError, UpstreamError):
            if not ended:
                raise
        for frame in reader.close():
            run.observe(frame.events)
            ended = ended or frame.is_end_mark
            await state.send(writer.write(frame))
        if ended:
            run.saw_end_mark()


class _Reread:
    """A response whose body has been read already."""

    def __init__(self, response: UpstreamResponse, body: bytes) -> None:
        self._response = response
        self._body = body
        self.status = response.status
        self.headers = response.headers
        self.content_type = response.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._body:
            yield self._body

    async def read(self, limit: int) -> bytes:
        return self._body[:limit]

    async def aclose(self) -> None:
        await self._response.aclose()


def _is_coded(response: UpstreamResponse) -> bool:
    """Whether the body is in a coding that the upstream room does not take off."""
    codings = [value for name, value in response.headers if name.lower() == "content-encoding"]
    return any(coding.strip().lower() not in ("", "identity") for coding in codings)


def _answer_head(response: UpstreamResponse, stream: bool) -> list[tuple[str, str]]:
    """The head of the client's response: the first turn's, and for a stream a word to buffers."""
    headers = [pair for pair in returned(response.headers) if pair[0].lower() != "content-encoding"]
    if stream:
        present = {name.lower() for name, _ in headers}
        headers += [
            pair
            for pair in (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
            if pair[0].lower() not in present
        ]
    return headers


def _retry_wait(response: UpstreamResponse, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; ``None`` where the upstream wants longer than we do."""
    for name, value in response.headers:
        lower = name.lower()
        if lower in ("retry-after", "retry-after-ms"):
            try:
                wait = float(value) / (1000 if lower.endswith("ms") else 1)
            except ValueError:
                break
            return wait if 0 <= wait <= _MAX_WAIT_S else None
    return min(0.5 * 2.0**attempt, _MAX_WAIT_S)


async def _rejection(response: UpstreamResponse) -> TurnRejected:
    """The upstream's own words on why a later turn failed, without its markup."""
    body = await response.read(_MAX_ERROR_BYTES)
    await response.aclose()
    message, code = _error_message(body)
    said = f": {message}" if message else ""
    return TurnRejected(response.status, f"The upstream answered {response.status}{said}"[:1000], code)


def _error_message(body: bytes) -> tuple[str, str | None]:
    """Message and code of an error body; empty where it is not JSON (HTML is never shown)."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", None
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if isinstance(error, str):
        return error, None
    if not isinstance(error, dict):
        return "", None
    message = error.get("message") or error.get("detail")
    code = error.get("code")
    return (message if isinstance(message, str) else ""), (code if isinstance(code, str) else None)


def _unexpected(response: UpstreamResponse) -> str:
    kind = response.content_type or "no content type"
    return f"The upstream answered with {kind[:100]}, which does not fit the request."
