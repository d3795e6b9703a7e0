"""``toolrelay keys`` creates, lists and revokes keys; ``check`` reports on them."""

import asyncio
import base64
import json
import re
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command_line import Here

from proxy.app.compose.services import Services
from proxy.commands.serve.serve import banner
from proxy.config.load import Config
from proxy.rights.callers import Caller, CallerBound, Rights
from proxy.server.auth.authenticate import Authentication
from proxy.store.factory import open_store
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import ArgumentBound
from proxy.upstreams.recorded.replay import packaged_fixtures

SECRET = re.compile(r"tr_[A-Za-z0-9_-]{43}")
ENV = {"OPENAI_API_KEY": "sk-test-0123456789"}
EITHER = {"required": False, "forbidden": False}
DECLARED = '[keys.webui]\nsecret = "env:WEBUI"\ntools = ["core__calculate"]\nadmin = true\n'


Check = Callable[..., CompletedProcess[str]]


def listed(here: Here, env: Mapping[str, str] = ENV) -> dict[str, Any]:
    """Return what ``keys list --json`` prints, by name."""
    done = here("keys", "list", "--json", env=env)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_a_key_is_shown_once(tmp_path: Path, here: Here) -> None:
    """create prints the secret alone to standard output; no other output and no file contains it."""
    done = here("keys", "create", "webui", env=ENV)
    assert done.returncode == 0, done.stderr
    assert SECRET.fullmatch(done.stdout.strip())
    assert SECRET.search(done.stderr) is None
    assert "until you restart it" in done.stderr
    secret = done.stdout.strip()
    shown = "".join(
        here(*words, env=ENV).stdout for words in (("keys",), ("keys", "list", "--json"), ("keys", "list"))
    )
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    for part in (secret, secret[3:33]):
        assert part not in shown
        assert part.encode() not in kept
    again = here("keys", "create", "other", env=ENV)
    assert again.stdout.strip() != secret
    assert "until you restart it" not in again.stderr


def test_every_grant_is_kept(tmp_path: Path, here: Here) -> None:
    """create keeps every option: lists with commas or repeated, limits as pairs or JSON, ages and dates."""
    (tmp_path / "toolrelay.toml").write_text(
        "[upstreams.a]\nbase_url='http://a/v1'\n[upstreams.b]\nbase_url='http://b/v1'\n"
    )
    words = (
        "--models gpt-4o,o9 --models llama* --upstreams b --tools core__* --endpoints /files*,/v1/batches "
        "--limits requests=5/minute,tokens=100/day --limits requests=9/hour --limits concurrent_streams=3 "
        "--trace reasoning --expires 2100-01-01 --admin --mint --shared"
    )
    bounds = [
        "--arguments", 'core__get_weather.days = {max = 3}\n"core__*".units = {enum = ["metric"]}',
        "--arguments", 'a__b."slices.*.to" = {pattern = "[A-Z]{3}"}',
    ]  # fmt: skip
    assert here("keys", "create", "full", *words.split(), *bounds, env=ENV).returncode == 0
    assert (
        here("keys", "create", "json", "--limits", '{"cost": ["2/day"]}', "--tools", "", env=ENV).returncode
        == 0
    )
    assert here("keys", "create", "late", "--expires", "90d", env=ENV).returncode == 0
    keys = listed(here)
    full = keys["full"]
    assert full["models"] == ["gpt-4o", "o9", "llama*"]
    assert (full["upstreams"], full["tools"]) == (["b"], ["core__*"])
    assert full["endpoints"] == ["/files*", "/batches"]
    assert full["limits"] == {
        "requests": ["5/minute", "9/hour"], "tokens": ["100/day"], "concurrent_streams": 3,
    }  # fmt: skip
    assert full["arguments"] == {
        "core__get_weather": {"days": {"max": 3.0, **EITHER}},
        "core__*": {"units": {"enum": ["metric"], **EITHER}},
        "a__b": {"slices.*.to": {"pattern": "[A-Z]{3}", **EITHER}},
    }
    assert (full["trace_max"], full["admin"], full["mint"], full["shared"]) == ("reasoning", True, True, True)
    assert full["expires_at"] == 4102444800.0
    assert (keys["json"]["limits"], keys["json"]["tools"]) == ({"cost": ["2/day"]}, [])
    assert keys["late"]["expires_at"] - keys["late"]["created_at"] == pytest.approx(90 * 86400, abs=60)
    drawn = here("keys", "list", env=ENV).stdout
    assert "2100-01-01" in drawn
    assert "admin; mint; shared; upstreams: b" in drawn


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["a b"], "is not a valid name for a key"),
        (["_a"], "is not a valid name for a key"),
        (["a", "--models", "a b"], "--models"),
        (["a", "--tools", "a b"], "--tools"),
        (["a", "--endpoints", "files"], "--endpoints"),
        (["a", "--upstreams", "nowhere"], "there is no upstream 'nowhere'"),
        (["a", "--limits", "requests"], "Write requests=60/minute"),
        (["a", "--limits", "requests=often"], "--limits"),
        (["a", "--limits", "streams=1"], "a key has no limit"),
        (["a", "--limits", "concurrent_streams=x"], "whole number"),
        (["a", "--limits", "{"], "is not a JSON object"),
        (["a", "--arguments", "days"], "--arguments: is not a valid limit"),
        (["a", "--arguments", "t__x.days = 3"], "--arguments: t__x.days"),
        (["a", "--arguments", "t__x.days = {}"], "sets no limit"),
        (["a", "--arguments", "t__x.days = {pattern = '('}"], "regular expression"),
        (["a", "--arguments", "'a b'.days = {max = 1}"], "is not a tool pattern"),
        (
            ["a", "--arguments", "t__x.days = {max = 1}\nt__x.days = {max = 2}"],
            "--arguments: is not a valid limit",
        ),
        (["a", "--trace", "loud"], "--trace"),
        (["a", "--expires", "soon"], "--expires: 'soon' is not a time"),
        (["a", "--expires", "90"], "a duration from now such as 90d"),
        (["a", "--expires", "2001-01-01"], "is in the past"),
        (["a", "--expires", "999999w"], "too far in the future"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, here: Here, words: list[str], told: str) -> None:
    """Each mistake is reported in one line, and no key is made."""
    done = here("keys", "create", *words, env=ENV)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert told in line
    assert done.stdout == ""
    assert listed(here, ENV) == {} if (tmp_path / "toolrelay.db").exists() else True


def test_a_key_is_revoked(here: Here) -> None:
    """A key is revoked once, by name or id; its name is free again, and the list still shows it."""
    for name in ("a", "b"):
        assert here("keys", "create", name, env=ENV).returncode == 0
    taken = here("keys", "create", "a", env=ENV)
    assert (taken.returncode, "a key of this name exists" in taken.stderr) == (1, True)
    done = here("keys", "revoke", "a", env=ENV)
    assert (done.returncode, "503" in done.stdout) == (0, False)
    again = here("keys", "revoke", "a", env=ENV)
    assert (again.returncode, "revoked already" in again.stderr) == (1, True)
    assert here("keys", "create", "a", env=ENV).returncode == 0
    last = [here("keys", "revoke", listed(here)[name]["id"], env=ENV) for name in ("a", "b")]
    assert [done.returncode for done in last] == [0, 0]
    assert "503" in last[1].stdout
    assert {row["status"] for row in listed(here).values()} == {"revoked"}
    missing = here("keys", "revoke", "nobody", env=ENV)
    assert (missing.returncode, "there is no such key" in missing.stderr) == (1, True)


def test_keys_of_the_configuration(tmp_path: Path, here: Here) -> None:
    """``keys`` lists the keys of the configuration, but cannot revoke them or create one of the same name."""
    (tmp_path / "toolrelay.toml").write_text(DECLARED)
    env = {**ENV, "WEBUI": "aB3dEf6hIj9lMn2pQr5tUv8xYz1cDe4g"}
    taken = here("keys", "create", "webui", env=env)
    assert (taken.returncode, "declares a key of this name" in taken.stderr) == (1, True)
    assert here("keys", "create", "other", env=env).returncode == 0
    assert listed(here)["webui"]["status"] == "declared", "a name needs no secret"
    keys = listed(here, env)
    assert (keys["webui"]["id"], keys["webui"]["status"]) == ("config:webui", "declared")
    assert keys["other"]["status"] == "valid"
    for name in ("webui", "config:webui"):
        done = here("keys", "revoke", name, env=env)
        assert (done.returncode, "keys.webui" in done.stderr) == (1, True)


def test_memory_keeps_no_key(here: Here) -> None:
    """With a store in memory, create and revoke fail and name ``[keys.NAME]``; list works."""
    env = {**ENV, "TOOLRELAY_STORE__URL": "memory:"}
    for words in (("create", "a"), ("revoke", "a")):
        done = here("keys", *words, env=env)
        assert (done.returncode, "[keys.NAME]" in done.stderr) == (1, True)
    assert here("keys", "list", env=env).returncode == 0


def test_keys_are_made_and_listed_while_a_seal_key_changes(tmp_path: Path, here: Here) -> None:
    """If old content is sealed with an old seal key, create, list and check work as before."""
    env = {**ENV, **{f"K{n}": base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)}}

    async def fill() -> None:
        store = open_store(f"sqlite:///{tmp_path / 'toolrelay.db'}", seal_key=env["K1"])
        await store.start()
        assert store.vault is not None
        await store.vault.save("mail", b"a token")
        await store.aclose()

    asyncio.run(fill())
    settings = '[store]\nurl = "sqlite:///toolrelay.db"\nseal_key = "env:K2"\n'
    config = tmp_path / "toolrelay.toml"
    config.write_text(settings)
    assert "in store.old_seal_keys" in here("keys", "list", env=env).stderr
    config.write_text(settings + 'old_seal_keys = ["env:K1"]\n')
    created = here("keys", "create", "webui", env=env)
    assert created.returncode == 0, created.stderr
    assert set(listed(here, env)) == {"webui"}
    checked = here("check", env=env)
    assert "auth: keys; 1 client key valid: webui" in checked.stdout
    assert "seal" not in checked.stderr


def test_listing_makes_no_record(tmp_path: Path, here: Here) -> None:
    """Without a record, list and revoke fail, say so and create none."""
    for words in (("list",), ("revoke", "a")):
        done = here("keys", *words, env=ENV)
        assert (done.returncode, "there is no record" in done.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_declared_keys_are_listed_before_there_is_a_record(tmp_path: Path, here: Here) -> None:
    """Without a record, list shows the keys of the configuration and creates no record."""
    (tmp_path / "toolrelay.toml").write_text(DECLARED)
    done = here("keys", "list", "--json", env={**ENV, "WEBUI": "aB3dEf6hIj9lMn2pQr5tUv8xYz1cDe4g"})
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["webui"]
    assert "note: the list shows only the keys of the configuration: there is no record" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["toolrelay.toml"]


@pytest.fixture
def quiet(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Run ``check`` on a configuration without connecting to its upstream."""
    monkeypatch.setattr("proxy.commands.doctor.check.find_unreachable", _nothing)

    def check(text: str = "", env: Mapping[str, str] = ENV) -> CompletedProcess[str]:
        (tmp_path / "toolrelay.toml").write_text('[policy]\nallow = ["core__*"]\n' + text)
        return here("check", env=env)

    return check


async def _nothing(addresses: object) -> list[str]:
    return []


def test_check_says_who_comes_in(tmp_path: Path, here: Here, quiet: Check) -> None:
    """check names the authentication mode and counts the valid keys of configuration and record."""
    said = quiet().stdout
    assert "auth: start token; serve prints it when it starts" in said
    assert "tr_" not in said, "one that no server asks for"
    assert "auth: open; everybody who reaches" in quiet('[auth]\nmode = "open"\n').stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toolrelay.toml"]
    assert "auth: forward" in quiet('[auth]\nmode = "forward"\n').stdout
    assert "no client key is valid" in quiet('[auth]\nmode = "keys"\n').stdout
    done = quiet('[server]\nhost = "0.0.0.0"\n')
    assert (done.returncode, "auth.mode" in done.stderr) == (1, True)
    assert here("keys", "create", "ann", "--tools", "core__get_*", env=ENV).returncode == 0
    done = quiet(DECLARED, {**ENV, "WEBUI": "aB3dEf6hIj9lMn2pQr5tUv8xYz1cDe4g"})
    assert done.returncode == 0, done.stderr
    assert "auth: keys; 2 client keys valid: webui, ann" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert any(row[:3] == ["webui", "core__calculate", "allowed"] for row in rows)
    assert any(row[:3] == ["webui", "core__get_weather", "denied"] for row in rows)
    assert "keys.webui.tools lacks" in done.stdout
    assert any(row[:3] == ["ann", "core__get_weather", "allowed"] for row in rows)
    assert "the tool list of key ann lacks" in done.stdout
    assert here("keys", "revoke", "ann", env=ENV).returncode == 0
    assert 'to serve without authentication, set auth.mode = "open"' in quiet().stdout


def test_lists_of_tools_that_fit_none_are_told(tmp_path: Path, here: Here, quiet: Check) -> None:
    """If a tool list of a key or an upstream matches no tool, check names it and suggests a similar name."""
    env = {**ENV, "WEBUI": "aB3dEf6hIj9lMn2pQr5tUv8xYz1cDe4g"}
    declared = DECLARED.replace("core__calculate", "core__calculat")
    declared += f"[upstreams.a]\nbase_url = 'replay:{packaged_fixtures()}'\ntools = ['core__*', 'file__x']\n"
    assert here("keys", "create", "ann", "--tools", "core__get_wether,core__get_*", env=env).returncode == 0
    assert here("keys", "create", "all", env=env).returncode == 0
    assert here("keys", "create", "bob", "--tools", "web__*", env=env).returncode == 0
    done = quiet(declared, env)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "matches no loaded tool" in line] == [
        'upstreams.a.tools: "file__x" matches no loaded tool',
        'warning: keys.webui.tools: "core__calculat" matches no loaded tool. Did you mean "core__calculate"?',
        'warning: the tool list of key ann: "core__get_wether" matches no loaded tool. '
        'Did you mean "core__get_weather"?',
        'warning: the tool list of key bob: "web__*" matches no loaded tool. '
        "web__fetch_page is loaded only if tools.web_hosts names hosts; "
        "web__search is loaded only if tools.web_search names an engine",
    ]


def test_bounds_of_keys_are_told(tmp_path: Path, here: Here, quiet: Check) -> None:
    """check prints each key's argument limits; one without effect is a fault if declared, else a warning."""
    env = {**ENV, "WEBUI": "aB3dEf6hIj9lMn2pQr5tUv8xYz1cDe4g"}
    words = ("--arguments", "core__get_weather.days = {max = 2}\ncore__get_wether.days = {max = 1}")
    assert here("keys", "create", "ann", *words, env=ENV).returncode == 0
    done = quiet(DECLARED + '[keys.webui.arguments."core__*"]\ndays = {max = 3}\n', env)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert (
        'argument limit of core__get_weather for key webui: days 3 or less (keys.webui.arguments."core__*")'
        in lines
    )
    assert (
        "argument limit of core__get_weather for key ann: days 2 or less "
        '(the argument limits of key ann."core__get_weather")' in lines
    )
    assert not any("core__calculate for key" in line for line in lines)
    warning = (
        'warning: the argument limits of key ann."core__get_wether": matches no loaded tool, so this '
        "limit has no effect"
    )
    assert warning in lines
    done = quiet(DECLARED + "[keys.webui.arguments.core__get_weather]\nday = {max = 3}\n", env)
    assert done.returncode == 1
    assert 'keys.webui.arguments."core__get_weather".day: core__get_weather has no such' in done.stderr


@pytest.mark.parametrize(("key_id", "warned"), [("key_1", True), ("config:web", False)])
def test_a_start_warns_of_bounds_that_bound_nothing(key_id: str, warned: bool) -> None:
    """The start warns of an argument limit without effect if the key is on record, not if it is declared."""
    own = CallerBound("the argument limits of key web", "core__get_wether", "days", ArgumentBound(max=1))
    key = SimpleNamespace(
        name="web", caller=Caller(name=key_id, rights=Rights(arguments=(own,), isolated=True))
    )
    entrance = SimpleNamespace(mode="keys", ring=SimpleNamespace(keys=lambda: [key]))
    services = SimpleNamespace(catalog=Catalog(), policy=Policy(allow=()))
    lines = banner(Config(), cast(Services, services), "http://127.0.0.1:1", cast(Authentication, entrance))
    assert any('key web."core__get_wether": matches no loaded tool' in line for line in lines) is warned


def test_limits_that_cannot_hold_are_told(tmp_path: Path, here: Here, quiet: Check) -> None:
    """create and check warn of a cost limit without prices and of limits that each worker counts alone."""
    more = "[server]\nworkers = 2\n[limits]\nrequests = []\ntool_calls = []\n"
    words = ("cost limit but there are no prices", "each of 2 workers (server.workers)")
    (tmp_path / "toolrelay.toml").write_text(more)
    made = here("keys", "create", "web", "--limits", '{"cost": ["2/day"]}', env=ENV)
    assert made.returncode == 0, made.stderr
    assert SECRET.fullmatch(made.stdout.strip())
    assert here("keys", "create", "plain", env=ENV).returncode == 0
    checked = quiet(more)
    for text in (made.stderr, checked.stdout):
        assert all(word in " ".join(text.split()) for word in words)
        assert "key plain" not in text


def test_check_leaves_an_older_record_alone(tmp_path: Path, here: Here, quiet: Check) -> None:
    """check does not migrate a record of an older schema, and does not report its keys."""
    assert here("keys", "create", "ann", env=ENV).returncode == 0
    with sqlite3.connect(tmp_path / "toolrelay.db") as db:
        db.execute("PRAGMA user_version = 1")
    db.close()
    done = quiet()
    assert done.returncode == 0, done.stderr
    assert "auth:" not in done.stdout
    with sqlite3.connect(tmp_path / "toolrelay.db") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    db.close()
