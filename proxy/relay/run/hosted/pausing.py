"""Shows the client the calls that programs make of it; the answer then ends until it brings the results."""

from collections.abc import Sequence

from proxy.base.events import ToolCall
from proxy.relay.approval_outcomes import PausedProgram
from proxy.relay.memory.programs import read
from proxy.relay.offering.hosted import program_of
from proxy.relay.run.job import Job
from proxy.relay.run.stand_in import stand_in
from proxy.relay.run.state import State
from proxy.wires.client_port import ClientCall


def paused_calls(state: State) -> Sequence[ToolCall]:
    """Return the calls that programs of this turn make of the client."""
    return [made.call for program in _of_turn(state) for made in _calls(program)]


def shown_paused(state: State) -> bytes:
    """Show the calls that programs of this turn make of the client; return the bytes to send."""
    return _shown(state, _of_turn(state)) if state.turn.paused else b""


async def show_paused_again(job: Job, state: State) -> None:
    """Show the calls of programs that went on and wait for the client again; no model answers now."""
    await stand_in(job, state, "")
    await state.output.send(state.output.writer.turn_ended("hidden"))
    await state.output.send(_shown(state, job.continuity.approvals.programs.paused))


def _of_turn(state: State) -> Sequence[PausedProgram]:
    return [PausedProgram(turn.part_id, turn.body, turn.client_calls) for turn in state.turn.paused.values()]


def _shown(state: State, programs: Sequence[PausedProgram]) -> bytes:
    declared = program_of(state.tools.offer.shown.hosted)
    if declared is None:
        raise RuntimeError("the client has declared no tool that runs programs")
    name, _ = declared
    return state.output.writer.client_called(name, [made for one in programs for made in _calls(one)])


def _calls(program: PausedProgram) -> Sequence[ClientCall]:
    """Return the calls of a program that wait for the client."""
    state = read(program.state)
    waiting = [call for call in state.calls if state.asked.get(call.id) in program.client_calls]
    return [
        ClientCall(program.part_id, ToolCall(state.asked[call.id], call.tool, call.arguments, place))
        for place, call in enumerate(waiting)
    ]
