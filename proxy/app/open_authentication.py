"""Sets up how clients authenticate, for the server and for the commands about keys."""

from proxy.config.checks.rules import is_loopback
from proxy.config.load import Config
from proxy.server.auth.authenticate import Authentication, make_authentication
from proxy.store.base import KeySource


async def open_authentication(config: Config, store: KeySource) -> Authentication:
    """Set up how clients authenticate; raise what :func:`~proxy.server.auth.authenticate.make_authentication`
    raises."""
    return await make_authentication(
        config.auth.mode,
        store,
        {name: (key.secret.reveal(), key) for name, key in config.keys.items()},
        loopback=is_loopback(config.server.host),
        start_token=config.start_token,
    )
