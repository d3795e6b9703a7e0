"""The configuration: what it reads, what wins, and how it complains."""

import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.errors import ConfigError
from proxy.server.config import Config, Options, find_faults, load_config
from proxy.server.config_rules import is_loopback

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


def test_no_file_and_a_key_is_a_whole_configuration(tmp_path, monkeypatch):
    """With no file the defaults hold and the default upstream gets the key of the environment."""
    monkeypatch.chdir(tmp_path)
    config = load_config(None, KEY)
    upstream = config.upstreams["default"]
    assert upstream.api_key is not None
    assert upstream.api_key.reveal() == "sk-test-openai"
    assert upstream.base_url == "https://api.openai.com/v1"
    assert config.store.url == f"sqlite:///{tmp_path}/toolrelay.db"
    assert config.default_upstream == "default"
    assert (config.server.host, config.server.port, config.tools.max_turns) == ("127.0.0.1", 8080, 8)


def test_every_key_of_the_contract_has_its_default():
    """The defaults are the contract's, key by key."""
    dumped = Config().model_dump()
    assert dumped["server"] == {
        "host": "127.0.0.1",
        "port": 8080,
        "workers": 1,
        "max_body_bytes": 33554432,
        "max_upload_bytes": 536870912,
        "cors_origins": (),
        "trusted_proxies": (),
        "drain_s": 25,
    }
    assert dumped["upstreams"] == {
        "default": {
            "base_url": "https://api.openai.com/v1",
            "api_key": "env:OPENAI_API_KEY",
            "wires": ("chat", "responses"),
            "models": ("*",),
            "tools": True,
            "force_usage": False,
            "responses_state": "auto",
            "connect_timeout_s": 10,
            "first_byte_timeout_s": 600,
            "idle_timeout_s": 120,
            "retries": 2,
            "headers": {},
        }
    }
    assert dumped["tools"] == {
        "enabled": True,
        "modules": (),
        "networks": (),
        "web_hosts": (),
        "base_urls": {},
        "inject": True,
        "trace": "silent",
        "trace_max": "status",
        "parallel": True,
        "max_turns": 8,
        "max_calls": 32,
        "max_tokens": 0,
        "max_cost": 0,
        "timeout_s": 10,
        "request_timeout_s": 300,
        "keepalive_s": 10,
        "aliases": {},
    }
    assert dumped["policy"] == {
        "allow": (),
        "approve_effects": (),
        "approve": (),
        "approve_safety": (),
        "after_untrusted": "approve",
        "max_argument_bytes": 8192,
        "max_result_bytes": 32768,
    }
    assert dumped["store"] == {
        "url": "sqlite:///toolrelay.db",
        "content": "tools",
        "keep_days": 30,
        "max_bytes": 0,
        "seal_key": None,
        "synchronous": "normal",
        "history": True,
    }
    assert dumped["limits"] == {
        "requests": ("600/minute",),
        "tool_calls": ("600/minute",),
        "tokens": (),
        "cost": (),
        "concurrent_tools": 64,
        "concurrent_tools_per_caller": 16,
        "concurrent_streams": 256,
        "storage": "memory://",
        "on_error": "open",
    }
    assert dumped["auth"] == {"mode": "auto", "end_user": ""}
    assert dumped["log"] == {"format": "json", "level": "info"}
    assert dumped["telemetry"] == {"metrics": True, "otlp_endpoint": ""}
    assert dumped["credentials"] == dumped["keys"] == dumped["prices"] == {}


def test_missing_key_names_every_way_out(tmp_path):
    """Without OPENAI_API_KEY the default upstream's error says what could be done."""
    error = fault(tmp_path, "", env={})
    assert error.setting == "upstreams.default.api_key"
    for part in ("OPENAI_API_KEY", "--upstream", "toolrelay demo"):
        assert part in str(error)


def test_commands_that_ask_no_model_need_no_key(tmp_path):
    """With need_secrets=False a missing secret is no key instead of a fault."""
    config = load_config(write(tmp_path, ""), {}, need_secrets=False)
    assert config.upstreams["default"].api_key is None


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        ("[server]\nprot = 1", "server.prot", "Did you mean server.port?"),
        ("[sever]\nport = 1", "sever", "Did you mean server?"),
        ("[tools]\nport = 1", "tools.port", "Did you mean server.port?"),
        ("[upstreams.x]\npolicy.allow = ['a']", "upstreams.x.policy", "under a [policy] heading"),
        ("[upstreams.x]\nbaseurl = 'http://x'", "upstreams.x.baseurl", "Did you mean upstreams.x.base_url?"),
        ("zzzzzzzz = 1", "zzzzzzzz", "Did you mean "),
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
        ("[tools]\nmodules = 'x.py'", "tools.modules", "expected a list of strings"),
        ("[tools.aliases]\nx = 'weather'", "tools.aliases", "core__get_weather"),
        ("[tools.aliases]\n'a b' = 'core__x'", "tools.aliases", "is no function name"),
        ("[policy]\nallow = ['a b']", "policy.allow", "'a b' is no tool pattern"),
        ("[policy]\nallow = ['a', 'a']", "policy.allow", "stands there twice"),
        ("[policy]\nallow = [1]", "policy.allow.0", "expected a string"),
        ("[upstreams.x]\nwires = ['chat', 'smoke']", "upstreams.x.wires.1", '"chat", "responses"'),
        ("[upstreams.x]\nwires = ['chat', 'chat']", "upstreams.x.wires", "stands there twice"),
        ("[upstreams.x]\nwires = []", "upstreams.x.wires", "at least 1 item"),
        ("[upstreams.x]\nmodels = []", "upstreams.x.models", '["*"]'),
        ("[upstreams.x]\nmodels = 3", "upstreams.x.models", "a list of model names"),
        ("[upstreams.x]\nmodels = {a = 1}", "upstreams.x.models", "gpt-4o-mini"),
        ("[upstreams.x]\nmodels = {a = ''}", "upstreams.x.models", "no empty name"),
        ("[upstreams.'a b']\nretries = 1", "upstreams", "is no name"),
        ("[upstreams.x]\nbase_url = 'ftp://x'", "upstreams.x.base_url", "http://, https:// or replay:"),
        ("[upstreams.x]\nbase_url = 'http://x:99999'", "upstreams.x.base_url", "1 to 65535"),
        ("[upstreams.x]\nbase_url = 'http:///v1'", "upstreams.x.base_url", "names no host"),
        ("[upstreams.x]\nbase_url = 'http://x/v1?a=b'", "upstreams.x.base_url", "query"),
        ("[upstreams.x]\nbase_url = 'http://x/v 1'", "upstreams.x.base_url", "spaces"),
        ("[upstreams.x]\nheaders = {host = 'x'}", "upstreams.x.headers", "belongs to the connection"),
        ("[upstreams.x]\nheaders = {'a b' = 'x'}", "upstreams.x.headers", "is no header name"),
        ('[upstreams.x]\nheaders = {a = "x\\r\\nb: c"}', "upstreams.x.headers", "not printable ASCII"),
        ("[upstreams.x]\nheaders = {a = 1}", "upstreams.x.headers.a", "expected a string"),
        ("[limits]\nrequests = ['often']", "limits.requests", "'often' is no limit"),
        ("[limits]\nrequests = ['0/minute']", "limits.requests", "is no limit"),
        ("[limits]\nconcurrent_streams = 0", "limits.concurrent_streams", "greater than or equal to 1"),
        ("[store]\nurl = 'mysql://x'", "store.url", "memory:, sqlite:///FILE"),
        ("[keys.a]\nadmin = true", "keys.a.secret", "is missing"),
    ],
)
def test_a_fault_is_one_line_with_setting_and_remedy(tmp_path, text, setting, words):
    """Unknown keys, wrong types and values out of bounds name the setting and what would be right."""
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
def test_broken_toml_names_file_line_and_column(tmp_path, text, place):
    """A syntax error is found by its line and column."""
    error = fault(tmp_path, text)
    assert str(tmp_path / "toolrelay.toml") in error.setting
    assert place in error.setting
    assert "not valid TOML" in error.problem


def test_a_file_that_is_none(tmp_path):
    """Missing, unreadable, oversized, binary and absurdly nested files each get their own line."""
    with pytest.raises(ConfigError, match=r"there is no such file.*toolrelay init"):
        load_config(tmp_path / "no.toml", KEY)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, KEY)
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(binary, KEY)
    binary.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConfigError, match="is over"):
        load_config(binary, KEY)
    with pytest.raises(ConfigError):
        load_config(write(tmp_path, "a = " + "[" * 5000), KEY)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('[keys.a]\nsecret = "env:X"', "keys"),
        ("[auth]\nmode = 'keys'", "auth.mode"),
        ("[auth]\nmode = 'forward'", "auth.mode"),
        ('[prices."m"]\ninput = 1', "prices"),
        ("[server]\nworkers = 2", "server.workers"),
        ("[server]\ncors_origins = ['http://x']", "server.cors_origins"),
        ("[server]\ntrusted_proxies = ['10.0.0.1']", "server.trusted_proxies"),
        ("[limits]\ntokens = ['5/minute']", "limits.tokens"),
        ("[limits]\ncost = ['5/minute']", "limits.cost"),
        ("[limits]\nstorage = 'redis://x'", "limits.storage"),
        ("[tools]\nmax_cost = 1", "tools.max_cost"),
        ("[telemetry]\notlp_endpoint = 'http://x'", "telemetry.otlp_endpoint"),
        ("[upstreams.x]\nwires = ['chat', 'ollama']", "upstreams.x.wires"),
        ("[upstreams.x]\nwires = ['anthropic']", "upstreams.x.wires"),
    ],
)
def test_a_setting_without_its_feature_stops_the_start(tmp_path, text, setting):
    """A setting whose feature is not built yet is one clear line, never silently ignored."""
    error = fault(tmp_path, text)
    assert error.setting == setting
    assert "not built in this version" in str(error)
    assert error.remedy
    assert "hunter2" not in str(error)


def test_workers_cannot_share_a_memory_store(tmp_path):
    """More than one worker with memory: is refused for its own reason."""
    error = fault(tmp_path, "[server]\nworkers = 2\n[store]\nurl = 'memory:'")
    assert error.setting == "server.workers"
    assert "memory:" in str(error)


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("literal", ["sk-verysecretliteral", "verysecretliteral", "env:very-secretliteral"])
def test_a_literal_key_is_refused_without_being_shown(tmp_path, literal):
    """A key as plain text is refused; the line names the remedy and not the key."""
    error = fault(tmp_path, f"[upstreams.x]\napi_key = '{literal}'")
    assert error.setting == "upstreams.x.api_key"
    assert "secretliteral" not in str(error)
    assert "env:NAME or file:/path" in str(error) or "variable name" in str(error)


def test_credential_headers_are_secrets_too(tmp_path):
    """A header that carries a credential takes a reference only, and resolves like api_key."""
    error = fault(tmp_path, "[upstreams.x]\nheaders = {api-key = 'verysecretliteral'}")
    assert "verysecretliteral" not in str(error)
    path = write(tmp_path, "[upstreams.x]\nbase_url='http://h/v1'\nheaders = {api-key='env:AZ', x-team='a'}")
    config = load_config(path, {"AZ": "azure-value"})
    assert config.upstreams["x"].header_pairs() == (("api-key", "azure-value"), ("x-team", "a"))
    assert "azure-value" in config.secrets()
    assert "azure-value" not in repr(config)
    with pytest.raises(ConfigError, match="AZ is not set"):
        load_config(path, {})


def test_secrets_come_from_files_beside_the_configuration(tmp_path):
    """file: paths start at the configuration's folder and lose their line end."""
    (tmp_path / "key.txt").write_text("sk-from-file\n")
    path = write(tmp_path, "[upstreams.x]\nbase_url='http://h/v1'\napi_key = 'file:key.txt'")
    key = load_config(path, {}).upstreams["x"].api_key
    assert key is not None
    assert key.reveal() == "sk-from-file"
    assert "sk-from-file" not in f"{key!r} {key}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file"),
        (b"", "is empty"),
        (b"\xff\xfe", "is not text"),
        (b"a\nb", "no HTTP header may carry"),
        ("schlüssel".encode(), "no HTTP header may carry"),
        (b"k" * 70000, "is over 65536 bytes"),
    ],
)
def test_unusable_secret_files(tmp_path, content, words):
    """A secret's file that cannot be a key is named with its fault, never its content."""
    if content is not None:
        (tmp_path / "key.txt").write_bytes(content)
    error = fault(tmp_path, "[upstreams.x]\napi_key = 'file:key.txt'")
    assert error.setting == "upstreams.x.api_key"
    assert words in str(error)


def test_the_password_of_a_store_is_masked_and_not_shown(tmp_path):
    """A password in store.url is among the secrets of the log's mask, and in no address that is printed."""
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
def test_the_seal_key_is_always_needed(tmp_path, need):
    """A command that asks no model still must not write unsealed what the server seals."""
    path = write(tmp_path, '[store]\nseal_key = "env:SEAL"')
    with pytest.raises(ConfigError, match=r"store\.seal_key: the environment variable SEAL is not set"):
        load_config(path, {"OPENAI_API_KEY": "k"}, need_secrets=need)
    config = load_config(path, {"OPENAI_API_KEY": "k", "SEAL": "00" * 32}, need_secrets=need)
    assert config.store.seal_key is not None
    assert config.store.seal_key.reveal() == "00" * 32
    assert "00" * 32 in config.secrets()


def test_an_unresolved_secret_says_so():
    """Revealing a secret that nobody resolved is an error, not an empty key."""
    key = Config().upstreams["default"].api_key
    assert key is not None
    with pytest.raises(ConfigError, match="not resolved"):
        key.reveal()


# --- whose key goes where ---------------------------------------------------------------------------


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
def test_the_openai_key_goes_to_openai_only(tmp_path, url):
    """OPENAI_API_KEY is not sent to another address, however that address was given."""
    empty = write(tmp_path, "")
    assert key_of(load_config(empty, KEY, Options(upstream=url))) is None
    assert key_of(load_config(empty, {**KEY, "TOOLRELAY_UPSTREAMS__DEFAULT__BASE_URL": url})) is None
    assert key_of(load_config(write(tmp_path, f"[upstreams.x]\nbase_url = '{url}'"), KEY), "x") is None


def test_the_openai_key_goes_to_openai_under_any_spelling(tmp_path):
    """The same origin in another spelling is the same place."""
    config = load_config(write(tmp_path, ""), KEY, Options(upstream="HTTPS://API.openai.com:443/v1/"))
    assert key_of(config) == "sk-test-openai"


def test_an_explicit_key_is_sent_where_it_was_configured(tmp_path):
    """A key that stands beside its base_url is used, OPENAI_API_KEY too."""
    path = write(tmp_path, "[upstreams.x]\nbase_url='http://h/v1'\napi_key='env:OPENAI_API_KEY'")
    assert key_of(load_config(path, KEY), "x") == "sk-test-openai"


def test_upstream_option_takes_the_configured_key_away(tmp_path):
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


def test_upstream_option_keeps_a_key_without_an_address(tmp_path):
    """A key of one's own with no base_url beside it is meant for whatever --upstream names."""
    path = write(tmp_path, "[upstreams.x]\napi_key='env:K'")
    config = load_config(path, {"K": "the-key"}, Options(upstream="http://other/v1"))
    assert key_of(config, "x") == "the-key"
    path = write(tmp_path, "[upstreams.x]\napi_key='env:OPENAI_API_KEY'")
    assert key_of(load_config(path, KEY, Options(upstream="http://other/v1")), "x") is None


def test_an_empty_key_is_no_key(tmp_path):
    """api_key = "" sends none, even to OpenAI, and asks for none."""
    assert key_of(load_config(write(tmp_path, "[upstreams.x]\napi_key=''"), {}), "x") is None


# --- environment and options -------------------------------------------------------------------------


def test_the_environment_wins_over_the_file_and_options_over_both(tmp_path):
    """Option before environment before file before default."""
    path = write(tmp_path, "[server]\nport = 1000\nhost = '127.0.0.2'\n[tools]\nmax_turns = 3")
    env = {**KEY, "TOOLRELAY_SERVER__PORT": "2000", "TOOLRELAY_SERVER__HOST": "127.0.0.3"}
    config = load_config(path, env, Options(port=3000))
    assert (config.server.port, config.server.host, config.tools.max_turns) == (3000, "127.0.0.3", 3)


def test_environment_values_take_their_settings_type(tmp_path):
    """Values are TOML where that fits the setting's type, else plain strings."""
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


def test_a_string_setting_takes_digits(tmp_path):
    """A value that TOML reads as a number stays a string where the setting is one."""
    _, faults = find_faults(write(tmp_path, ""), {**KEY, "TOOLRELAY_SERVER__HOST": "10"})
    assert [error.setting for error in faults] == ["auth.mode"]
    assert "'10'" in str(faults[0])


def test_environment_finds_a_name_in_any_case(tmp_path):
    """A name the file spells in mixed case is found from an upper-case variable."""
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
        ("ENABLE_TOOLS", "perhaps", "tools.enabled", "ENABLE_TOOLS"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path, name, value, setting, words):
    """Unknown or unfit variables stop the start and are named."""
    error = fault(tmp_path, "", env={**KEY, name: value})
    assert error.setting == setting
    assert words in str(error)
    assert name in str(error)


@pytest.mark.parametrize(
    ("value", "enabled"),
    [("false", False), ("False", False), ("0", False), ("no", False), ("true", True), ("", True)],
)
def test_enable_tools(tmp_path, value, enabled):
    """ENABLE_TOOLS=false means tools.enabled=false."""
    assert load_config(write(tmp_path, ""), {**KEY, "ENABLE_TOOLS": value}).tools.enabled is enabled


def test_relative_paths_start_at_the_file(tmp_path):
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


# --- settings at odds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_auto_refuses_to_open_the_door_to_others(tmp_path, host):
    """auth.mode auto without client keys serves loopback only, and says how to open it."""
    error = fault(tmp_path, f"[server]\nhost = '{host}'")
    assert error.setting == "auth.mode"
    assert 'auth.mode = "open"' in str(error)
    assert "127.0.0.1" in str(error)
    opened = write(tmp_path, f"[server]\nhost = '{host}'\n[auth]\nmode = 'open'")
    assert load_config(opened, KEY).server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST."])
def test_loopback_is_open_by_itself(tmp_path, host):
    """Every spelling of loopback starts without keys."""
    assert is_loopback(host)
    assert load_config(write(tmp_path, f"[server]\nhost = '{host}'"), KEY).auth.mode == "auto"


@pytest.mark.parametrize("own", ["127.0.0.1", "localhost", "::1", "0.0.0.0", "::"])
@pytest.mark.parametrize("named", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.0.0.9"])
def test_own_address_as_upstream(tmp_path, own, named):
    """An upstream that is this very server, in any spelling of this machine, is refused."""
    text = f"[server]\nhost='{own}'\nport=8123\n[auth]\nmode='open'\n[upstreams.me]\nbase_url='http://{named}:%d/v1'"
    error = fault(tmp_path, text % 8123)
    assert error.setting == "upstreams.me.base_url"
    assert "own address" in str(error)
    assert load_config(write(tmp_path, text % 8124), {}).server.port == 8123


def test_own_address_by_name_and_default_port(tmp_path):
    """A wildcard server is also met by the machine's own name; port 80 may go unsaid."""
    text = "[server]\nhost='0.0.0.0'\nport=80\n[auth]\nmode='open'\n[upstreams.me]\nbase_url='http://{}/v1'"
    assert "own address" in str(fault(tmp_path, text.format(socket.gethostname().lower())))
    assert "own address" in str(fault(tmp_path, text.format("localhost")))
    named = "[server]\nhost='relay.example'\n[auth]\nmode='open'\n[upstreams.me]\nbase_url='http://{}:8080'"
    assert "own address" in str(fault(tmp_path, named.format("Relay.Example")))
    assert load_config(write(tmp_path, named.format("other.example")), {}).server.host == "relay.example"
    assert load_config(write(tmp_path, "[server]\nport=0\n[upstreams.x]\nbase_url='http://localhost/v1'"), {})


def test_check_sees_every_fault_at_once(tmp_path):
    """find_faults lists all faults of one stage, not only the first."""
    config, faults = find_faults(write(tmp_path, "[server]\nport='x'\nprot=1\n[tools]\ntrace=3"), KEY)
    assert config is None
    assert {error.setting for error in faults} == {"server.port", "server.prot", "tools.trace"}
    _, faults = find_faults(write(tmp_path, "[auth]\nmode='keys'\n[tools]\nmax_cost=1"), KEY)
    assert [error.setting for error in faults] == ["auth.mode", "tools.max_cost"]


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
def test_no_environment_breaks_the_reader(env):
    """Whatever the variables hold, the answer is a configuration or a list of named faults."""
    config, faults = find_faults(None, env)
    assert (config is None) == bool(faults)
    assert all(error.setting and error.problem for error in faults)


# --- credentials of tools -------------------------------------------------------------------------


def test_credentials_are_resolved(tmp_path):
    """A token, and OAuth 2 with or without a client secret, resolve; all of it is masked in the log."""
    config = load_config(
        write(
            tmp_path,
            '[credentials.a]\ntoken = "env:TOKEN"\n'
            '[credentials.b]\nclient_id = "env:ID"\nrefresh_token = "env:REFRESH"\n'
            'token_url = "https://auth.example/token"\n',
        ),
        {**KEY, "TOKEN": "t0ken", "ID": "client", "REFRESH": "r3fresh"},
    )
    assert config.credentials["a"].token.reveal() == "t0ken"
    assert config.credentials["b"].refresh_token.reveal() == "r3fresh"
    assert {"t0ken", "client", "r3fresh"} <= set(config.secrets())
    assert "t0ken" not in repr(config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs token"),
        ('token = "env:TOKEN"\nclient_id = "env:ID"', "the one or the other"),
        ('client_id = "env:ID"\nclient_secret = "env:ID"', "refresh_token and token_url"),
        ('client_id = "env:ID"\nrefresh_token = "env:ID"\ntoken_url = "http://a.example/"', "https://"),
        ('client_id = "env:ID"\nrefresh_token = "env:ID"\ntoken_url = "replay:x"', "https://"),
        ('token = "t0ken"', "plain text"),
        ('token = "env:NONE"', "NONE is not set"),
    ],
)
def test_credentials_that_cannot_be_used(tmp_path, text, words):
    """A connection that is neither or both, or lacks a part, is one clear line without any secret."""
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(write(tmp_path, f"[credentials.a]\n{text}"), {**KEY, "TOKEN": "s3cret", "ID": "s3cret"})
    assert caught.value.setting.startswith("credentials.a")
    assert "s3cret" not in str(caught.value)


def test_commands_that_need_no_secrets_have_no_such_connection(tmp_path):
    """Without its secret a connection is none, where secrets are not needed."""
    path = write(tmp_path, '[credentials.a]\ntoken = "env:NONE"')
    assert dict(load_config(path, KEY, need_secrets=False).credentials) == {}


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('[tools]\nnetworks = ["10.0.0.1/8"]', "tools.networks"),
        ('[tools]\nnetworks = ["all"]', "tools.networks"),
        ('[tools]\nweb_hosts = ["https://a.example/"]', "tools.web_hosts"),
        ('[tools.base_urls]\nflights = "replay:x"', "tools.base_urls.flights"),
        ('[tools.base_urls]\nother = "https://a.example"', "tools.base_urls.other"),
        ('[policy]\napprove_safety = ["high"]', "policy.approve_safety"),
    ],
)
def test_settings_of_tools_are_checked(tmp_path, text, setting):
    """What makes no sense is refused by its name."""
    assert fault(tmp_path, text).setting == setting
