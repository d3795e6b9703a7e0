"""Validation of arguments: strict, with messages that quote no value; rule T3."""

import datetime
import json
from typing import Annotated, Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, Field, TypeAdapter, field_validator, model_validator

from proxy.tools.contract.arguments import canonical_arguments
from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.schemas.schema import declares, derive_schema
from proxy.tools.contract.validation import (
    ModelValidator,
    SchemaValidator,
    _date_rules,
    _numbers_at,
    _place,
    _written,
)

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), ANY, max_size=4))
def test_arguments_have_one_canonical_text(value: dict[str, Any]) -> None:
    """The canonical text is that of ``json``, whatever writes it, because it is on record; and what is
    validated means the arguments."""
    expected = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    assert canonical_arguments(value) == expected
    assert json.loads(_written(value)) == value


class Leg(BaseModel):
    """A leg."""

    day: datetime.date


class Trip(BaseModel):
    """A trip."""

    legs: list[Leg] = []
    seats: Annotated[int, Field(ge=1)] = 1
    price: float = 0.0
    share: tuple[int, int] | None = None
    names: dict[str, int] = {}
    by_name: Annotated[str, Field(alias="byName")] = ""

    @field_validator("price")
    @classmethod
    def no_cents(cls, value: float) -> float:
        """Refuse fractions, as a rule of the author's own."""
        if value != int(value):
            raise ValueError("whole units only")
        return value

    @model_validator(mode="after")
    def quoting(self) -> "Trip":
        """Refuse a name with a careless message that quotes it."""
        if self.by_name:
            raise ValueError(f"unknown: {self.by_name}")
        return self


def validator(model: Any) -> ModelValidator:
    """Make a validator for a model."""
    adapter = TypeAdapter(model)
    return ModelValidator(adapter, derive_schema(adapter, "tool t__x"))


def problems(validate: Any, arguments: dict[str, Any]) -> tuple[str, ...]:
    """The problems that a validator finds in the arguments."""
    with pytest.raises(ArgumentsInvalid) as caught:
        validate(arguments)
    return caught.value.problems


def test_json_strictness() -> None:
    """Strict validation accepts dates as text, tuples as lists and whole numbers as floats."""
    trip = validator(Trip)({"legs": [{"day": "2026-11-21"}], "share": [1, 2], "price": 3})
    assert trip.legs[0].day == datetime.date(2026, 11, 21)
    assert trip.share == (1, 2)
    assert trip.price == 3.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"seats": "2"}, ("seats: Input should be a valid integer",)),
        ({"seats": 0}, ("seats: Input should be greater than or equal to 1",)),
        ({"seats": True}, ("seats: Input should be a valid integer",)),
        ({"legs": [{"day": "2026-11-21"}, {}]}, ("legs[1].day: is required",)),
        ({"legs": [{"day": "2026-13-91"}]}, ("legs[0].day: is not valid",)),
        ({"legs": [{"day": "2026-11-21", "xyzzy": 1}]}, ("legs[0]: an unknown field",)),
        ({"names": {"xyzzy": "1"}}, ("names: Input should be a valid integer",)),
        ({"price": 1.5}, ("price: whole units only",)),
        ({"byName": "xyzzy"}, ("the arguments: is not valid",)),
        (
            {"seats": "a", "price": "b"},
            ("seats: Input should be a valid integer", "price: Input should be a valid number"),
        ),
    ],
)
def test_problems_name_field_and_fault(arguments: dict[str, Any], expected: tuple[str, ...]) -> None:
    """Rule T3: each problem names the field and its fault, but no key or value that the model invented."""
    assert problems(validator(Trip), arguments) == expected


def test_unknown_field_is_refused_with_the_known_ones() -> None:
    """Rule T3: an unknown field at the top level is refused with a list of the known fields."""
    (problem,) = problems(validator(Trip), {"xyzzy": 1})
    assert problem == "the arguments: an unknown field; it takes legs, seats, price, share, names, byName"


def test_only_the_name_in_the_schema_is_taken() -> None:
    """Rule T4: an alias of a field that is not in the schema is an unknown field."""

    class Login(BaseModel):
        pin: Annotated[str, Field(validation_alias=AliasChoices("pin", "code"))]

    assert validator(Login)({"pin": "1"}).pin == "1"
    assert problems(validator(Login), {"code": "1"})[0].startswith("the arguments: an unknown field")
    assert problems(validator(Trip), {"by_name": "1"})[0].startswith("the arguments: an unknown field")


class Principal(BaseModel):
    """A person whose field has an alias that is not in the schema."""

    passport: Annotated[str, Field(validation_alias=AliasChoices("passport", "pass_no"))]
    manager: "Principal | None" = None


class Party(BaseModel):
    """Persons in every place where a model can have them."""

    one: Principal | None = None
    many: list[Principal] = []
    pair: tuple[Principal, int] | None = None
    named: dict[str, Principal] = {}
    some: str | Principal | list[Principal] = ""
    anything: Any = None


HIDDEN = {"pass_no": "1"}
SHOWN = {"passport": "1"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"one": HIDDEN},
        {"one": {**SHOWN, "manager": HIDDEN}},
        {"many": [SHOWN, HIDDEN]},
        {"pair": [HIDDEN, 1]},
        {"named": {"ada": HIDDEN}},
        {"some": HIDDEN},
        {"some": [HIDDEN]},
    ],
)
def test_only_the_names_in_the_schema_are_taken_at_any_depth(arguments: dict[str, Any]) -> None:
    """Rule T4: an alias that is not in the schema, and so escapes redaction, is refused at any depth."""
    (problem,) = problems(validator(Party), arguments)
    assert problem == "the arguments: an unknown field inside of one of them"
    known = json.loads(json.dumps(arguments).replace("pass_no", "passport"))
    assert validator(Party)(known).model_dump(mode="json", exclude_unset=True) == known


def test_open_data_has_any_names() -> None:
    """Where the schema is open, any names are accepted, at any depth."""
    assert validator(Party)({"anything": {"pass_no": [{"x": 1}]}}).anything == {"pass_no": [{"x": 1}]}
    assert set(validator(Party)({"named": {"pass_no": SHOWN}}).named) == {"pass_no"}


def test_a_union_in_a_recursive_model_is_walked_once() -> None:
    """Rule T7: for a union of recursive models the work does not double with each level."""

    class Left(BaseModel):
        inner: "Left | Right | None" = None

    class Right(BaseModel):
        inner: "Left | Right | None" = None

    Left.model_rebuild(_types_namespace={"Left": Left, "Right": Right})
    Right.model_rebuild(_types_namespace={"Left": Left, "Right": Right})
    schema = derive_schema(TypeAdapter(Left), "tool t__x")
    value: dict[str, Any] = {"other": 1}
    for _ in range(60):
        value = {"inner": value}
    assert not declares(schema, value)


@pytest.mark.parametrize("given", ["ber", " BER ", "Ber"])
def test_a_value_is_not_repeated_in_another_shape(given: str) -> None:
    """Rule T3: an author's message that quotes the value stripped or in upper case is not shown either."""

    class Trip(BaseModel):
        to: str

        @field_validator("to")
        @classmethod
        def known(cls, value: str) -> str:
            raise ValueError(f"{value.strip().upper()} is no airport")

    assert problems(validator(Trip), {"to": given}) == ("to: is not valid",)


def test_problems_are_few() -> None:
    """The model gets the first eight problems and the number of the others."""
    found = problems(validator(Trip), {"legs": [{"day": 1.5, str(n): 1} for n in range(50)]})
    assert len(found) == 9
    assert found[-1] == "and 92 more"


def test_verbatim_schema_validation() -> None:
    """Rule T8: the arguments of a tool with its own schema are validated by exactly that schema."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 5},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    validate = SchemaValidator(schema)
    assert validate({"city": "Bonn", "days": [1]}) == {"city": "Bonn", "days": [1]}
    assert problems(validate, {}) == ('the arguments: does not meet "required" ["city"]',)
    assert problems(validate, {"city": "xyzzyx"}) == ('city: does not meet "maxLength" 5',)
    assert problems(validate, {"city": 1, "xyzzy": 2}) == (
        'city: does not meet "type" "string"',
        "the arguments: an unknown field",
    )
    assert problems(validate, {"city": "Bonn", "days": [1, 0]}) == ('days[1]: does not meet "minimum" 1',)
    assert len(problems(validate, {"city": "Bonn", "days": [0] * 50})) == 9


KEYS = ["4111111111111111", "0", "007", "+7", "-7", "7.0", str(2**64), "٣", "9" * 5000]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_digits_is_no_place_in_a_list(key: str) -> None:
    """Rule T3: messages do not repeat a key that the model invented, even if it looks like an index."""
    number = {"type": "integer"}
    inner = {"type": "object", "additionalProperties": {"type": "array", "items": number}}
    validate = SchemaValidator({"type": "object", "properties": {"list": {"type": "array", "items": inner}}})
    said = 'does not meet "type" "integer"'
    assert problems(validate, {"list": [{}, {"a": [1], key: [2, "xyzzy"]}]}) == (f"list[1][1]: {said}",)
    nested = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": number}}
    assert problems(SchemaValidator(nested), {key: {key: "x"}}) == (f"the arguments: {said}",)
    assert problems(validator(Trip), {"names": {key: "x"}}) == ("names: Input should be a valid integer",)
    assert problems(validator(Stay), {"by_name": {key: "0"}}) == (
        "by_name: must be a date in ISO 8601, not a number",
    )


def test_a_declared_name_of_digits_is_said() -> None:
    """Rule T3: messages name a declared field even if its name consists of digits."""
    validate = SchemaValidator({"type": "object", "properties": {"007": {"type": "integer"}}})
    assert problems(validate, {"007": "x"}) == ('007: does not meet "type" "integer"',)


def test_verbatim_schema_with_huge_numbers() -> None:
    """An integer beyond 64 bits is accepted."""
    validate = SchemaValidator({"type": "object", "properties": {"n": {"type": "integer"}}})
    assert validate({"n": 2**200}) == {"n": 2**200}


class Stay(BaseModel):
    """Dates in every place where a schema can have them."""

    since: datetime.datetime | None = None
    days: list[datetime.date] = []
    either: datetime.date | datetime.datetime | int | None = None
    by_name: dict[str, datetime.date] = {}
    pair: tuple[datetime.date, int] | None = None
    leg: Leg | None = None
    text: datetime.date | str = ""
    lenient: datetime.datetime | None = None

    @field_validator("lenient", mode="before")
    @classmethod
    def now(cls, value: Any) -> Any:
        """Accept a word and a number that only this tool knows."""
        return datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC) if value in ("now", 7) else value


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"since": "2030"}, "since"),
        ({"since": "1893456000"}, "since"),
        ({"since": "-1893456000.5"}, "since"),
        ({"days": ["2030-01-31", "0"]}, "days[1]"),
        ({"either": "1893456000"}, "either"),
        ({"by_name": {"x": "0"}}, "by_name"),
        ({"pair": ["0", 1]}, "pair[0]"),
        ({"leg": {"day": "0"}}, "leg.day"),
    ],
)
def test_number_is_no_date(arguments: dict[str, Any], field: str) -> None:
    """Rule T3: a number in the place of a date is refused, not read as seconds since 1970."""
    assert problems(validator(Stay), arguments) == (f"{field}: must be a date in ISO 8601, not a number",)


@pytest.mark.parametrize(
    "arguments",
    [
        {"since": "2030-01-31T00:00:00+01:00", "days": ["2030-01-31"], "leg": {"day": "2030-01-31"}},
        {"since": None, "leg": None, "pair": None, "either": 7},
        {"text": "2030"},
        {"lenient": "now"},
        {"lenient": 7},
    ],
)
def test_what_is_no_number_in_the_place_of_a_date_stays(arguments: dict[str, Any]) -> None:
    """Rule T3: dates, null, texts where the field allows them, and an author's own forms are accepted."""
    assert validator(Stay)(arguments)


class Trips(Stay):
    """The same fields in a recursive model."""

    before: "Trips | None" = None
    more: list["Trips"] = []
    others: dict[str, list[datetime.datetime]] = {}


TEXTS = ["0", "-1.5", "+7", ".", "2030", "2030-01-31", "2030\n", "٣", "", "now"]
FIELDS = [*Trips.model_fields, "x"]
texts = st.sampled_from([*TEXTS, None, 7])
holders = texts | st.lists(texts, max_size=2) | st.dictionaries(st.sampled_from(["day", "x", "07"]), texts)
trips = st.recursive(
    st.dictionaries(st.sampled_from(FIELDS), holders, max_size=6),
    lambda inner: st.dictionaries(
        st.sampled_from(FIELDS), holders | inner | st.lists(inner, max_size=2), max_size=6
    ),
    max_leaves=4,
)


@given(trips)
def test_numbers_are_found_where_the_rules_as_a_schema_forbid_them(arguments: dict[str, Any]) -> None:
    """Rule T3: the search for numbers in place of dates finds what a JSON Schema validator would find."""
    rules = _date_rules(derive_schema(TypeAdapter(Trips), "tool t__x"))
    refused = jsonschema_rs.validator_for(rules).iter_errors(arguments)
    expected = {tuple(_place(error.instance_path, arguments)) for error in refused}
    assert set(_numbers_at(rules, arguments, rules, ())) == expected
