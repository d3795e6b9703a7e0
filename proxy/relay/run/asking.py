"""Tells a client which calls wait for approval, in a form that it can carry."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import orjson

from proxy.approval_records import Approval
from proxy.events import (
    Frame,
    ToolCall,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFinished,
    TurnStarted,
)
from proxy.http.own_headers import APPROVALS
from proxy.relay.approvals.approvals import Approvals
from proxy.relay.approvals.notice import question
from proxy.relay.run.job import Job
from proxy.relay.run.state import State
from proxy.wires.approving.shown import APPROVE, AsksByItems, call_id_of, item_id_of, visible_with
from proxy.wires.wire import CrossableWire

__all__ = ["tell_waiting"]

Form = Literal["items", "function", "text"]
_FIRST_PLACE: Final = 1_000_000
"""The place of the first question in a turn; no model calls that many tools in one."""


async def tell_waiting(job: Job, state: State, approvals: Approvals) -> None:
    """Show the approvals of the turn to the client, and note how.

    Items go to a client that chose the tools by their servers, calls to one that declared the function.  Any
    other client, and one that may not decide, gets a text.
    """
    output, waiting = state.output, state.turn.approvals
    output.client.set_header(APPROVALS, ",".join(approval.id for approval in waiting))
    form = _form(job, state, approvals)
    if form == "text":
        data = output.writer.turn_ended("suspended" if state.run.client_calls else "final")
        await output.send(data + output.writer.note(approvals.notice(waiting)))
        return
    seen = visible_with(job.client.port.dialect.name, output.writer.visible, [one.id for one in waiting])
    if form == "items":
        await _show_items(state, waiting)
    else:
        state.turn.asks_by_call = True
        await _show_calls(job, state, waiting)
    state.turn.seen = seen


def _form(job: Job, state: State, approvals: Approvals) -> Form:
    waiting = state.turn.approvals
    if not all(approvals.rules.by_caller(one.tool) for one in waiting):
        return "text"
    served = _served(state)
    if isinstance(state.output.writer, AsksByItems) and all(one.id in served for one in waiting):
        return "items"
    declared = job.client.ask.options.asks_by_call
    # A reply has one set of calls: the client's own are not mixed with questions.
    asks = declared and not state.run.client_calls and isinstance(job.client.port, CrossableWire)
    return "function" if asks else "text"


def _served(state: State) -> Mapping[str, tuple[str, str]]:
    """The label and the name that the client knows the tools by, by approval, of those that it chose so."""
    shown = state.tools.offer.shown
    found = {}
    for call in state.run.turn.waiting:
        if (served := shown.called(call.name)) is not None:
            found[state.turn.waiting[call.index].id] = served
    return found


async def _show_items(state: State, waiting: Sequence[Approval]) -> None:
    output, served = state.output, _served(state)
    if not isinstance(output.writer, AsksByItems):
        raise TypeError("this dialect has no items that ask for approvals")
    data = output.writer.turn_ended("suspended" if state.run.client_calls else "final")
    for approval in waiting:
        arguments = orjson.dumps(approval.arguments_shown).decode()
        data += output.writer.approval_requested(item_id_of(approval.id), *served[approval.id], arguments)
    await output.send(data)


async def _show_calls(job: Job, state: State, waiting: Sequence[Approval]) -> None:
    """Show the questions as calls of a further turn, which is written like one of another dialect."""
    wire, output = job.client.port, state.output
    if not isinstance(wire, CrossableWire):
        raise TypeError(f"nothing can be said in the dialect {wire.dialect.name} without an upstream")
    events: list[TurnEvent] = [TurnStarted("", job.client.request.model)]
    for place, approval in enumerate(waiting, _FIRST_PLACE):
        arguments = orjson.dumps(question(approval)).decode()
        call = ToolCall(call_id_of(approval.id), APPROVE, arguments, place)
        events.append(ToolCallStarted(place, call.call_id, call.name))
        events.append(ToolCallDelta(place, arguments))
        events.append(ToolCallFinished(place, call))
    events.append(TurnFinished("tool_calls"))
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
