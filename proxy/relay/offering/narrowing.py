"""Limit what a caller may use to what one request offers and asks for."""

from collections.abc import Sequence

from msgspec import structs

from proxy.relay.offering.offer import Offer
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy


def offered_only(policy: Policy, offer: Offer, asking: Sequence[str]) -> Policy:
    """Limit a policy to the offered tools and to those that are ``asking`` for an approval."""
    offered = Policy(
        allow=(*offer.names.values(), *asking),
        max_argument_bytes=policy.max_argument_bytes,
        max_result_bytes=policy.max_result_bytes,
        max_image_bytes=policy.max_image_bytes,
        settings=("this request", "this request", "this request"),
    )
    return policy.intersect(offered)


def with_required_approvals(
    policy: Policy, selection: Selection, asked: frozenset[str]
) -> tuple[Policy, Selection]:
    """Return a policy and its selection in which calls of the tools ``asked`` need an approval too."""
    wish = Policy(
        allow=("*",),
        approve=tuple(sorted(asked)),
        max_argument_bytes=policy.max_argument_bytes,
        max_result_bytes=policy.max_result_bytes,
        max_image_bytes=policy.max_image_bytes,
        settings=("this request", "require_approval of this request", "this request"),
    )
    return policy.intersect(wish), structs.replace(selection, asking=selection.asking | asked)
