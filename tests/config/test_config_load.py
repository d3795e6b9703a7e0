"""The configuration: its sources, which of them wins, and its errors."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.base.errors import ConfigError
from proxy.config.checks import rules
from proxy.config.checks.rules import is_loopback
from proxy.config.load import Config, Options, find_faults, load_config
from proxy.config.per_model import ProfileConfig, TextCallForm
from proxy.relay.routing.price_list import PriceFile, read_price_file
from proxy.wires.text_calls.rules import FORMS

KEY = {"OPENAI_API_KEY": "sk-test-openai"}


def write(folder: Path, text: str) -> Path:
    path = folder / "toolrelay.toml"
    path.write_text(text, encoding="utf-8")
    return path


def fault(folder: Path, text: str, env: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text), KEY if env is None else env)
    assert "\n" not in str(caught.value)
    return caught.value


def test_no_file_and_a_key_is_a_whole_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no file the defaults hold, and the default upstream gets the key from the environment."""
    monkeypatch.chdir(tmp_path)
    config = load_config(None, KEY)
    upstream = config.upstreams["default"]
    assert upstream.api_key is not None
    assert upstream.api_key.reveal() == "sk-test-openai"
    assert upstream.base_url == "https://api.openai.com/v1"
    assert config.store.url == f"sqlite:///{tmp_path}/toolrelay.db"
    assert config.default_upstream == "default"
    assert (config.server.host, config.server.port, config.tools.max_turns) == ("127.0.0.1", 8080, 8)


def test_every_key_of_the_contract_has_its_default() -> None:
    """Each setting has its documented default."""
    dumped = Config().model_dump()
    assert dumped["server"] == {
        "host": "127.0.0.1",
        "port": 8080,
        "workers": 1,
        "max_body_bytes": 33554432,
        "max_json_values": 400_000,
        "max_upload_bytes": 536870912,
        "header_timeout_s": 20,
        "max_pending_heads": 1024,
        "max_pending_heads_per_address": 512,
        "body_timeout_s": 120,
        "send_timeout_s": 60,
        "websocket_idle_s": 900,
        "websocket_lifetime_s": 3600,
        "public_url": "",
        "allowed_hosts": (),
        "cors_origins": (),
        "trusted_proxies": (),
        "notice_s": 0,
        "drain_s": 25,
        "ready_needs_record": False,
    }
    assert dumped["upstreams"] == {
        "default": {
            "base_url": "https://api.openai.com/v1",
            "api_key": "env:OPENAI_API_KEY",
            "wires": ("chat", "responses"),
            "models": ("*",),
            "tools": True,
            "free": False,
            "force_usage": False,
            "responses_state": "auto",
            "text_calls": None,
            "text_calls_repair": False,
            "per_model": {},
            "profile": dict.fromkeys(ProfileConfig.model_fields),
            "native": ("auto",),
            "strict_bridge": False,
            "repair": "auto",
            "max_tokens": {},
            "proxy": "",
            "ca_file": "",
            "client_cert": "",
            "client_key": "",
            "connect_timeout_s": 10,
            "first_byte_timeout_s": 600,
            "idle_timeout_s": 120,
            "total_timeout_s": 3600,
            "retries": 2,
            "breaker_failures": 5,
            "breaker_open_s": 30,
            "headers": {},
            "forward_headers": (),
            "forward_response_headers": (),
            "forward_query": (),
        }
    }
    assert dumped["tools"] == {
        "enabled": True,
        "modules": (),
        "networks": (),
        "proxy": "",
        "proxy_resolves": False,
        "web_hosts": (),
        "web_search": "",
        "hosted": {},
        "prices": {},
        "base_urls": {},
        "inject": True,
        "trace": "silent",
        "trace_max": "status",
        "parallel": True,
        "max_parallel": 8,
        "max_turns": 8,
        "max_calls": 32,
        "max_tokens": 0,
        "max_cost": 0,
        "timeout_s": 10,
        "request_timeout_s": 300,
        "resume_s": 60,
        "background_s": 3600,
        "keepalive_s": 10,
        "search": "auto",
        "search_above_tools": 40,
        "search_above_bytes": 65536,
        "search_shows": ("core__*",),
        "search_finds": 5,
        "programs": "off",
        "programs_timeout_s": 60.0,
        "programs_compute_s": 5.0,
        "programs_memory": 67108864,
        "aliases": {},
    }
    assert dumped["policy"] == {
        "allow": (),
        "approve_effects": (),
        "approve": (),
        "approve_safety": (),
        "after_untrusted": "approve",
        "arguments": {},
        "max_argument_bytes": 8192,
        "max_result_bytes": 32768,
        "max_image_bytes": 4194304,
    }
    assert dumped["store"] == {
        "url": "sqlite:///toolrelay.db",
        "wire_bytes": True,
        "content": "tools",
        "keep_days": 30,
        "max_bytes": 8 * 2**30,
        "max_per_caller": 10_000,
        "max_bytes_per_caller": 2**30,
        "requests": True,
        "max_requests": 1_000_000,
        "seal": True,
        "seal_key": None,
        "old_seal_keys": (),
        "max_clock_skew_s": 60.0,
        "synchronous": "normal",
        "history": True,
        "history_system": "clock",
    }
    assert dumped["network"] == {"http_proxy": "", "https_proxy": "", "no_proxy": (), "ca_file": ""}
    assert dumped["limits"] == {
        "requests": ("600/minute",),
        "tool_calls": ("600/minute",),
        "tokens": (),
        "cost": (),
        "concurrent_tools": 64,
        "concurrent_tools_per_caller": 16,
        "concurrent_streams": 256,
        "background": 8,
        "background_total": 64,
        "websockets": 200,
        "websockets_per_caller": 32,
        "storage": "memory://",
        "on_error": "open",
    }
    assert dumped["auth"] == {
        "mode": "auto",
        "end_user": "",
        "jwt": {
            "issuer": "",
            "audience": (),
            "jwks_url": "",
            "algorithms": ("RS256", "PS256", "ES256"),
            "leeway_s": 30,
            "user_claim": "sub",
            "roles_claim": "groups",
            "networks": (),
            "roles": {},
        },
    }
    assert dumped["log"] == {"format": "json", "level": "info"}
    assert dumped["telemetry"] == {
        "metrics": True,
        "otlp_endpoint": "",
        "content": False,
        "content_max_chars": 32768,
    }
    assert dumped["billing"] == {"currency": "USD", "price_list": "bundled"}
    assert dumped["credentials"] == dumped["keys"] == dumped["prices"] == {}


def test_missing_key_names_every_way_out(tmp_path: Path) -> None:
    """Without OPENAI_API_KEY the default upstream's error names each way to go on."""
    error = fault(tmp_path, "", env={})
    assert error.setting == "upstreams.default.api_key"
    for part in ("OPENAI_API_KEY", "--upstream", "toolrelay demo"):
        assert part in str(error)


def test_commands_that_ask_no_model_need_no_key(tmp_path: Path) -> None:
    """With need_secrets=False a missing secret is no fault, and the upstream has no key."""
    config = load_config(write(tmp_path, ""), {}, need_secrets=False)
    assert config.upstreams["default"].api_key is None


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        ("[server]\nprot = 1", "server.prot", "Did you mean server.port?"),
        ("[sever]\nport = 1", "sever", "Did you mean server?"),
        ("[tools]\nport = 1", "tools.port", "Did you mean server.port?"),
        ("[upstreams.x]\npolicy.allow = ['a']", "upstreams.x.policy", "below its own heading [policy]"),
        ("[upstreams.x]\nbaseurl = 'http://x'", "upstreams.x.baseurl", "Did you mean upstreams.x.base_url?"),
        ("zzzzzzzz = 1", "zzzzzzzz", "The file may contain: server, "),
        ("[server]\nport = '8080'", "server.port", "a string '8080' (in toolrelay.toml), expected a whole"),
        ("[server]\nport = true", "server.port", "a switch true"),
        ("[server]\nport = 70000", "server.port", "less than or equal to 65535"),
        ("[server]\nport = 1.5", "server.port", "expected a whole number"),
        ("server = 3", "server", "expected a table"),
        ("upstreams = 3", "upstreams", "expected a table"),
        ("[upstreams]\ndefault = 3", "upstreams.default", "expected a table"),
        ("[tools]\nenabled = 'false'", "tools.enabled", "expected true or false"),
        ("[tools]\ntimeout_s = -1", "tools.timeout_s", "greater than 0"),
        ("[tools]\ntimeout_s = inf", "tools.timeout_s", "got a number inf"),
        ("[tools]\ntrace = 'loud'", "tools.trace", '"silent", "reasoning", "status", "events"'),
        ("[tools]\ntrace = 'events'", "tools", "trace_max"),
        ("[tools]\nmodules = 'x.py'", "tools.modules", 'expected a list of strings. Write ["x.py"]'),
        ("[policy]\nallow = '[core__*, a_b]'", "policy.allow", 'Write ["core__*", "a_b"]'),
        ("[policy]\nallow = 3", "policy.allow", "expected a list of strings. Correct it"),
        ("[tools.aliases]\nx = 'weather'", "tools.aliases", "core__get_weather"),
        ("[tools.aliases]\n'a b' = 'core__x'", "tools.aliases", "is not a valid function name"),
        ("[policy]\nallow = ['a b']", "policy.allow", "'a b' is not a tool pattern"),
        ("[policy]\nallow = ['a', 'a']", "policy.allow", "lists '"),
        ("[policy]\nallow = [1]", "policy.allow.0", "expected a string"),
        ("[upstreams.x]\nwires = ['chat', 'smoke']", "upstreams.x.wires.1", '"chat", "responses"'),
        ("[upstreams.x]\nwires = ['chat', 'chat']", "upstreams.x.wires", "lists '"),
        ("[upstreams.x]\nwires = []", "upstreams.x.wires", "at least 1 item"),
        ("[upstreams.x]\nmodels = []", "upstreams.x.models", '["*"]'),
        ("[upstreams.x]\nmodels = 3", "upstreams.x.models", "a list of model names"),
        ("[upstreams.x]\nmodels = {a = 1}", "upstreams.x.models", "gpt-4o-mini"),
        ("[upstreams.x]\nmodels = {a = ''}", "upstreams.x.models", "without an empty name"),
        ("[upstreams.'a b']\nretries = 1", "upstreams", "is not a valid name"),
        ("[upstreams.x]\nbase_url = 'ftp://x'", "upstreams.x.base_url", "http://, https:// or replay:"),
        ("[upstreams.x]\nbase_url = 'http://x:99999'", "upstreams.x.base_url", "1 to 65535"),
        ("[upstreams.x]\nbase_url = 'http:///v1'", "upstreams.x.base_url", "has no host name"),
        ("[upstreams.x]\nbase_url = 'http://x/v1?a=b'", "upstreams.x.base_url", "query"),
        ("[upstreams.x]\nbase_url = 'http://x/v 1'", "upstreams.x.base_url", "spaces"),
        ("[upstreams.x]\nheaders = {host = 'x'}", "upstreams.x.headers", "cannot be set"),
        ("[upstreams.x]\nheaders = {'a b' = 'x'}", "upstreams.x.headers", "is not a header name"),
        ('[upstreams.x]\nheaders = {a = "x\\r\\nb: c"}', "upstreams.x.headers", "other than printable ASCII"),
        ("[upstreams.x]\nheaders = {a = 1}", "upstreams.x.headers.a", "expected a string"),
        ("[limits]\nrequests = ['often']", "limits.requests", "'often' is not a limit"),
        ("[limits]\nrequests = ['0/minute']", "limits.requests", "is not a limit"),
        ("[limits]\nconcurrent_streams = 0", "limits.concurrent_streams", "greater than or equal to 1"),
        ("[store]\nurl = 'mysql://x'", "store.url", "memory:, sqlite:///FILE"),
        ("[keys.a]\nadmin = true", "keys.a.secret", "is missing"),
    ],
)
def test_a_fault_is_one_line_with_setting_and_remedy(
    tmp_path: Path, text: str, setting: str, words: str
) -> None:
    """An unknown key, a wrong type or a value out of bounds is an error with setting and remedy."""
    error = fault(tmp_path, text)
    assert error.setting == setting
    assert words in str(error)
    assert error.remedy


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[server]\nport 1", "line 2, column 6"),
        ("[server", "line 1, column 8"),
        ("[server]\nhost = 'x", "line 2, column 10"),
    ],
)
def test_broken_toml_names_file_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    """A syntax error names the file, the line and the column."""
    error = fault(tmp_path, text)
    assert str(tmp_path / "toolrelay.toml") in error.setting
    assert place in error.setting
    assert "not valid TOML" in error.problem


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """A missing, unreadable, oversized, binary or too deeply nested file is an error."""
    with pytest.raises(ConfigError, match=r"the file does not exist.*toolrelay init"):
        load_config(tmp_path / "no.toml", KEY)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, KEY)
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(binary, KEY)
    binary.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConfigError, match="is larger than"):
        load_config(binary, KEY)
    with pytest.raises(ConfigError):
        load_config(write(tmp_path, "a = " + "[" * 5000), KEY)


NO_LIMITS = "[limits]\nrequests = []\ntool_calls = []\n"


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        (NO_LIMITS + "[store]\nurl = 'memory:'", "store.url", "a file or PostgreSQL"),
        ("", "limits.storage", "limits.requests and limits.tool_calls"),
        ("[limits]\nrequests = []", "limits.storage", "limits.tool_calls to []"),
    ],
)
def test_several_workers_need_what_they_can_share(
    tmp_path: Path, text: str, setting: str, words: str
) -> None:
    """With several workers a store or limits in memory are an error: each process would have its own."""
    error = fault(tmp_path, f"[server]\nworkers = 2\n{text}")
    assert error.setting == setting
    assert words in str(error)
    assert "server.workers" in str(error)
    load_config(write(tmp_path, f"[server]\nworkers = 1\n{text}"), KEY)


@pytest.mark.parametrize("limits", ["requests = ['1/minute']", "concurrent_streams = 1"])
def test_several_workers_share_the_limits_of_a_key(tmp_path: Path, limits: str) -> None:
    """With several workers a configured key's own limits need a shared storage, too."""
    env = {**KEY, "WEB_KEY": "web-web-web-0123456789-abcdefghijk"}
    text = NO_LIMITS + f"[keys.web]\nsecret = 'env:WEB_KEY'\nlimits = {{{limits}}}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, f"[server]\nworkers = 2\n{text}"), env)
    assert caught.value.setting == "limits.storage"
    assert "remove keys.web.limits" in str(caught.value)
    shared = text.replace("[limits]", "[limits]\nstorage = 'redis://127.0.0.1:6379/0'")
    load_config(write(tmp_path, f"[server]\nworkers = 2\n{shared}"), env)
    load_config(write(tmp_path, f"[server]\nworkers = 1\n{text}"), env)


def test_several_workers_without_limits_in_memory(tmp_path: Path) -> None:
    """Several workers are allowed if a database file is all that they share."""
    loaded = load_config(write(tmp_path, f"[server]\nworkers = 3\n{NO_LIMITS}"), KEY)
    assert loaded.server.workers == 3


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("[limits]\nstorage = 'redis://:hunter2@'", "limits.storage"),
        ("[limits]\nstorage = 'redis://:hunter2@x:0'", "limits.storage"),
        ("[limits]\nstorage = 'redis://:hunter2@x:99999'", "limits.storage"),
        ("[limits]\nstorage = 'redis://:hunter2@[x'", "limits.storage"),
        ("[limits]\nstorage = 'redis://:hunter2@x/first'", "limits.storage"),
        ("[limits]\nstorage = 'redis+cluster://:hunter2@x'", "limits.storage"),
        ("[limits]\nstorage = 'redis+cluster://:hunter2@x:1,y'", "limits.storage"),
        ("[limits]\nstorage = 'redis+cluster://:hunter2@x:1/0'", "limits.storage"),
        ("[limits]\nstorage = 'redis+sentinel://:hunter2@x:1,y:2'", "limits.storage"),
        ("[limits]\nstorage = 'redis+sentinel://:hunter2@x:1,y:0/main'", "limits.storage"),
        ("[limits]\nstorage = 'redis://:hunter2@x:1,y:2'", "limits.storage"),
        ("[limits]\nstorage = 'redis+unix://:hunter2@x:1'", "limits.storage"),
        ("[limits]\nstorage = 'memcached://hunter2'", "limits.storage"),
        ("[limits]\nstorage = ''", "limits.storage"),
        ("[limits]\nstorage = 5", "limits.storage"),
        ("[limits]\ntokens = ['0.5/minute']", "limits.tokens"),
        ("[limits]\ncost = ['5 EUR/day']", "limits.cost"),
        ("[limits]\ncost = ['5/day']\n[billing]\nprice_list = 'off'", "limits.cost"),
        ("[tools]\nmax_cost = 1\n[billing]\ncurrency = 'EUR'", "tools.max_cost"),
        ("[billing]\ncurrency = '5 \u20ac'", "billing.currency"),
        ("[tools.prices]\nweb__search = -1", "tools.prices.web__search"),
        ("[tools.hosted]\nimage_generation = 'upstream:nobody/m'", "tools.hosted.image_generation"),
        ("[tools.hosted]\nweb_search = 'upstream:default'", "tools.hosted"),
        ("[prices.m]\ninput = -1", "prices.m.input"),
        ("[prices.m]\ncached_input = -1", "prices.m.cached_input"),
        ("[prices.m]\noutput = inf", "prices.m.output"),
        ("[prices.m]\nouput = 1", "prices.m.ouput"),
    ],
)
def test_limits_and_prices_that_make_no_sense(tmp_path: Path, text: str, setting: str) -> None:
    """An invalid storage, limit or price, or a cost limit without prices, is an error without a password."""
    error = fault(tmp_path, text)
    assert error.setting == setting
    assert error.remedy
    assert "hunter2" not in str(error)


def test_the_list_of_prices_is_read_once_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration with many keys reads the list only if it limits a cost, and then once."""
    read: list[Path] = []

    def noted(path: Path) -> PriceFile:
        read.append(path)
        return read_price_file(path)

    monkeypatch.setattr(rules, "read_price_file", noted)
    keys = "".join(f"[keys.k{number}]\nsecret = 'env:KEY_{number}'\n" for number in range(20))
    secrets = {f"KEY_{number}": f"{number:02}-a-secret-of-a-key-that-nobody-guesses" for number in range(20)}
    load_config(write(tmp_path, keys), KEY | secrets)
    assert read == []
    limited = keys.replace("'\n", "'\nlimits = {cost = ['1/day']}\n")
    load_config(write(tmp_path, limited), KEY | secrets)
    assert len(read) == 1


def test_prices_and_limits_are_read(tmp_path: Path) -> None:
    """Prices are read by name and pattern, and the cached price is optional."""
    text = (
        "[prices.'gpt-4o-mini']\ninput = 0.15\ncached_input = 0.075\noutput = 0.6\n"
        "[prices.'llama*']\ncached_input = ''\n"
        "[limits]\ncost = ['0.50/hour']\ntokens = ['1000/minute']\nstorage = 'rediss://x'\n"
        "[tools]\nmax_cost = 0.5"
    )
    config = load_config(write(tmp_path, text), KEY)
    assert config.prices["gpt-4o-mini"].cached_input == 0.075
    assert config.prices["llama*"].cached_input is None
    assert config.limits.storage_url == "rediss://x"


@pytest.mark.parametrize(
    "url",
    [
        "redis://x",
        "rediss://x:6380/15",
        "valkey://[::1]:6379",
        "valkeys://x",
        "redis+sentinel://x:26379,y:26379/main-1",
        "rediss+cluster://me:hunter2@x:1,[::1]:2",
        "valkey+sentinel://x:1/main",
        "valkeys+cluster://x:1/",
    ],
)
def test_limits_are_stored_in_every_kind_of_redis(tmp_path: Path, url: str) -> None:
    """One server, a group under Sentinels and a cluster are allowed, of Redis and Valkey, also with TLS."""
    config = load_config(write(tmp_path, f"[limits]\nstorage = '{url}'"), KEY)
    assert config.limits.storage_url == url
    assert ("hunter2" in config.secrets()) == ("hunter2" in url)


def test_the_storage_of_limits_may_be_a_secret(tmp_path: Path) -> None:
    """limits.storage may be a secret: its password is masked and never shown, and its address is checked."""
    path = write(tmp_path, "[limits]\nstorage = 'env:LIMITS'")
    config = load_config(path, {**KEY, "LIMITS": "redis://me:hunter%212@x:6379/3"})
    assert config.limits.storage_url == "redis://me:hunter%212@x:6379/3"
    assert {"redis://me:hunter%212@x:6379/3", "hunter%212", "hunter!2"} <= set(config.secrets())
    assert "hunter" not in repr(config)
    plain = load_config(write(tmp_path, "[limits]\nstorage = 'redis://:hunter2@x'"), KEY)
    assert "hunter2" in plain.secrets()
    write(tmp_path, "[limits]\nstorage = 'env:LIMITS'")
    for value in ("hunter2", "redis://:hunter2@x/first"):
        with pytest.raises(ConfigError, match=r"limits\.storage") as caught:
            load_config(path, {**KEY, "LIMITS": value})
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="LIMITS is not set"):
        load_config(path, KEY)
    assert load_config(path, KEY, need_secrets=False).limits.storage_url == "memory://"


def test_several_workers_may_have_their_storage_as_a_secret(tmp_path: Path) -> None:
    """Several workers may get the address of a Redis from a variable, but not memory://."""
    path = write(tmp_path, "[limits]\nstorage = 'env:LIMITS'\n[server]\nworkers = 2")
    assert load_config(path, {**KEY, "LIMITS": "redis://:hunter2@x"}).limits.storage_url.endswith("@x")
    with pytest.raises(ConfigError, match=r"is memory://, so each of server\.workers = 2") as caught:
        load_config(path, {**KEY, "LIMITS": "memory://"})
    assert caught.value.setting == "limits.storage"
    assert load_config(path, KEY, need_secrets=False).server.workers == 2


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("literal", ["sk-verysecretliteral", "verysecretliteral", "env:very-secretliteral"])
def test_a_literal_key_is_refused_without_being_shown(tmp_path: Path, literal: str) -> None:
    """A key as plain text is refused; the error says what to write and does not show the key."""
    error = fault(tmp_path, f"[upstreams.x]\napi_key = '{literal}'")
    assert error.setting == "upstreams.x.api_key"
    assert "secretliteral" not in str(error)
    assert "env:NAME or file:/path" in str(error) or "variable name" in str(error)


def test_credential_headers_are_secrets_too(tmp_path: Path) -> None:
    """A header that carries a credential takes only a reference, which is resolved like api_key."""
    error = fault(tmp_path, "[upstreams.x]\nheaders = {api-key = 'verysecretliteral'}")
    assert "verysecretliteral" not in str(error)
    path = write(tmp_path, "[upstreams.x]\nbase_url='http://h/v1'\nheaders = {api-key='env:AZ', x-team='a'}")
    config = load_config(path, {"AZ": "azure-value"})
    assert config.upstreams["x"].header_pairs() == (("api-key", "azure-value"), ("x-team", "a"))
    assert "azure-value" in config.secrets()
    assert "azure-value" not in repr(config)
    with pytest.raises(ConfigError, match="AZ is not set"):
        load_config(path, {})


def test_secrets_come_from_files_beside_the_configuration(tmp_path: Path) -> None:
    """A file: path starts at the configuration's folder, and the secret loses its line end."""
    (tmp_path / "key.txt").write_text("sk-from-file\n")
    path = write(tmp_path, "[upstreams.x]\nbase_url='http://h/v1'\napi_key = 'file:key.txt'")
    key = load_config(path, {}).upstreams["x"].api_key
    assert key is not None
    assert key.reveal() == "sk-from-file"
    assert "sk-from-file" not in f"{key!r} {key}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"\xff\xfe", "is not text"),
        (b"a\nb", "an HTTP header cannot carry"),
        ("schlüssel".encode(), "an HTTP header cannot carry"),
        (b"k" * 70000, "is larger than 65536 bytes"),
    ],
)
def test_unusable_secret_files(tmp_path: Path, content: bytes | None, words: str) -> None:
    """A secret's file that is missing or cannot be a key is an error that says why."""
    if content is not None:
        (tmp_path / "key.txt").write_bytes(content)
    error = fault(tmp_path, "[upstreams.x]\napi_key = 'file:key.txt'")
    assert error.setting == "upstreams.x.api_key"
    assert words in str(error)


def test_the_password_of_a_store_is_masked_and_not_shown(tmp_path: Path) -> None:
    """A password in store.url is masked in logs, and shown in no printed address and no error."""
    url = "postgresql://u:hunter%212@h:5432/d?password=other2&search_path=s"
    config = load_config(write(tmp_path, f"[store]\nurl = '{url}'"), {"OPENAI_API_KEY": "k"})
    assert config.store.shown_url == "postgresql://h:5432/d"
    assert {"hunter%212", "hunter!2", "other2"} <= set(config.secrets())
    config = load_config(write(tmp_path, "[store]\nurl = 'memory:'"), {"OPENAI_API_KEY": "k"})
    assert config.store.shown_url == "memory:"
    for bad in ("postgresql://u:hunter2@h:port/d", "postgresql://u:hunter2@[h/d"):
        error = fault(tmp_path, f"[store]\nurl = '{bad}'")
        assert error.setting == "store.url"
        assert "hunter2" not in str(error)


@pytest.mark.parametrize("need", [True, False])
def test_the_seal_key_is_always_needed(tmp_path: Path, need: bool) -> None:
    """Also a command that needs no other secret needs the seal key, or it would write unsealed content."""
    path = write(tmp_path, '[store]\nseal_key = "env:SEAL"')
    with pytest.raises(ConfigError, match=r"store\.seal_key: the environment variable SEAL is not set"):
        load_config(path, {"OPENAI_API_KEY": "k"}, need_secrets=need)
    config = load_config(path, {"OPENAI_API_KEY": "k", "SEAL": "00" * 32}, need_secrets=need)
    assert config.store.seal_key is not None
    assert config.store.seal_key.reveal() == "00" * 32
    assert "00" * 32 in config.secrets()


def test_an_unresolved_secret_says_so() -> None:
    """Revealing a secret that nobody resolved is an error, not an empty key."""
    key = Config().upstreams["default"].api_key
    assert key is not None
    with pytest.raises(ConfigError, match="not resolved"):
        key.reveal()


# --- which key goes to which upstream ---------------------------------------------------------------


def key_of(config: Config, name: str = "default") -> str | None:
    secret = config.upstreams[name].api_key
    return secret.reveal() if secret else None


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/v1",
        "http://api.openai.com/v1",
        "https://api.openai.com:8443/v1",
        "https://api.openai.com.example/v1",
        "replay:fixtures",
    ],
)
def test_the_openai_key_goes_to_openai_only(tmp_path: Path, url: str) -> None:
    """OPENAI_API_KEY is not sent to another address, however that address was given."""
    empty = write(tmp_path, "")
    assert key_of(load_config(empty, KEY, Options(upstream=url))) is None
    assert key_of(load_config(empty, {**KEY, "TOOLRELAY_UPSTREAMS__DEFAULT__BASE_URL": url})) is None
    assert key_of(load_config(write(tmp_path, f"[upstreams.x]\nbase_url = '{url}'"), KEY), "x") is None


def test_the_openai_key_goes_to_openai_under_any_spelling(tmp_path: Path) -> None:
    """OPENAI_API_KEY is also sent to OpenAI's origin in another spelling."""
    config = load_config(write(tmp_path, ""), KEY, Options(upstream="HTTPS://API.openai.com:443/v1/"))
    assert key_of(config) == "sk-test-openai"


def test_an_explicit_key_is_sent_where_it_was_configured(tmp_path: Path) -> None:
    """A key that is configured beside its base_url is sent there, even OPENAI_API_KEY."""
    path = write(tmp_path, "[upstreams.x]\nbase_url='http://h/v1'\napi_key='env:OPENAI_API_KEY'")
    assert key_of(load_config(path, KEY), "x") == "sk-test-openai"


def test_upstream_option_takes_the_configured_key_away(tmp_path: Path) -> None:
    """--upstream at another origin gets neither the key nor the secret headers of the one it replaces."""
    path = write(
        tmp_path,
        "[upstreams.x]\nbase_url='http://h/v1'\napi_key='env:K'\nheaders={x-a='env:K', x-team='t'}",
    )
    env = {"K": "the-key"}
    config = load_config(path, env, Options(upstream="http://other/v1"))
    assert key_of(config, "x") is None
    assert config.upstreams["x"].header_pairs() == (("x-team", "t"),)
    same = load_config(path, env, Options(upstream="http://h/v2"))
    assert key_of(same, "x") == "the-key"
    given = {**env, "TOOLRELAY_UPSTREAMS__X__API_KEY": "env:K"}
    assert key_of(load_config(path, given, Options(upstream="http://other/v1")), "x") == "the-key"


def test_upstream_option_keeps_a_key_without_an_address(tmp_path: Path) -> None:
    """A configured key without a base_url is sent to the address of --upstream, except OPENAI_API_KEY."""
    path = write(tmp_path, "[upstreams.x]\napi_key='env:K'")
    config = load_config(path, {"K": "the-key"}, Options(upstream="http://other/v1"))
    assert key_of(config, "x") == "the-key"
    path = write(tmp_path, "[upstreams.x]\napi_key='env:OPENAI_API_KEY'")
    assert key_of(load_config(path, KEY, Options(upstream="http://other/v1")), "x") is None


def test_an_address_of_the_environment_takes_the_files_key_away(tmp_path: Path) -> None:
    """A base_url of the environment at another origin gets neither the file's key nor its secret headers."""
    path = write(
        tmp_path,
        "[upstreams.x]\nbase_url='http://h/v1'\napi_key='env:K'\nheaders={x-a='env:K', x-team='t'}",
    )
    env = {"K": "the-key"}
    moved = {**env, "TOOLRELAY_UPSTREAMS__X__BASE_URL": "http://other/v1"}
    config = load_config(path, moved)
    assert key_of(config, "x") is None
    assert config.upstreams["x"].header_pairs() == (("x-team", "t"),)
    same = load_config(path, {**env, "TOOLRELAY_UPSTREAMS__X__BASE_URL": "http://h/v2"})
    assert key_of(same, "x") == "the-key"
    assert same.upstreams["x"].header_pairs() == (("x-a", "the-key"), ("x-team", "t"))
    own = {"TOOLRELAY_UPSTREAMS__X__API_KEY": "env:K", "TOOLRELAY_UPSTREAMS__X__HEADERS__X-A": "env:K"}
    given = load_config(path, {**moved, **own})
    assert key_of(given, "x") == "the-key"
    assert given.upstreams["x"].header_pairs() == (("x-a", "the-key"), ("x-team", "t"))
    whole = {**env, "TOOLRELAY_UPSTREAMS__X": "{base_url='http://other/v1', api_key='env:K'}"}
    assert key_of(load_config(path, whole), "x") == "the-key"
    openai = {**moved, **KEY, "TOOLRELAY_UPSTREAMS__X__BASE_URL": "https://api.openai.com/v1"}
    assert key_of(load_config(path, openai), "x") == "sk-test-openai"


def test_an_address_of_the_environment_takes_a_key_without_an_address(tmp_path: Path) -> None:
    """A configured key without a base_url is sent to the environment's base_url, except OPENAI_API_KEY."""
    env = {**KEY, "K": "the-key", "TOOLRELAY_UPSTREAMS__X__BASE_URL": "http://other/v1"}
    assert key_of(load_config(write(tmp_path, "[upstreams.x]\napi_key='env:K'"), env), "x") == "the-key"
    path = write(tmp_path, "[upstreams.x]\napi_key='env:OPENAI_API_KEY'")
    assert key_of(load_config(path, env), "x") is None


def test_an_empty_key_is_no_key(tmp_path: Path) -> None:
    """With an empty api_key the upstream gets no key, even if it is OpenAI, and none has to be set."""
    assert key_of(load_config(write(tmp_path, "[upstreams.x]\napi_key=''"), {}), "x") is None


# --- environment and options -------------------------------------------------------------------------


def test_the_environment_wins_over_the_file_and_options_over_both(tmp_path: Path) -> None:
    """An option wins over the environment, and the environment over the file."""
    path = write(tmp_path, "[server]\nport = 1000\nhost = '127.0.0.2'\n[tools]\nmax_turns = 3")
    env = {**KEY, "TOOLRELAY_SERVER__PORT": "2000", "TOOLRELAY_SERVER__HOST": "127.0.0.3"}
    config = load_config(path, env, Options(port=3000))
    assert (config.server.port, config.server.host, config.tools.max_turns) == (3000, "127.0.0.3", 3)


def test_environment_values_take_their_settings_type(tmp_path: Path) -> None:
    """A variable is read as TOML if that fits the setting's type, else as a plain string."""
    env = {
        **KEY,
        "TOOLRELAY_POLICY__ALLOW": '["core__*"]',
        "TOOLRELAY_TOOLS__INJECT": "False",
        "TOOLRELAY_TOOLS__TIMEOUT_S": "2",
        "TOOLRELAY_TOOLS__ALIASES__GET_WEATHER": "core__get_weather",
        "toolrelay_store__url": "memory:",
        "TOOLRELAY_UPSTREAMS__LOCAL__BASE_URL": '"http://127.0.0.1:9/v1"',
        "TOOLRELAY_UPSTREAMS__LOCAL__MODELS": '{"fast" = "gpt-4o-mini"}',
        "TOOLRELAY_SERVER__HOST": "localhost",
        "TOOLRELAY_TEST_REQUIRE": "no setting, for it has no double underscore",
        "TOOLRELAYX__Y": "no setting either",
    }
    config = load_config(write(tmp_path, ""), env)
    assert config.policy.allow == ("core__*",)
    assert config.tools.inject is False
    assert config.tools.timeout_s == 2
    assert config.tools.aliases == {"get_weather": "core__get_weather"}
    assert config.store.url == "memory:"
    assert config.upstreams["local"].models == {"fast": "gpt-4o-mini"}
    assert config.upstreams["local"].base_url == "http://127.0.0.1:9/v1"


def test_a_string_setting_takes_digits(tmp_path: Path) -> None:
    """A value that TOML reads as a number stays a string if the setting is a string."""
    assert load_config(write(tmp_path, ""), {**KEY, "TOOLRELAY_SERVER__HOST": "10"}).server.host == "10"


def test_environment_finds_a_name_in_any_case(tmp_path: Path) -> None:
    """An upper-case variable finds a name that the file writes in mixed case."""
    path = write(tmp_path, "[upstreams.Local]\nbase_url = 'http://a/v1'")
    config = load_config(path, {"TOOLRELAY_UPSTREAMS__LOCAL__RETRIES": "5"})
    assert list(config.upstreams) == ["Local"]
    assert config.upstreams["Local"].retries == 5


@pytest.mark.parametrize(
    ("name", "value", "setting", "words"),
    [
        ("TOOLRELAY_SERVER__PROT", "1", "server.prot", "Did you mean server.port?"),
        ("TOOLRELAY_SEVER__PORT", "1", "sever", "Did you mean server?"),
        ("TOOLRELAY_SERVER__PORT__X", "1", "server.port.x", "TOOLRELAY_SERVER__PORT"),
        ("TOOLRELAY_SERVER__PORT", "eighty", "server.port", "from TOOLRELAY_SERVER__PORT"),
        ("TOOLRELAY_SERVER__PORT", "1\nhost = 2", "server.port", "expected a whole number"),
        ("TOOLRELAY_SERVER__", "1", "server.", "no such setting"),
        ("TOOLRELAY_SERVER_PORT", "9000", "server.port", "two underscores: TOOLRELAY_SERVER__PORT"),
        ("TOOLRELAY_STORE_SEAL_KEY", "env:K", "store.seal_key", "TOOLRELAY_STORE__SEAL_KEY"),
        ("TOOLRELAY_LIMITS__REQUESTS", '["9/fortnight"]', "limits.requests", 'write it like "600/minute"'),
        ("TOOLRELAY_LIMITS__COST", '["x"]', "limits.cost", 'write it like "0.50/hour"'),
        ("TOOLRELAY_TELEMETRY__OTLP_ENDPOINT", "h:4318", "telemetry.otlp_endpoint", "http:// or https:// ("),
        ("ENABLE_TOOLS", "perhaps", "tools.enabled", "ENABLE_TOOLS"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, name: str, value: str, setting: str, words: str) -> None:
    """An unknown or invalid variable is an error that names the variable and the setting."""
    error = fault(tmp_path, "", env={**KEY, name: value})
    assert error.setting == setting
    assert words in str(error)
    assert name in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOOLRELAY_SERVER_PORT", "tcp://10.0.0.7:8080"),
        ("TOOLRELAY_SERVER_SERVICE_HOST", "10.0.0.7"),
        ("TOOLRELAY_UPSTREAMS_DEFAULT", "x"),
    ],
)
def test_variables_of_others_stop_nothing(tmp_path: Path, name: str, value: str) -> None:
    """Variables that Kubernetes sets for a service called toolrelay are no settings and no error."""
    assert load_config(write(tmp_path, ""), {**KEY, name: value}) == load_config(write(tmp_path, ""), KEY)


@pytest.mark.parametrize(
    ("value", "enabled"),
    [("false", False), ("False", False), ("0", False), ("no", False), ("true", True), ("", True)],
)
def test_enable_tools(tmp_path: Path, value: str, enabled: bool) -> None:
    """ENABLE_TOOLS=false means tools.enabled=false."""
    assert load_config(write(tmp_path, ""), {**KEY, "ENABLE_TOOLS": value}).tools.enabled is enabled


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    """Store, modules and fixtures are found beside the configuration file."""
    path = write(
        tmp_path,
        "[tools]\nmodules=['my_tools.py', '/abs/t.py', 'pkg.tools']\n[store]\nurl='sqlite:///d/x.db'\n"
        "[upstreams.x]\nbase_url='replay:fixtures'\n[upstreams.y]\nbase_url='replay:'",
    )
    config = load_config(path, {})
    assert config.tools.modules == (str(tmp_path / "my_tools.py"), "/abs/t.py", "pkg.tools")
    assert config.store.url == f"sqlite:///{tmp_path}/d/x.db"
    assert config.upstreams["x"].base_url == f"replay:{tmp_path}/fixtures"
    assert config.upstreams["y"].base_url == "replay:"


# --- addresses and conflicts --------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_machines_are_not_on_loopback(tmp_path: Path, host: str) -> None:
    """An address other than loopback counts as reachable from other machines."""
    assert not is_loopback(host)
    assert load_config(write(tmp_path, f"[server]\nhost = '{host}'"), KEY).server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST."])
def test_loopback_is_open_by_itself(tmp_path: Path, host: str) -> None:
    """Each spelling of loopback is recognized and needs no setting of authentication."""
    assert is_loopback(host)
    assert load_config(write(tmp_path, f"[server]\nhost = '{host}'"), KEY).auth.mode == "auto"


@pytest.mark.parametrize("own", ["127.0.0.1", "localhost", "::1", "0.0.0.0", "::"])
@pytest.mark.parametrize("named", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.0.0.9"])
def test_own_address_as_upstream(tmp_path: Path, own: str, named: str) -> None:
    """An upstream with the server's own address, in any spelling, is an error; another port is not."""
    text = f"[server]\nhost='{own}'\nport=8123\n[auth]\nmode='open'\n[upstreams.me]\nbase_url='http://{named}:%d/v1'"
    error = fault(tmp_path, text % 8123)
    assert error.setting == "upstreams.me.base_url"
    assert "own address" in str(error)
    assert load_config(write(tmp_path, text % 8124), {}).server.port == 8123


def test_own_address_by_name_and_default_port(tmp_path: Path) -> None:
    """The machine's own name and an omitted port 80 count as the server's own address, too."""
    text = "[server]\nhost='0.0.0.0'\nport=80\n[auth]\nmode='open'\n[upstreams.me]\nbase_url='http://{}/v1'"
    assert "own address" in str(fault(tmp_path, text.format(socket.gethostname().lower())))
    assert "own address" in str(fault(tmp_path, text.format("localhost")))
    named = "[server]\nhost='relay.example'\n[auth]\nmode='open'\n[upstreams.me]\nbase_url='http://{}:8080'"
    assert "own address" in str(fault(tmp_path, named.format("Relay.Example")))
    assert load_config(write(tmp_path, named.format("other.example")), {}).server.host == "relay.example"
    load_config(write(tmp_path, "[server]\nport=0\n[upstreams.x]\nbase_url='http://localhost/v1'"), {})


def test_check_sees_every_fault_at_once(tmp_path: Path) -> None:
    """find_faults lists all faults of one stage, not only the first."""
    config, faults = find_faults(write(tmp_path, "[server]\nport='x'\nprot=1\n[tools]\ntrace=3"), KEY)
    assert config is None
    assert {error.setting for error in faults} == {"server.port", "server.prot", "tools.trace"}
    text = "[server]\nworkers=2\n[tools]\nmax_cost=1\n[billing]\nprice_list='off'"
    _, faults = find_faults(write(tmp_path, text), KEY)
    assert [error.setting for error in faults] == ["limits.storage", "tools.max_cost"]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=20)
    | st.lists(st.text(max_size=5), max_size=3)
    | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
)
NAMES = st.sampled_from(
    [
        "TOOLRELAY_SERVER__PORT",
        "TOOLRELAY_SERVER__HOST",
        "TOOLRELAY_UPSTREAMS__DEFAULT__API_KEY",
        "TOOLRELAY_UPSTREAMS__DEFAULT__BASE_URL",
        "TOOLRELAY_UPSTREAMS__A__MODELS",
        "TOOLRELAY_UPSTREAMS__A__HEADERS",
        "TOOLRELAY_TOOLS__ALIASES",
        "TOOLRELAY_POLICY__ALLOW",
        "TOOLRELAY_STORE__URL",
        "TOOLRELAY_LIMITS__REQUESTS",
        "TOOLRELAY_X__Y",
        "ENABLE_TOOLS",
    ]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(env=st.dictionaries(NAMES, st.text(max_size=30) | SCALARS.map(str), max_size=4))
def test_no_environment_breaks_the_reader(env: dict[str, str]) -> None:
    """Whatever the variables hold, find_faults returns a configuration or a list of named faults."""
    config, faults = find_faults(None, env)
    assert (config is None) == bool(faults)
    assert all(error.setting and error.problem for error in faults)


# --- credentials of tools -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs token"),
        ('token = "env:TOKEN"\nclient_id = "env:ID"', "write one of them"),
        ('client_id = "env:ID"\nclient_secret = "env:ID"', "refresh_token and token_url"),
        ('client_id = "env:ID"\nrefresh_token = "env:ID"\ntoken_url = "http://a.example/"', "https://"),
        ('client_id = "env:ID"\nrefresh_token = "env:ID"\ntoken_url = "replay:x"', "https://"),
        ('token = "t0ken"', "plain text"),
        ('token = "env:NONE"', "NONE is not set"),
    ],
)
def test_credentials_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    """A connection that is incomplete or contradicts itself is an error that shows no secret."""
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(write(tmp_path, f"[credentials.a]\n{text}"), {**KEY, "TOKEN": "s3cret", "ID": "s3cret"})
    assert caught.value.setting.startswith("credentials.a")
    assert "s3cret" not in str(caught.value)


def test_commands_that_need_no_secrets_have_no_such_connection(tmp_path: Path) -> None:
    """With need_secrets=False a connection without its secret is left out."""
    path = write(tmp_path, '[credentials.a]\ntoken = "env:NONE"')
    assert dict(load_config(path, KEY, need_secrets=False).credentials) == {}


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('[tools]\nnetworks = ["10.0.0.1/8"]', "tools.networks"),
        ('[tools]\nnetworks = ["all"]', "tools.networks"),
        ('[tools]\nweb_search = "searxng"', "tools"),
        ('[tools]\nweb_hosts = ["https://a.example/"]', "tools.web_hosts"),
        ('[tools.base_urls]\nflights = "replay:x"', "tools.base_urls.flights"),
        ('[tools.base_urls]\nother = "https://a.example"', "tools.base_urls.other"),
        ('[policy]\napprove_safety = ["high"]', "policy.approve_safety"),
    ],
)
def test_settings_of_tools_are_checked(tmp_path: Path, text: str, setting: str) -> None:
    """An invalid setting of tools or policy is an error that names it."""
    assert fault(tmp_path, text).setting == setting


# --- client keys --------------------------------------------------------------------------------------

GOOD = "aB3dEf6hIj9lMn2pQr5tUv8xYz1cDe4g"


def key_faults(
    tmp_path: Path, text: str, env: Mapping[str, str] | None = None, secret: str = GOOD
) -> tuple[Config | None, list[ConfigError]]:
    """The configuration and the faults of a key ``a`` whose secret is in the environment."""
    path = write(tmp_path, f'[keys.a]\nsecret = "env:A"\n{text}')
    return find_faults(path, {**KEY, "A": secret, **(env or {})})


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        ("modles = ['*']", "keys.a.modles", "Did you mean keys.a.models?"),
        ("models = 'gpt'", "keys.a.models", "expected a list of strings"),
        ("models = ['a b']", "keys.a.models", "is not a model name"),
        ("tools = ['a b']", "keys.a.tools", "is not a tool pattern"),
        ("endpoints = ['files']", "keys.a.endpoints", "is not a path"),
        ("endpoints = ['/../x']", "keys.a.endpoints", "is not a path"),
        ("endpoints = ['/a', '/v1/a']", "keys.a.endpoints", "lists '"),
        ("trace_max = 'loud'", "keys.a.trace_max", "silent"),
        ("limits = {reqests = ['1/minute']}", "keys.a.limits", "a key has no limit 'reqests'"),
        ("limits = {requests = ['often']}", "keys.a.limits", "is not a limit"),
        ("limits = {requests = 5}", "keys.a.limits", "requests must be a list"),
        ("limits = {concurrent_streams = 0}", "keys.a.limits", "whole number from 1"),
        ("limits = {concurrent_streams = true}", "keys.a.limits", "whole number from 1"),
        ("expires = 'soon'", "keys.a.expires", "'soon' is not a time"),
        ("expires = true", "keys.a.expires", "expected"),
        ("admin = 1", "keys.a.admin", "expected true or false"),
        ("upstreams = ['nowhere']", "keys.a.upstreams", "there is no upstream 'nowhere'"),
    ],
)
def test_faults_of_a_client_key(tmp_path: Path, text: str, setting: str, words: str) -> None:
    """Each mistake in [keys.NAME] is an error that names the setting and says what would be right."""
    _, (error,) = key_faults(tmp_path, text)
    assert error.setting == setting
    assert words in str(error)
    assert GOOD not in str(error)


def test_a_client_key_as_it_is_read(tmp_path: Path) -> None:
    """A key allows all models and tools by default; dates are UTC, a limit may be a text, paths lose /v1."""
    config, faults = key_faults(tmp_path, "")
    assert faults == []
    assert config is not None
    key = config.keys["a"]
    assert (key.models, key.tools, key.upstreams, key.endpoints) == (("*",), ("*",), (), ())
    assert (key.admin, key.mint, key.expires, key.limits) == (False, False, None, {})
    assert GOOD in config.secrets()
    assert GOOD not in repr(config)
    config, faults = key_faults(
        tmp_path,
        "endpoints = ['/v1/files*']\nexpires = 2030-01-01\n"
        "limits = {requests = '5/minute', tokens = ['10/day'], concurrent_streams = 2}",
    )
    assert faults == []
    assert config is not None
    key = config.keys["a"]
    assert key.endpoints == ("/files*",)
    assert key.expires == 1893456000.0
    assert key.limits == {"requests": ("5/minute",), "tokens": ("10/day",), "concurrent_streams": 2}
    for text in ("2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00"):
        config, _ = key_faults(tmp_path, f"expires = {text}")
        assert config is not None
        assert config.keys["a"].expires == 1893456000.0


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("pa55", "too short to be safe"),
        (GOOD[:31], "too short to be safe"),
        ("ab" * 40, "8 of them different"),
        (f"trt_{GOOD}", "starts with trt_"),
    ],
)
def test_a_client_key_that_can_be_guessed_is_a_fault(tmp_path: Path, secret: str, words: str) -> None:
    """A secret that is too short or too uniform, or looks like a token, is an error that does not show it."""
    _, (error,) = key_faults(tmp_path, "", secret=secret)
    assert error.setting == "keys.a.secret"
    assert words in str(error)
    assert secret not in str(error)


def test_a_secret_of_two_is_a_fault(tmp_path: Path) -> None:
    """Two client keys, or a client key and a provider's key, must not have the same secret."""
    _, (error,) = key_faults(tmp_path, '[keys.b]\nsecret = "env:A"')
    assert (error.setting, "keys.a.secret" in str(error)) == ("keys.b.secret", True)
    _, (error,) = key_faults(tmp_path, "", {"OPENAI_API_KEY": GOOD})
    assert (error.setting, "upstreams.default.api_key" in str(error)) == ("keys.a.secret", True)


def test_forwarding_keeps_each_key_at_its_provider(tmp_path: Path) -> None:
    """In mode forward the server needs no key of its own, and two providers are an error."""
    config = load_config(write(tmp_path, "[auth]\nmode = 'forward'"), {})
    assert config.upstreams["default"].api_key is None
    two = "[upstreams.a]\nbase_url='https://a.example/v1'\n[upstreams.b]\nbase_url='https://b.example/v1'\n"
    error = fault(tmp_path, two + "[auth]\nmode='forward'")
    assert error.setting == "auth.mode"
    load_config(write(tmp_path, two.replace("b.ex", "a.ex") + "[auth]\nmode='forward'"), {})


def test_bounds_of_arguments_and_tools_of_an_upstream_are_read(tmp_path: Path) -> None:
    """Rule T2: a policy bounds arguments by tool and name; an upstream has tools by pattern or none."""
    text = """
        [upstreams.a]
        tools = ["core__*"]
        [upstreams.b]
        tools = false
        [policy.arguments."core__get_weather"]
        days = {min = 0, max = 3.5}
        units = {enum = ["metric"], required = true}
        [policy.arguments]
        "web__*" = {url = {pattern = "https://docs\\\\.example\\\\.com/.*"}, x = {forbidden = true}}
    """
    config = load_config(write(tmp_path, text), KEY)
    assert (config.upstreams["a"].tools, config.upstreams["b"].tools) == (("core__*",), False)
    weather, web = config.policy.arguments["core__get_weather"], config.policy.arguments["web__*"]
    assert (weather["days"].min, weather["days"].max) == (0, 3.5)
    assert (weather["units"].enum, weather["units"].required) == (("metric",), True)
    assert web["url"].pattern == r"https://docs\.example\.com/.*"
    assert web["x"].forbidden is True


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        ("days = {}", "policy.arguments.t__x.days", "sets no limit"),
        ("days = {required = false}", "policy.arguments.t__x.days", "sets no limit"),
        ("days = 7", "policy.arguments.t__x.days", "expected a table"),
        ("days = {maximum = 7}", "policy.arguments.t__x.days.maximum", "Did you mean"),
        ("days = {min = 2, max = 1}", "policy.arguments.t__x.days", "min above its max"),
        ("days = {max = inf}", "policy.arguments.t__x.days.max", "finite"),
        ("days = {max = true}", "policy.arguments.t__x.days.max", "a number"),
        ("days = {forbidden = true, max = 1}", "policy.arguments.t__x.days", "write only one of them"),
        ("days = {enum = []}", "policy.arguments.t__x.days.enum", "expected"),
        ("days = {pattern = '('}", "policy.arguments.t__x.days.pattern", "regular expression"),
        ("days = {pattern = 'a)|(b'}", "policy.arguments.t__x.days.pattern", "regular expression"),
        ("days = {pattern = '(?=a)a'}", "policy.arguments.t__x.days.pattern", "look-around"),
        ("days = {pattern = '((a{99}){99}){99}'}", "policy.arguments.t__x.days.pattern", "too large"),
        ('"a..b" = {max = 1}', "policy.arguments", "is not an argument"),
    ],
)
def test_a_bound_that_would_not_hold_is_refused(tmp_path: Path, text: str, setting: str, words: str) -> None:
    """Rule E1: a bound with a mistake is an error that names it, since it might let everything through."""
    error = fault(tmp_path, f'[policy.arguments."t__x"]\n{text}\n')
    assert error.setting == setting
    assert words in str(error)


@pytest.mark.parametrize("text", ['"core__*"', "1", '["a b"]', '["a", "a"]'])
def test_tools_of_an_upstream_are_a_switch_or_patterns(tmp_path: Path, text: str) -> None:
    """A value of an upstream's tools that is no switch, mode or list of patterns is an error."""
    assert fault(tmp_path, f"[upstreams.a]\ntools = {text}\n").setting == "upstreams.a.tools"


def test_the_forms_of_text_calls_are_those_that_there_are() -> None:
    """The setting takes each format of text calls that the proxy can read, and off and auto."""
    assert set(get_args(TextCallForm)) == {"off", "auto", *FORMS}


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ('tools = "prompt"\ntext_calls = "off"', "remove text_calls"),
        ('text_calls = "hermès"', "text_calls"),
        ('tools = "prompts"', '"prompt"'),
        ('[upstreams.default.per_model]\n"" = {tools = "prompt"}', "not a model name"),
        ('[upstreams.default.per_model]\n"a*" = {tool = "prompt"}', "tool"),
        (
            '[upstreams.default.per_model]\n"a*" = {tools = "prompt", text_calls = "off"}',
            "remove text_calls",
        ),
    ],
)
def test_faults_of_text_calls(tmp_path: Path, lines: str, wrong: str) -> None:
    """A wrong setting of text calls is an error that says what is wrong or what to write."""
    assert wrong in str(fault(tmp_path, f"[upstreams.default]\n{lines}\n"))
