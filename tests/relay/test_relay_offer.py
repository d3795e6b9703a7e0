"""Which server tools a request offers, and whether a called name is the client's or the proxy's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.records.rows import ToolEffect
from proxy.relay.offering.narrowing import offered_only
from proxy.relay.offering.offer import (
    Offer,
    OfferRules,
    Offers,
    decide,
    guard,
    guarded_names,
    is_reserved,
)
from proxy.relay.offering.tool_limits import ANY_TOOLS, NO_TOOLS, ToolLimits
from proxy.relay.offering.wanted import Wanted, parse_wanted
from proxy.tools.access.catalog import Catalog, Selection
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.chat.wire import ChatWire
from proxy.wires.client_port import ClientRequest
from proxy.wires.responses.wire import ResponsesWire

TIME, WEATHER, SHOP = "core__time", "core__weather", "shop__buy"
INJECT, ON_REQUEST = OfferRules(), OfferRules(inject=False)


def spec(name: str) -> ToolSpec:
    """A tool with that id."""
    return ToolSpec(
        name=name,
        description=f"does {name}",
        parameters={"type": "object", "properties": {}, "additionalProperties": False},
        effect=ToolEffect.READ_ONLY,
        provider=name.partition("__")[0],
        validate=lambda arguments: arguments,
        digest="d",
    )


SELECTION = Selection(
    Catalog(), offered=(spec(TIME), spec(WEATHER), spec(SHOP)), withheld={"core__web": "policy.allow"}
)


def function(name: str) -> dict[str, Any]:
    """A function as a client declares it."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "x": 1}}}


def request(*declared: str, **fields: Any) -> ClientRequest:
    """A request that declares these functions."""
    payload: dict[str, Any] = {"model": "m", "messages": [], **fields}
    if declared:
        payload["tools"] = [function(name) for name in declared]
    return ChatWire().parse(payload)


def offer(
    asked: ClientRequest, wanted: str | None = None, rules: OfferRules = INJECT, *, takes_tools: bool = True
) -> Offer:
    """The offer for a request and the text of its header."""
    return decide(
        asked, SELECTION, rules, parse_wanted(wanted), limits=ANY_TOOLS if takes_tools else NO_TOOLS
    )


def names(definitions: Sequence[Any]) -> list[str]:
    """The names of definitions, in order."""
    return [definition.name for definition in definitions]


def refusal(asked: ClientRequest, wanted: str | None, **options: Any) -> RequestError:
    """The error with which a request is refused."""
    with pytest.raises(RequestError) as caught:
        offer(asked, wanted, **options)
    assert caught.value.status == 400
    return caught.value


# ---------------------------------------------------------------- the header


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, None),
        ("none", Wanted()),
        (" none ", Wanted()),
        ("all", Wanted(every=True)),
        ("a", Wanted(names=("a",))),
        ("b, a ,b,,", Wanted(names=("b", "a"))),
        ("none,a", Wanted(names=("none", "a"))),
    ],
)
def test_the_header_is_read(header: str | None, wanted: Wanted | None) -> None:
    """The header is ``none``, ``all`` or a list of names, of which each counts once."""
    assert parse_wanted(header) == wanted


@pytest.mark.parametrize("header", ["", " ", ",", " , "])
def test_a_header_that_names_nothing_is_refused(header: str) -> None:
    """Rule E1: a header without a name gets a 400 that names the header."""
    with pytest.raises(RequestError) as caught:
        parse_wanted(header)
    assert (caught.value.status, caught.value.param) == (400, "x-toolrelay-tools")


# ---------------------------------------------------------------- what is injected


def test_allowed_tools_are_injected_unasked() -> None:
    """Rule T2: the offer has all tools that the policy allows, and the withheld ones with their rule."""
    found = offer(request("mine"))
    assert names(found.added) == [TIME, WEATHER, SHOP]
    assert found.replaced == ()
    assert found.names == {TIME: TIME, WEATHER: WEATHER, SHOP: SHOP}
    assert found.client_names == {"mine"}
    assert found.withheld == {"core__web": "policy.allow"}
    assert found.tool_ids() == (TIME, WEATHER, SHOP)
    assert found.declared == {"mine", TIME, WEATHER, SHOP}
    assert found


def test_without_inject_only_what_is_asked_for() -> None:
    """With ``inject = false`` the offer has nothing by default, all tools for ``all``, or the named ones."""
    assert not offer(request(), None, ON_REQUEST)
    assert names(offer(request(), "all", ON_REQUEST).added) == [TIME, WEATHER, SHOP]
    assert names(offer(request(), SHOP, ON_REQUEST).added) == [SHOP]


def test_names_choose_within_the_policy() -> None:
    """If the header names tools, only these are offered, in the order of the registry."""
    assert names(offer(request(), f"{WEATHER},{TIME}").added) == [TIME, WEATHER]


def test_none_is_none() -> None:
    """With ``none`` every declared name is the client's, also an alias or a reserved id."""
    found = offer(request(TIME, "say"), "none", OfferRules(aliases={"say": SHOP}))
    assert not found
    assert found.client_names == {TIME, "say"}
    assert found.withheld == {"core__web": "policy.allow"}


@pytest.mark.parametrize("name", ["core__web", "core__nothing", "none", "all", "CORE__TIME", "core__*"])
def test_unavailable_names_are_refused_alike(name: str) -> None:
    """Rule T2: a denied tool and one that does not exist give the same error."""
    error = refusal(request(), f"{TIME},{name}")
    assert error.param == "x-toolrelay-tools"
    assert error.message == f"x-toolrelay-tools names a tool that is not available: {name!r}."


def test_an_unavailable_name_is_cut_in_the_error() -> None:
    """The error does not repeat a long name in full."""
    assert len(refusal(request(), "x" * 5000).message) < 150


def test_the_same_request_offers_the_same_bytes() -> None:
    """Rule T7: offered tools are sorted, so that a provider's prompt cache holds."""
    wire = ChatWire()
    bodies = set()
    for header in (None, "all", f"{SHOP},{TIME},{WEATHER}", f"{TIME},{SHOP},{WEATHER}"):
        raw = json.dumps({"model": "m", "messages": [], "tools": [function("mine")]}).encode()
        asked = wire.parse(json.loads(raw))
        found = offer(asked, header)
        editor = wire.editor(raw, asked)
        editor.offer(tuple(reversed(found.added)), found.replaced)
        bodies.add(editor.render())
    (body,) = bodies
    tools = [tool["function"]["name"] for tool in json.loads(body)["tools"]]
    assert tools == ["mine", TIME, WEATHER, SHOP]


# ---------------------------------------------------------------- whose call it is


def test_a_declared_function_is_the_clients() -> None:
    """If a client's function has the name of a server tool that is not reserved, the client's is used."""
    found = offer(request(SHOP))
    assert names(found.added) == [TIME, WEATHER]
    assert not found.is_hidden(SHOP)
    assert found.withheld[SHOP] == "the client declared a function of this name"
    assert SHOP not in found.names


def test_names_that_nobody_declared_are_hidden() -> None:
    """Rule W5: a call is the client's only if the client declared its name."""
    found = offer(request("mine"))
    assert not found.is_hidden("mine")
    assert all(found.is_hidden(name) for name in (TIME, SHOP, "unknown", "Mine", "mine "))


def test_a_reserved_id_is_ours() -> None:
    """If a client declares a reserved id, the proxy sends the schema of its own tool instead."""
    found = offer(request("mine", TIME), None, ON_REQUEST)
    assert found.added == ()
    assert names(found.replaced) == [TIME]
    assert found.replaced[0].parameters["additionalProperties"] is False
    assert found.is_hidden(TIME)
    assert found.client_names == {"mine"}


def test_a_reserved_id_stands_once() -> None:
    """A reserved id that the client declared is not injected a second time."""
    found = offer(request(TIME))
    assert names(found.added) == [WEATHER, SHOP]
    assert names(found.replaced) == [TIME]


def test_an_alias_is_ours_under_its_own_name() -> None:
    """If a client declares an alias, the proxy's tool is offered under the alias."""
    found = offer(request("say"), None, OfferRules(inject=False, aliases={"say": SHOP}))
    assert names(found.replaced) == ["say"]
    assert found.replaced[0].description == f"does {SHOP}"
    assert found.names == {"say": SHOP}
    assert found.tool_ids() == (SHOP,)


@pytest.mark.parametrize("wanted", [None, "all", f"{TIME},{SHOP}"])
def test_an_alias_is_not_injected_beside_itself(wanted: str | None) -> None:
    """A tool that the client declared under an alias is offered once, under that name, and not withheld."""
    found = offer(request("say", TIME), wanted, OfferRules(aliases={"say": SHOP}))
    assert names(found.replaced) == ["say", TIME]
    assert names(found.added) == ([WEATHER] if wanted in (None, "all") else [])
    assert (found.names["say"], SHOP in found.names, SHOP in found.withheld) == (SHOP, False, False)
    assert SHOP in found.tool_ids()


def test_an_alias_that_nobody_declared_offers_nothing() -> None:
    """An alias that the client does not declare offers no tool."""
    assert not offer(request("mine"), None, OfferRules(inject=False, aliases={"say": SHOP}))


@pytest.mark.parametrize("name", ["core__web", "core__nothing", "say"])
def test_a_name_of_ours_that_cannot_be_had_stays_the_clients(name: str) -> None:
    """Rule T2: if policy denies the tool of a reserved id or alias, the declared function is the client's."""
    found = offer(request(name), None, OfferRules(inject=False, aliases={"say": "core__web"}))
    assert not found
    assert found.client_names == {name}


# ---------------------------------------------------------------- when nothing is injected


def forced(*functions: str) -> dict[str, Any]:
    """A ``tool_choice`` that forces one function."""
    return {"type": "function", "function": {"name": functions[0]}}


def allowed(*functions: str) -> dict[str, Any]:
    """A ``tool_choice`` that names what may be called."""
    tools = [{"type": "function", "function": {"name": name}} for name in functions]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


SKIPPED: Mapping[str, tuple[dict[str, Any], str]] = {
    "n": ({"n": 2}, "the request asks for more than one choice"),
    "none": ({"tool_choice": "none"}, "the request forbids tool calls"),
    "forced": ({"tool_choice": forced("mine")}, "the request forces a tool of the client's own"),
    "allowed": ({"tool_choice": allowed("mine")}, "the request forces a tool of the client's own"),
    "custom": (
        {"tool_choice": {"type": "custom", "custom": {"name": "mine"}}},
        "the request forces a tool of the client's own",
    ),
}


@pytest.mark.parametrize("case", SKIPPED)
@pytest.mark.parametrize("wanted", [None, "all"])
def test_injection_is_skipped(case: str, wanted: str | None) -> None:
    """If server tools cannot take part in a request, none is injected, and the offer says why."""
    fields, reason = SKIPPED[case]
    found = offer(request("mine", **fields), wanted)
    assert not found
    assert found.withheld == {"core__web": "policy.allow", TIME: reason, WEATHER: reason, SHOP: reason}
    assert found.client_names == {"mine"}


@pytest.mark.parametrize(
    "choice", ["auto", "required", None, forced(TIME), allowed("mine", TIME), {"type": "function"}]
)
def test_injection_is_not_skipped(choice: Any) -> None:
    """A ``tool_choice`` that permits server tools does not prevent injection."""
    assert names(offer(request("mine", tool_choice=choice)).added) == [TIME, WEATHER, SHOP]


def test_an_upstream_without_tools_gets_none() -> None:
    """An upstream with ``tools = false`` is offered no tool; a request that names one gets a 400."""
    found = offer(request("mine", TIME), takes_tools=False)
    assert not found
    assert found.client_names == {"mine", TIME}
    assert found.withheld[SHOP] == "the upstream takes no tools"
    assert not offer(request(), "all", takes_tools=False)
    assert refusal(request(), TIME, takes_tools=False).param == "x-toolrelay-tools"


def test_tools_by_name_under_a_choice_that_rules_them_out() -> None:
    """If ``tool_choice`` rules out the tools that the header names, none is offered, without an error."""
    assert not offer(request(tool_choice="none"), TIME)
    assert not offer(request("mine", tool_choice=forced("mine")), TIME)


def test_several_choices_with_tools_by_name_are_refused() -> None:
    """A request with ``n > 1`` that names or declares server tools gets a 400."""
    assert refusal(request(n=2), TIME).param == "n"
    assert refusal(request(TIME, n=3), None).param == "n"
    assert refusal(request(TIME, n=3), None, rules=ON_REQUEST).param == "n"
    assert names(offer(request(n=1), TIME).added) == [TIME]


def test_a_declared_tool_of_ours_stays_ours_under_any_choice() -> None:
    """A declared server tool stays the proxy's if ``tool_choice`` rules it out, and no other is added."""
    for fields in ({"tool_choice": "none"}, {"tool_choice": forced("mine")}):
        found = offer(request("mine", TIME, **fields))
        assert names(found.replaced) == [TIME]
        assert found.added == ()
        assert found.names == {TIME: TIME}


# ---------------------------------------------------------------- what only the Responses wire has


def response_request(**fields: Any) -> ClientRequest:
    """A request on the Responses wire that declares one function."""
    declared = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    return ResponsesWire().parse({"model": "m", "input": "hi", "tools": [declared], **fields})


def test_a_stored_prompt_may_bring_functions_of_its_own() -> None:
    """With a stored prompt, an unknown name is the client's, because the prompt can bring functions."""
    found = offer(response_request(prompt={"id": "pmpt_1"}))
    assert [found.is_hidden(name) for name in (TIME, "mine", "from_the_prompt")] == [True, False, False]
    found = offer(response_request())
    assert [found.is_hidden(name) for name in (TIME, "mine", "from_the_prompt")] == [True, False, True]
    nothing = offer(response_request(prompt={"id": "pmpt_1"}), "none")
    assert [nothing.is_hidden(name) for name in (TIME, "from_the_prompt")] == [False, False]


def test_no_tools_in_the_background() -> None:
    """A request in the background is offered no tool; if it names one, it gets a 400."""
    found = offer(response_request(background=True))
    assert not found
    assert found.withheld[TIME] == "the request runs in the background"
    assert refusal(response_request(background=True), TIME).param == "background"


@pytest.mark.parametrize("word", ["approve", "allow"])
def test_what_was_read_narrows_an_offer(word: Any) -> None:
    """Rule T2: after an untrusted result harmful tools are withheld, even declared ones; the names stay."""
    buy = replace(spec(SHOP), effect=ToolEffect.EXTERNAL_SIDE_EFFECT)
    core_buy = replace(spec("core__order"), egress=True)
    selection = Selection(Catalog(), offered=(spec(TIME), buy, core_buy), withheld={})
    policy = Policy(allow=("*",), after_untrusted=word)
    asked = request("core__order")
    before = decide(asked, selection, INJECT, None)
    assert guard(before, selection.offered, policy, "") is before
    after = guard(before, selection.offered, policy, "web__fetch_page")
    if word == "allow":
        assert after is before
        return
    assert before.tool_ids() == ("core__order", TIME, SHOP)
    assert after.guarded == {"core__order", SHOP}
    assert after.tool_ids() == (TIME,)
    assert (after.added, after.replaced) == (before.added, before.replaced)
    assert after.is_hidden(SHOP)
    assert after.names == before.names
    assert after.fingerprint != before.fingerprint
    assert after.fingerprint == guard(after, selection.offered, policy, "another").fingerprint
    assert "web__fetch_page" in after.withheld["core__order"]
    assert "web__fetch_page" in after.withheld[SHOP]


def test_a_tool_under_two_names_is_guarded_under_both() -> None:
    """Rule T2: a tool is withheld under each of its aliases; a tool that is not loaded is not judged."""
    buy = replace(spec(SHOP), effect=ToolEffect.EXTERNAL_SIDE_EFFECT)
    selection = Selection(Catalog(), offered=(spec(TIME), buy), withheld={})
    rules = OfferRules(aliases={"purchase": SHOP, "order": SHOP})
    found = decide(request("purchase", "order"), selection, rules, None)
    policy = Policy(allow=("*",))
    specs = {one.name: one for one in selection.offered}
    assert set(guarded_names(found, specs.get, policy, "web__fetch_page")) == {"purchase", "order"}
    assert guarded_names(found, lambda _: None, policy, "web__fetch_page") == {}
    assert guarded_names(found, specs.get, policy, "") == {}


def test_an_offer_is_decided_once() -> None:
    """Requests that declare the same tools share an offer; other requests get their own."""
    offers = Offers(INJECT)

    def made(*declared: str, wanted: str | None = None, takes: bool = True, **fields: Any) -> Offer:
        asked = request(*declared, **fields)
        return offers.decide(asked, SELECTION, parse_wanted(wanted), limits=ANY_TOOLS if takes else NO_TOOLS)

    plain = made()
    assert plain is made()
    decided = decide(request(), SELECTION, INJECT, None)
    assert (plain.added, plain.names, plain.fingerprint) == (
        decided.added,
        decided.names,
        decided.fingerprint,
    )
    for other in (made(n=2), made(takes=False), made(tool_choice="none"), made(wanted="none")):
        assert not other
    mine = made("mine")
    assert mine.client_names == {"mine"}
    assert made("mine") is mine
    forced = {"type": "function", "function": {"name": "mine"}}
    others = [made("mine", "other"), made("mine", TIME), made("mine", n=2), made("mine", tool_choice="none")]
    others += [made("mine", takes=False), made("mine", tool_choice=forced), made("mine", wanted="none")]
    for other in others:
        assert (other.client_names, other.names, other.replaced) != (mine.client_names, mine.names, ())
    assert made(TIME).client_names == frozenset()
    with pytest.raises(RequestError):
        made(TIME, n=2)
    assert made(wanted=TIME).tool_ids() == (TIME,)
    assert made() is plain
    for catalog in (SELECTION.catalog, Catalog()):
        fewer = Selection(catalog, offered=SELECTION.offered[:1], withheld={})
        assert offers.decide(request(), fewer, None).tool_ids() == (SELECTION.offered[0].name,)


# ---------------------------------------------------------------- the history


@pytest.mark.parametrize(
    ("name", "declared", "wanted", "reserved"),
    [
        (TIME, (), None, True),
        (SHOP, (), None, True),
        (SHOP, (SHOP,), None, False),
        (TIME, (TIME,), None, True),
        ("clock", ("clock",), None, False),
        (SHOP, (), "none", False),
        (SHOP, (), TIME, False),
        ("other__tool", (), None, False),
    ],
)
def test_only_the_proxy_answers_what_it_offers(
    name: str, declared: tuple[str, ...], wanted: str | None, reserved: bool
) -> None:
    """An offered tool's name is reserved in the history, unless it is declared and no reserved id."""
    asked = request(*declared)
    assert is_reserved(name, offer(asked, wanted, OfferRules(aliases={"clock": TIME})), asked) is reserved


def test_only_what_was_offered_may_run() -> None:
    """Rule T2: a run may call tools that were offered or wait for an approval, if the policy allows them."""
    chosen = offer(request(), TIME)
    policy = Policy(
        allow=("core__*", "shop__*"), max_argument_bytes=1000, max_result_bytes=2000, max_image_bytes=3
    )
    run = offered_only(policy, chosen, ())
    assert run.decide(spec(TIME)).allowed
    assert run.decide(spec(SHOP)).rule == f'this request lacks "{SHOP}"'
    assert offered_only(policy, chosen, (SHOP,)).decide(spec(SHOP)).allowed
    assert offered_only(Policy(), chosen, (SHOP,)).decide(spec(SHOP)).rule == f'policy.allow lacks "{SHOP}"'
    assert (run.max_argument_bytes, run.max_result_bytes, run.max_image_bytes) == (1000, 2000, 3)


def test_what_a_model_refuses_is_withheld() -> None:
    """Tools with a refused definition, or with what the upstream refuses in schemas, are left out alone."""
    odd = replace(
        spec(SHOP), digest="e", parameters={"type": "object", "properties": {"uids[]": {"type": "string"}}}
    )
    bad = replace(spec(WEATHER), digest="f")
    selection = Selection(Catalog(), offered=(spec(TIME), bad, odd))
    limits = ToolLimits(refused=frozenset({"f"}), without=frozenset({"a property name"}))
    found = decide(request("mine"), selection, INJECT, None, limits=limits)
    assert found.tool_ids() == (TIME,)
    assert found.withheld[WEATHER] == "the model was seen to refuse its definition"
    assert found.withheld[SHOP] == "the upstream refuses a property name in its schema: parameters"
    with pytest.raises(RequestError, match="not available"):
        decide(request(), selection, INJECT, parse_wanted(SHOP), limits=limits)
    aliased = OfferRules(aliases={"shop": SHOP})
    assert decide(request("shop"), selection, aliased, None, limits=limits).client_names == {"shop"}


@pytest.mark.parametrize(("most", "offered"), [(5, 3), (4, 2), (3, 1), (2, 0), (1, 0)])
def test_the_clients_tools_come_first(most: int, offered: int) -> None:
    """If an upstream takes no more tools, the last ones of the proxy by id are withheld."""
    found = decide(request("a", "b"), SELECTION, INJECT, None, limits=ToolLimits(most=most))
    assert found.tool_ids() == tuple(sorted((TIME, WEATHER, SHOP))[:offered])
    assert found.client_names == {"a", "b"}
    for name in sorted((TIME, WEATHER, SHOP))[offered:]:
        assert found.withheld[name].startswith(f"the upstream takes at most {most} tools")


def test_tools_are_loosened_for_a_model_without_strict() -> None:
    """A strict tool is offered without ``strict`` to a model that refuses it."""
    selection = Selection(Catalog(), offered=(replace(spec(TIME), strict=True),))
    strict = decide(request(), selection, INJECT, None)
    loose = decide(request(), selection, INJECT, None, limits=ToolLimits(strict=False))
    assert [tool.strict for tool in (*strict.added, *loose.added)] == [True, False]


def test_keywords_of_a_profile_are_found_at_any_depth() -> None:
    """A keyword that an operator says an upstream refuses withholds the tools that use it."""
    inner = {"type": "object", "properties": {"a": {"type": "array", "minItems": 2, "items": {}}}}
    selection = Selection(Catalog(), offered=(spec(TIME), replace(spec(SHOP), parameters=inner)))
    found = decide(request(), selection, INJECT, None, limits=ToolLimits(without=frozenset({"minItems"})))
    assert found.tool_ids() == (TIME,)
    assert found.withheld[SHOP] == "the upstream refuses minItems in its schema: parameters.properties.a"


def test_offers_are_shared_by_equal_requests_alone() -> None:
    """An offer depends on the names that messages bring, on the choice and on the header, and on no more."""
    offers, wire = Offers(INJECT), ResponsesWire()

    def bringing(*names: str) -> ClientRequest:
        tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in names]
        item = {"type": "additional_tools", "role": "developer", "tools": tools}
        return wire.parse({"model": "m", "input": [{"role": "user", "content": "x"}, item]})

    other, mine = (offers.decide(bringing(name), SELECTION, None) for name in ("late", TIME))
    assert (TIME in other.names, TIME in mine.names) == (True, False)
    assert not mine.is_hidden(TIME)
    assert offers.decide(bringing(TIME), SELECTION, None) is mine

    forced = request(tool_choice={"type": "function", "function": {"name": TIME}})
    every, one = Wanted(every=True), Wanted(names=(TIME,))
    asked = [(request(), None), (forced, None), (request(), every), (request(), one), (forced, one)]
    made = [offers.decide(*each) for each in ((req, SELECTION, wanted) for req, wanted in asked)]
    again = [offers.decide(req, SELECTION, wanted) for req, wanted in asked]
    assert len(set(made)) == len(asked)
    assert again == made
