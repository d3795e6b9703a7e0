"""Find and read the metadata documents of resources and authorization servers. Their content is untrusted.

Sources: RFC 9728 (protected resources), RFC 8414 and OpenID Connect Discovery 1.0 (authorization servers),
RFC 9207 (``iss`` in the response), the draft on client id metadata documents, and for the URLs of the
documents the MCP specification's pages on authorization.

The order of the search is that of the MCP specification: the document that the server's 401 names, the well-
known URLs of RFC 9728, and, as in revision 2025-03-26, the origin of the server as its own authorization
server.
"""

from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proxy.base.plain_text import plain_text
from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.challenges import read_challenge
from proxy.tools.oauth.parameters import read_scopes
from proxy.tools.oauth.port import OAuthFault, OAuthHttp

_Address = Annotated[str, Field(min_length=1, max_length=2048, pattern=r"^[\x21-\x7e]+$")]
_Word = Annotated[str, Field(max_length=256)]
_Words = Annotated[list[_Word], Field(max_length=1000)]


class ProtectedResource(Struct, frozen=True):
    """The resource that tokens are for; ``resource`` is their audience."""

    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...]


class AuthorizationServer(Struct, frozen=True):
    """A server that issues tokens. An endpoint that it does not have is empty.

    ``auth_methods`` are the authentication methods for clients at the token endpoint, ``None`` if the
    document does not list them. ``sends_iss`` says that each authorization response names the issuer.
    ``accepts_client_documents`` says that it accepts the URL of a client id metadata document as a client id.
    """

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    end_session_endpoint: str = ""
    scopes: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] | None = None
    has_pkce: bool = False
    sends_iss: bool = False
    accepts_client_documents: bool = False
    grants: tuple[str, ...] | None = None


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


_Kind = TypeVar("_Kind", bound=_Document)


class _Resource(_Document):
    resource: _Address
    authorization_servers: Annotated[list[_Address], Field(min_length=1, max_length=20)]
    scopes_supported: _Words | None = None


class _Server(_Document):
    issuer: _Address
    authorization_endpoint: _Address | None = None
    token_endpoint: _Address
    registration_endpoint: _Address | None = None
    revocation_endpoint: _Address | None = None
    end_session_endpoint: _Address | None = None
    scopes_supported: _Words | None = None
    grant_types_supported: _Words | None = None
    token_endpoint_auth_methods_supported: _Words | None = None
    code_challenge_methods_supported: _Words | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, in lower case; raise ValueError for an invalid URL."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme.lower(), 0)
    return f"{parts.scheme.lower()}://{parts.hostname or ''}:{port}"


def resource_of(server_url: str) -> str:
    """Return the canonical URI of a server, the ``resource`` of token requests (RFC 8707, section 2)."""
    parts = urlsplit(server_url)
    return urlunsplit(parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower(), fragment=""))


def covers(resource: str, server_url: str) -> bool:
    """Return whether a token for ``resource`` is valid for the server.

    ``resource`` must have the same origin, and its path must be the server's path or above it.
    """
    try:
        if origin_of(resource) != origin_of(server_url) or urlsplit(resource).fragment:
            return False
    except ValueError:
        return False
    above, path = (f"{urlsplit(url).path.rstrip('/')}/" for url in (resource, server_url))
    return path.startswith(above) and "/../" not in path and "/../" not in above


def is_same_issuer(url: str, other: str) -> bool:
    """Return whether two spellings mean one issuer: they are equal, or differ only in the path ``/``."""
    if url == other:
        return True
    shorter, longer = sorted((url, other), key=len)
    return longer == f"{shorter}/" and urlsplit(shorter).path == ""


def resource_metadata_urls(server_url: str) -> list[str]:
    """Return the possible URLs of the document about a resource, in search order (RFC 9728, section 3.1)."""
    parts = urlsplit(server_url)
    root = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource"
    return [root + parts.path, root] if parts.path.strip("/") else [root]


def server_metadata_urls(issuer: str) -> list[str]:
    """Return the possible URLs of the document about an authorization server, in search order."""
    parts = urlsplit(issuer)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [
        f"{root}/.well-known/oauth-authorization-server{path}",
        f"{root}/.well-known/openid-configuration{path}",
    ]
    return [*urls, f"{root}{path}/.well-known/openid-configuration"] if path else urls


def read_protected_resource(answer: Any, place: str, server_url: str) -> ProtectedResource:
    """Read the document about the resource at ``server_url``; ``place`` is the document's URL.

    Raises :class:`~proxy.tools.oauth.port.OAuthFault` if it is invalid or about another resource.
    """
    document = _read(_Resource, answer, place)
    if not covers(document.resource, server_url):
        raise OAuthFault(
            f"{plain_text(place)} is about {plain_text(document.resource)}, which is not {server_url}"
        )
    return ProtectedResource(
        document.resource, tuple(document.authorization_servers), read_scopes(document.scopes_supported)
    )


def read_server(answer: Any, place: str, issuer: str, *, loosely: bool = False) -> AuthorizationServer:
    """Read the document about the authorization server ``issuer``; ``place`` is the document's URL.

    Raises :class:`~proxy.tools.oauth.port.OAuthFault` if it is invalid or about another issuer. Issuers are
    compared character by character (RFC 8414, section 3.3); ``loosely`` ignores a slash after an origin.
    """
    document = _read(_Server, answer, place)
    same = is_same_issuer(document.issuer, issuer) if loosely else document.issuer == issuer
    if not same:
        raise OAuthFault(
            f"{plain_text(place)} is about the issuer {plain_text(document.issuer)}, not {issuer}"
        )
    methods, grants = document.token_endpoint_auth_methods_supported, document.grant_types_supported
    return AuthorizationServer(
        issuer=document.issuer,
        authorization_endpoint=document.authorization_endpoint or "",
        token_endpoint=document.token_endpoint,
        registration_endpoint=document.registration_endpoint or "",
        revocation_endpoint=document.revocation_endpoint or "",
        end_session_endpoint=document.end_session_endpoint or "",
        scopes=read_scopes(document.scopes_supported),
        auth_methods=None if methods is None else tuple(methods),
        has_pkce="S256" in (document.code_challenge_methods_supported or ()),
        sends_iss=bool(document.authorization_response_iss_parameter_supported),
        accepts_client_documents=bool(document.client_id_metadata_document_supported),
        grants=None if grants is None else tuple(grants),
    )


def _read(kind: type[_Kind], answer: Any, place: str) -> _Kind:
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the document"
        raise OAuthFault(f"{plain_text(place)} cannot be used: {plain_text(field)} is not valid") from None


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
