"""A caller's rights narrow what the configuration allows."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.rights.callers import CallerBound, Rights
from proxy.server.auth.permissions import narrowed_policy
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import ArgumentBound

VALUES = st.integers(-3, 12) | st.text(max_size=3) | st.none() | st.booleans() | st.lists(st.integers())
RANGES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)


def test_a_list_of_tools_changes_no_bound() -> None:
    """A key's tools and argument bounds leave the operator's limits of size unchanged."""
    policy = Policy(
        allow=("*",), max_argument_bytes=1 << 30, max_result_bytes=2 << 30, max_image_bytes=3 << 30
    )
    bound = CallerBound("keys.web.arguments", "t__*", "n", ArgumentBound(max=1))
    narrowed = narrowed_policy(policy, Rights(tools=(("keys.web.tools", ("core__*",)),), arguments=(bound,)))
    assert narrowed.max_argument_bytes == 1 << 30
    assert narrowed.max_result_bytes == 2 << 30
    assert narrowed.max_image_bytes == 3 << 30


@given(
    general=RANGES,
    own=RANGES,
    arguments=st.dictionaries(st.sampled_from(["n", "m"]), VALUES),
    tool=st.sampled_from(["t__a", "t__b", "u__a"]),
)
def test_a_keys_bounds_hold_beside_the_general_ones(
    general: list[int], own: list[int], arguments: dict[str, Any], tool: str
) -> None:
    """Rule T2: arguments pass only if the policy's bounds and the key's own both allow them."""
    general_bound = ArgumentBound(min=general[0], max=general[1])
    own_bound = ArgumentBound(min=own[0], max=own[1], required=True)
    policy = Policy(allow=("*",), arguments={"t__*": {"n": general_bound}})
    rights = Rights(arguments=(CallerBound("keys.web.arguments", "*__a", "n", own_bound),))
    narrowed = narrowed_policy(policy, rights)
    alone = Policy(allow=("*",), arguments={"*__a": {"n": own_bound}})
    refused = [each.refuse_arguments(tool, arguments, {}) is not None for each in (policy, alone)]
    found = narrowed.refuse_arguments(tool, arguments, {})
    assert (found is not None) is any(refused)
    if found is not None:
        rule = 'policy.arguments."t__*".n' if refused[0] else 'keys.web.arguments."*__a".n'
        assert found[0].rule == rule
