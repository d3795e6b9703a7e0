"""``toolrelay credentials login``, ``list`` and ``logout``, with a browser that is an HTTP client."""

import io
import json
import re
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from child_server import reserved_port
from command_line import Here
from hostile_text import EVIL, checked
from in_process import in_thread
from oauth_server import OAuthServer, running
from waiting import PATIENCE_S

SEAL = secrets.token_hex(32)
BROWSER = """
import json, os, sys, urllib.error, urllib.parse, urllib.request
said = []
state = urllib.parse.parse_qs(urllib.parse.urlsplit(sys.argv[2]).query)["state"][0]
for asked in [*json.load(open(sys.argv[1])), "GET " + sys.argv[2]]:
    method, url = asked.replace("STATE", state).split()
    try:
        said.append(urllib.request.urlopen(urllib.request.Request(url, method=method)).status)
    except urllib.error.HTTPError as error:
        said.append(error.code)
json.dump(said, open(sys.argv[1] + ".part", "w"))
os.rename(sys.argv[1] + ".part", sys.argv[1] + ".said")
"""
METADATA: dict[str, Any] = {
    "issuer": "{URL}",
    "authorization_endpoint": "{URL}/authorize",
    "token_endpoint": "{URL}/token",
    "registration_endpoint": "{URL}/register",
    "code_challenge_methods_supported": ["S256"],
}
AS = "/.well-known/oauth-authorization-server"


@pytest.fixture
def server() -> Iterator[OAuthServer]:
    """An authorization server and an MCP server."""
    with in_thread(running()) as one:
        yield one


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser that follows redirects and does nothing else.

    It first sends the requests in the file ``first``, as ``METHOD URL`` with ``STATE`` for the login's state;
    it writes all statuses into ``first.said``.
    """
    folder = tmp_path / "browser"
    folder.mkdir()
    (folder / "browser.py").write_text(BROWSER)
    (folder / "first").write_text("[]")
    command = [sys.executable, str(folder / "browser.py"), str(folder / "first"), "%s"]
    monkeypatch.setenv("BROWSER", " ".join(command))
    # The module keeps the browsers that it found for the life of the process.
    monkeypatch.setattr(webbrowser, "_tryorder", None)
    monkeypatch.setattr(webbrowser, "_browsers", {})
    return folder


def configure(folder: Path, server: OAuthServer, more: str = "", mcp: str = "") -> None:
    """Write a configuration with one MCP server and its connection."""
    (folder / "toolrelay.toml").write_text(
        f"""
[upstreams.default]
base_url = "replay:"
[store]
url = "sqlite:///record.db"
seal_key = "file:seal.key"
[mcp]
networks = ["127.0.0.0/8"]
[mcp.servers.issues]
url = "{server.mcp}"
connection = "issues"
{mcp}
[credentials.issues]
grant = "authorization_code"
{more}
"""
    )
    (folder / "seal.key").write_text(SEAL)


def tokens_in(folder: Path) -> bool:
    """Say whether any file of the folder contains a token in plain text."""
    return any(b"s3cret" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def listed(here: Here) -> dict[str, Any]:
    """Return what ``credentials --json`` says of the one connection."""
    done = here("credentials", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) is (found["missing"] is None)
    return found


@pytest.mark.usefixtures("browser")
def test_a_login_is_kept_sealed(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """A login registers a client, names the resource and keeps its token sealed; no output has the token."""
    configure(tmp_path, server)
    assert "nobody has logged in; run: toolrelay credentials login issues" in listed(here)["missing"]
    done = here("credentials", "login", "issues")
    assert done.returncode == 0, done.stderr
    assert f"log in at {server.url} for {server.mcp}, with the scopes read" in done.stdout
    assert "issues: logged in, with the scopes read" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert not tokens_in(tmp_path)
    (registered,) = server.registered
    assert registered["application_type"] == "native"
    (asked,) = server.authorized
    assert asked["redirect_uri"] in registered["redirect_uris"]
    assert asked["resource"] == server.mcp
    (form,) = server.forms
    assert form["resource"] == server.mcp
    found = listed(here)
    assert (found["connection"], found["server"], found["scopes"]) == ("issues", "issues", ["read"])
    assert (found["issuer"], found["resource"]) == (server.url, server.mcp)
    table = here("credentials", "list").stdout
    assert "mcp.servers.issues" in table
    assert "authorization_code" in table


@pytest.mark.usefixtures("browser")
def test_check_names_what_nobody_has_logged_in_to(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """Before a login, ``check`` names the login command without asking a server; after it, it does not."""
    configure(tmp_path, server)
    line = "credentials.issues: nobody has logged in; run: toolrelay credentials login issues"
    assert line in here("check").stderr
    assert server.asked == []
    assert here("credentials", "login", "issues").returncode == 0
    assert "nobody has logged in" not in here("check").stderr


@pytest.mark.usefixtures("browser")
def test_a_logout_ends_it_at_both_ends(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """A logout deletes the login from the record and revokes it at the server (RFC 7009)."""
    configure(tmp_path, server)
    assert here("credentials", "logout", "issues").returncode == 1
    assert here("credentials", "login", "issues").returncode == 0
    done = here("credentials", "logout", "issues")
    assert (done.returncode, done.stderr) == (0, "")
    assert server.logins[0].ended
    assert server.revoked[0]["token_type_hint"] == "refresh_token"
    assert listed(here)["missing"]
    done = here("credentials", "logout", "issues")
    assert (done.returncode, "nobody is logged in" in done.stderr) == (1, True)


@pytest.mark.usefixtures("browser")
def test_a_logout_says_what_it_cannot_do(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """A logout works for a connection that is configured no more, and says if tokens cannot be revoked."""
    configure(tmp_path, server)
    server.documents[AS] = METADATA
    server.sends_iss = False
    assert here("credentials", "login", "issues").returncode == 0
    text = (tmp_path / "toolrelay.toml").read_text()
    (tmp_path / "toolrelay.toml").write_text(
        text.partition("[mcp.servers")[0] + '[tools]\nnetworks = ["127.0.0.0/8"]\n'
    )
    done = here("credentials", "logout", "issues")
    assert done.returncode == 0
    assert "does not support revoking tokens" in done.stdout


@pytest.mark.usefixtures("browser")
def test_a_scope_that_a_server_asks_for_is_named(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """``mcp list`` and ``mcp test`` name a missing scope and the login for it; then ``mcp list`` works."""
    server.list_scope = "catalog"
    configure(tmp_path, server)
    assert here("credentials", "login", "issues").returncode == 0
    command = "toolrelay credentials login issues --scope catalog"
    for asked in (("mcp", "list"), ("mcp", "test", "issues")):
        done = here(*asked)
        assert done.returncode == 1
        assert "the server asks for the scope catalog" in done.stderr
        assert command in done.stderr
        assert "s3cret" not in done.stdout + done.stderr
    # With --json, standard output is JSON alone; log lines go elsewhere.
    (shown,) = [json.loads(line) for line in here("mcp", "list", "--json").stdout.splitlines()]
    assert shown["state"] == "unauthorized"
    assert here(*command.split()[1:]).returncode == 0
    done = here("mcp", "list")
    assert done.returncode == 0, done.stderr
    assert "mcp__issues__read: new" in done.stdout


def test_the_address_can_be_pasted(tmp_path: Path, server: OAuthServer) -> None:
    """With --paste, the user pastes the redirect's address; the command refuses other text and asks again."""
    configure(tmp_path, server)
    command = [sys.executable, "-m", "proxy", "credentials", "login", "issues", "--paste"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        url = next(line.strip() for line in process.stdout if line.startswith(server.url))
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.build_opener(_NoRedirects()).open(url)
        address = caught.value.headers["Location"]
        caught.value.close()
        assert urlsplit(address).hostname == "127.0.0.1"
        out, err = process.communicate(f"nonsense\n{address}\n", timeout=120)
    assert process.returncode == 0, err
    assert "that is not the answer to this login" in err
    assert "issues: logged in" in out
    assert len(server.logins) == 1


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect."""

    def redirect_request(self, *arguments: Any) -> None:
        """Follow nothing."""


def test_without_an_answer_nothing_is_kept(
    here: Here, tmp_path: Path, server: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the input ends before an answer is pasted, the login fails and asks for no token."""
    configure(tmp_path, server)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    done = here("credentials", "login", "issues", "--paste")
    assert done.returncode == 1
    assert "credentials.issues: none of the pasted addresses answers this login" in done.stderr
    assert server.forms == []


def test_an_answer_of_somebody_else_changes_nothing(
    here: Here, tmp_path: Path, server: OAuthServer, browser: Path
) -> None:
    """The listener refuses a wrong method, path or state, and the login goes on to its own answer."""
    with reserved_port() as port:
        configure(tmp_path, server, f'redirect_uri = "http://127.0.0.1:{port}/back"')
        at = f"http://127.0.0.1:{port}"
        others = [
            f"GET {at}/back?code=x&state=y",
            f"GET {at}/back",
            f"GET {at}/other?code=x&state=STATE",
            f"GET {at}/back?state=a&state=b",
            f"POST {at}/back?code=x&state=STATE",
            f"HEAD {at}/back?code=x&state=STATE",
        ]
        (browser / "first").write_text(json.dumps(others))
        done = here("credentials", "login", "issues")
    assert done.returncode == 0, done.stderr
    assert _said(browser) == [400, 400, 404, 400, 404, 404, 200]
    assert len(server.forms) == 1


def _said(browser: Path) -> list[int]:
    """Return the statuses that the browser got; it may end after the command."""
    until = time.monotonic() + PATIENCE_S
    while not (browser / "first.said").exists() and time.monotonic() < until:
        time.sleep(0.01)
    found: list[int] = json.loads((browser / "first.said").read_text())
    return found


@pytest.mark.usefixtures("browser")
def test_a_client_is_registered_once_for_a_fixed_port(
    here: Here, tmp_path: Path, server: OAuthServer
) -> None:
    """A second login reuses the registered client; a login at another issuer registers a new one."""
    with reserved_port() as port:
        configure(tmp_path, server, f'redirect_uri = "http://localhost:{port}/callback"')
        for _ in range(2):
            done = here("credentials", "login", "issues")
            assert done.returncode == 0, done.stderr
        assert len(server.registered) == 1
        assert server.authorized[1]["client_id"] == "client-1"
        document = {"resource": "{URL}/mcp", "authorization_servers": ["{URL}/tenant"]}
        server.documents["/.well-known/oauth-protected-resource/mcp"] = document
        server.documents[f"{AS}/tenant"] = {**METADATA, "issuer": "{URL}/tenant"}
        server.iss = f"{server.url}/tenant"
        assert here("credentials", "login", "issues").returncode == 0
    assert len(server.registered) == 2, "credentials of one issuer go to no other"


@pytest.mark.usefixtures("browser")
def test_a_client_of_ones_own(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """A configured client's id and secret go to the configured issuer, and no client is registered."""
    secret = "s3cret-of-mine"
    (tmp_path / "client.secret").write_text(secret)
    own = f'issuer = "{server.url}"\nclient_id = "mine"\nclient_secret = "file:client.secret"'
    configure(tmp_path, server, own)
    done = here("credentials", "login", "issues")
    assert done.returncode == 0, done.stderr
    (form,) = server.forms
    assert (form["client_id"], form["client_secret"], form["method"]) == ("mine", secret, "basic")
    assert server.registered == []
    done = here("credentials", "logout", "issues")
    assert server.revoked[0]["client_secret"] == secret
    assert secret not in done.stdout + done.stderr


@pytest.mark.usefixtures("browser")
def test_a_client_that_is_a_document(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """If the server supports it, the address of a client metadata document is the client id."""
    configure(tmp_path, server, 'client_metadata_url = "https://example.com/client.json"')
    server.documents[AS] = {**METADATA, "client_id_metadata_document_supported": True}
    server.sends_iss = False
    done = here("credentials", "login", "issues")
    assert done.returncode == 0, done.stderr
    assert server.authorized[0]["client_id"] == "https://example.com/client.json"
    assert server.registered == []


@pytest.mark.usefixtures("browser")
def test_scopes_are_asked_for_beside_those_that_are_there(
    here: Here, tmp_path: Path, server: OAuthServer
) -> None:
    """``--scope`` adds a scope to the configured ones; the command names scopes that were not granted."""
    configure(tmp_path, server, 'scopes = ["read", "list"]')
    server.documents[AS] = {**METADATA, "scopes_supported": ["read", "list", "write", "offline_access"]}
    server.sends_iss = False
    assert here("credentials", "login", "issues").returncode == 0
    server.grants = "read list"
    done = here("credentials", "login", "issues", "--scope", "write")
    assert [asked["scope"] for asked in server.authorized] == [
        "read list offline_access",
        "read list offline_access write",
    ]
    assert "credentials.issues: scopes not granted: write\n" in done.stderr
    done = here("credentials", "login", "issues", "--scope", "a b")
    assert done.stderr == (
        "toolrelay: --scope: is not a scope. Give each scope separately: --scope read --scope write\n"
    )


@pytest.mark.usefixtures("browser")
def test_a_login_without_a_refresh_token_says_so(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """If the server gives no refresh token, the login succeeds and says so."""
    configure(tmp_path, server)
    server.gives_refresh = False
    done = here("credentials", "login", "issues")
    assert done.returncode == 0
    assert "there is no refresh token" in done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"refuses": "access_denied"}, "refused: access_denied"),
        ({"iss": "https://evil.example"}, "the answer is from the issuer https://evil.example"),
        ({"token_answer": {"error": "invalid_grant", "x": "s3cret"}, "token_status": 400}, "invalid_grant"),
        ({"token_answer": {"access_token": "s3cret x"}}, "no bearer token in its answer"),
        ({"token_answer": {"access_token": "s3cret", "token_type": "DPoP"}}, "no bearer token"),
        (
            {"documents": {AS: {**METADATA, "issuer": "https://evil.example"}}},
            "about the issuer https://evil",
        ),
        ({"documents": {AS: {**METADATA, "code_challenge_methods_supported": ["plain"]}}}, "PKCE"),
        ({"documents": {AS: {**METADATA, "authorization_endpoint": "javascript:alert(1)"}}}, "is not https"),
        (
            {"documents": {AS: {**METADATA, "authorization_endpoint": "http://as.example/login"}}},
            "the page to log in at, is not https",
        ),
        ({"documents": {AS: {**METADATA, "registration_endpoint": "https://10.0.0.1/"}}}, "not public"),
        ({"documents": {AS: {**METADATA, "registration_endpoint": None}}}, "registers no clients by itself"),
        (
            {
                "documents": {AS: {**METADATA, "token_endpoint": "http://as.example/token"}},
                "sends_iss": False,
            },
            "its address is not https",
        ),
    ],
)
@pytest.mark.usefixtures("browser")
def test_a_login_that_fails_keeps_nothing(
    here: Here, tmp_path: Path, server: OAuthServer, change: dict[str, Any], words: str
) -> None:
    """A failed login prints one line with the connection and no token, and stores nothing."""
    configure(tmp_path, server)
    for name, value in change.items():
        setattr(server, name, value)
    done = here("credentials", "login", "issues")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("toolrelay: credentials.issues: ")
    assert words in line
    assert "s3cret" not in done.stdout + done.stderr
    assert listed(here)["missing"]


@pytest.mark.parametrize(
    "change",
    [
        {"refuses": EVIL},
        {"iss": EVIL},
        {"token_answer": {"error": EVIL, "error_description": EVIL}, "token_status": 400},
        {"token_answer": {"access_token": "s3cret", "token_type": EVIL}},
        {"grants": f"read {EVIL}"},
        {"documents": {AS: {**METADATA, "issuer": EVIL}}},
        {"documents": {AS: {**METADATA, "authorization_endpoint": f"{{URL}}/authorize?x={EVIL}"}}},
        {"documents": {AS: {**METADATA, "token_endpoint": EVIL}}, "sends_iss": False},
        {"documents": {AS: {**METADATA, "scopes_supported": [EVIL]}}, "sends_iss": False},
    ],
    ids=[
        "refusal",
        "iss",
        "token-error",
        "token-type",
        "scopes",
        "issuer",
        "page",
        "token-page",
        "supported",
    ],
)
@pytest.mark.usefixtures("browser")
def test_what_an_authorization_server_says(
    here: Here, tmp_path: Path, server: OAuthServer, change: dict[str, Any]
) -> None:
    """What ``login``, ``list`` and ``logout`` quote of a server cannot act on the terminal."""
    configure(tmp_path, server)
    for name, value in change.items():
        setattr(server, name, value)
    for command in (("login", "issues"), ("list",), ("list", "--json"), ("logout", "issues")):
        done = here("credentials", *command)
        checked(done.stdout)
        checked(done.stderr)


def test_an_account_of_a_tool(here: Here, tmp_path: Path, server: OAuthServer, browser: Path) -> None:
    """A login as Google needs it sends extra parameters and no resource; the tool can use its token."""
    (tmp_path / "client.secret").write_text("s3cret-of-mine")
    (tmp_path / "seal.key").write_text(SEAL)
    (tmp_path / "toolrelay.toml").write_text(
        f"""
[upstreams.default]
base_url = "replay:"
[store]
seal_key = "file:seal.key"
[policy]
allow = ["calendar__*"]
[tools]
networks = ["127.0.0.0/8"]
base_urls = {{calendar = "{server.url}/calendar/v3"}}
[credentials.google_calendar]
grant = "authorization_code"
issuer = "{server.url}"
client_id = "mine"
client_secret = "file:client.secret"
scopes = ["https://www.googleapis.com/auth/calendar.readonly"]
authorization_parameters = {{access_type = "offline", prompt = "consent"}}
"""
    )
    server.documents[AS] = None
    server.documents["/.well-known/openid-configuration"] = {
        **METADATA,
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        "response_types_supported": ["code", "token"],
    }
    server.sends_iss = False
    server.documents["/calendar/v3/calendars/primary/events"] = {"items": []}
    call = ["tools", "call", "calendar__list_events", json.dumps(TIMES)]
    done = here(*call)
    assert (done.returncode, "google_calendar" in done.stderr) == (1, True)
    done = here("credentials", "login", "google_calendar")
    assert done.returncode == 0, done.stderr
    (asked,) = server.authorized
    assert (asked["access_type"], asked["prompt"]) == ("offline", "consent")
    assert "resource" not in asked
    assert "resource" not in server.forms[0]
    done = here(*call)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert browser.exists()


TIMES = {"time_min": "2027-01-01T00:00:00Z", "time_max": "2027-01-08T00:00:00Z"}


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ("", "isues", "credentials.isues: is missing. Did you mean issues?"),
        ("", "x", "credentials.x: is missing. Configured are: issues, plain, machine"),
        ("", "plain", "credentials.plain.grant: is missing, and a configured token needs no login"),
        ("", "machine", "credentials.machine.grant: is client_credentials, which needs no login"),
    ],
)
def test_what_nobody_logs_in_to(
    here: Here, tmp_path: Path, server: OAuthServer, settings: str, name: str, words: str
) -> None:
    """A login to an unknown connection, or to one that needs no login, fails and names the setting."""
    (tmp_path / "token").write_text("x")
    plain = '[credentials.plain]\ntoken = "file:token"\n'
    machine = (
        '[credentials.machine]\ngrant = "client_credentials"\nissuer = "https://as.example"\n'
        'client_id = "m"\nclient_secret = "file:token"\n'
    )
    configure(tmp_path, server, settings + plain + machine)
    done = here("credentials", "login", name)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_port_that_is_taken_is_named(here: Here, tmp_path: Path, server: OAuthServer) -> None:
    """If the port of the redirect is in use, the login fails before it asks a server."""
    port = urlsplit(server.url).port
    configure(tmp_path, server, f'redirect_uri = "http://127.0.0.1:{port}/callback"')
    done = here("credentials", "login", "issues")
    assert done.returncode == 1
    assert re.match(
        r"toolrelay: redirect_uri: toolrelay cannot listen at http://127\.0\.0\.1:\d+/callback: ", done.stderr
    )
    assert server.asked == []


def test_no_browser_is_opened_where_there_is_none(
    here: Here, tmp_path: Path, server: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a graphical browser, the login prints the address and an ssh command, and opens nothing."""
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("proxy.commands.credentials.redirect._PATIENCE_S", 0.01)
    configure(tmp_path, server)
    done = here("credentials", "login", "issues")
    assert done.returncode == 1
    assert "no browser came back to http://127.0.0.1:" in done.stderr
    url = next(line for line in done.stdout.splitlines() if line.startswith(f"{server.url}/authorize"))
    port = urlsplit(parse_qs(urlsplit(url).query)["redirect_uri"][0]).port
    assert f"ssh -L {port}:127.0.0.1:{port}" in done.stdout
    assert opened == []
