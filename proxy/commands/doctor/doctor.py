"""``toolrelay doctor``: what an upstream supports and gets wrong, and the settings that suit it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct, field

from proxy.app.compose.services import create_services
from proxy.app.compose.upstreams import native_types
from proxy.base.errors import ConfigError, UpstreamError
from proxy.base.plain_text import plain_text
from proxy.commands.common import confirmed, console, print_table, say, say_error, say_json, text
from proxy.commands.doctor.check import without_record
from proxy.commands.doctor.checks import Check, Finding, Outcome, Replies, judge
from proxy.commands.doctor.keeping import keep_diagnosis
from proxy.commands.doctor.probing.dialects import find_dialects
from proxy.commands.doctor.probing.exchange import Reply, exchange
from proxy.commands.doctor.probing.native import NATIVE_QUESTIONS
from proxy.commands.doctor.probing.probe import lacks_v1, lists_of, models_at, v1_fault
from proxy.commands.doctor.probing.questions import MOST_TOKENS, questions
from proxy.commands.doctor.written import written_into
from proxy.config.load import Config
from proxy.config.text import toml_value
from proxy.ui.diagnoses import KeptFinding
from proxy.upstreams.base import Upstream
from proxy.wires.crossing.refused import after_refusal
from proxy.wires.profile import EFFORTS, Profile
from proxy.wires.providers import known_profile
from proxy.wires.registry.wires import built_in_wires
from proxy.wires.responses.dialect import RESPONSES
from proxy.wires.typed_tools.functions import EVERY_TYPE

_MAX_MODELS: Final = 20
_ASK_S: Final = 10.0
_WORDS: Final[Mapping[Outcome, tuple[str, str]]] = {
    "yes": ("ok", "green"),
    "no": ("no", "red"),
    "quirk": ("quirk", "yellow"),
    "unknown": ("open", ""),
}


class Diagnosis(Struct, frozen=True):
    """The findings about one model of an upstream."""

    model: str
    found: Sequence[tuple[Check, Finding]]
    requests: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)


async def doctor(
    config: Config,
    name: str,
    *,
    model: str | None,
    as_json: bool,
    write: Path | None,
    yes: bool,
    keep: bool = False,
) -> int:
    """Examine the upstream ``name``; return the exit status, 0 if it could be examined.

    With ``keep`` the findings are stored in the record, for the web UI. Raises
    :class:`~proxy.base.errors.ConfigError` for problems that prevent the examination.
    """
    services = await create_services(without_record(config))
    try:
        upstream = services.upstreams[name]
        chosen, listed = await find_model(config, name, upstream, model)
        if not _agreed(config, name, chosen, yes=yes):
            return 1
        diagnosis = await diagnose(upstream, chosen, listed)
    finally:
        await services.aclose()
    hide = hiding(config)
    if as_json:
        say_json(orjson.loads(hide(orjson.dumps(_as_json(name, diagnosis)).decode())))
    else:
        _show(diagnosis, hide)
    if keep:
        findings = [
            KeptFinding(check.title, _WORDS[finding.outcome][0], hide(plain_text(finding.words, 400)))
            for check, finding in diagnosis.found
        ]
        await keep_diagnosis(config, name, plain_text(diagnosis.model), findings)
    lines = new_lines(config, name, diagnosis.settings)
    if not as_json:
        _show_lines(name, lines)
    if write is not None and lines:
        written_into(write, name, {key: diagnosis.settings[key] for key in lines})
        say_error(f"wrote {len(lines)} settings of upstreams.{name} into {write}")
    return 0


async def find_model(
    config: Config, name: str, upstream: Upstream, model: str | None
) -> tuple[str, Sequence[str]]:
    """Return the model to ask, and the model names that the upstream lists.

    Raises :class:`ConfigError`, with different messages for a missing server, a refused key, a
    wrong path and no models.
    """
    base_url, setting = config.upstreams[name].base_url, f"upstreams.{name}"
    lists = lists_of(config.upstreams[name].wires)
    try:
        answer = await models_at(upstream, lists)
    except UpstreamError as error:
        remedy = f"Start the server, or correct {setting}.base_url ({base_url})"
        raise ConfigError(f"{setting}.base_url", error.message, remedy) from None
    status, listed = answer.status, answer.names
    if status in (401, 403):
        key = config.key_settings().get(name, f"{setting}.api_key")
        raise ConfigError(setting, f"the upstream refuses the key (status {status})", f"Correct {key}")
    if listed is None and not lists.rooted and await lacks_v1(upstream, timeout_s=_ASK_S):
        raise ConfigError(f"{setting}.base_url", v1_fault(name, base_url).partition(": ")[2])
    if listed is None and base_url.rstrip("/").endswith("/v1/v1"):
        right = base_url.rstrip("/").removesuffix("/v1")
        raise ConfigError(f"{setting}.base_url", f"{base_url} contains /v1 twice", f'Write "{right}"')
    if listed is None and status in (404, 405):
        raise ConfigError(
            f"{setting}.base_url", f"no API answers at {base_url} (status {status})", "Correct the path"
        )
    listed = listed or ()
    if model is None and not listed:
        raise ConfigError("--model", f"{base_url} lists no models", "Name a model with --model NAME")
    return model or listed[0], listed


def _agreed(config: Config, name: str, model: str, *, yes: bool) -> bool:
    """Print how many requests are sent and what they cost; return whether the user agrees."""
    count = len(questions(model)) + len(built_in_wires()) + len(NATIVE_QUESTIONS) + 2
    say_error(
        f"doctor sends {count} small requests to {config.upstreams[name].base_url} for the model "
        f"{plain_text(model)}: at most {count * MOST_TOKENS} output tokens and about {count * 100} input "
        "tokens, which cost well below a cent with most models"
    )
    if yes:
        return True
    if not sys.stdin.isatty():
        say_error("nothing was sent: there is no terminal to ask at. Add --yes to send the requests")
        return False
    return confirmed("Send them?")


async def diagnose(upstream: Upstream, model: str, listed: Sequence[str] = ()) -> Diagnosis:
    """Send all questions and judge the replies.

    Raises :class:`~proxy.base.errors.ConfigError` for a model that the upstream does not know.
    """
    wires = built_in_wires()
    spoken = await find_dialects(upstream, wires, model)
    _check_model(
        model,
        listed,
        [dialect.problem for dialect in spoken if dialect.spoken is None and dialect.status == 404],
    )
    dialects = [dialect.name for dialect in spoken if dialect.spoken]
    replies: dict[str, Reply] = {}
    learned: frozenset[str] = frozenset()
    chat, responses = wires["chat"], wires["responses"]
    asked = questions(model)
    if "chat" in dialects:
        # Nothing may be lowered or left out of what the upstream is asked about.
        open_to_all = known_profile("chat", model).changed(
            {"max_output_tokens": None, "efforts": EFFORTS, "user_chars": 1000}
        )
        for name, question in asked.items():
            replies[name] = await exchange(upstream, chat, question, profile=open_to_all)
            taught = after_refusal(replies[name].error, question, open_to_all, chat.codec.fields)
            if taught is not None and taught.lasts and replies[name].status in (400, 422):
                learned |= taught.profile.lessons(open_to_all)
    if "responses" in dialects:
        first = await exchange(upstream, responses, asked["plain_stream"], {"store": True})
        replies["response"] = first
        more = {RESPONSES.fields.continues: _response_id(first), "store": True}
        replies["next_response"] = await exchange(upstream, responses, asked["plain_stream"], more)
    for typed in NATIVE_QUESTIONS:
        if typed.dialect in dialects:
            plain, wire = replace(asked["plain_stream"], stream=False), wires[typed.dialect]
            name = f"{typed.dialect} {typed.type}"
            replies[name] = await exchange(upstream, wire, plain, typed.more)
    findings = judge(Replies(replies, dialects))
    settings = dict(finding.setting for _, finding in findings if finding.setting is not None)
    settings |= _profile_settings(learned)
    if any(dialect.spoken is None for dialect in spoken):
        # A server that was busy for a moment may speak this dialect too.
        settings.pop("wires", None)
    return Diagnosis(model, findings, len(spoken) + len(replies), settings)


def _profile_settings(learned: frozenset[str]) -> dict[str, object]:
    """Return the settings of the profile that the refusals of the upstream have shown."""
    profile, unset = Profile().learned(learned), Profile()
    names = (field_.name for field_ in fields(Profile))
    return {
        f"profile.{name}": list(value) if isinstance(value, tuple) else value
        for name in names
        if (value := getattr(profile, name)) != getattr(unset, name)
    }


def _check_model(model: str, listed: Sequence[str], problems: Sequence[str]) -> None:
    if not problems or model in listed:
        return
    known = ", ".join(plain_text(name, 80) for name in listed[:_MAX_MODELS])
    more = f" and {len(listed) - _MAX_MODELS} more" if len(listed) > _MAX_MODELS else ""
    remedy = f"The upstream lists: {known}{more}" if listed else "The upstream lists no models"
    raise ConfigError("--model", f"the upstream has no model {plain_text(model)!r}", remedy)


def _response_id(reply: Reply) -> str:
    """Return the id of a response, or an id that does not exist."""
    ids = [
        payload["response"].get("id")
        for payload in reply.payloads
        if isinstance(payload.get("response"), dict)
    ]
    return str(next((response_id for response_id in ids if response_id), "resp_unknown"))


# Output.


def hiding(config: Config) -> Callable[[str], str]:
    """Return a function that removes the configuration's secrets from a line: an error may quote the key."""
    secrets = sorted((value for value in config.secrets() if value), key=len, reverse=True)

    def hide(line: str) -> str:
        for secret in secrets:
            line = line.replace(secret, "[secret]")
        return line

    return hide


def _show(diagnosis: Diagnosis, hide: Callable[[str], str]) -> None:
    """Print a table on a terminal; otherwise print lines of three columns separated by tabs."""
    rows = [
        (check.title, *_WORDS[finding.outcome], hide(plain_text(finding.words, 400)))
        for check, finding in diagnosis.found
    ]
    if sys.stdout.isatty():
        cells = [(title, text(outcome, style), note) for title, outcome, style, note in rows]
        print_table(("check", "found", ""), cells, width=min(80, console().width))
    else:
        for title, outcome, _, note in rows:
            say(f"{title}\t{outcome}\t{note}".rstrip("\t"))
    notes = [
        (c.title, c.meaning)
        for c, finding in diagnosis.found
        if finding.outcome in ("no", "quirk") and c.meaning
    ]
    if notes:
        say("")
    for title, meaning in notes:
        say(f"{title}: {meaning}")


def new_lines(config: Config, name: str, settings: Mapping[str, object]) -> dict[str, str]:
    """Return the lines for the upstream's table by their keys, without those that are set already."""
    present = config.upstreams[name]
    lines = {}
    for key, value in settings.items():
        now = attrgetter(key)(present)
        same = list(now) == value if isinstance(value, list) and isinstance(now, tuple) else now == value
        # Doctor does not narrow what is known of a provider: a model may not have called the tool.
        if not same and not (key == "native" and EVERY_TYPE in native_types(present)):
            lines[key] = f"{key} = {toml_value(value)}"
    return lines


def _show_lines(name: str, lines: Mapping[str, str]) -> None:
    say("")
    if not lines:
        say(f"[upstreams.{name}] needs no change.")
        return
    say("For toolrelay.toml:")
    say("")
    for line in (f"[upstreams.{name}]", *lines.values()):
        say(line)


def _as_json(name: str, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "upstream": name,
        "model": diagnosis.model,
        "requests": diagnosis.requests,
        "checks": [
            {"check": check.key, "found": finding.outcome, "words": finding.words, "meaning": check.meaning}
            for check, finding in diagnosis.found
        ],
        "settings": diagnosis.settings,
    }
