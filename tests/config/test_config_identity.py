"""The settings of tokens of an OpenID provider, and of logins there."""

from pathlib import Path

import pytest

from proxy.base.errors import ConfigError
from proxy.config.load import Config, load_config

KEY = {"OPENAI_API_KEY": "sk-test-openai"}
LOGIN = (
    '[auth.jwt]\nissuer = "https://id.test"\n[ui.login]\nclient_id = "ui"\nurl = "https://proxy.test:8443/"\n'
)
WHOLE = '[auth]\nmode = "jwt"\n[auth.jwt]\nissuer = "https://id.test"\naudience = ["a"]\n'


def load(folder: Path, text: str) -> Config:
    """Load a configuration."""
    path = folder / "toolrelay.toml"
    path.write_text(text)
    return load_config(path, KEY)


def test_roles_keep_their_order(tmp_path: Path) -> None:
    """The file's order is the order in which roles are tried; their settings are those of keys."""
    text = (
        f'{WHOLE}[auth.jwt.roles.b]\nadmin = true\n[auth.jwt.roles.a]\nmodels = ["m"]\n[auth.jwt.roles."*"]\n'
    )
    roles = load(tmp_path, text).auth.jwt.roles
    assert list(roles) == ["b", "a", "*"]
    assert roles["b"].admin
    assert roles["a"].models == ("m",)


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        ('[auth]\nmode = "jwt"', "auth.jwt.issuer", "is missing"),
        ('[auth]\nmode = "jwt"\njwt.issuer = "https://id.test"', "auth.jwt.audience", "any other service"),
        (WHOLE.replace("https", "http"), "auth.jwt.issuer", "not encrypted"),
        (WHOLE + 'jwks_url = "http://id.test/keys"', "auth.jwt.jwks_url", "not encrypted"),
        (WHOLE.replace("https", "http") + 'networks = ["10.0.0.0/8"]', "auth.jwt.issuer", "not encrypted"),
        (WHOLE.replace('"jwt"', '"keys"'), "auth.jwt.issuer", "has no effect"),
        (WHOLE + 'algorithms = ["HS256"]', "auth.jwt.algorithms.0", "RS256"),
        (WHOLE + 'algorithms = ["none"]', "auth.jwt.algorithms.0", "RS256"),
        (WHOLE + "leeway_s = 301", "auth.jwt.leeway_s", "300"),
        (WHOLE + '[auth.jwt.roles."*"]\n[auth.jwt.roles.a]', "auth.jwt.roles", "write it last"),
        (WHOLE + "[auth.jwt.roles.a]\nmint = true", "auth.jwt.roles.a", "only client keys"),
        (WHOLE + '[auth.jwt.roles.a]\nmodles = ["m"]', "auth.jwt.roles.a.modles", "models"),
        (LOGIN.replace("[auth.jwt]", "[auth.jwt.roles.a]"), "auth.jwt.roles.a.issuer", "issuer"),
        (LOGIN.replace("issuer", "#"), "auth.jwt.issuer", "is missing"),
        (LOGIN.replace("https://id", "http://id"), "auth.jwt.issuer", "not encrypted"),
        (LOGIN.replace("client_id", "#"), "ui.login.client_id", "is missing"),
        (LOGIN.replace("url", "#"), "ui.login.url", "is missing"),
        (LOGIN.replace("https://proxy", "http://proxy"), "ui.login.url", "only for localhost"),
        (LOGIN.replace("8443/", "8443/ui"), "ui.login.url", "https://HOST"),
        (LOGIN.replace("https://proxy", "https://a:b@proxy"), "ui.login.url", "password"),
        (LOGIN + 'scopes = ["profile"]', "ui.login.scopes", "openid"),
        (LOGIN + 'scopes = ["openid", "a b"]', "ui.login.scopes", "no scope"),
        (LOGIN + 'client_secret = "plain"', "ui.login.client_secret", "env:"),
        (LOGIN + 'client_secret = "env:NOT_SET"', "ui.login.client_secret", "NOT_SET is not set"),
    ],
)
def test_faults(text: str, setting: str, words: str, tmp_path: Path) -> None:
    """Each fault names the setting and says what to write."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.setting == setting
    assert words in str(caught.value)


def test_an_address_inside_may_have_no_tls(tmp_path: Path) -> None:
    """Plain HTTP is for this machine and for addresses in the networks that the operator opened."""
    inside = WHOLE + 'networks = ["10.0.0.0/8"]\njwks_url = "http://10.1.2.3:8080/keys"'
    assert load(tmp_path, inside).auth.jwt.jwks_url == "http://10.1.2.3:8080/keys"
    assert load(tmp_path, inside.replace("10.1.2.3", "localhost")).auth.jwt.networks


def test_people_log_in_whatever_clients_send(tmp_path: Path) -> None:
    """A login needs no mode of its own and no audience; its secret is resolved, and masked in logs."""
    (tmp_path / "secret").write_text("secret-of-the-client\n")
    config = load(tmp_path, f'{LOGIN}client_secret = "file:{tmp_path}/secret"\nscopes = ["openid", "groups"]')
    login = config.ui.login
    assert (login.url, login.scopes) == ("https://proxy.test:8443", ("openid", "groups"))
    assert login.client_secret is not None
    assert login.client_secret.reveal() == "secret-of-the-client"
    assert "secret-of-the-client" in config.secrets()
    for host in ("localhost", "127.0.0.1", "[::1]"):
        local = load(tmp_path, LOGIN.replace("https://proxy.test", f"http://{host}"))
        assert local.ui.login.url == f"http://{host}:8443"
