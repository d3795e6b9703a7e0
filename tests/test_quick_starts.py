"""Tools that are bound once for all applications are the same as those that the real code binds."""

from typing import Annotated, Any

import pytest
from pydantic import Field
from quick_starts import _BoundTools

from proxy.base.errors import ConfigError
from proxy.tools.contract.capabilities import Capabilities, Clock
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers import function
from proxy.tools.providers.function import tool


class _Clock:
    """Any object is a clock for a tool that only hands it back."""


def made(answer: object, kind: Any = int, text: str = "A number.", *, hosts: tuple[str, ...] = ()) -> Any:
    """Return a new function of the same code, with what it holds, its type and its declaration."""

    @tool(redaction=Redaction(), hosts=hosts, description="Return what it holds.")
    async def held(number: Annotated[kind, Field(description=text)], clock: Clock) -> Any:
        return answer, number, clock

    return held


@pytest.fixture
def bind() -> _BoundTools:
    """What binds tools, with nothing kept yet, in front of the real function."""
    real = function._load
    tools = _BoundTools()
    tools._load = real._load if isinstance(real, _BoundTools) else real
    return tools


async def test_each_application_has_its_own_function_and_capabilities(bind: _BoundTools) -> None:
    """The contract is shared; what the tool holds, and what it is given, are not."""
    clocks: list[Any] = [_Clock(), _Clock()]
    first, second = (bind("own", made(n), Capabilities(clock=clock)) for n, clock in enumerate(clocks))
    assert first.spec is second.spec
    assert await first.function(1, **first.constants) == (0, 1, clocks[0])
    assert await second.function(2, **second.constants) == (1, 2, clocks[1])


@pytest.mark.parametrize(
    "other",
    [made(0, str), made(0, int, "Another."), made(0, hosts=("x.example",))],
    ids=["type", "text", "hosts"],
)
def test_what_differs_is_bound_anew(bind: _BoundTools, other: Any) -> None:
    """Another type, another text or another declaration is another tool, although its code is the same."""
    capabilities = Capabilities(clock=_Clock())  # type: ignore[arg-type]
    assert bind("own", made(0), capabilities).spec is not bind("own", other, capabilities).spec
    assert (
        bind("own", other, capabilities).spec.parameters
        == bind._load("own", other, capabilities).spec.parameters
    )


def test_what_is_missing_is_refused_each_time(bind: _BoundTools) -> None:
    """A capability that the next application lacks is the same error as without the shared contract."""
    bind("own", made(0), Capabilities(clock=_Clock()))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a Clock"):
        bind("own", made(0), Capabilities())


def test_whoever_changes_a_contract_is_found(bind: _BoundTools) -> None:
    """At the end of the tests a contract must be what it was at first."""
    bound = bind("own", made(0), Capabilities(clock=_Clock()))  # type: ignore[arg-type]
    bind.check()
    bound.spec.parameters["changed"] = True
    with pytest.raises(AssertionError, match="own__held"):
        bind.check()
    with pytest.raises(ConfigError):
        bind.check_schema({"type": "array"}, "tool own__held")
