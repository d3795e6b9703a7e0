"""Sends one request to the model: edits the body before it, and handles a refusal."""

import asyncio
from typing import Final

from proxy.http.own_headers import LEFT_OUT, RESTORED
from proxy.json.in_thread import in_thread
from proxy.relay.base import RunSettings
from proxy.relay.headers import restored_header
from proxy.relay.memory.refusals import RefusalCache
from proxy.relay.memory.steps import MOST_BYTES, NotContinued, Steps
from proxy.relay.offering.offer import Offer
from proxy.relay.routing.fallback import BufferedResponse, NextUpstream, ask
from proxy.relay.run.job import Job
from proxy.relay.run.keepalive import with_keepalive
from proxy.relay.run.run import CallModel
from proxy.relay.run.state import State
from proxy.relay.run.turn.rejection import (
    MAX_ERROR_BYTES,
    GivenAgain,
    NotedResponse,
    read_later_turn_error,
    retry_wait,
)
from proxy.relay.run.turn.tool_refusals import adapt_tools
from proxy.upstreams.base import UpstreamRequest, UpstreamResponse

_REFUSALS: Final = (400, 404, 413, 422)
"""The statuses with which upstreams refuse the content of a body."""

_MOST_ATTEMPTS: Final = 4
"""A provider names one field at a time, so a first turn may need several more requests."""


class TurnRequests:
    """Sends the requests of turns. The process has one."""

    def __init__(self, settings: RunSettings, refusals: RefusalCache) -> None:
        self._settings = settings
        self._refusals = refusals

    async def open(self, job: Job, state: State, command: CallModel) -> UpstreamResponse:
        """Ask the model, and return the response's head. Only the first turn's may have an error status.

        Raises :class:`~proxy.relay.routing.fallback.NextUpstream` if another upstream may serve the run,
        :class:`UpstreamError`, :class:`TurnRejected` if a later turn was refused, and
        :class:`~proxy.relay.memory.steps.NotContinued`.
        """
        self._edit(job, state, command)
        steps = job.client.ask.options.steps
        if steps is not None and steps.replaying:
            return _given_again(job, steps)
        first = command.number == 1
        response = await (self._open_first(job, state) if first else self._open_later(job, state))
        self._remember_refusals(job, state, response)
        if steps is None:
            return response
        noted, route = NotedResponse(response, MOST_BYTES), job.upstream.route
        steps.asked(route.served.upstream.name, route.model, noted)
        return noted

    def _edit(self, job: Job, state: State, command: CallModel) -> None:
        """Edit the body for this turn, and for what the model was seen to refuse."""
        editor, route, tools = job.upstream.editor, job.upstream.route, state.tools
        if command.number > 1:
            editor.edit(used_tokens=state.run.output_tokens)
        if command.last and editor.forbid_tools():
            rule = f"{state.run.spent} is spent, and the client forces a call of its own tool"
            tools.withheld = {**tools.withheld, **dict.fromkeys(tools.offer.tool_ids(), rule)}
        place = route.served.upstream.name, route.model
        if command.number == 1 and self._refusals.refuses(*place, "images"):
            editor.edit(images_left_out=True)
        if self._refusals.knows_fields and (fields := self._refusals.refused_fields(*place)):
            editor.leave_out_fields(fields)
            _tell_left_out(job, state)

    def _remember_refusals(self, job: Job, state: State, response: UpstreamResponse) -> None:
        """Remember what had to be left out for this model to take the request.

        An error may quote the client's own words, so only a success proves the refusal.
        """
        editor, route = job.upstream.editor, job.upstream.route
        if response.status >= 300:
            return
        place = route.served.upstream.name, route.model
        if editor.edits.images_refused:
            self._refusals.remember(*place, "images")
        for lesson in state.turn.lessons:
            if lesson.strict:
                self._refusals.remember(*place, "strict")
            else:
                self._refusals.remember_tools(*place, lesson.digests, lesson.most)
        if state.turn.fields_recovered and editor.edits.fields_refused:
            self._refusals.remember_fields(*place, editor.edits.fields_refused)

    async def _open_first(self, job: Job, state: State) -> UpstreamResponse:
        response = await job.fallback.candidates.ask(job.upstream.route, await _request(job))
        is_edited = bool(state.tools.offer) or job.continuity.restored or job.upstream.crossed
        if response.status in _REFUSALS and is_edited:
            return await self._ask_again(job, state, response)
        return response

    async def _open_later(self, job: Job, state: State) -> UpstreamResponse:
        """Ask for a later turn, and retry, because no SDK can do it (rule E2)."""
        attempt = 0
        keepalive_s, keep_alive = self._settings.keepalive_s, state.output.keep_alive
        while True:
            response = await with_keepalive(_send(job), keepalive_s, keep_alive, discard=_close)
            if response.status < 300:
                return response
            may_help = response.status == 429 or response.status >= 500
            wait = retry_wait(response, attempt)
            if may_help and attempt < job.upstream.route.served.retries and wait is not None:
                await response.aclose()
                await with_keepalive(asyncio.sleep(wait), keepalive_s, keep_alive)
                attempt += 1
                continue
            rejection = await read_later_turn_error(response, job.upstream.port.dialect.errors)
            is_refused = response.status in _REFUSALS
            said = rejection.refusal
            if not is_refused or not (
                adapt_tools(job, state, said) or _recover(job, state, said, rejection.code)
            ):
                raise rejection

    async def _ask_again(
        self, job: Job, state: State, response: UpstreamResponse, attempts: int = _MOST_ATTEMPTS
    ) -> UpstreamResponse:
        """Ask again, without what the upstream refused, if the proxy had added or translated it.

        Any other refusal is returned with the body that was read.
        """
        dialect = job.upstream.port.dialect
        while True:
            body = await response.read(MAX_ERROR_BYTES)
            said = dialect.errors.read(body)
            if not adapt_tools(job, state, said.refusal):
                break
            await response.aclose()
            response = await _send(job)
            if response.status not in _REFUSALS:
                return response
        no_tools = bool(state.tools.offer) and dialect.quirks.refuses_tools(said.message)
        # Errors about images in tool results sound much like errors about tools.
        is_of_tools = no_tools and "image" not in said.message.lower()
        if not is_of_tools and _recover(job, state, said.refusal, said.code):
            await response.aclose()
            state.output.client.set_header(RESTORED, restored_header(*job.upstream.editor.restored))
            _tell_left_out(job, state)
            response = await _send(job)
            if response.status in _REFUSALS and attempts > 1:
                return await self._ask_again(job, state, response, attempts - 1)
            return response
        if no_tools:
            await response.aclose()
            return await self._without_tools(job, state)
        return BufferedResponse(response, body)

    async def _without_tools(self, job: Job, state: State) -> UpstreamResponse:
        """Ask without tools, because the model says that it takes none; offer none for the rest of this
        request.

        The refusal is remembered for later requests only if this request succeeds. An error may quote the
        client's own words, and no client may turn off the tools of others.
        """
        job.upstream.editor.withdraw()
        request, offer = job.client.request, state.tools.offer
        reason = "the model was seen to take no tools"
        state.tools.offer = Offer(
            client_names=frozenset(request.declared),
            withheld={**offer.withheld, **dict.fromkeys(offer.tool_ids(), reason)},
            open_names=request.open_names,
        )
        response = await _send(job)
        if response.status < 300:
            self._refusals.remember(job.upstream.route.served.upstream.name, job.upstream.route.model)
        return response


def _given_again(job: Job, steps: Steps) -> UpstreamResponse:
    """Return the recorded answer of a turn, if this upstream gave it."""
    answer, route = steps.answer(), job.upstream.route
    if (answer.upstream, answer.model) == (route.served.upstream.name, route.model):
        return GivenAgain(answer)
    if job.fallback.candidates.last:
        raise NotContinued(f"the upstream {answer.upstream!r} does not serve this request any more")
    raise NextUpstream


def _tell_left_out(job: Job, state: State) -> None:
    """Tell the client which of its fields this upstream does not get, as far as it is known by now."""
    if left_out := job.upstream.left_out:
        state.output.client.set_header(LEFT_OUT, ", ".join(left_out))


async def _send(job: Job) -> UpstreamResponse:
    """Send the request to the upstream that has answered before."""
    return await ask(job.upstream.route.served, await _request(job))


async def _request(job: Job) -> UpstreamRequest:
    upstream, dialect = job.upstream, job.upstream.port.dialect
    return UpstreamRequest(
        "POST",
        dialect.path,
        query=upstream.head.query,
        headers=upstream.head.headers,
        body=await in_thread(upstream.editor.render) if upstream.is_large else upstream.editor.render(),
        # The proxy has to read the response, streamed or not, so it must not be compressed.
        expect_stream=True,
        rooted=dialect.rooted,
    )


def _recover(job: Job, state: State, message: str, code: str | None) -> bool:
    """Change what the upstream refused; return whether there was something to change."""
    editor = job.upstream.editor
    known = editor.edits.fields_refused
    changed = editor.recover(message, code)
    # A success after other changes as well would prove nothing about the fields.
    state.turn.fields_recovered = changed and editor.edits.fields_refused != known
    return changed


async def _close(response: UpstreamResponse) -> None:
    await response.aclose()
