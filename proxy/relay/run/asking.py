"""Tells a client which calls wait for approval, in a form that its dialect supports."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from proxy.base.events import (
    FinishReason,
    Frame,
    ToolCall,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFinished,
    TurnStarted,
)
from proxy.base.plain_text import ascii_json
from proxy.http.own_headers import APPROVALS
from proxy.records.approvals import Approval
from proxy.relay.approvals.approvals import Approvals
from proxy.relay.approvals.notice import question
from proxy.relay.approvals.rules import agent_of
from proxy.relay.run.job import Job
from proxy.relay.run.stand_in import stand_in
from proxy.relay.run.state import State
from proxy.tools.agents.agent import tool_of
from proxy.wires.approving.shown import APPROVE, call_id_of, item_id_of, visible_with

Form = Literal["items", "function", "text"]
_FIRST_PLACE: Final = 1_000_000
"""The index of the first question in a turn; no model makes that many calls in one turn."""


async def show_turn_approvals(job: Job, state: State, approvals: Approvals) -> None:
    """Show the client which calls of the turn wait for approval, and note in which form.

    A client that chose the tools by their servers gets items. A client that declared the function gets
    calls. Any other client, or one that may not decide, gets a text. An agent's run shows nothing: the run
    that called the agent tells its own client.
    """
    waiting = state.turn.approvals
    if job.client.ask.nested is not None:
        state.turn.text_sent_back = visible_with(job.client.port.approvals, "", [one.id for one in waiting])
        return
    state.output.client.set_header(APPROVALS, ",".join(approval.id for approval in waiting))
    await _show(job, state, approvals, waiting)


async def show_agent_approvals(job: Job, state: State, approvals: Approvals) -> None:
    """Show the approvals that agents asked for when they continued; no model answers this request."""
    waiting = job.continuity.approvals.asked
    state.output.client.set_header(APPROVALS, ",".join(approval.id for approval in waiting))
    if _form(job, state, approvals, waiting) == "text":
        # The text is the whole answer, so it also names the calls that waited before.
        await stand_in(job, state, approvals.notice(job.continuity.approvals.waiting))
        return
    await stand_in(job, state, "")
    await state.output.send(state.output.writer.turn_ended("hidden"))
    await _show(job, state, approvals, waiting)


async def _show(job: Job, state: State, approvals: Approvals, waiting: Sequence[Approval]) -> None:
    output = state.output
    form = _form(job, state, approvals, waiting)
    if form == "text":
        data = output.writer.turn_ended("suspended" if state.run.client_calls else "final")
        await output.send(data + output.writer.note(approvals.notice(waiting)))
        return
    text = visible_with(job.client.port.approvals, output.writer.visible, [one.id for one in waiting])
    if form == "items":
        await _show_items(state, waiting)
    else:
        state.turn.asks_by_call = True
        await _show_calls(job, state, waiting)
    state.turn.text_sent_back = text


def _form(job: Job, state: State, approvals: Approvals, waiting: Sequence[Approval]) -> Form:
    if not all(approvals.rules.by_caller(one.tool) for one in waiting):
        return "text"
    served = _served(state, waiting)
    if state.output.writer.asks_by_items and all(one.id in served for one in waiting):
        return "items"
    declared = job.client.ask.options.asks_by_call
    # A reply has one set of calls, and the client's own calls must not be mixed with questions.
    asks = declared and not state.run.client_calls
    return "function" if asks else "text"


def _served(state: State, waiting: Sequence[Approval]) -> Mapping[str, tuple[str, str]]:
    """Map the id of each approval to the label and name by which the client knows the tool.

    It holds only tools that the client chose by their servers. An agent's call has the label of the agent.
    """
    shown = state.tools.offer.shown
    names = {tool: name for name, tool in state.tools.offer.names.items()}
    called = {
        state.turn.waiting[call.index].id: call.name
        for call in state.run.turn.waiting
        if call.index in state.turn.waiting
    }
    found = {}
    for approval in waiting:
        agent = agent_of(approval)
        name = names.get(tool_of(agent), "") if agent else called.get(approval.id, "")
        if (served := shown.called(name)) is not None:
            found[approval.id] = (served[0], approval.tool) if agent else served
    return found


async def _show_items(state: State, waiting: Sequence[Approval]) -> None:
    output, served = state.output, _served(state, waiting)
    data = output.writer.turn_ended("suspended" if state.run.client_calls else "final")
    for approval in waiting:
        arguments = ascii_json(approval.arguments_shown, compact=True)
        data += output.writer.approval_requested(item_id_of(approval.id), *served[approval.id], arguments)
    await output.send(data)


async def _show_calls(job: Job, state: State, waiting: Sequence[Approval]) -> None:
    """Show the questions as calls of one more turn, written like a turn of another dialect."""
    wire, output = job.client.port, state.output
    events: list[TurnEvent] = [TurnStarted("", job.client.request.model)]
    for place, approval in enumerate(waiting, _FIRST_PLACE):
        arguments = ascii_json(question(approval), compact=True)
        call = ToolCall(call_id_of(approval.id), APPROVE, arguments, place)
        events.append(ToolCallStarted(place, call.call_id, call.name))
        events.append(ToolCallDelta(place, arguments))
        events.append(ToolCallFinished(place, call))
    events.append(TurnFinished(FinishReason.TOOL_CALLS))
    state.tools.asks_by_call = True
    encoder = wire.encoder(job.client.request)
    whole = Frame(b"", None, tuple(events))
    if job.client.request.stream:
        frames = [*encoder.encode(whole), *encoder.close()]
    else:
        frames = [encoder.encode_reply(whole)]
    for frame in frames:
        if not frame.is_end_mark:
            await output.send(output.writer.write(frame))
    await output.send(output.writer.turn_ended("suspended"))
