"""The decorator ``tool`` and the provider of functions; rules T4, T5, T6 and T8."""

import asyncio
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from http_fakes import NoHttp
from pydantic import BaseModel, Field

from proxy.base.errors import ConfigError
from proxy.toolbox.clock import FixedClock
from proxy.tools import CallContext, Clock, HttpClient, Redaction, ToolEffect, tool
from proxy.tools.contract.capabilities import Capabilities, QueryParams
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.providers.function import FunctionProvider

SHOW = Redaction(output=("*",))
CALL = CallContext("run_1", "inv_1", "open", "call_1")


async def only(
    functions: list[Any], capabilities: Capabilities | None = None
) -> tuple[FunctionProvider, ToolSpec]:
    """Make a provider of one tool; return it and the tool's spec."""
    provider = FunctionProvider("t", functions, capabilities)
    (spec,) = await provider.list_tools()
    return provider, spec


async def use(function: Any, arguments: dict[str, Any], capabilities: Capabilities | None = None) -> Any:
    """Validate arguments and run a tool."""
    provider, spec = await only([function], capabilities)
    return await provider.call_tool(spec, spec.validate(arguments), CALL)


async def test_signature_makes_the_schema() -> None:
    """Rule T8: the schema has the names, types, descriptions and defaults of the parameters."""

    @tool(redaction=SHOW)
    async def add(
        a: Annotated[int, Field(description="First")],
        b: int = 1,
        json: str = "x",
        schema: str = Field("y", max_length=3),
    ) -> list[Any]:
        """Add two
        numbers.

        More that the model need not read.
        """
        return [a, b, json, schema]

    _, spec = await only([add])
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "First"},
            "b": {"type": "integer", "default": 1},
            "json": {"type": "string", "default": "x"},
            "schema": {"type": "string", "default": "y", "maxLength": 3},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert (spec.name, spec.provider, spec.description) == ("t__add", "t", "Add two numbers.")
    assert await use(add, {"a": 2}) == [2, 1, "x", "y"]
    assert await add(1, 2, "a", "b") == [1, 2, "a", "b"], "the function itself is as it was"


async def test_worst_effect_is_assumed() -> None:
    """Rule T2: a tool that declares no effect counts as one with external side effects."""

    @tool(redaction=SHOW)
    async def act() -> None:
        """Act."""

    _, spec = await only([act])
    assert spec.effect is ToolEffect.EXTERNAL_SIDE_EFFECT
    assert spec.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


async def test_model_parameter() -> None:
    """Rule T8: if the only parameter is a pydantic model, its schema is the tool's."""

    class Query(BaseModel):
        """A query."""

        city: str

    @tool(redaction=SHOW)
    async def find(query: Query) -> str:
        """Find."""
        return query.city

    _, spec = await only([find])
    assert list(spec.parameters["properties"]) == ["city"]
    assert "description" not in spec.parameters
    assert await use(find, {"city": "Bonn"}) == "Bonn"


async def test_verbatim_schema() -> None:
    """Rule T8: an author's own schema is sent to the model verbatim."""
    schema: dict[str, Any] = {
        "properties": {"q": {"title": "Kept", "type": "string"}},
        "type": "object",
        "$defs": {"Unused": {"enum": [3, 1, 2]}},
    }

    @tool(redaction=SHOW, parameters=schema)
    async def ask(arguments: dict[str, Any]) -> Any:
        """Ask."""
        return arguments

    _, spec = await only([ask])
    assert json.dumps(spec.parameters) == json.dumps(schema)
    schema["properties"].clear()
    assert spec.parameters["properties"], "a later change of the author's dict changes nothing"
    assert await use(ask, {"q": "a", "more": 1}) == {"q": "a", "more": 1}


async def test_capabilities_come_by_type(request: pytest.FixtureRequest) -> None:
    """Rule T6: a tool gets capabilities such as a clock by the parameters' types, outside the schema."""

    class Fetch(NoHttp):
        def __init__(self, hosts: Sequence[str]) -> None:
            self.hosts = hosts

        async def get_json(self, url: str, params: QueryParams | None = None, headers: Any = None) -> Any:
            return [url, self.hosts]

    class Database:
        pass

    database = Database()

    @tool(redaction=SHOW, hosts=("api.example.com",))
    async def look(
        city: str, clock: Clock, http: Annotated[HttpClient, "the client"], db: Database, *, call: CallContext
    ) -> Any:
        """Look."""
        return [city, clock.now(UTC).year, await http.get_json("u"), db is database, call.run_id]

    capabilities = Capabilities(FixedClock(datetime(2026, 11, 21, tzinfo=UTC)), Fetch, {Database: database})
    _, spec = await only([look], capabilities)
    assert list(spec.parameters["properties"]) == ["city"]
    assert spec.capabilities == ("Clock", "HttpClient", "Database")
    result = await use(look, {"city": "Bonn"}, capabilities)
    assert result == ["Bonn", 2026, ["u", ("api.example.com",)], True, "run_1"]


async def test_blocking_function_runs_in_a_bounded_thread() -> None:
    """A function that is not async runs in a thread, and at most ``max_threads`` run at once."""
    release = threading.Event()
    both = threading.Event()
    lock = threading.Lock()
    names: set[str] = set()
    now = most = 0

    @tool(redaction=SHOW)
    def block(n: int) -> int:
        """Block."""
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            names.add(threading.current_thread().name)
            if now == 2:
                both.set()
        release.wait(10)
        with lock:
            now -= 1
        return n

    provider = FunctionProvider("t", [block], max_threads=2)
    (spec,) = await provider.list_tools()
    tasks = [asyncio.create_task(provider.call_tool(spec, spec.validate({"n": n}), CALL)) for n in range(5)]
    await asyncio.to_thread(both.wait, 10)
    release.set()
    assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]
    assert most == 2
    assert names == {"toolrelay-tool"}


async def test_thread_holds_its_place_until_it_returns() -> None:
    """A cancelled blocking call frees its slot only when its thread ends; a second cancel ends the wait."""
    release, began = threading.Event(), threading.Event()

    @tool(redaction=SHOW)
    def block() -> None:
        """Block."""
        began.set()
        release.wait(10)

    provider = FunctionProvider("t", [block], max_threads=1)
    (spec,) = await provider.list_tools()
    task = asyncio.create_task(provider.call_tool(spec, spec.validate({}), CALL))
    await asyncio.to_thread(began.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    waiting = asyncio.create_task(provider.call_tool(spec, spec.validate({}), CALL))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    assert await waiting is None


def missing_redaction() -> Any:
    """A tool without a redaction rule."""

    @tool
    async def act() -> None:
        """Act."""

    return act


def faulty(**options: Any) -> Any:
    """A tool with these options."""

    @tool(**{"redaction": SHOW, **options})
    async def act(n: int = 1) -> None:
        """Act."""

    return act


def untyped() -> Any:
    """A tool with a parameter without a type."""

    @tool(redaction=SHOW)
    async def act(n) -> None:  # type: ignore[no-untyped-def]
        """Act."""

    return act


def variadic() -> Any:
    """A tool that takes any keyword arguments."""

    @tool(redaction=SHOW)
    async def act(**anything: int) -> None:
        """Act."""

    return act


def foreign() -> Any:
    """A tool with a parameter type that JSON cannot express."""

    @tool(redaction=SHOW)
    async def act(lock: asyncio.Lock) -> None:
        """Act."""

    return act


def hostless() -> Any:
    """A tool with an HTTP client but without hosts."""

    @tool(redaction=SHOW)
    async def act(http: HttpClient) -> None:
        """Act."""

    return act


def clockless() -> Any:
    """A tool that needs a clock."""

    @tool(redaction=SHOW)
    async def act(clock: Clock) -> None:
        """Act."""

    return act


def silent() -> Any:
    """A tool without a description."""

    @tool(redaction=SHOW)
    async def act() -> None:
        pass

    return act


def no_run() -> Any:
    """A class without a run method."""

    @tool(redaction=SHOW)
    class Act:
        """Act."""

    return Act


def unresolved() -> Any:
    """A tool with a type that does not exist."""

    @tool(redaction=SHOW)
    async def act(n: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
        """Act."""

    return act


def annotated(kind: Any) -> Any:
    """A tool whose parameter has this annotation."""

    def act(n: Any) -> None:
        """Act."""

    act.__annotations__["n"] = kind
    return tool(redaction=SHOW)(act)


def with_host(host: str) -> Any:
    """A tool that declares this host."""

    @tool(redaction=SHOW, hosts=(host,))
    async def act(http: HttpClient) -> None:
        """Act."""

    return act


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (missing_redaction(), "redaction_missing"),
        (faulty(name="a b"), "may contain letters"),
        (faulty(name="a_"), "may contain letters"),
        (faulty(name="x" * 62), "1 to 64"),
        (faulty(timeout_s=0), "timeout_s must be greater"),
        (faulty(max_result_bytes=-1), "max_result_bytes must be greater"),
        (faulty(description="x" * 1025), "longer than 1024"),
        (faulty(description=" "), "no description"),
        (faulty(strict=True), "strict mode requires every field"),
        (
            faulty(parameters={"type": "object", "properties": {"a": {"type": "null"}}}, strict=True),
            "would change the schema",
        ),
        (faulty(parameters={"type": "string"}), "parameters.type"),
        (faulty(redaction=Redaction(private_arguments=("m",))), "is not in the schema"),
        (untyped(), 'parameter "n" has no type'),
        (variadic(), 'parameter "anything"'),
        (foreign(), "cannot be written as a JSON Schema"),
        (hostless(), "names no hosts"),
        (clockless(), "needs a Clock"),
        (silent(), "no description"),
        (no_run(), "has no run method"),
        (unresolved(), "cannot be read"),
        (lambda: None, "is not a tool"),
        (annotated(Annotated[str, Field(pattern="(?=a)")]), "SchemaError.*look-around"),
        (annotated("list["), "SyntaxError"),
        (annotated("json.nope"), "AttributeError"),
        (with_host("https://api.example.com"), "is not a host"),
        (with_host("api.example.com/v1"), "is not a host"),
    ],
)
def test_tool_that_cannot_load_says_why(function: Any, fault: str) -> None:
    """Rules T4, T5 and T8: a tool that cannot load stops the start with a message that names the fault."""
    with pytest.raises(ConfigError, match=fault):
        FunctionProvider("t", [function])


@pytest.mark.parametrize("one", ["*.example.com", "offers.*.id", ("a", 1), ("",), {"a"}])
def test_one_text_is_no_list_of_texts(one: Any) -> None:
    """Rule T4: only sequences of texts are accepted: one text would count as one entry per character."""
    with pytest.raises(TypeError, match="hosts takes"):
        tool(redaction=SHOW, hosts=one)
    with pytest.raises(TypeError, match=r"Redaction\.output takes"):
        Redaction(output=one)
    with pytest.raises(TypeError, match=r"Redaction\.private_arguments takes"):
        Redaction(private_arguments=one)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("redaction", ("total",)),
        ("timeout_s", "5"),
        ("timeout_s", True),
        ("max_result_bytes", 1.5),
        ("retries", "2"),
        ("cache_ttl_s", None),
        ("strict", "no"),
        ("repeatable", "false"),
        ("untrusted_output", 0),
        ("egress", "no"),
        ("safety", ["high"]),
        ("connection", None),
        ("name", 3),
    ],
)
def test_option_of_another_kind_is_refused_by_name(option: str, value: object) -> None:
    """Rule T4: an option with a value of a wrong type is refused with a message that names the option."""
    options: dict[str, Any] = {"redaction": SHOW, option: value}
    with pytest.raises(TypeError, match=f"^{option} takes "):
        tool(**options)


def test_effect_that_there_is_not() -> None:
    """An unknown effect is refused with a message that lists the valid effects."""
    with pytest.raises(ValueError, match="read_only, state_change, external_side_effect"):
        tool(redaction=SHOW, effect="readonly")  # type: ignore[call-overload]


def test_two_functions_of_one_name() -> None:
    """Rule T5: two functions of one name in a provider stop the start."""
    with pytest.raises(ConfigError, match="twice"):
        FunctionProvider("t", [faulty(), faulty()])


async def test_declaration_reaches_the_spec() -> None:
    """The spec has every option that the author declares; a tool with the host ``*`` counts as egress."""
    options: dict[str, Any] = {
        "timeout_s": 3.0,
        "max_result_bytes": 100,
        "repeatable": True,
        "untrusted_output": True,
        "egress": True,
        "safety": {"threat": "low"},
    }
    _, spec = await only([faulty(**options)])
    assert {name: getattr(spec, name) for name in options} == options
    _, spec = await only([faulty(hosts=("*",))])
    assert spec.egress, "a tool that may call anywhere can carry data out"


async def test_strict_tool() -> None:
    """Rule T8: a strict tool is offered as strict, and its optional field is required but may be null."""

    @tool(redaction=SHOW, strict=True)
    async def act(n: int | None = None) -> Any:
        """Act."""
        return n

    _, spec = await only([act])
    assert spec.strict
    assert spec.definition().strict
    assert spec.parameters["required"] == ["n"]
    assert await use(act, {"n": None}) is None
