"""``toolrelay credentials list`` and ``logout``: shows the state of connections, and ends a login."""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

from proxy.app.compose.credentials import connection_of, oauth_pools
from proxy.base.plain_text import plain_text
from proxy.commands.common import print_table, say, say_error, say_json
from proxy.commands.credentials.login import need_user
from proxy.commands.credentials.vault import open_vault
from proxy.config.credentials import CredentialConfig, server_of
from proxy.config.load import Config
from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.clients import Client
from proxy.tools.oauth.grants import LoggedIn, grant_of, login_command, login_place
from proxy.tools.oauth.login import revoke
from proxy.tools.oauth.stored_tokens import Login, StoredTokens, read_stored_tokens


class _Row(Struct, frozen=True):
    """A connection. ``missing`` says what to do before it can be used; empty if nothing."""

    name: str
    kind: str
    server: str
    login: Login | None = None
    missing: str = ""


async def list_credentials(config: Config, *, as_json: bool) -> bool:
    """Print every connection on one line, without secrets; return whether all can be used."""
    rows = await _rows(config)
    if as_json:
        say_json(*map(_written, rows))
    else:
        print_table(("connection", "kind", "used by", "logged in", "issuer", "scopes"), map(_cells, rows))
    for row in rows:
        if row.missing:
            say_error(f"credentials.{row.name}: {row.missing}")
    return not any(row.missing for row in rows)


async def login_lines(config: Config) -> list[str]:
    """Return a line for each connection that still needs a login."""
    if not any(connection.grant == "authorization_code" for connection in config.credentials.values()):
        return []
    return [f"credentials.{row.name}: {row.missing}" for row in await _rows(config) if row.missing]


async def log_out(config: Config, name: str, user: str = "") -> bool:
    """Delete a login (of ``user``, if each has one) and revoke its tokens; return whether there was one."""
    need_user(config, name, user)
    async with open_vault(config) as vault:
        if vault is None:
            return _say_no_login(name)
        place = login_place(name, user)
        async with vault.exclusive(place):
            tokens = read_stored_tokens(await vault.load(place))
            await vault.forget(place)
    if tokens is None or tokens.login is None:
        return _say_no_login(name)
    say(f"{name}: logged out; running servers notice within seconds")
    await _revoke(config, name, tokens, tokens.login)
    return True


async def _revoke(config: Config, name: str, tokens: StoredTokens, login: Login) -> None:
    settings = config.credentials.get(name)
    client = login.client
    if client.kind == "configured" and client.method != "none":
        secret = settings.client_secret if settings is not None else None
        client = Client(client.id, "configured", secret.reveal() if secret else "", client.method)
    pools = oauth_pools(config)
    issuer = settings.issuer if settings is not None else ""
    try:
        http = pools.http(
            issuer=issuer or ("" if login.resource else login.issuer), server_url=login.resource
        )
        asked = await revoke(http, tokens, client)
    except HttpFailure as failure:
        say_error(
            f"{plain_text(login.issuer)} did not revoke the tokens ({failure}); they stay valid until they "
            "expire"
        )
        return
    finally:
        await pools.aclose()
    if not asked:
        say(
            plain_text(
                f"{login.issuer} does not support revoking tokens; they stay valid until they expire", 4000
            )
        )


async def _rows(config: Config) -> Sequence[_Row]:
    async with open_vault(config) as vault:
        rows = []
        for name, settings in config.credentials.items():
            tokens = None
            if settings.grant == "authorization_code" and vault is not None:
                tokens = read_stored_tokens(await vault.load(login_place(name)))
            rows.append(_row(config, name, settings, tokens))
        return rows


def _row(config: Config, name: str, settings: CredentialConfig, tokens: StoredTokens | None) -> _Row:
    server = server_of(name, config.mcp)
    if settings.grant != "authorization_code":
        return _Row(name, settings.grant or ("token" if settings.token else "refresh_token"), server)
    if settings.per_user:
        return _Row(name, f"{settings.grant}, per user", server)
    connection = connection_of(config, name)
    run = f"run: {login_command(name)}"
    if tokens is None or tokens.login is None or not isinstance(connection, LoggedIn):
        return _Row(name, settings.grant, server, None, f"nobody has logged in; {run}")
    if not grant_of(name, connection).fits(tokens):
        about = tokens.login.resource or tokens.login.issuer
        why = f"the login is for another server or client than is configured ({plain_text(about)}); {run}"
        return _Row(name, settings.grant, server, tokens.login, why)
    return _Row(name, settings.grant, server, tokens.login)


def _cells(row: _Row) -> tuple[str, ...]:
    login = row.login
    about = ("-",) * 3 if login is None else (_moment(login.at), login.issuer, " ".join(login.scopes))
    return (row.name, row.kind, f"mcp.servers.{row.server}" if row.server else "tools", *about)


def _written(row: _Row) -> dict[str, object]:
    login = row.login
    return {
        "connection": row.name,
        "kind": row.kind,
        "server": row.server or None,
        "logged_in_at": _moment(login.at) if login is not None else None,
        "issuer": login.issuer if login is not None else None,
        "resource": (login.resource or None) if login is not None else None,
        "scopes": list(login.scopes) if login is not None else [],
        "missing": row.missing or None,
    }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _say_no_login(name: str) -> bool:
    say_error(f"nobody is logged in to {plain_text(name)}")
    return False
