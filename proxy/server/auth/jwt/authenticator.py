"""Let in clients with a token of an OpenID provider, or with a client key."""

from proxy.base.errors import RequestError
from proxy.rights.callers import Caller
from proxy.server.auth.authenticate import KeyAuthenticator, credential, may_call, not_permitted
from proxy.server.auth.jwt.tokens import JwtTokens, TokenRefused
from proxy.server.auth.key_ring import Key, KeyRing
from proxy.server.auth.minting import Minting
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target


class JwtAuthenticator(KeyAuthenticator):
    """The authenticator that lets in clients with a token of the issuer, beside those with a key."""

    def __init__(self, ring: KeyRing, tokens: Minting, jwt: JwtTokens) -> None:
        super().__init__(ring, tokens)
        self._jwt = jwt

    async def _admit(self, request: EdgeRequest, target: Target) -> Caller:
        secret = credential(request, target.endpoint.dialect.credentials)
        if not self._jwt.is_token(secret):
            return await super()._admit(request, target)
        key = await self._find(secret)
        if not may_call(key.caller.rights, request.method, target):
            raise not_permitted(request, target)
        request.head[self] = key
        return key.caller

    def _is_still_valid(self, key: Key) -> bool:
        return self._jwt.is_still_valid(key) or super()._is_still_valid(key)

    async def _key(self, secret: str) -> Key | None:
        return await self._find(secret) if self._jwt.is_token(secret) else await super()._key(secret)

    async def aclose(self) -> None:
        """Close the connections to the issuer."""
        await self._jwt.aclose()

    async def _find(self, token: str) -> Key:
        try:
            return await self._jwt.find(token)
        except TokenRefused as refused:
            # Source of the header: RFC 6750, section 3.1.
            raise RequestError(
                401,
                f"The token {refused}.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
            ) from None

    def _refusal(self) -> RequestError:
        """Return the error for a credential that is neither a token nor a key."""
        return RequestError(
            401,
            f"Incorrect API key provided: send a token of {self._jwt.rules.issuer} as 'Authorization: Bearer "
            "eyJ…', or a client key of this proxy.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
