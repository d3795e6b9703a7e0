"""The complete steps of a run that goes on without its client. Another process can go on after the last one.

A step is the model's whole answer to a turn, or the results of all calls of a turn. A run that goes on does
its steps again in the same code, with the recorded answers and results in place of the upstream and the
tools, and with the recorded ids and times. So it reaches the same state, and its client's output is the same:
after each step the two are compared. After the last step it asks the upstream and runs tools as usual.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog
from msgspec import Struct

from proxy.base.chance import Draws, Value
from proxy.base.errors import NotOnRecord
from proxy.base.events import ToolCall, ToolProgress, ToolResult
from proxy.http.headers import Headers
from proxy.http.secrets import Secrets
from proxy.records.background import StartedEffect
from proxy.tools.running.ledger import KnownEffects, RunLedger

MOST_BYTES: Final = 4 << 20
"""The most bytes of all steps of one run. A longer run keeps no further step."""


class RecordedAnswer(Struct, frozen=True):
    """The answer of an upstream to one turn."""

    upstream: str
    model: str
    status: int
    content_type: str
    headers: Sequence[tuple[str, str]]
    body: bytes


class ShownCall(Struct, frozen=True):
    """What was known of a call at some time: that it starts, how far it has come, or its result."""

    index: int
    arguments: Any = None
    progress: ToolProgress | None = None
    result: ToolResult | None = None


class RecordedCalls(Struct):
    """The calls of a turn: what was known of them, in this order, the results of calls that did not run, and
    the turns, calls, tokens and cost that agents had used of the run's budgets after them."""

    shown: list[ShownCall] = []
    refused: Sequence[ToolResult] = ()
    agents: Sequence[int] = ()


class Place(Struct, frozen=True):
    """A place in a client's stream: the number of the last event before it, and a digest of all of them.

    ``attempt`` is the attempt in whose range that number is.
    """

    attempt: int = 0
    last: int = -1
    digest: str = ""


class Step(Struct, frozen=True):
    """A complete step: an ``answer`` or ``calls``. The rest is how things were after it.

    ``root`` is the run whose places its effects have claimed. ``drawn`` are the ids and times of this step
    by kind.
    """

    place: Place
    root: str
    drawn: Mapping[str, Sequence[Value]]
    effects: KnownEffects
    answer: RecordedAnswer | None = None
    calls: RecordedCalls | None = None


class Complete(Struct, frozen=True):
    """How far complete steps reach: the number of ``turns`` whose calls have results, and whether the answer
    to the next turn is complete, too. ``caused`` are the executions whose effects the model knows."""

    turns: int = -1
    answered: bool = False
    caused: Collection[str] = ()


def complete(steps: Sequence[Step]) -> Complete:
    """Return how far these steps reach."""
    if not steps:
        return Complete()
    turns = sum(step.calls is not None for step in steps)
    return Complete(turns, steps[-1].answer is not None, steps[-1].effects.caused)


def uncovered(
    effects: Sequence[StartedEffect], runs: Collection[str], reached: Complete
) -> Sequence[StartedEffect]:
    """Return the effects after which a run cannot be continued.

    ``runs`` are the run and those that it took over. An effect of a complete turn has its result in a step.
    One of an answered turn is met again in its place in the record, if its outcome is known there. Any other
    effect might happen again: it is that of an agent or a program, or nobody knows its outcome.
    """

    def is_covered(effect: StartedEffect) -> bool:
        if effect.id in reached.caused:
            return True
        if effect.run_id not in runs:
            return False
        return effect.turn <= reached.turns or (
            reached.answered and effect.turn == reached.turns + 1 and effect.is_known
        )

    return [effect for effect in effects if not is_covered(effect)]


class StepOutput(Protocol):
    """A client's stream that a run may write again up to some place."""

    def place(self) -> Place:
        """Return the present place."""

    def number_as(self, attempt: int) -> None:
        """Number the next events as those of an attempt."""

    def go_live(self) -> None:
        """Show what was written again, and everything after it."""


class AnyOutput:
    """A :class:`StepOutput` whose client reads each attempt from its first byte on."""

    def place(self) -> Place:
        return Place()

    def number_as(self, attempt: int) -> None:
        return

    def go_live(self) -> None:
        return


class NotedAnswer(Protocol):
    """An answer of an upstream that is noted while it is read."""

    status: int
    content_type: str
    headers: Headers

    @property
    def noted(self) -> bytes: ...


class NotContinued(NotOnRecord):
    """A run could not do a recorded step again, for example because its upstream is configured no more."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The run could not be continued: {why}.")


class StepLog(Protocol):
    """Where the steps of one run are kept."""

    def put(self, number: int, step: bytes) -> None:
        """Queue a step for storing, by its number. Never waits."""

    async def settled(self) -> None:
        """Wait a short time until the steps so far are stored."""


class Steps:
    """The steps of one run, as it makes them or does them again.

    ``root`` is the run whose places its effects claim. ``draws`` are its ids and times. ``keeps`` says that
    every step so far was kept, so that the run can be continued, and ``complete`` how far they reach.
    """

    def __init__(
        self, run_id: str, output: StepOutput, log: StepLog, known: Sequence[Step] = (), attempt: int = 0
    ) -> None:
        """``known`` are the steps to do again; what follows belongs to ``attempt``."""
        self.root = known[0].root if known else run_id
        drawn: dict[str, list[Value]] = {}
        for step in known:
            for kind, values in step.drawn.items():
                drawn.setdefault(kind, []).extend(values)
        self.draws = Draws(drawn)
        self._output = output
        self._known = known
        self._attempt = attempt
        self._place = 0
        self._log = log
        self.keeps = True
        self._written = 0
        self.complete = Complete()
        self._left = MOST_BYTES
        self._drawn: dict[str, int] = {}
        self._asked: tuple[str, str, NotedAnswer] | None = None
        self._calls: RecordedCalls | None = None
        for step in known:
            self._write(step)

    @property
    def replaying(self) -> bool:
        """Whether a step is left to be done again."""
        return self._place < len(self._known)

    def begin(self, ledger: RunLedger, *, keeps: bool) -> None:
        """Begin a run; ``keeps`` says whether its content may be stored."""
        ledger.root = self.root
        self.keeps = self.keeps and keeps

    def answer(self) -> RecordedAnswer:
        """Return the answer of the next step; raises :class:`NotContinued` if it is another step."""
        if (found := self._known[self._place].answer) is None:
            raise NotContinued("the model is asked where its calls ran before")
        return found

    def asked(self, upstream: str, model: str, answer: NotedAnswer) -> None:
        """Note the answer that is about to be read."""
        self._asked = upstream, model, answer

    def answered(self, ledger: RunLedger, secrets: Secrets | None) -> None:
        """End a step: the answer was read, and calls follow. Raises :class:`NotContinued`."""
        if self.replaying:
            self._done_again(ledger)
        elif self._asked is not None:
            upstream, model, answer = self._asked
            body = answer.noted if secrets is None else secrets.blanked(answer.noted)
            headers = [(name, value) for name, value in answer.headers]
            made = RecordedAnswer(upstream, model, answer.status, answer.content_type, headers, body)
            self._end(ledger, answer=made)
        self._asked = None

    async def settled(self) -> None:
        """Wait until the steps so far are stored, but not for long: an effect is about to begin."""
        await self._log.settled()

    def calls_again(self) -> RecordedCalls | None:
        """Return the calls of the next step if they are to be done again. Raises :class:`NotContinued`."""
        if not self.replaying:
            return None
        if (found := self._known[self._place].calls) is None:
            raise NotContinued("calls run where the model was asked before")
        return found

    def calling(self, refused: Sequence[ToolResult]) -> "CallNotes":
        """Begin to note the calls of a turn."""
        self._calls = RecordedCalls([], refused)
        return CallNotes(self._calls.shown)

    def called(self, ledger: RunLedger, agents: Sequence[int]) -> None:
        """End a step: all calls have results. Raises :class:`NotContinued`."""
        if self.replaying:
            self._done_again(ledger)
        elif self._calls is not None:
            self._calls.agents = agents
            self._end(ledger, calls=self._calls)
        self._calls = None

    def _done_again(self, ledger: RunLedger) -> None:
        step = self._known[self._place]
        if self._output.place() != step.place:
            raise NotContinued("it did not give the same output again")
        ledger.restore(step.effects)
        self._place += 1
        following = self._known[self._place].place.attempt if self.replaying else self._attempt
        self._output.number_as(following)
        if not self.replaying:
            self.draws.forget()
            self._new_draws()
            self._output.go_live()

    def _end(
        self, ledger: RunLedger, answer: RecordedAnswer | None = None, calls: RecordedCalls | None = None
    ) -> None:
        drawn = self._new_draws()
        place, root = self._output.place(), self.root
        self._write(Step(place, root, drawn, ledger.known_effects(), answer=answer, calls=calls))

    def _new_draws(self) -> dict[str, list[Value]]:
        """Return the values that were drawn since the last call."""
        before, taken = self._drawn, self.draws.taken
        self._drawn = {kind: len(values) for kind, values in taken.items()}
        return {
            kind: values[before.get(kind, 0) :]
            for kind, values in taken.items()
            if len(values) > before.get(kind, 0)
        }

    def _write(self, step: Step) -> None:
        if not self.keeps:
            return
        why = ""
        try:
            text = msgspec.msgpack.encode(step)
        except (TypeError, ValueError):  # A part of it is not Unicode, or no plain value.
            text, why = b"", "a step is no plain text"
        self._left -= len(text)
        if self._left < 0:
            why = f"its steps are larger than {MOST_BYTES >> 20} MiB"
        elif not self.draws.whole:
            why = "it made too many ids"
        if why:
            logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.relay")
            logger.warning("run_not_continuable", run_id=self.root, reason=why)
            self.keeps = False
            return
        self._log.put(self._written, text)
        self._written += 1
        turns = max(self.complete.turns, 0) + (step.calls is not None)
        self.complete = Complete(turns, step.answer is not None, step.effects.caused)


class CallNotes:
    """Notes what becomes known of the calls of a turn."""

    def __init__(self, shown: list[ShownCall]) -> None:
        self._shown = shown

    def started(self, tell: Callable[[ToolCall, Any], None]) -> Callable[[ToolCall, Any], None]:
        """Return a function that notes that a call starts, and tells ``tell``."""

        def note(call: ToolCall, arguments: Any) -> None:
            self._shown.append(ShownCall(call.index, arguments))
            tell(call, arguments)

        return note

    def progressed(
        self, tell: Callable[[ToolCall, ToolProgress], None]
    ) -> Callable[[ToolCall, ToolProgress], None]:
        """Return a function that notes how far a call has come, and tells ``tell``."""

        def note(call: ToolCall, progress: ToolProgress) -> None:
            self._shown.append(ShownCall(call.index, progress=progress))
            tell(call, progress)

        return note

    def done(self, tell: Callable[[ToolCall, ToolResult], None]) -> Callable[[ToolCall, ToolResult], None]:
        """Return a function that notes a call's result, and tells ``tell``."""

        def note(call: ToolCall, result: ToolResult) -> None:
            self._shown.append(ShownCall(call.index, result=result))
            tell(call, result)

        return note


def read_step(text: bytes) -> Step:
    """Read a step; raises ``ValueError`` for other data."""
    return msgspec.msgpack.decode(text, type=Step)
