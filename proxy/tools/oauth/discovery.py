"""Find the authorization server of a resource, starting from the URL that the operator wrote.

The order is that of the MCP specification: the document that the server's 401 names, the well-known URLs of
RFC 9728, and, as in revision 2025-03-26, the origin of the server as its own authorization server.
"""

from typing import Any

from msgspec import Struct

from proxy.base.plain_text import plain_text
from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.challenges import read_challenge
from proxy.tools.oauth.metadata import (
    AuthorizationServer,
    ProtectedResource,
    is_same_issuer,
    read_protected_resource,
    read_server,
    resource_metadata_urls,
    resource_of,
    server_metadata_urls,
)
from proxy.tools.oauth.port import OAuthFault, OAuthHttp


class Discovery(Struct, frozen=True):
    """The result of :func:`discover`.

    ``resource`` is the audience of the tokens to request; empty for a service that is not an MCP server.
    ``scopes`` are those that the MCP server asks for, or else those that it supports, if it lists them.
    """

    server: AuthorizationServer
    resource: str = ""
    scopes: tuple[str, ...] = ()


async def discover(http: OAuthHttp, *, server_url: str = "", issuer: str = "") -> Discovery:
    """Find the authorization server of the MCP server at ``server_url``, or the one that ``issuer`` names.

    If both are given, the MCP server must name this issuer, provided that it publishes a document. Raises
    :class:`~proxy.tools.oauth.port.OAuthFault`.
    """
    if not server_url:
        return Discovery(await _server(http, issuer))
    challenge = read_challenge(await _challenge(http, server_url))
    resource = await _resource(http, server_url, challenge.resource_metadata)
    if resource is None:
        own = issuer or _origin(server_url)
        return Discovery(
            await _server(http, own, loosely=not issuer), resource_of(server_url), challenge.scopes
        )
    chosen = _choose(resource, issuer)
    return Discovery(await _server(http, chosen), resource.resource, challenge.scopes or resource.scopes)


async def _challenge(http: OAuthHttp, server_url: str) -> str:
    try:
        return await http.challenge(server_url)
    except HttpFailure as failure:
        raise OAuthFault(f"{server_url} cannot be asked: {failure}", status=failure.status) from None


async def _resource(http: OAuthHttp, server_url: str, named: str) -> ProtectedResource | None:
    """Return the document about the resource; ``None`` if there is none."""
    for place in dict.fromkeys([*([named] if named else []), *resource_metadata_urls(server_url)]):
        document = await _document(http, place)
        if document is not None:
            return read_protected_resource(document, place, server_url)
    return None


def _choose(resource: ProtectedResource, issuer: str) -> str:
    """Return the issuer to use, in the spelling of the resource's document."""
    if not issuer:
        return resource.issuers[0]
    for named in resource.issuers:
        if is_same_issuer(named, issuer):
            return named
    known = ", ".join(plain_text(named) for named in resource.issuers)
    raise OAuthFault(f"the server accepts no tokens from {issuer}; it names {known}")


async def _server(http: OAuthHttp, issuer: str, *, loosely: bool = False) -> AuthorizationServer:
    for place in server_metadata_urls(issuer):
        document = await _document(http, place)
        if document is not None:
            return read_server(document, place, issuer, loosely=loosely)
    raise OAuthFault(f"the authorization server {plain_text(issuer)} publishes no metadata")


async def _document(http: OAuthHttp, place: str) -> Any:
    """Return the JSON document at a URL; ``None`` if there is none.

    Raises :class:`~proxy.tools.oauth.port.OAuthFault` if the proxy cannot know whether there is one: an
    outage must not redirect a login to another server.
    """
    try:
        return await http.get_json(place)
    except HttpFailure as failure:
        if failure.status is not None and 300 <= failure.status < 500 and failure.status != 429:
            return None
        raise OAuthFault(f"{plain_text(place)} cannot be read: {failure}", status=failure.status) from None


def _origin(server_url: str) -> str:
    scheme, _, rest = server_url.partition("://")
    return f"{scheme.lower()}://{rest.split('/')[0].split('?')[0].lower()}"
