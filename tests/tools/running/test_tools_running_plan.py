"""Planning: what the runner fixes about a call before it runs, and why it refuses calls."""

import copy
import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from argument_texts import argument_texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    Field,
    PrivateAttr,
    SecretStr,
    field_serializer,
    field_validator,
)
from runner_kit import MakeCall, MakeRunner, MemoryLog

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolCall
from proxy.tools import IdempotencyKey, Redaction, tool
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import ArgumentBound
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.plan import (
    AdmittedCall,
    ApprovedCall,
    ContinuedCall,
    PlannedCall,
    Refusal,
    admit,
    plan,
)

READ: dict[str, Any] = {"effect": "read_only", "redaction": Redaction(output=("*",))}
EFFECT: dict[str, Any] = {"effect": "state_change", "redaction": Redaction(output=("*",))}
Airport = Annotated[str, AfterValidator(str.upper)]
ANY = Policy(allow=("*",))


def _refuse(value: str) -> str:
    """A validator that refuses every value."""
    raise KeyError(value)


@tool(effect="state_change", redaction=Redaction(private_arguments=("pin",)))
async def fly(to: Airport, pin: str = "", seats: int = 1) -> str:
    """Fly."""
    return to


def spec_of(target: Any) -> ToolSpec:
    """The spec of one tool."""
    return FunctionProvider("t", [target]).specs[0]


def planned(target: Any, text: str = "{}", policy: Policy = ANY) -> PlannedCall | Refusal:
    """Admit and plan a call of that tool."""
    spec = spec_of(target)
    admitted = admit(ToolCall("call_1", spec.name, text, 0), spec, policy, untrusted="")
    if isinstance(admitted, Refusal):
        return admitted
    return plan(admitted, caller="key_1", key="inv_1")


def sound(target: Any, text: str = "{}") -> PlannedCall:
    """Plan a call that must not be refused."""
    found = planned(target, text)
    assert isinstance(found, PlannedCall)
    return found


def test_a_plan_binds_all_that_its_execution_hangs_on() -> None:
    """Rule T1: a plan has the call, spec, value, canonical and masked arguments, caller and key."""
    found = sound(fly, '{"to":"ber", "pin":"s3cret"}')
    assert (found.call.call_id, found.call.name, found.spec.name) == ("call_1", "t__fly", "t__fly")
    assert (found.caller, found.connection, found.read_only) == ("key_1", "", False)
    assert found.decision == 'allowed: policy.allow has "*"'
    assert found.arguments == b'{"pin":"s3cret","seats":1,"to":"BER"}'
    assert found.arguments_redacted == {"to": "ber", "pin": "[private]"}
    assert found.value == found.spec.validate({"to": "BER", "pin": "s3cret"})
    assert found.idempotency_key == "inv_1"
    assert "s3cret" not in repr(found)


def test_a_plan_does_not_change() -> None:
    """Rule T1: a plan is immutable."""
    found = sound(fly, '{"to":"ber"}')
    for name in ("value", "arguments", "caller", "spec", "call", "other"):
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
            setattr(found, name, "changed")


def test_planning_does_nothing() -> None:
    """Planning has no side effects: the same call gives an equal plan each time."""
    spec = spec_of(fly)
    admitted = admit(ToolCall("call_1", spec.name, '{"to":"ber"}', 0), spec, ANY, untrusted="")
    assert isinstance(admitted, AdmittedCall)
    first, second = (plan(admitted, caller="key_1", key="inv_1") for _ in range(2))
    assert isinstance(first, PlannedCall)
    assert first == second


def test_an_approval_overrules_nothing_but_the_want_of_one() -> None:
    """An approved call is admitted and marked as approved, but an approval does not lift a denial."""
    spec = spec_of(fly)
    call = ToolCall("call_1", spec.name, '{"to":"ber"}', 0)
    asking, denying = Policy(allow=("*",), approve=("*",)), Policy(approve=("*",))
    admitted = admit(call, spec, asking, untrusted="", approved=True)
    assert isinstance(admitted, AdmittedCall)
    assert admitted.decision == 'approved: policy.approve has "*"'
    refused = admit(call, spec, denying, untrusted="", approved=True)
    assert isinstance(refused, Refusal)
    assert refused.failure.code == "policy_denied"


@pytest.mark.parametrize(
    ("policy", "text", "code", "decision"),
    [
        (Policy(), "", "policy_denied", 'denied: policy.allow lacks "t__fly"'),
        (
            Policy(allow=("*",), approve=("*",)),
            "",
            "approval_required",
            'needs_approval: policy.approve has "*"',
        ),
        (
            Policy(allow=("*",), max_argument_bytes=2),
            '{"to":1}',
            "invalid_arguments",
            'allowed: policy.allow has "*"',
        ),
        (ANY, '{"to":', "invalid_json", 'allowed: policy.allow has "*"'),
        (ANY, '{"to":1}', "invalid_arguments", 'allowed: policy.allow has "*"'),
        (
            Policy(allow=("*",), arguments={"*": {"seats": ArgumentBound(max=2)}}),
            '{"to":"ber","seats":3,"pin":"s3cret"}',
            "policy_denied",
            'denied: policy.arguments."*".seats',
        ),
    ],
)
def test_a_refusal_is_an_outcome_of_its_own(policy: Policy, text: str, code: str, decision: str) -> None:
    """Rules T2, T3: each kind of refusal is returned, not raised, with its error code and its rule."""
    found = planned(fly, text, policy)
    assert isinstance(found, Refusal)
    assert (found.failure.code, found.decision) == (code, decision)
    assert "s3cret" not in f"{found!r} {found.failure}"


def test_a_bound_is_not_passed_by_another_name() -> None:
    """Rule T2: a bound on a nested field cannot be avoided with another alias of the field."""

    class Stay(BaseModel):
        nights: Annotated[int, Field(validation_alias=AliasChoices("nights", "n"))] = 1

    @tool(effect="read_only", redaction=Redaction(private_arguments=("stay.nights",)))
    async def book(stay: Stay, name: str = "") -> int:
        """Book."""
        return stay.nights

    policy = Policy(allow=("*",), arguments={"*": {"stay.nights": ArgumentBound(max=7)}})
    over = planned(book, '{"stay":{"nights":1000}}', policy)
    other = planned(book, '{"stay":{"n":1000}}', policy)
    assert isinstance(over, Refusal)
    assert isinstance(other, Refusal)
    assert (over.failure.code, other.failure.code) == ("policy_denied", "invalid_arguments")
    assert "1000" not in f"{over} {other}"


def test_what_there_is_not_is_refused() -> None:
    """Rule T3: an unknown tool and a tool without a redaction rule are refused with their own codes."""
    call = ToolCall("c", "t__none", "{}", 0)
    nothing = admit(call, None, ANY, untrusted="")
    bare = admit(call, dataclasses.replace(spec_of(fly), redaction=None), ANY, untrusted="")
    assert isinstance(nothing, Refusal)
    assert isinstance(bare, Refusal)
    assert (nothing.failure.code, bare.failure.code) == ("unknown_tool", "redaction_missing")


@pytest.mark.parametrize(
    "approved",
    [ApprovedCall("appr_1", "key boss", "0" * 64, "1" * 64), ContinuedCall("inv_1", "0" * 64)],
    ids=["approved", "continued"],
)
def test_an_approved_call_of_a_tool_that_went_says_so(approved: ApprovedCall | ContinuedCall) -> None:
    """The model reads that the tool has changed or gone and waits for its operator, not that it never was."""
    refused = admit(ToolCall("c", "t__none", "{}", 0), None, ANY, untrusted="", approved=approved)
    assert isinstance(refused, Refusal)
    assert refused.failure.code == "policy_denied"
    assert "has changed or was removed since the call was approved" in refused.failure.message
    assert "off until its operator allows it again" in refused.failure.message


def test_only_who_needs_a_key_has_one() -> None:
    """A read-only call has an idempotency key only if its tool has a parameter for it."""

    @tool(**READ)
    async def look() -> None:
        """Look."""

    @tool(**READ)
    async def ask(key: IdempotencyKey) -> None:
        """Ask."""

    assert sound(look).idempotency_key is None
    assert sound(ask).idempotency_key == "inv_1"


# --- canonical arguments -----------------------------------------------------------------------------


class Hidden(BaseModel):
    """Arguments that JSON output masks or leaves out."""

    word: SecretStr = SecretStr("")
    inner: str = Field(default="", exclude=True)


class Masked(BaseModel):
    """Arguments that all have the same JSON output."""

    city: str

    @field_serializer("city")
    def shown(self, value: str) -> str:
        return "somewhere"


class Broken(BaseModel):
    """Arguments that cannot be serialized."""

    city: str

    @field_serializer("city")
    def shown(self, value: str) -> str:
        raise RuntimeError(value)


class Renamed(BaseModel):
    """Arguments whose name in the input differs from that in the output."""

    city: str = Field(validation_alias="place")


class Drawn(BaseModel):
    """Arguments with an iterator, which can be read only once."""

    numbers: Iterable[int]


def taker(model: type[BaseModel]) -> Any:
    """A tool whose arguments are this model."""

    async def take(arguments: Any) -> None:
        """Take."""

    take.__annotations__["arguments"] = model
    return tool(**READ)(take)


@pytest.mark.parametrize(
    ("model", "one", "other"),
    [
        (Hidden, '{"word":"a"}', '{"word":"b"}'),
        (Hidden, '{"inner":"a"}', '{"inner":"b"}'),
        (Masked, '{"city":"a"}', '{"city":"b"}'),
        (Broken, '{"city":"a"}', '{"city":"b"}'),
        (Renamed, '{"place":"a"}', '{"place":"b"}'),
        (Drawn, '{"numbers":[1]}', '{"numbers":[2]}'),
    ],
)
def test_arguments_that_hide_what_they_hold_are_told_apart(
    model: type[BaseModel], one: str, other: str
) -> None:
    """Rule R5: if JSON output loses part of a value, the canonical arguments are those the model wrote."""
    take = taker(model)
    assert sound(take, one).arguments == one.encode()
    assert sound(take, other).arguments == other.encode()
    assert sound(take, f" {one} ").arguments == one.encode()


def test_a_value_that_is_used_up_is_whole() -> None:
    """A tool gets all values of an iterator, although planning has serialized it."""
    found = sound(taker(Drawn), '{"numbers":[1,2]}')
    assert list(found.value.numbers) == [1, 2]
    assert list(found.fresh_value().numbers) == [1, 2]


def test_what_a_model_keeps_in_private_is_whole() -> None:
    """A tool gets a model's private attributes whole, although a serializer changes them in planning."""

    class Stay(BaseModel):
        """A stay."""

        city: str
        _left: list[str] = PrivateAttr(default_factory=lambda: ["token"])

        @field_serializer("city")
        def write(self, city: str) -> str:
            self._left.clear()
            return city

    assert sound(taker(Stay), '{"city":"BER"}').value._left == ["token"]


@pytest.mark.parametrize(
    ("text", "times"), [('{"city":"BER"}', 1), ('{"city":"ber"}', 2), ('{"city":"BER","days":[1]}', 2)]
)
def test_arguments_that_come_as_they_are_shown_are_validated_once(text: str, times: int) -> None:
    """Arguments are validated twice only if validation changed them or they are more than plain values."""
    seen = []

    class Stay(BaseModel):
        """A stay."""

        city: str
        days: list[int] | None = None

        @field_validator("city")
        @classmethod
        def upper(cls, value: str) -> str:
            seen.append(value)
            return value.upper()

    assert json.loads(sound(taker(Stay), text).arguments)["city"] == "BER"
    assert len(seen) == times


def test_a_default_that_is_written_out_is_the_same_call() -> None:
    """Rule R5: for a function, a call with a default written out equals one with the argument left out."""

    @tool(**EFFECT)
    async def book(
        to: Airport,
        back: date | None = None,
        share: float = 1,
        tags: Sequence[str] = (),
        cabin: Annotated[Literal["economy", "first"], Field(description="Where")] = "economy",
        bags: int = Field(default=2, ge=0),
    ) -> str:
        """Book."""
        return to

    bare = sound(book, '{"to":"ber"}')
    assert json.loads(bare.arguments) == {
        "to": "BER",
        "back": None,
        "share": 1.0,
        "tags": [],
        "cabin": "economy",
        "bags": 2,
    }
    for written in ({"back": None}, {"share": 1}, {"tags": [], "cabin": "economy"}, {"bags": 2}):
        assert sound(book, json.dumps({"to": "BER", **written})).equality == bare.equality
    for other in ({"back": "2027-03-01"}, {"share": 0.5}, {"tags": ["a"]}, {"cabin": "first"}, {"bags": 0}):
        assert sound(book, json.dumps({"to": "BER", **other})).equality != bare.equality


@pytest.mark.parametrize(
    ("kind", "default", "written"),
    [
        (SecretStr, SecretStr("a"), "**********"),
        (Airport, "ber", "ber"),
        (str, None, "x"),
        (bool, 1, True),
        (Annotated[str, Field(exclude=True)], "a", "b"),
        (Annotated[str, AfterValidator(_refuse)], "a", "b"),
        (str, Field(default_factory=lambda: "a"), "a"),
        (list[int], Field(default_factory=list), []),
    ],
)
def test_a_default_that_writing_would_change_is_told_apart(
    kind: Any, default: object, written: object
) -> None:
    """Rule R5: a default that JSON or validation would change is not added to the canonical arguments."""

    async def take(to: Airport, one: Any = default) -> None:
        """Take."""

    take.__annotations__["one"] = kind
    taking = tool(**READ)(take)
    assert sound(taking, '{"to":"ber"}').arguments == b'{"to":"BER"}'
    found = planned(taking, json.dumps({"to": "ber", "one": written}))
    assert isinstance(found, Refusal) or b'"one"' in found.arguments


def test_what_was_not_given_is_told_from_a_default() -> None:
    """For a tool with a model, an argument that is null differs from one that was not given."""

    class Change(BaseModel):
        """A change."""

        title: str | None = None

    take = taker(Change)
    assert [sound(take, text).arguments for text in ("{}", '{"title":null}')] == [b"{}", b'{"title":null}']
    assert sound(take, '{"title":null}').value.model_fields_set == {"title"}
    assert sound(take, "{}").value.model_fields_set == set()


@settings(max_examples=300, deadline=None)
@given(
    text=argument_texts
    | st.fixed_dictionaries(
        {"to": st.text(max_size=8)}, optional={"pin": st.text(max_size=4), "seats": st.integers()}
    ).map(json.dumps)
)
def test_a_plan_means_what_was_written(text: str) -> None:
    """Rules T3, R5: any text is refused or planned, and the canonical arguments give the same plan again."""
    found = planned(fly, text)
    if isinstance(found, Refusal):
        assert found.failure.code in ("invalid_json", "invalid_arguments")
        return
    written = found.spec.validate(json.loads(text))
    assert found.value == written == found.fresh_value()
    again = sound(fly, found.arguments.decode())
    assert (again.arguments, again.equality) == (found.arguments, found.equality)
    upper = sound(fly, json.dumps(json.loads(text) | {"to": json.loads(text)["to"].upper()}, indent=1))
    assert upper.arguments == found.arguments


# --- through the runner ------------------------------------------------------------------------------


async def test_spellings_that_validation_makes_one_are_one_call(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule R5: calls whose arguments validate to the same values cause one effect and share one result."""
    seen = []

    @tool(**EFFECT)
    async def book(to: Airport) -> str:
        """Book."""
        seen.append(to)
        return to

    @tool(**READ, cache_ttl_s=60)
    async def find(to: Airport) -> str:
        """Find."""
        seen.append(to)
        return to

    runner = await make_runner([book, find])
    for name in ("book", "find"):
        seen.clear()
        texts = ['{"to":"ber"}', '{"to":"BER"}', ' {"to": "bEr"}']
        calls = [call(name, text, seq) for seq, text in enumerate(texts)]
        turn = context.at_turn(1 if name == "book" else 2)
        results = [await runner.run(one, turn) for one in calls]
        assert [one.content for one in results] == ["BER"] * 3
        assert seen == ["BER"]
    assert [row.arguments_redacted for row in log.closed[:3]] == [{"to": "ber"}, {"to": "BER"}, {"to": "bEr"}]


async def test_a_default_written_out_is_not_run_again(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule R5: calls with a default written out and left out cause one effect and share one result."""
    seen = []

    @tool(**EFFECT)
    async def book(to: str, seats: int = 1) -> str:
        """Book."""
        seen.append((to, seats))
        return to

    @tool(**READ, cache_ttl_s=60)
    async def find(to: str, seats: int = 1) -> str:
        """Find."""
        seen.append((to, seats))
        return to

    runner = await make_runner([book, find])
    for turn, name in enumerate(("book", "find"), 1):
        seen.clear()
        for seq, text in enumerate(('{"to":"a"}', '{"to":"a","seats":1}', '{"seats":2,"to":"a"}')):
            assert (await runner.run(call(name, text, seq), context.at_turn(turn))).content == "a"
        assert seen == [("a", 1), ("a", 2)]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.text(alphabet="aAbßſ", max_size=3), max_size=8), spaced=st.booleans())
async def test_no_spelling_causes_an_effect_twice(
    make_runner: MakeRunner, names: list[str], spaced: bool
) -> None:
    """Rule R5: within a run, calls that validate to the same values cause one effect, however written."""
    seen: list[str] = []

    @tool(**EFFECT)
    async def book(to: Airport) -> str:
        """Book."""
        seen.append(to)
        return to

    runner = await make_runner([book])
    texts = [json.dumps({"to": name}, indent=2 if spaced else None) for name in names]
    calls = [ToolCall(f"call_{seq}", "t__book", text, seq) for seq, text in enumerate(texts)]
    results = await runner.run_many(calls, RunContext("run_1", 1, "open"))
    assert [one.content for one in results] == [name.upper() for name in names]
    assert seen == list(dict.fromkeys(name.upper() for name in names))


@pytest.mark.parametrize("verbatim", [False, True])
async def test_each_try_gets_the_arguments_whole(
    make_runner: MakeRunner, context: RunContext, call: MakeCall, verbatim: bool
) -> None:
    """A tool that changes its arguments and fails gets them unchanged at the next retry."""
    seen = []

    async def take(arguments: Any) -> str:
        """Take."""
        numbers = arguments["numbers"] if verbatim else arguments.numbers
        seen.append(copy.copy(numbers))
        numbers.clear()
        if len(seen) < 3:
            raise ConnectionError
        return "done"

    class Numbers(BaseModel):
        """Numbers."""

        numbers: list[int]

    schema = {"type": "object", "properties": {"numbers": {"type": "array"}}, "additionalProperties": False}
    take.__annotations__["arguments"] = dict[str, Any] if verbatim else Numbers
    options: dict[str, Any] = {"parameters": schema} if verbatim else {}
    runner = await make_runner([tool(**READ, retries=2, **options)(take)])
    result = await runner.run(call("take", '{"numbers":[1,2]}'), context)
    assert result.content == "done"
    assert seen == [[1, 2]] * 3


async def test_a_private_value_is_masked_as_it_was_validated_too(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """Rule T4: a message that quotes the validated form of a private argument is masked, too."""

    @tool(effect="read_only", redaction=Redaction(private_arguments=("name",)))
    async def greet(name: Airport) -> str:
        """Greet."""
        raise ToolFailure(f"no {name} here")

    runner = await make_runner([greet])
    result = await runner.run(call("greet", '{"name":"ada"}'), context)
    assert result.safe_message == "no [private] here"
    assert "ADA" not in repr((result, log.closed))
