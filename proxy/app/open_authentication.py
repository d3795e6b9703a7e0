"""Sets up how clients authenticate, for the server and for the commands about keys."""

import importlib.util
from functools import partial

from proxy.app.compose.upstreams import own_authorities
from proxy.base.errors import ConfigError, how_to_install
from proxy.config.checks.rules import is_loopback
from proxy.config.load import Config
from proxy.net.aiohttp_resolver import AiohttpResolver
from proxy.net.resolver import Resolver
from proxy.server.auth.authenticate import Authentication, make_authentication
from proxy.server.auth.jwt.authenticator import JwtAuthenticator
from proxy.server.auth.jwt.signing_keys import SigningKeys
from proxy.server.auth.jwt.tokens import JwtRules, JwtTokens
from proxy.server.auth.key_ring import KeyRing
from proxy.server.auth.minting import Minting
from proxy.store.base import KeySource
from proxy.tools.access.addresses import WayOut
from proxy.tools.access.oauth_http import CheckedOAuthHttp, OAuthPools


async def open_authentication(config: Config, store: KeySource) -> Authentication:
    """Set up how clients authenticate; raise what :func:`~proxy.server.auth.authenticate.make_authentication`
    raises."""
    return await make_authentication(
        config.auth.mode,
        store,
        {name: (key.secret.reveal(), key) for name, key in config.keys.items()},
        loopback=is_loopback(config.server.host),
        start_token=config.start_token,
        with_tokens=partial(_with_tokens, config, store),
    )


def _with_tokens(config: Config, store: KeySource, ring: KeyRing, tokens: Minting) -> JwtAuthenticator:
    """Build the authenticator for tokens of the OpenID provider; raise as :func:`make_issuer` does."""
    return JwtAuthenticator(
        ring, tokens, make_issuer("auth.jwt.audience", config, store, config.auth.jwt.audience)[0]
    )


def make_issuer(
    setting: str, config: Config, store: KeySource, audience: tuple[str, ...]
) -> tuple[JwtTokens, CheckedOAuthHttp]:
    """Build what checks tokens of the OpenID provider for an audience, and the HTTP client that reaches it.

    ``setting`` is the one that names the audience. Raises :class:`~proxy.base.errors.ConfigError` if the
    library that checks tokens is not installed.
    """
    if importlib.util.find_spec("joserfc") is None:
        raise ConfigError(setting, "needs a library that is not installed", how_to_install("oidc"))
    jwt = config.auth.jwt
    way = WayOut(config.network.rules(), tls=own_authorities(config.network))
    pools = OAuthPools(
        servers=jwt.networks,
        resolver=lambda: AiohttpResolver(Resolver("issuer")),
        servers_way=way,
    )
    rules = JwtRules(
        issuer=jwt.issuer,
        audience=audience,
        algorithms=jwt.algorithms,
        leeway_s=jwt.leeway_s,
        user=jwt.user_claim,
        roles=jwt.roles_claim,
        grants=jwt.roles,
        setting=setting,
    )
    # The operator wrote both addresses; one may be public and the other inside.
    http = pools.http(server_url=jwt.issuer, issuer=jwt.jwks_url, setting="auth.jwt.networks")
    keys = SigningKeys(jwt.issuer, jwt.jwks_url, http.get_json, pools.aclose)
    return JwtTokens(rules, keys, now=store.now), http
