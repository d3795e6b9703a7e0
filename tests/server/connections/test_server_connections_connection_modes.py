"""The modes of a connection: the table says what happens to the bytes that a client sends."""

import pytest

from proxy.records.transitions import IllegalTransition
from proxy.server.connections.connection_modes import (
    NEXT,
    REFUSAL,
    REFUSED,
    REQUESTS,
    SWITCHED,
    UPGRADE,
    ConnectionEvent,
)


@pytest.mark.parametrize("event", ConnectionEvent)
def test_nothing_is_parsed_again_after_an_upgrade_or_a_refusal(event: ConnectionEvent) -> None:
    """After an upgrade or a refusal a connection never goes back to parsing requests."""
    ended = NEXT[REQUESTS, event]
    assert ended is not REQUESTS
    assert REQUESTS not in [after for (before, _), after in NEXT.items() if before is ended]


def test_what_was_refused_is_not_handed_to_another_protocol() -> None:
    """A refused connection cannot be upgraded, and an upgraded one cannot be refused over HTTP."""
    assert NEXT[REFUSED, REFUSAL] is REFUSED
    for mode, event in ((REFUSED, UPGRADE), (SWITCHED, REFUSAL), (SWITCHED, UPGRADE)):
        with pytest.raises(IllegalTransition):
            NEXT[mode, event]
