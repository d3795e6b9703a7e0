"""Builds the component that records the bytes of runs."""

from proxy.api.taping.taping import CAPTURES, Captures, Taping
from proxy.app.compose.overrides import Overrides
from proxy.app.compose.services import Services
from proxy.server.peers import Peers

_NOT_SEALED = "content is not encrypted here; set store.seal_key"


def make_taping(services: Services, given: Overrides, peers: Peers, *, captures_allowed: bool) -> Taping:
    """Build the component that records the bytes of runs. With ``captures_allowed``, administrators may start
    captures; the other processes of the port learn of them."""
    store = services.store
    refused = _refused(services) if captures_allowed else "the web UI is not served"
    captures = Captures(store, refused, now=store.now)
    if captures.refused is None:
        peers.publish(CAPTURES, captures.report)
    return Taping(store, captures, not_kept=_not_kept(services), again=given.replayed_values)


def _refused(services: Services) -> str | None:
    """Return why nobody may ask for captures; ``None`` if they may."""
    config = services.config
    if config.ui.capture == "off":
        return 'ui.capture = "off"'
    if config.store.content == "none":
        return 'store.content = "none"'
    return None if services.store.sealed else _NOT_SEALED


def _not_kept(services: Services) -> str:
    """Return why the bytes of each run are not kept; empty if they are."""
    store = services.config.store
    if store.content != "all":
        return f'store.content = "{store.content}", and only "all" keeps the bytes of each run'
    if not store.wire_bytes:
        return "store.wire_bytes = false"
    return "" if services.store.sealed else _NOT_SEALED
