"""The table of what becomes of the bytes that a client sends."""

import pytest

from proxy.server.serving.connection_modes import NEXT, REFUSAL, REFUSED, REQUESTS, SWITCHED, UPGRADE, Event
from proxy.transitions import IllegalTransition


@pytest.mark.parametrize("event", Event)
def test_nothing_is_parsed_again_after_an_upgrade_or_a_refusal(event: Event) -> None:
    """Whatever ends the requests of a connection ends them for good."""
    ended = NEXT[REQUESTS, event]
    assert ended is not REQUESTS
    assert REQUESTS not in [after for (before, _), after in NEXT.items() if before is ended]


def test_what_was_refused_is_not_handed_to_another_protocol() -> None:
    """Nor does a refusal in the words of HTTP go to a client that speaks another protocol by now."""
    assert NEXT[REFUSED, REFUSAL] is REFUSED
    for mode, event in ((REFUSED, UPGRADE), (SWITCHED, REFUSAL), (SWITCHED, UPGRADE)):
        with pytest.raises(IllegalTransition):
            NEXT[mode, event]
