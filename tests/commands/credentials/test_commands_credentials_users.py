"""``toolrelay credentials`` for connections per user."""

import json
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Here
from in_process import in_thread
from oauth_server import OAuthServer, running

SEAL = secrets.token_hex(32)
CALLER = "webui/0123456789abcdef01234567"


@pytest.fixture
def server() -> Iterator[OAuthServer]:
    """An authorization server."""
    with in_thread(running()) as one:
        yield one


def configure(
    folder: Path, issuer: str, more: str = "", server: str = 'public_url = "https://ai.example.com"'
) -> None:
    """A configuration with one connection per user."""
    (folder / "seal").write_text(SEAL)
    (folder / "crm.json").write_text(json.dumps({"openapi": "3.0.0", "paths": {}}))
    (folder / "toolrelay.toml").write_text(
        f"""
[server]
{server}
[upstreams.default]
base_url = "replay:"
[store]
url = "sqlite:///record.db"
seal_key = "file:seal"
[tools]
networks = ["127.0.0.0/8"]
[openapi.crm]
file = "crm.json"
connection = "crm"
[credentials.crm]
grant = "authorization_code"
per_user = true
issuer = "{issuer}"
scopes = ["read"]
{more}
"""
    )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect."""

    def redirect_request(self, *arguments: Any) -> None:
        """Follow nothing."""


def test_an_operator_logs_in_and_out_for_a_user(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """``login --user`` keeps a login for that caller alone, and ``logout --user`` revokes it."""
    configure(tmp_path, server.url)
    command = [sys.executable, "-m", "proxy", "credentials", "login", "crm", "--paste", "--user", CALLER]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        url = next(line.strip() for line in process.stdout if line.startswith(server.url))
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.build_opener(_NoRedirects()).open(url)
        address = caught.value.headers["Location"]
        caught.value.close()
        out, err = process.communicate(f"{address}\n", timeout=120)
    assert process.returncode == 0, err
    assert "crm: logged in" in out
    assert here("credentials", "logout", "crm", "--user", "webui/somebody-else").returncode == 1
    assert here("credentials", "logout", "crm", "--user", CALLER).returncode == 0
    assert [form["token"] for form in server.revoked] == [server.logins[0].refresh_token]
    assert here("credentials", "logout", "crm", "--user", CALLER).returncode == 1


def test_a_user_is_named_where_users_log_in_and_nowhere_else(here: Here, tmp_path: Path) -> None:
    """Both commands say when --user is missing, or has no place."""
    configure(
        tmp_path, "https://login.example.com", '[credentials.all]\ntoken = "x"'.replace('"x"', '"env:PATH"')
    )
    for command in ("login", "logout"):
        missing = here("credentials", command, "crm")
        assert missing.returncode != 0
        assert "--user: is missing: each user logs in to crm" in missing.stderr
    assert "--user: is not for all" in here("credentials", "logout", "all", "--user", CALLER).stderr


def test_the_list_says_that_users_log_in(here: Here, tmp_path: Path) -> None:
    """A connection per user is no fault while nobody has logged in."""
    configure(tmp_path, "https://login.example.com")
    listed = here("credentials")
    assert listed.returncode == 0, listed.stderr
    assert "authorization_code, per user" in listed.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("public_url = ", 'host = "127.0.0.1" # '),
            "server.public_url: is missing, and credentials.crm sends users",
        ),
        (
            ('connection = "crm"', ""),
            "credentials.crm.per_user: works only with a connection of [openapi.NAME]",
        ),
        (("[credentials.crm]", "[credentials.callback]"), "credentials.callback: has the name of the page"),
        (("https://ai.example.com", "http://ai.example.com"), "server.public_url: must start with https://"),
        (("https://ai.example.com", "https://ai.example.com/x"), "server.public_url: must have no path"),
        (("per_user = true", 'per_user = true\nclient_id = "a"\nclient_secret = "env:A"'), "credentials.crm"),
        (('grant = "authorization_code"', 'grant = "client_credentials"'), "has per_user, which belongs to"),
    ],
)
def test_what_cannot_work_is_a_fault(here: Here, tmp_path: Path, change: tuple[str, str], words: str) -> None:
    """The check names what is missing before users get links that lead nowhere."""
    configure(tmp_path, "https://login.example.com")
    path = tmp_path / "toolrelay.toml"
    path.write_text(path.read_text().replace(*change))
    assert words in here("check").stderr
