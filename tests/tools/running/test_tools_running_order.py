"""The order of the runner's steps: a step that fails ends the call before any later step."""

import ast
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from runner_kit import MakeCall, MakeRunner, MemoryLog

import proxy
from proxy.base.errors import ToolFailure
from proxy.tools import HttpClient, Redaction, tool
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import ArgumentBound
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.plan import AdmittedCall, PlannedCall, Refusal

STEPS = (
    *("known", "policy", "budget", "rate", "size", "parse", "validate", "bounds"),
    *("credentials", "row", "run", "nothing"),
)
"""What can be wrong with a call, in the order in which the runner checks it."""

SAID = {
    "known": ("unknown_tool", "unknown tool"),
    "policy": ("policy_denied", 'denied: policy.allow lacks "t__book"'),
    "budget": ("budget_exhausted", 'allowed: policy.allow has "*"'),
    "rate": ("rate_limited", 'allowed: policy.allow has "*"'),
    "size": ("invalid_arguments", 'allowed: policy.allow has "*"'),
    "parse": ("invalid_json", 'allowed: policy.allow has "*"'),
    "validate": ("invalid_arguments", 'allowed: policy.allow has "*"'),
    "bounds": ("policy_denied", 'denied: policy.arguments."*".seats'),
    "credentials": ("execution_failed", "refused: credentials.mail"),
    "row": (
        "execution_failed",
        'allowed: policy.allow has "*"; not made, the record could not be written',
    ),
    "run": ("execution_failed", 'allowed: policy.allow has "*"'),
    "nothing": (None, 'allowed: policy.allow has "*"'),
}
"""The error code and the decision of a call for each thing that is wrong."""

ASKED = {"rate": "rate", "validate": "validate", "credentials": "credentials", "row": "row", "run": "run"}
"""The steps that the test can observe."""

CONNECTED: dict[str, Any] = {
    "redaction": Redaction(output=("*",)),
    "connection": "mail",
    "hosts": ("mail.example.com",),
}


class Steps:
    """Fakes of all steps; those in ``wrong`` fail, and ``asked`` lists the steps that were reached."""

    def __init__(self, wrong: Sequence[str] = ()) -> None:
        self.wrong = wrong
        self.asked: list[str] = []

    def note(self, step: str) -> bool:
        """Record that a step was reached; return whether it must fail."""
        if step not in self.asked:
            self.asked.append(step)
        return step in self.wrong

    def seats(self, value: int) -> int:
        """Act as the tool's own validator."""
        if self.note("validate"):
            raise ValueError("no such seats")
        return value

    async def hit(self, kind: str, caller: str) -> float | None:
        """Act as the rate limiter."""
        return 12.0 if self.note("rate") else None

    async def prepare(self, connection: str) -> None:
        """Act as the broker of credentials."""
        if self.note("credentials"):
            raise ToolFailure("no credentials")

    def watch(self, log: Any) -> None:
        """Record when a durable row is opened; rows of refusals are not durable."""
        write = log.open_invocation

        async def opening(record: Any, *, durable: bool) -> None:
            log.broken = self.note("row") if durable else False
            await write(record, durable=durable)

        log.open_invocation = opening

    def policy(self) -> Policy:
        """Make the policy, with bounds for arguments."""
        return Policy(
            allow=() if "policy" in self.wrong else ("*",),
            arguments={"*": {"seats": ArgumentBound(max=2)}} if "bounds" in self.wrong else {},
            max_argument_bytes=4 if "size" in self.wrong else 8192,
        )

    def arguments(self) -> str:
        """Make the arguments of the call."""
        return '{"seats":' if "parse" in self.wrong else '{"seats":3}'

    def tool(self) -> Any:
        """Make a tool with an effect, a connection and a validator."""

        async def book(http: HttpClient, seats: int) -> str:
            """Book."""
            if self.note("run"):
                raise ToolFailure("sold out")
            return "booked"

        book.__annotations__["seats"] = Annotated[int, AfterValidator(self.seats)]
        return tool(effect="external_side_effect", **CONNECTED)(book)


@pytest.mark.parametrize("first", STEPS)
async def test_the_first_step_that_says_no_decides(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall, first: str
) -> None:
    """Rules T1, T2, T7: the first step that fails decides the result, and no later step is reached."""
    world = Steps(STEPS[STEPS.index(first) :])
    runner = await make_runner([world.tool()], policy=world.policy(), limiter=world, credentials=world)
    world.watch(log)
    result = await runner.run(
        call("nobody" if "known" in world.wrong else "book", world.arguments()),
        context,
        budget_s=0 if "budget" in world.wrong else None,
    )
    decision = log.closed[0].decision if log.closed else None
    assert (result.error_code, decision) == SAID[first]
    before = STEPS[: STEPS.index(first) + 1]
    assert world.asked == [step for step in ASKED if step in before]


async def test_what_is_refused_early_is_not_counted(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rules T2, T7: a denied call does not count against the rate limit, one with invalid JSON does."""
    world = Steps()
    runner = await make_runner([world.tool()], limiter=world, credentials=world)
    denied = await runner.run(call("book", '{"seats":1}'), context, policy=Policy())
    assert (denied.error_code, world.asked) == ("policy_denied", [])
    unread = await runner.run(call("book", '{"seats":', 1), context)
    assert (unread.error_code, world.asked) == ("invalid_json", ["rate"])


async def test_a_kept_result_takes_every_step_but_the_last(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rules T1, T2: a cached result is served only to a call that passes all steps and has its own row."""
    world = Steps()

    @tool(effect="read_only", cache_ttl_s=60, **CONNECTED)
    async def look(http: HttpClient) -> str:
        """Look."""
        world.note("run")
        return "seen"

    runner = await make_runner([look], limiter=world, credentials=world)
    assert (await runner.run(call("look"), context)).ok
    assert world.asked == ["rate", "credentials", "run"]
    world.asked.clear()
    assert (await runner.run(call("look", "{}", 1), context)).content == "seen"
    assert world.asked == ["rate", "credentials"]
    assert len(log.opened) == len(log.closed) == 2
    for wrong, code in (("rate", "rate_limited"), ("credentials", "execution_failed")):
        world.wrong = (wrong,)
        assert (await runner.run(call("look", "{}", len(log.closed)), context)).error_code == code
    world.wrong = ()
    denied = await runner.run(call("look", "{}", 9), context, policy=Policy())
    assert denied.error_code == "policy_denied"


def modules_that_call(name: str) -> list[str]:
    """The modules of the product that call a method whose written name ends so."""
    package = Path(proxy.__file__).parent
    word = name.rpartition(".")[2]
    found = []
    for path in package.rglob("*.py"):
        text = path.read_text()
        nodes = ast.walk(ast.parse(text)) if word in text else ()
        if any(isinstance(node, ast.Call) and ast.unparse(node.func).endswith(name) for node in nodes):
            found.append(path.relative_to(package).as_posix())
    return sorted(found)


def test_nothing_runs_but_by_a_plan() -> None:
    """Rule T1: only the runner's executor, which takes plans, calls a provider; a plan cannot run itself."""
    # ``tools`` in commands/cli.py is the module of its commands, not a provider.
    assert modules_that_call(".call_tool") == ["commands/cli.py", "tools/running/execution.py"]
    assert modules_that_call("tools.call_tool") == ["commands/cli.py"]
    assert modules_that_call("executor.run") == ["tools/running/runner.py"]
    for kind in (PlannedCall, AdmittedCall, Refusal):
        assert [name for name in dir(kind) if asyncio.iscoroutinefunction(getattr(kind, name))] == []
