"""``toolrelay doctor`` finds each quirk of an upstream, and reports no other."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from closed_port import closed_port
from command_line import Here
from fixture_loader import FIXTURES
from recorded_answers import Given, Scripted
from store_records import files_below
from talking_models import model_with

from proxy.app.open_record import open_record
from proxy.base.errors import ConfigError, UpstreamUnreachable
from proxy.commands.doctor.checks import CHECKS
from proxy.commands.doctor.doctor import Diagnosis, diagnose, find_model, hiding, new_lines
from proxy.commands.doctor.keeping import keep_diagnosis
from proxy.commands.doctor.probing.exchange import Reply
from proxy.commands.doctor.probing.native import NATIVE_QUESTIONS
from proxy.commands.doctor.written import with_settings
from proxy.config.load import Config
from proxy.config.secret import Secret
from proxy.ui.diagnoses import KeptFinding, read_diagnosis

HABITS: dict[str, set[str]] = {
    "no streaming": {"streaming"},
    "no end mark": {"end_mark"},
    "no usage": {"usage"},
    "no include_usage": {"include_usage"},
    "no tools": {"tools", "strict", "results", "native"},
    "refuses special types": {"native"},
    "skips special types": set(),
    "no calls": {"calls", "parallel", "forced"},
    "calls in text": {"calls", "parallel", "forced"},
    "one call": {"parallel"},
    "no forced choice": {"forced"},
    "no strict": {"strict"},
    "blank ids": {"blank_ids"},
    "repeated ids": {"repeated_ids"},
    "no index": {"indices"},
    "no type": {"types"},
    "said again": {"said_again"},
    "object arguments": {"object_arguments"},
    "stop with calls": {"stop_with_calls"},
    "empty first chunk": {"empty_first_chunk"},
    "role repeated": {"roles"},
    "no role": {"no_role"},
    "no chunk ids": {"chunk_ids"},
    "no reason": {"finish_reason"},
    "no results": {"results", "result_images"},
    "no images": {"images"},
    "no schema": {"schema"},
    "one choice": {"choices"},
    "no logprobs": {"logprobs"},
    "no previous": {"previous_response"},
    "unnumbered": {"responses_stream"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "no tools": {"tools": "prompt"},
    "calls in text": {"text_calls": "auto"},
    "role repeated": {"repair": "always"},
    "no previous": {"responses_state": "stateless"},
    "no responses": {"wires": ["chat"]},
    "ollama too": {"wires": ["chat", "responses", "ollama"]},
    "ollama only": {"wires": ["ollama"]},
}


def odd(diagnosis: Diagnosis) -> set[str]:
    """Return the checks whose outcome is ``no`` or ``quirk``."""
    return {check.key for check, one in diagnosis.found if one.outcome in ("no", "quirk")}


async def test_a_healthy_upstream_has_no_quirk() -> None:
    """For a correct upstream, doctor finds no quirk, leaves no check open and sends at most 28 requests."""
    upstream = model_with()
    diagnosis = await diagnose(upstream, "m-1", ["m-1"])
    assert odd(diagnosis) == set()
    assert [check.key for check, one in diagnosis.found if one.outcome == "unknown"] == []
    assert len(upstream.asked) == diagnosis.requests <= 28
    assert diagnosis.settings == {
        "wires": ["chat", "responses"],
        "responses_state": "chained",
        "native": [
            *("additional_tools", "apply_patch", "custom", "local_shell", "namespace", "shell"),
            "tool_search",
        ],
    }


@pytest.mark.parametrize("habit", HABITS)
async def test_each_habit_is_found_and_no_other(habit: str) -> None:
    """The doctor finds a quirk by exactly the checks that are about it."""
    found = odd(await diagnose(model_with(habit), "m-1", ["m-1"]))
    assert found - {"result_images"} == HABITS[habit] - {"result_images"}


@pytest.mark.parametrize("habit", SETTINGS)
async def test_a_habit_has_its_setting(habit: str) -> None:
    """For each quirk, doctor recommends the settings that fit it."""
    settings = (await diagnose(model_with(habit), "m-1", ["m-1"])).settings
    assert {**settings, **SETTINGS[habit]} == settings


async def test_only_a_call_shows_that_a_type_is_understood() -> None:
    """An upstream that skips types without a word leaves the check open, and gets no setting."""
    for habit, words in (
        ("skips special types", "no call: namespace, additional_tools, custom"),
        ("refuses special types", "refused: namespace, additional_tools, custom"),
    ):
        diagnosis = await diagnose(model_with(habit), "m-1", ["m-1"])
        (found,) = [finding for check, finding in diagnosis.found if check.key == "native"]
        assert found.words.startswith(words)
        assert found.outcome == ("unknown" if habit.startswith("skips") else "no")
        assert "native" not in diagnosis.settings


def test_a_call_of_another_form_is_not_one_of_the_type() -> None:
    """A call of the declared name and type counts; text, another call, and a busy server do not."""
    for question in NATIVE_QUESTIONS:
        if question.dialect != "anthropic":
            continue
        name = question.more["tools"][0]["name"]
        called: dict[str, Any] = {"type": "tool_use", "id": "c", "name": name, "input": {}}
        for content, understood in (
            ([{"type": "text", "text": "Hm."}, called], True),
            ([{**called, "name": f"x_{name}"}], False),
            ([{"type": "text", "text": "Hm."}], None),
            ("odd", None),
        ):
            assert question.understood(Reply(200, payloads=[{"content": content}])) is understood
        assert question.understood(Reply(400, error="tools.0: unknown type")) is False
        assert question.understood(Reply(503)) is None


def test_what_is_known_of_a_provider_is_not_narrowed() -> None:
    """A model that did not call a tool does not make doctor advise against what OpenAI is known to have."""
    for address, lines in (
        ("https://api.openai.com/v1", {}),
        ("http://127.0.0.1:9/v1", {"native": 'native = ["shell"]'}),
    ):
        config = Config.model_validate({"upstreams": {"u": {"base_url": address, "api_key": None}}})
        assert new_lines(config, "u", {"native": ["shell"]}) == lines


def test_each_quirk_is_explained() -> None:
    """Each check has a unique key, and all but the informational ones say what a fault means."""
    assert len({check.key for check in CHECKS}) == len(CHECKS)
    unexplained = {check.key for check in CHECKS if not check.meaning}
    assert unexplained == {
        *("dialects", "reasoning", "context_error", "logprobs", "comments", "rate_limits", "times")
    }


CONFIG = Config.model_validate({"upstreams": {"u": {"base_url": "http://127.0.0.1:9/v1", "api_key": None}}})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (UpstreamUnreachable("it takes no connection"), "Start the server"),
        (Given(b"{}", 401), "refuses the key"),
        (Given(b"<html>", 404, "text/html"), "no API answers at"),
        (Given(b'{"data":[]}'), "lists no models"),
    ],
    ids=["down", "key", "path", "models"],
)
async def test_what_keeps_it_from_asking_is_told_apart(answer: Given | Exception, words: str) -> None:
    """The error says whether the server is down, the key or path is wrong, or there is no model."""

    def give(asked: object) -> Given:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ConfigError, match=words):
        await find_model(CONFIG, "u", Scripted(give), None)


async def test_an_upstream_of_ollamas_own_api_lists_its_models_there() -> None:
    """If an upstream speaks only Ollama's own API, doctor reads its models there and misses no ``/v1``."""
    table = CONFIG.upstreams["u"].model_copy(update={"base_url": "http://h:1", "wires": ("ollama",)})
    config = CONFIG.model_copy(update={"upstreams": {"u": table}})
    assert await find_model(config, "u", model_with("ollama only"), None) == ("m-1", ("m-1",))


async def test_a_path_without_its_version_is_told() -> None:
    """If the API answers only below ``/v1``, the error names the address with ``/v1``."""
    listed = Given(b'{"data":[{"id":"m"}]}')
    upstream = Scripted(lambda asked: listed if asked.path == "/v1/models" else Given(b"", 404))
    config = CONFIG.model_copy(
        update={"upstreams": {"u": CONFIG.upstreams["u"].model_copy(update={"base_url": "http://h:1"})}}
    )
    with pytest.raises(ConfigError, match="http://h:1/v1"):
        await find_model(config, "u", upstream, None)


async def test_a_path_with_its_version_twice_is_told() -> None:
    """If the address contains ``/v1`` twice, the error says so."""
    table = CONFIG.upstreams["u"].model_copy(update={"base_url": "http://h:1/v1/v1"})
    config = CONFIG.model_copy(update={"upstreams": {"u": table}})
    with pytest.raises(ConfigError, match="contains /v1 twice"):
        await find_model(config, "u", Scripted(lambda asked: Given(b"", 404)), None)


async def test_an_unknown_model_is_told_with_those_that_exist() -> None:
    """If the upstream does not know the model, the error lists the models that it has."""
    missing = Given(b'{"error":{"message":"The model does not exist","code":"model_not_found"}}', 404)
    with pytest.raises(ConfigError, match="m-1, m-2"):
        await diagnose(Scripted(lambda asked: missing), "m-3", ["m-1", "m-2"])


TOML = """# my file
[server]
port = 8081  # a comment

[upstreams.u]  # the first
base_url = "http://127.0.0.1:9/v1"
repair = "auto"  # keep this

# the second
[upstreams.v]
base_url = "http://127.0.0.1:8/v1"
"""


def test_settings_are_written_into_their_table() -> None:
    """Writing settings keeps order and comments, replaces values in place and appends new ones."""
    after = with_settings(TOML, "u", {"repair": "always", "wires": ["chat"]})
    wanted = TOML.replace(
        'repair = "auto"  # keep this\n', 'repair = "always"  # keep this\nwires = ["chat"]\n'
    )
    assert after == wanted


def test_a_table_that_is_not_there_is_added() -> None:
    """If the upstream has no table, the settings get a new table at the end of the file."""
    deeper = with_settings(TOML, "u", {"profile.efforts": []})
    assert deeper is not None
    assert tomllib.loads(deeper)["upstreams"]["u"]["profile"] == {"efforts": []}
    assert with_settings("", "u", {"repair": "off"}) == '[upstreams.u]\nrepair = "off"\n'
    assert (with_settings(TOML, "w", {"repair": "off"}) or "").startswith(TOML)


@pytest.mark.parametrize(
    "text",
    [
        'upstreams = { u = { base_url = "x" } }\n',
        'upstreams.u.base_url = "x"\n',
        '[upstreams]\nu.base_url = "x"\n',
        '[upstreams.u]\nwires = [\n  "chat",\n]\n',
        '[upstreams.u]\nx = """\nwires = 1\n"""\n',
        "not toml",
    ],
)
def test_another_form_is_left_alone(text: str) -> None:
    """If settings cannot be written without a change of anything else, they are not written."""
    assert with_settings(text, "u", {"wires": ["chat"]}) is None


KEY = "sk-provider-0123456789abcdef"


def test_a_server_that_is_down_is_told(here: Here) -> None:
    """If the server is down, the command fails, says what to do and prints no results."""
    with closed_port() as port:
        done = here("doctor", "--upstream", f"http://127.0.0.1:{port}/v1", "--model", "m", "--yes")
    assert done.returncode == 1
    assert "Start the server" in done.stderr
    assert done.stdout == ""


def test_the_names_of_upstreams_are_told(here: Here, tmp_path: Path) -> None:
    """If no upstream has the given name, the command fails, says so and names those that there are."""
    tables = "".join(f'[upstreams.{name}]\nbase_url = "replay:"\n' for name in ("mine", "theirs"))
    (tmp_path / "toolrelay.toml").write_text(tables)
    done = here("doctor", "--upstream", "nobody", env={"OPENAI_API_KEY": KEY})
    assert done.returncode == 1
    assert "the configuration has no upstream named 'nobody'" in done.stderr
    assert "Write one of these names, or a base URL: mine, theirs" in done.stderr


def test_nothing_is_sent_where_nobody_can_be_asked(here: Here) -> None:
    """Without a terminal and --yes, doctor prints what it would send and names --yes, but sends nothing."""
    done = here("doctor", "--upstream", f"replay:{FIXTURES}")
    assert done.returncode == 1
    assert "small requests" in done.stderr
    assert "--yes" in done.stderr
    assert done.stdout == ""


def test_the_replay_upstream_is_examined(here: Here) -> None:
    """If the upstream is a folder of recordings, every check stays unknown and no setting is recommended."""
    done = here("doctor", "--upstream", f"replay:{FIXTURES}", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {one["check"] for one in told["checks"]} == {check.key for check in CHECKS}
    assert {one["found"] for one in told["checks"]} == {"unknown"}
    assert told["settings"] == {}


def test_what_is_piped_is_not_padded(here: Here) -> None:
    """In a pipe, the output has one line per check, with tabs and without trailing spaces."""
    done = here("doctor", "--upstream", f"replay:{FIXTURES}", "--yes")
    rows = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    assert [row[0] for row in rows] == [check.title for check in CHECKS]
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_a_file_is_needed_to_write(here: Here) -> None:
    """If the upstream is given by its address, --write is refused, as there is no table to write into."""
    done = here("doctor", "--upstream", "http://127.0.0.1:9/v1", "--write")
    assert done.returncode == 1
    assert "--write" in done.stderr


async def test_what_was_found_is_kept_for_the_web_ui(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest findings are kept in the record; if there is no record, doctor creates none."""
    config = Config.model_validate(
        {
            "upstreams": {"local": {"base_url": "http://127.0.0.1:9/v1"}},
            "store": {"url": f"sqlite:///{tmp_path}/record.db", "seal": False},
        }
    )
    found = [KeptFinding("end mark", "no", "x" * 1000), KeptFinding("usage", "ok")]
    await keep_diagnosis(config, "local", "m", found)
    assert "there is no record yet" in capsys.readouterr().err
    assert files_below(tmp_path) == []
    store = open_record(config)
    await store.start()
    try:
        await keep_diagnosis(config, "local", "m", found[1:])
        await keep_diagnosis(config, "local", "m", found)
        ((name, text),) = (await store.read_diagnoses()).items()
    finally:
        await store.aclose()
    assert capsys.readouterr().err == ""
    shown = read_diagnosis(text, "http://127.0.0.1:9/v1")
    assert shown is not None
    assert (name, shown["model"]) == ("local", "m")
    assert shown["findings"] == [
        {"check": "end mark", "outcome": "no", "note": "x" * 400},
        {"check": "usage", "outcome": "ok", "note": None},
    ]


async def test_a_record_in_memory_keeps_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """If the store is in memory, doctor says that it keeps no findings, and does not fail."""
    await keep_diagnosis(Config.model_validate({"store": {"url": "memory:"}}), "default", "m", [])
    assert "memory:" in capsys.readouterr().err


def test_no_secret_is_printed() -> None:
    """If an upstream quotes the key in its error, doctor prints the error without the key."""
    table = {"base_url": "http://h/v1", "api_key": Secret("env:K", KEY)}
    config = Config.model_validate({"upstreams": {"u": table}})
    assert KEY not in hiding(config)(f"Incorrect API key provided: {KEY}")


def test_only_what_is_not_set_yet_is_recommended() -> None:
    """The doctor recommends no line for a default or for a setting that the file already has."""
    settings = {"wires": ["chat", "responses"], "repair": "always", "tools": "prompt"}
    assert new_lines(CONFIG, "u", settings) == {
        "repair": 'repair = "always"',
        "tools": 'tools = "prompt"',
    }
