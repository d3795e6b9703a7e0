"""What became of the calls of earlier turns that waited for approvals."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import Struct

from proxy.base.events import ToolResult
from proxy.records.approvals import Approval
from proxy.records.result_for_model import Hole
from proxy.relay.nested import Purse
from proxy.wires.client_port import NO_PROGRAM_RESULTS, ProgramResults


class PausedProgram(Struct, frozen=True):
    """A program that waits for calls of the client: the part that shows it, its state, and the ids of the
    calls."""

    part_id: str
    state: bytes
    client_calls: tuple[str, ...]


@dataclass(eq=False, slots=True)
class ProgramOutcomes:
    """What became of programs that earlier answers showed as running: those that wait for the client, and the
    results of those that ended, by the part that shows them."""

    paused: list[PausedProgram] = field(default_factory=list)
    ended: dict[str, ToolResult] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class ApprovalOutcomes:
    """The outcomes of the approvals that a request's held turns wait for.

    ``results`` fill the holes of the turns, by what these wait for: with a text for the model, or with
    another hole if an agent continued and asks again. ``waiting`` are the undecided approvals: no model is
    asked before they are decided. ``asked`` are those of them that agents asked for just now; the client
    does not know them yet. ``ran`` are the approvals whose calls ran for this request, with their results.
    ``untrusted`` has the sources of untrusted results among these. ``purse`` counts what agents used
    meanwhile; it is ``None`` if there was nothing to decide. ``asked_in`` are the runs of this conversation
    that asked for approvals. ``programs`` are the outcomes of programs.
    """

    results: dict[str, str | Hole] = field(default_factory=dict)
    waiting: list[Approval] = field(default_factory=list)
    asked: list[Approval] = field(default_factory=list)
    ran: list[tuple[Approval, ToolResult]] = field(default_factory=list)
    untrusted: str = ""
    purse: Purse | None = None
    asked_in: Sequence[str] = ()
    programs: ProgramOutcomes = field(default_factory=ProgramOutcomes)

    @property
    def stops(self) -> bool:
        """Whether no model is asked yet: something waits for a person or for the client."""
        return bool(self.waiting or self.programs.paused)

    def add_run(self, name: str, approval: Approval | None, result: ToolResult) -> None:
        """Add the result of a call that ran; ``approval`` is shown to the client, ``None`` for nothing."""
        content = result.without_images().content
        if approval is not None and approval.edited:
            content = (
                f"A person changed the arguments of this call. It ran with: {approval.edited}\n{content}"
            )
        self.results[name] = content
        if approval is not None:
            self.ran.append((approval, result))

    def after(self, earlier: "ApprovalOutcomes", purse: Purse) -> "ApprovalOutcomes":
        """Return these outcomes together with those of the plans for earlier upstreams.

        Approvals are settled in the first plan; later plans only find them settled.
        """
        waiting = {approval.id for approval in self.waiting}
        known = {approval.id: approval for approval in (*earlier.asked, *self.asked)}
        asked = [approval for id_, approval in known.items() if id_ in waiting]
        return replace(
            self,
            asked=asked,
            ran=[*earlier.ran, *self.ran],
            programs=replace(self.programs, ended={**earlier.programs.ended, **self.programs.ended}),
            purse=purse,
        )


NOTHING_SETTLED: Final = ApprovalOutcomes()
"""The outcomes for a request without held turns that wait; it is never changed."""


class Waited(Struct):
    """The calls that have waited for a request: what it brings for ``programs``, and the outcomes of
    ``approvals`` from the plans so far. ``purse`` counts what agents have used whose calls were approved; it
    is ``None`` if there was nothing to decide."""

    programs: ProgramResults = NO_PROGRAM_RESULTS
    approvals: ApprovalOutcomes = NOTHING_SETTLED
    purse: Purse | None = None
