"""The settings of connections: valid combinations, and one line of error for each invalid one."""

from pathlib import Path

import pytest

from proxy.app.compose.credentials import connection_of
from proxy.base.errors import ConfigError
from proxy.config.load import Config, load_config
from proxy.tools.access.credentials import StaticToken
from proxy.tools.oauth.grants import ClientCredentials, LoggedIn, OAuthToken

ENV = {"OPENAI_API_KEY": "sk-test-openai", "SECRET": "s3cret-value", "SEAL": "00" * 32}
SEALED = '[store]\nseal_key = "env:SEAL"\n'
SERVER = '[mcp.servers.a]\nurl = "https://mcp.example/mcp"\nconnection = "a"\n'
LOGIN = '[credentials.a]\ngrant = "authorization_code"\n'


def load(folder: Path, text: str) -> Config:
    """Load a file with this text."""
    path = folder / "toolrelay.toml"
    path.write_text(text)
    return load_config(path, ENV)


def test_each_kind_becomes_what_it_is(tmp_path: Path) -> None:
    """Each kind of connection gets its secrets, which are masked in the log and not in the repr."""
    more = (
        f"{SEALED}{SERVER}{LOGIN}"
        '[mcp.servers.b]\nurl = "https://mcp.example/b"\nconnection = "token"\n'
        '[credentials.token]\ntoken = "env:SECRET"\n'
        '[credentials.machine]\ngrant = "client_credentials"\nissuer = "https://as.example"\n'
        'client_id = "m"\nclient_secret = "env:SECRET"\nscopes = ["x"]\n'
        '[credentials.old]\nrefresh_token = "env:SECRET"\nclient_id = "env:SECRET"\n'
        'token_url = "https://as.example/token"\n'
        '[credentials.google]\ngrant = "authorization_code"\nissuer = "https://accounts.google.com"\n'
        'client_id = "me"\nclient_secret = "env:SECRET"\n'
    )
    config = load(tmp_path, more)
    secret, mcp = ENV["SECRET"], "https://mcp.example"
    assert connection_of(config, "a") == LoggedIn(server_url=f"{mcp}/mcp")
    assert connection_of(config, "token") == StaticToken(secret, f"{mcp}/b")
    assert connection_of(config, "machine") == ClientCredentials(
        "https://as.example", "m", secret, scopes=("x",)
    )
    assert connection_of(config, "old") == OAuthToken("https://as.example/token", secret, secret)
    assert connection_of(config, "google") == LoggedIn(
        issuer="https://accounts.google.com", client_id="me", client_secret=secret
    )
    assert set(config.secrets()) >= {secret}
    assert config.mcp.known()["a"].connection == "a"
    assert secret not in repr(config)


def test_credentials_are_resolved(tmp_path: Path) -> None:
    """The secrets of a token and of an OAuth 2 connection, its client secret too, are resolved and masked."""
    (tmp_path / "client").write_text("cl13nt-s3cret\n")
    written = {
        "token": "env:TOKEN",
        "client_id": "env:ID",
        "client_secret": f"file:{tmp_path / 'client'}",
        "refresh_token": "env:REFRESH",
    }
    lines = [f'{name} = "{source}"\n' for name, source in written.items()]
    text = f"[credentials.a]\n{lines[0]}[credentials.b]\n{''.join(lines[1:])}"
    (tmp_path / "toolrelay.toml").write_text(f'{text}token_url = "https://auth.example/token"\n')
    env = {**ENV, "TOKEN": "t0ken", "ID": "cl13nt-id", "REFRESH": "r3fresh"}
    config = load_config(tmp_path / "toolrelay.toml", env)
    values = ["t0ken", "cl13nt-id", "cl13nt-s3cret", "r3fresh"]
    a, b = config.credentials["a"], config.credentials["b"]
    found = [secret for secret in (a.token, b.client_id, b.client_secret, b.refresh_token) if secret]
    assert [secret if isinstance(secret, str) else secret.reveal() for secret in found] == values
    assert set(values) <= set(config.secrets())
    assert [value for value in values if value in repr(config)] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('issuer = "https://as.example"', "credentials.a: has issuer, which needs grant"),
        ('token = "env:SECRET"\nscopes = ["x"]', "credentials.a: has scopes, which needs grant"),
        ('grant = "implicit"', "credentials.a.grant: "),
        ('grant = "authorization_code"\ntoken = "env:SECRET"', "credentials.a: has both grant and token"),
        (
            'grant = "authorization_code"\nrefresh_token = "env:SECRET"',
            "credentials.a: has both grant and refresh_token",
        ),
        (
            'grant = "client_credentials"\nclient_id = "m"',
            "credentials.a: also needs issuer and client_secret",
        ),
        (
            'grant = "client_credentials"\nissuer = "https://as.example"\nclient_id = "m"\n'
            'client_secret = "env:SECRET"\nredirect_uri = "http://127.0.0.1/x"',
            "credentials.a: has redirect_uri, which belongs to grant",
        ),
        (
            'grant = "authorization_code"\nclient_id = "m"\nclient_secret = "env:SECRET"',
            "credentials.a: also needs issuer: it says who gets the client secret",
        ),
        (
            'grant = "authorization_code"\nissuer = "https://as.example"\nclient_secret = "env:SECRET"',
            "credentials.a: also needs client_id",
        ),
        (
            'grant = "authorization_code"\nclient_id = "m"\nclient_metadata_url = "https://a.example/b"',
            "credentials.a: has both client_id and client_metadata_url",
        ),
        ('grant = "authorization_code"\nissuer = "http://as.example"', "credentials.a.issuer: is not an"),
        ('grant = "authorization_code"\nissuer = "https://as.example?x"', "credentials.a.issuer: is not an"),
        ('grant = "authorization_code"\nissuer = "https://u:p@as.example"', "credentials.a.issuer: is not"),
        (
            'grant = "authorization_code"\nclient_metadata_url = "https://a.example/"',
            "credentials.a.client_metadata_url: is not",
        ),
        (
            'grant = "authorization_code"\nclient_metadata_url = "http://a.example/x"',
            "credentials.a.client_metadata_url: is not",
        ),
        (
            'grant = "authorization_code"\nredirect_uri = "https://127.0.0.1/x"',
            "credentials.a.redirect_uri: is not",
        ),
        (
            'grant = "authorization_code"\nredirect_uri = "http://0.0.0.0/x"',
            "credentials.a.redirect_uri: is not",
        ),
        (
            'grant = "authorization_code"\nredirect_uri = "http://127.0.0.1"',
            "credentials.a.redirect_uri: is not",
        ),
        (
            'grant = "authorization_code"\nredirect_uri = "http://127.0.0.1:0/x"',
            "credentials.a.redirect_uri: is not",
        ),
        ('grant = "authorization_code"\nscopes = ["a b"]', "credentials.a.scopes: 'a b' is not a scope"),
        (
            'grant = "authorization_code"\nauthorization_parameters = {state = "x"}',
            "credentials.a.authorization_parameters: 'state' cannot be set: toolrelay sets",
        ),
        ('grant = "authorization_code"\nisuer = "x"', "credentials.a.isuer: "),
    ],
)
def test_a_connection_that_does_not_fit(tmp_path: Path, text: str, said: str) -> None:
    """An invalid connection is an error in one line that names the setting and shows no secret."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"{SEALED}{SERVER}[credentials.a]\n{text}\n")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SEALED}{SERVER}", "mcp.servers.a.connection: there is no connection 'a'"),
        (f"[store]\nseal = false\n{SERVER}{LOGIN}", "store.seal_key: the record is not encrypted"),
        (f'{SEALED}url = "memory:"\n{SERVER}{LOGIN}', "store.seal_key: the record is not encrypted"),
        (
            f'[store]\nurl = "postgresql://h/d"\n{SERVER}{LOGIN}',
            "store.seal_key: the record is not encrypted",
        ),
        (f"{SEALED}seal = false\n", "store.seal: is false, but store.seal_key is set"),
        (f"{SEALED}{LOGIN}", "credentials.a.issuer: is missing, and no MCP server uses this connection"),
        (
            f'{SEALED}{SERVER}{LOGIN}[mcp.servers.b]\nurl = "https://b.example/mcp"\nconnection = "a"\n',
            "mcp.servers.b.connection: mcp.servers.a already uses 'a', and a token is for one server",
        ),
        (
            f'{SEALED}{LOGIN}[mcp.servers.a]\ncommand = "x"\nconnection = "a"\n',
            "mcp.servers.a: has connection, which works only with url",
        ),
        (
            f'{SEALED}{LOGIN}{SERVER}headers = {{Authorization = "env:SECRET"}}\n',
            "mcp.servers.a: has both connection and headers.authorization",
        ),
        (
            f'{SEALED}{LOGIN}[mcp]\nnetworks = ["10.0.0.0/8"]\n[mcp.servers.a]\n'
            'url = "http://mcp.internal/mcp"\nconnection = "a"\n',
            "mcp.servers.a.url: is not encrypted, but its connection sends a token",
        ),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, text: str, said: str) -> None:
    """Settings that contradict each other are an error in one line that names one of them."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
