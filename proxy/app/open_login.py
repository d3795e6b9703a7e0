"""Sets up the login of people at an OpenID provider, for the web UI."""

from proxy.app.open_authentication import make_issuer
from proxy.config.load import Config
from proxy.store.base import KeySource
from proxy.tools.oauth.openid import CodeFlow
from proxy.ui.login.openid import DONE_PATH, OpenIdLogin
from proxy.ui.sessions import signing_key


def open_login(config: Config, store: KeySource, hash_key: bytes) -> OpenIdLogin | None:
    """Build the login; ``None`` if nobody logs in at a provider.

    Raises :class:`~proxy.base.errors.ConfigError` if the library that checks tokens is not installed.
    """
    own = config.ui.login
    if not own.client_id:
        return None
    tokens, http = make_issuer("ui.login.client_id", config, store, (own.client_id,))
    secret = own.client_secret.reveal() if own.client_secret is not None else ""
    flow = CodeFlow(
        http, config.auth.jwt.issuer, (own.client_id, secret), f"{own.url}{DONE_PATH}", own.scopes
    )
    return OpenIdLogin(own.url, own.client_id, flow, tokens, signing_key(hash_key), now=store.now)
