"""Policy and registry: rules T2, T4, T5 and T7."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.base.errors import ConfigError
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Intersections, Policy
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.spec import Redaction, ToolEffect, ToolSpec

SHOW_NOTHING = Redaction()


def spec(name: str, effect: ToolEffect = ToolEffect.READ_ONLY, *, redaction: Any = SHOW_NOTHING) -> ToolSpec:
    """A tool with that id."""
    provider = name.rpartition("__")[0]
    return ToolSpec(
        name, "It does", {"type": "object"}, effect, provider, lambda value: value, "d", redaction=redaction
    )


class Fixed:
    """A provider of fixed tools."""

    def __init__(self, name: str, *specs: ToolSpec) -> None:
        self.name = name
        self.specs = specs
        self.closed = 0

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the fixed tools."""
        return self.specs

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Fail; no test calls a tool."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Count how often the provider is closed."""
        self.closed += 1


@pytest.mark.parametrize(
    ("allow", "name", "outcome", "rule"),
    [
        ((), "core__get_weather", "denied", 'policy.allow lacks "core__get_weather"'),
        (("core__get_weather",), "core__get_weather", "allowed", 'policy.allow has "core__get_weather"'),
        (("x", "core__*"), "core__get_weather", "allowed", 'policy.allow has "core__*"'),
        (("mcp__files__*",), "mcp__files__read", "allowed", 'policy.allow has "mcp__files__*"'),
        (("mcp__files__*",), "mcp__files2__read", "denied", 'policy.allow lacks "mcp__files2__read"'),
        (("CORE__*",), "core__get_weather", "denied", 'policy.allow lacks "core__get_weather"'),
        (("core__get",), "core__get_weather", "denied", 'policy.allow lacks "core__get_weather"'),
    ],
)
def test_denied_by_default(allow: tuple[str, ...], name: str, outcome: str, rule: str) -> None:
    """Rule T2: a tool is allowed only if a pattern matches its id, in the same case; the rule is named."""
    decision = Policy(allow=allow).decide(spec(name))
    assert (decision.outcome, decision.rule) == (outcome, rule)
    assert decision.allowed is (outcome == "allowed")


def test_approvals() -> None:
    """Rule T2: a tool whose effect or id is listed for approval needs one, unless it is denied."""
    act = spec("t__act", ToolEffect.STATE_CHANGE)
    policy = Policy(allow=("*",), approve_effects=(ToolEffect.STATE_CHANGE,))
    assert policy.decide(act).outcome == "needs_approval"
    assert policy.decide(act).rule == 'policy.approve_effects has "state_change"'
    assert policy.decide(spec("t__read")).allowed
    policy = Policy(allow=("*",), approve=("t__*",))
    assert policy.decide(spec("t__read")).rule == 'policy.approve has "t__*"'
    assert Policy(approve=("*",)).decide(act).outcome == "denied", "an approval cannot lift a denial"


def test_safety_metadata_that_needs_an_approval() -> None:
    """Rule T2: each value of the metadata is matched as ``key=value``, and the pattern is named."""
    policy = Policy(allow=("*",), approve_safety=("threat_level=h*", "sends=true", "to=public"))

    def rule(safety: dict[str, Any]) -> str:
        return policy.decide(replace(spec("t__read"), safety=safety)).rule

    assert rule({"cost": 1, "threat_level": "high"}) == 'policy.approve_safety has "threat_level=h*"'
    assert rule({"sends": True}) == 'policy.approve_safety has "sends=true"'
    for several in (["mail", "public"], ("public",), {"public"}, frozenset({"public"})):
        assert rule({"to": several}) == 'policy.approve_safety has "to=public"'
    for harmless in ({}, {"sends": False}, {"to": ["mail"]}, {"threat": "high"}):
        assert rule(harmless) == 'policy.allow has "*"'


def test_a_tool_without_its_credentials_is_denied() -> None:
    """Rule T2: a tool that names a connection is denied if there are no credentials for it."""
    mail = replace(spec("mail__send"), connection="mail")
    missing = Policy(allow=("*",), approve=("*",), connections=frozenset({"flights"})).decide(mail)
    assert (missing.outcome, missing.rule) == ("denied", "credentials.mail is missing")
    for known in (frozenset({"mail"}), None):
        assert Policy(allow=("*",), connections=known).decide(mail).allowed
    assert Policy(allow=("*",), connections=frozenset()).decide(spec("t__read")).allowed


def test_an_untrusted_result_makes_harm_need_an_approval() -> None:
    """Rule T2: after an untrusted result a tool that changes or sends data needs an approval."""
    act, send = spec("t__act", ToolEffect.STATE_CHANGE), replace(spec("t__send"), egress=True)
    policy = Policy(allow=("*",), after_untrusted="approve")
    for harmful in (act, send):
        assert policy.decide(harmful).allowed
        guarded = policy.decide(harmful, untrusted="web__fetch_page")
        assert (guarded.outcome, guarded.allowed) == ("needs_approval", False)
        assert (
            guarded.rule == 'policy.after_untrusted = "approve": the run has read a result of web__fetch_page'
        )
    assert policy.decide(spec("t__read"), untrusted="web__fetch_page").rule == 'policy.allow has "*"'
    lenient = Policy(allow=("*",), after_untrusted="allow")
    assert lenient.decide(act, untrusted="web__fetch_page").allowed
    assert not lenient.intersect(policy).decide(act, untrusted="web__fetch_page").allowed
    assert not Policy(allow=("*",)).decide(act, untrusted="web__fetch_page").allowed
    assert lenient.intersect(Policy(allow=("*",))).decide(act, untrusted="web__fetch_page").allowed


def test_the_first_denial_is_named() -> None:
    """If several policies deny a tool, the decision names the rule of the first."""
    both = Policy().intersect(Policy(settings=("keys.webui.tools", "", "")))
    assert both.decide(spec("core__a")).rule == 'policy.allow lacks "core__a"'


def test_intersection() -> None:
    """Rule T2: an intersection allows only what all policies allow, and names the setting that denies."""
    mine = Policy(allow=("core__*",), max_argument_bytes=100, max_image_bytes=7)
    key = Policy(
        allow=("core__a", "x__y"),
        settings=("keys.webui.tools", "", ""),
        max_argument_bytes=200,
        max_result_bytes=5,
    )
    both = mine.intersect(key)
    assert both.decide(spec("core__a")).allowed
    assert both.decide(spec("core__b")).rule == 'keys.webui.tools lacks "core__b"'
    assert both.decide(spec("x__y")).rule == 'policy.allow lacks "x__y"'
    assert (both.max_argument_bytes, both.max_result_bytes, both.max_image_bytes) == (100, 5, 7)
    assert not both.intersect(Policy()).decide(spec("core__a")).allowed
    careful = key.intersect(Policy(allow=("*",), approve=("core__a",)))
    assert mine.intersect(careful).decide(spec("core__a")).outcome == "needs_approval"
    denied = mine.intersect(Policy(allow=("*",), approve=("core__b",))).intersect(key)
    assert denied.decide(spec("core__b")).outcome == "denied", "a denial outweighs an approval"


async def test_listing_is_sorted_and_exact() -> None:
    """Rule T7: the catalog lists all tools sorted by id, and finds a tool only by its exact id."""
    first, second = Fixed("b", spec("b__z"), spec("b__a")), Fixed("a", spec("a__m"))
    registry = await Registry.load([first, second])
    catalog = registry.current
    assert [one.name for one in catalog.tools()] == ["a__m", "b__a", "b__z"]
    assert catalog.get("b__a") is first.specs[1]
    assert catalog.get("B__a") is None
    assert catalog.provider("b__a") is first
    await registry.aclose()
    assert (first.closed, second.closed) == (1, 1)


async def test_selection() -> None:
    """Rule T2: the model is offered the allowed tools; for every other tool the withholding rule is named."""
    provider = Fixed("t", spec("t__b"), spec("t__act", ToolEffect.STATE_CHANGE), spec("t__a"), spec("t__c"))
    policy = Policy(allow=("t__a", "t__b", "t__act"), approve_effects=("state_change",))
    chosen = (await Registry.load([provider])).current.select(policy)
    assert [one.name for one in chosen.offered] == ["t__a", "t__b"]
    assert chosen.asking == {"t__act"}
    assert not chosen.guards, "neither tool that is offered has an effect"
    assert chosen.catalog.select(Policy(allow=("*",))).guards
    assert chosen.withheld == {
        "t__act": 'policy.approve_effects has "state_change"',
        "t__c": 'policy.allow lacks "t__c"',
    }


@pytest.mark.parametrize(
    "identifier",
    ["t__", "t", "x__a", "t_a", "t__" + "a" * 62, "t__a b", "t__ä", "t__a\n", "t__a.b", ""],
)
async def test_ids_are_checked(identifier: str) -> None:
    """Rule T5: an id that is not <provider>__<name> of 1 to 64 plain characters stops the start."""
    with pytest.raises(ConfigError):
        await Registry.load([Fixed("t", spec(identifier))])


async def test_one_id_twice_stops_the_start() -> None:
    """Rule T5: two tools of one id stop the start, even if they come from two providers."""
    with pytest.raises(ConfigError, match="two tools have this id"):
        await Registry.load([Fixed("t", spec("t__a")), Fixed("t", spec("t__a"))])


async def test_tool_without_redaction_does_not_load() -> None:
    """Rule T4: a tool without a redaction rule stops the start, even one of a custom provider."""
    with pytest.raises(ConfigError, match="redaction_missing"):
        await Registry.load([Fixed("t", spec("t__a", redaction=None))])


def test_another_tool_of_the_same_id_is_decided_on_anew() -> None:
    """Rule T9: the policy decides anew on a tool whose definition changed under the same id."""
    policy = Policy(allow=("*",), approve_effects=(ToolEffect.EXTERNAL_SIDE_EFFECT,))
    reads = spec("core__x")
    acts = replace(reads, effect=ToolEffect.EXTERNAL_SIDE_EFFECT)
    assert policy.decide(reads).allowed
    assert not policy.decide(acts).allowed
    assert policy.decide(reads).allowed


def test_what_was_read_is_never_kept() -> None:
    """Rule T2: the policy does not reuse a decision after an untrusted result for a run without one."""
    policy = Policy(allow=("*",))
    acts = replace(spec("core__x"), effect=ToolEffect.EXTERNAL_SIDE_EFFECT)
    decided = [policy.decide(acts, untrusted=word).allowed for word in ("", "web__page", "", "web__page")]
    assert decided == [True, False, True, False]


def test_intersections_are_told_apart() -> None:
    """Rule T2: two policies get one intersection; another pair or order, or an equal policy, gets its own."""
    intersections = Intersections(max_bytes=40_000)  # Room for two.
    one, other, third = Policy(allow=("core__*",)), Policy(allow=("*",)), Policy(allow=())
    both = intersections.of(one, other)
    assert both is intersections.of(one, other)
    assert both.also == (other,)
    twin = Policy(allow=("core__*",))
    assert intersections.of(twin, other) is not both
    assert intersections.of(one, other) is both
    assert not intersections.of(one, third).decide(spec("core__x")).allowed
    assert intersections.of(other, one).allow == ("*",)
    assert intersections.of(one, other).also == (other,)
