"""Random programs, and what may come of them: each call ends as the world and the decisions say.

A program is a tree of statements. :meth:`Program.code` writes it as Python for the engine, and
:meth:`Program.check` walks the same tree along the results that the program told, so it takes the branches
that the program took.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

Tool = Literal["look", "act", "ask"]
Decision = Literal["approve", "deny", "expire"]

LOOP = 2
"""How often a loop runs."""

_HEAD = """
import asyncio
said = []
last = ""
mark = ""
async def tried(call):
    try:
        return await call
    except RuntimeError as error:
        return "failed: " + str(error)
"""


@dataclass(frozen=True)
class Calls:
    """Calls side by side. If it is ``bare``, it is one call whose failure ends the program."""

    place: str
    tools: tuple[Tool, ...]
    bare: bool


@dataclass(frozen=True)
class Loop:
    """Runs statements several times."""

    body: "tuple[Statement, ...]"


@dataclass(frozen=True)
class Branch:
    """Runs other statements if the last call failed than if it did not."""

    well: "tuple[Statement, ...]"
    else_: "tuple[Statement, ...]"


Statement = Calls | Loop | Branch


def place_of(name: str) -> str:
    """Return the place of a call in its program, without what the program had read when it made the call."""
    return name.partition("/")[0]


class _Told:
    """What a program has told, and the number of the last look in it."""

    def __init__(self, said: Iterator[Sequence[str]]) -> None:
        self._said = said
        self.mark = ""

    def next(self) -> tuple[str, str]:
        """Return the next name and result; another name if there is none."""
        name, text = next(self._said, ("nothing", ""))
        if text.startswith("saw "):
            self.mark = text.rpartition(" ")[2]
        return name, text


class _Ended(Exception):
    """A failure that the program does not catch."""


@dataclass(frozen=True)
class Program:
    """A program. ``decisions`` are those of the calls that need one, by the name of the call."""

    body: tuple[Statement, ...]
    decisions: tuple[Decision, ...]

    def decision(self, name: str) -> Decision:
        """Return what a person decides about a call."""
        return self.decisions[sum(map(ord, place_of(name))) % len(self.decisions)]

    @property
    def code(self) -> str:
        """The program as a model would write it. Its value is a list of names and results, in order."""
        lines = [*_lines(self.body, 1), "    pass"]
        return "\n".join([_HEAD, "try:", *lines, "except RuntimeError as error:", *_END, "said"])

    def check(self, said: Sequence[Sequence[str]], may_be: Callable[[Tool, str, str], bool]) -> list[str]:
        """Return the names of the calls that the program made; ``said`` is its value.

        Fail if a result ``may_be`` none of the call, or if calls are missing or there are too many.
        """
        told = iter(said)
        made: list[str] = []
        try:
            self._walk(self.body, "", _Told(told), may_be, made)
        except _Ended:
            assert next(told)[0] == "end"
        left = list(told)
        assert not left, left
        return made

    def _walk(
        self,
        body: Sequence[Statement],
        turn: str,
        told: "_Told",
        may_be: Callable[[Tool, str, str], bool],
        made: list[str],
        last: str = "",
    ) -> str:
        for one in body:
            match one:
                case Loop():
                    for number in range(LOOP):
                        last = self._walk(one.body, f"{turn}.{number}", told, may_be, made, last)
                case Branch():
                    taken = one.else_ if last.startswith("failed") else one.well
                    last = self._walk(taken, turn, told, may_be, made, last)
                case Calls():
                    mark = told.mark
                    for at, tool in enumerate(one.tools):
                        wanted = f"{one.place}{at}{turn}/{mark}"
                        name, last = told.next()
                        assert name == wanted, (name, wanted, last)
                        made.append(name)
                        assert may_be(tool, name, last), (tool, name, last)
                        if one.bare and last.startswith("failed"):
                            raise _Ended
        return last


_END = ["    said.append(['end', str(error)])"]


def _lines(body: Sequence[Statement], depth: int, loops: Sequence[str] = ()) -> Iterator[str]:
    pad = "    " * depth
    for one in body:
        match one:
            case Loop():
                variable = f"n{len(loops)}"
                yield f"{pad}for {variable} in range({LOOP}):"
                yield from _lines(one.body, depth + 1, [*loops, variable])
                yield f"{pad}    pass"
            case Branch():
                yield f"{pad}if last.startswith('failed'):"
                yield from _lines(one.else_, depth + 1, loops)
                yield f"{pad}    pass"
                yield f"{pad}else:"
                yield from _lines(one.well, depth + 1, loops)
                yield f"{pad}    pass"
            case Calls():
                names = [_name(one.place, at, loops) for at in range(len(one.tools))]
                calls = [
                    f"shaken_lives__{tool}(name={name})" for tool, name in zip(one.tools, names, strict=True)
                ]
                tried = ", ".join(f"tried({call})" for call in calls)
                yield f"{pad}found = await asyncio.gather({tried})"
                yield f"{pad}last = found[-1]"
                yield f"{pad}said += [[name, text] for name, text in zip([{', '.join(names)}], found)]"
                yield f"{pad}for text in found:"
                yield f"{pad}    if text.startswith('saw '):"
                yield f"{pad}        mark = text.split(' ')[-1]"
                if one.bare:
                    yield f"{pad}if last.startswith('failed'):"
                    yield f"{pad}    raise RuntimeError(last)"


def _name(place: str, at: int, loops: Sequence[str]) -> str:
    return f"f'{place}{at}{''.join(f'.{{{one}}}' for one in loops)}/{{mark}}'"


def _numbered(body: Sequence[Statement], counts: Iterator[int]) -> tuple[Statement, ...]:
    """Give each statement with calls a place of its own, so that all calls have different names."""
    made: list[Statement] = []
    for one in body:
        match one:
            case Loop():
                made.append(Loop(_numbered(one.body, counts)))
            case Branch():
                made.append(Branch(_numbered(one.well, counts), _numbered(one.else_, counts)))
            case Calls():
                made.append(Calls(f"{chr(97 + next(counts) % 26)}", one.tools, one.bare))
    return tuple(made)


TOOLS = st.sampled_from(["look", "act", "act", "ask"])
_SEVERAL = st.builds(Calls, st.just(""), st.lists(TOOLS, min_size=1, max_size=3).map(tuple), st.just(False))
_ONE = st.builds(Calls, st.just(""), TOOLS.map(lambda tool: (tool,)), st.booleans())
_CALLS = _SEVERAL | _ONE
_SHORT = st.lists(_CALLS, max_size=2).map(tuple)
_LOOP = st.builds(Loop, st.lists(_CALLS, min_size=1, max_size=2).map(tuple))
_BRANCH = st.builds(Branch, _SHORT, _SHORT)


def programs() -> st.SearchStrategy[Program]:
    """Return programs with one to four statements."""
    bodies = st.lists(_CALLS | _CALLS | _LOOP | _BRANCH, min_size=1, max_size=4)
    decisions = st.lists(
        st.sampled_from(["approve", "approve", "deny", "expire"]), min_size=1, max_size=3
    ).map(tuple)
    return st.builds(
        lambda body, decided: Program(_numbered(body, iter(range(1000))), decided), bodies, decisions
    )


def allowed(program: Program, unknown: Collection[str]) -> Callable[[Tool, str, str], bool]:
    """Return whether a result may be that of a call: that nobody knows how it ended may only be said of an
    effect that was under way when the process died, which are the ``unknown``."""

    def may_be(tool: Tool, name: str, text: str) -> bool:
        if tool == "look":
            return text.startswith(f"saw {name} ")
        if name in unknown and "nobody knows" in text:
            return True
        if tool == "ask" and (decision := program.decision(name)) != "approve":
            return {"deny": "A person refused this call", "expire": "expired before anybody"}[
                decision
            ] in text
        return text == f"did {name}"

    return may_be
