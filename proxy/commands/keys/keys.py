"""``toolrelay keys``: creates, lists and revokes client keys; tells ``check`` what each may do."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, Literal

from msgspec import Struct
from pydantic import ValidationError

from proxy.app.open_authentication import open_authentication
from proxy.app.open_record import opened_record
from proxy.base.errors import ConfigError, NoRecord
from proxy.base.globs import fits
from proxy.base.plain_text import counted
from proxy.commands.common import console, print_table, say, say_error, say_json, text
from proxy.config.checks.tool_faults import misplaced_bounds
from proxy.config.key_grants import KeyGrants, key_limits
from proxy.config.load import Config
from proxy.records.rows import ClientKey, KeySet
from proxy.rights.limit_rules import KeyLimits
from proxy.server.auth.authenticate import Authentication
from proxy.server.auth.key_ring import DECLARED, new_key, new_secret
from proxy.server.auth.permissions import narrowed_policy, own_bounds
from proxy.store.factory import peek_keys
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Decision, Policy
from proxy.tools.contract.bounds import ArgumentBound, must_be_given
from proxy.tools.contract.schemas.schema import may_have
from proxy.tools.contract.spec import ToolSpec

KeyStatus = Literal["valid", "expired", "revoked", "declared"]
"""The state of a key; a valid key of the configuration is ``declared``."""


def read_grants(options: Mapping[str, Any]) -> KeyGrants:
    """Validate command line options as grants; raises ConfigError that names the option."""
    try:
        return KeyGrants.model_validate(dict(options))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where, *inner = map(str, detail["loc"])
        place = f"{'.'.join(inner)} " if where == "arguments" and inner else ""
        raise ConfigError(
            f"--{where.removesuffix('_max')}", f"{place}{detail['msg']}", "Correct it"
        ) from None


async def create_key(config: Config, name: str, grants: KeyGrants) -> None:
    """Create a key and print its secret, which is shown only now and stored nowhere."""
    for upstream in grants.upstreams:
        if upstream not in config.upstreams:
            raise ConfigError(
                "--upstreams",
                f"there is no upstream {upstream[:80]!r}",
                f"Choose one of: {', '.join(config.upstreams)}",
            )
    if name in config.keys:
        raise ConfigError(
            f"keys.{name}", "the configuration declares a key of this name", "Choose another name"
        )
    now = time.time()
    if grants.expires is not None and grants.expires <= now:
        raise ConfigError("--expires", "is in the past", "Write a time in the future")
    secret = new_secret()
    _check_lasting(config)
    async with opened_record(config) as store:
        before = await store.read_keys()
        if any(key.name == name and key.revoked_at is None for key in before.keys):
            raise ConfigError(
                name,
                "a key of this name exists",
                f"Choose another name, or revoke that key first: toolrelay keys revoke {name}",
            )
        key = new_key(name, secret, grants, await store.hash_key(), now=store.now())
        await store.put_key(key)
    # Only the secret goes to standard output, so that a shell can store it in a variable or a file.
    print(f"created {key.id} ({name}). Its secret is shown only this once:", file=sys.stderr, flush=True)
    say(secret)
    for line in _unkept_limits(config, name, key_limits(grants.limits)):
        print(line, file=sys.stderr, flush=True)
    if not before.ever_made and not config.keys and config.auth.mode == "auto":
        print(
            "This is the first client key. A running server keeps its present authentication (start token or "
            "open) until you restart it.",
            file=sys.stderr,
            flush=True,
        )


async def list_keys(config: Config, *, as_json: bool) -> None:
    """Print every key, including revoked ones; those of the configuration come first."""
    rows = [_Row.declared(name, key) for name, key in config.keys.items()]
    if config.store.url != "memory:":
        try:
            async with opened_record(config, must_exist=True) as store:
                rows += [_Row.made(key, time.time()) for key in (await store.read_keys()).keys]
        except NoRecord as fault:
            if not rows:
                raise
            say_error(f"note: the list shows only the keys of the configuration: {fault.problem}")
    if as_json:
        say_json(*(row.as_json() for row in rows))
    else:
        titles = ("key", "name", "status", "made", "expires", "models", "tools", "more")
        print_table(titles, [row.cells() for row in rows])


async def revoke_key(config: Config, wanted: str) -> None:
    """Revoke the key with that name or id, permanently and for every worker."""
    if wanted in config.keys or wanted.removeprefix(DECLARED) in config.keys:
        raise ConfigError(
            f"keys.{wanted.removeprefix(DECLARED)}",
            "the configuration declares this key",
            "Remove it from the configuration and restart the server",
        )
    _check_lasting(config)
    async with opened_record(config, must_exist=True) as store:
        keys = (await store.read_keys()).keys
        matches = [key for key in keys if wanted in (key.id, key.name)]
        live = [key for key in matches if key.revoked_at is None]
        if not matches:
            raise ConfigError(wanted[:80], "there is no such key", "List the keys with: toolrelay keys list")
        if not live or not await store.revoke_key(live[0].id):
            raise ConfigError(
                wanted[:80], "the key is revoked already", "List the keys with: toolrelay keys list"
            )
        left = sum(_status(key, time.time()) == "valid" for key in keys) - (
            _status(live[0], time.time()) == "valid"
        )
    say(f"revoked {live[0].id} ({live[0].name})")
    if not left and not config.keys:
        say(
            'No client key is valid now. With auth.mode "keys" or "auto", the server answers every request '
            "with 503."
        )


class _Row(Struct, frozen=True):
    """One key in the list."""

    id: str
    name: str
    status: KeyStatus
    grants: Mapping[str, Any]
    created_at: float | None = None
    expires_at: float | None = None
    revoked_at: float | None = None

    @classmethod
    def declared(cls, name: str, key: KeyGrants) -> "_Row":
        expired = key.expires is not None and key.expires <= time.time()
        grants = KeyGrants.model_validate(key.model_dump(exclude={"secret"})).stored()
        status: KeyStatus = "expired" if expired else "declared"
        return cls(f"{DECLARED}{name}", name, status, grants, None, key.expires)

    @classmethod
    def made(cls, key: ClientKey, now: float) -> "_Row":
        return cls(
            key.id, key.name, _status(key, now), key.grants, key.created_at, key.expires_at, key.revoked_at
        )

    def as_json(self) -> dict[str, Any]:
        times = {name: getattr(self, name) for name in ("created_at", "expires_at", "revoked_at")}
        return {"id": self.id, "name": self.name, "status": self.status, **times, **self.grants}

    def cells(self) -> Sequence[str]:
        known = {name: value for name, value in self.grants.items() if value}
        more = [name for name in ("admin", "mint", "shared") if known.get(name)]
        listed = [
            name for name in ("upstreams", "endpoints", "limits", "arguments", "approves") if name in known
        ]
        more += [f"{name}: {', '.join(known[name])}" for name in listed]
        return (
            self.id,
            self.name,
            self.status,
            _day(self.created_at),
            _day(self.expires_at),
            ", ".join(self.grants.get("models", ())),
            ", ".join(self.grants.get("tools", ())) or "none",
            "; ".join(more),
        )


def _status(key: ClientKey, now: float) -> KeyStatus:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "valid"


def _day(moment: float | None) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M") if moment is not None else "-"


def _check_lasting(config: Config) -> None:
    """Raise ConfigError for a record that would not keep a key."""
    if config.store.url == "memory:":
        raise ConfigError(
            "store.url",
            "a store in memory forgets keys when its process ends",
            "Name a file (sqlite:///FILE), or declare the key in the configuration: [keys.NAME]",
        )


# --- lines that check and serve print -----------------------------------------------------------------


class _Peeked:
    """A source of keys that were read once."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys

    @property
    def keys_change_counter(self) -> int:
        return 0

    def now(self) -> float:
        return time.time()

    async def keys_version(self) -> int:
        return self._keys.version

    async def read_keys(self) -> KeySet:
        return self._keys

    async def hash_key(self) -> tuple[str, bytes]:
        return "none", bytes(32)


async def peek_authentication(config: Config) -> Authentication | None:
    """Return the authentication as it would be now; ``None`` if only a start can read the keys.

    Nothing is created or changed. Raises the errors that a start would raise.
    """
    keys = await peek_keys(config.store.url, **config.store.seal_keys())
    return await open_authentication(config, _Peeked(keys)) if keys is not None else None


def authentication_lines(config: Config, authentication: Authentication) -> list[str]:
    """Return lines about the authentication mode, the number of keys, and what to do about them."""
    keys = authentication.ring.keys()
    count = counted(len(keys), "client key")
    if authentication.mode == "forward":
        return ["auth: forward; clients send the provider's own key"]
    if authentication.mode == "open":
        return ["auth: open; everybody who reaches the address may use the proxy"]
    lines = (
        _start_token_lines(config, authentication.start_token) if authentication.mode == "start_token" else []
    )
    if authentication.mode == "jwt":
        lines.append(f"auth: tokens of {config.auth.jwt.issuer} for {', '.join(config.auth.jwt.audience)}")
    if keys or authentication.mode == "keys":
        also = "auth: keys" if authentication.mode == "keys" else "client keys are accepted, too"
        lines.append(f"{also}; {count} valid: {', '.join(key.name for key in keys[:20]) or 'none'}")
    if not keys and authentication.mode == "keys":
        lines.append(
            "warning: no client key is valid, so the server answers every request with 503; create a key "
            "with: toolrelay keys create NAME"
        )
        if config.auth.mode == "auto":
            lines.append(
                'client keys existed before; to serve without authentication, set auth.mode = "open"'
            )
    for key in keys:
        lines += _unkept_limits(config, key.name, key.caller.limits)
    return lines


def _start_token_lines(config: Config, token: str) -> list[str]:
    """Return what clients must send before there is a key, and the alternatives; ``check`` has no token."""
    if not config.start_token:
        return ["auth: start token; serve prints it when it starts"]
    return [
        f"auth: start token; clients send: Authorization: Bearer {token}",
        "each start makes a new token; for a lasting key: toolrelay keys create NAME; to serve without a "
        "token: toolrelay serve --open",
    ]


def _unkept_limits(config: Config, name: str, limits: KeyLimits | None) -> list[str]:
    """Return which of a key's own limits do not work as written, and what to do about it.

    Keys in the configuration cannot have this problem. Other keys are created without a check against the
    configuration.
    """
    if limits is None:
        return []
    lines = []
    if limits.cost and not config.prices:
        lines.append(
            f"warning: key {name} has a cost limit but there are no prices, so the server refuses it every "
            'model; write [prices."MODEL"] with input and output'
        )
    storage = config.limits.storage
    if config.server.workers > 1 and isinstance(storage, str) and storage.startswith("memory:"):
        lines.append(
            f"warning: key {name} has limits of its own, and each of {config.server.workers} workers "
            "(server.workers) would allow the full amount; name a Redis server in limits.storage"
        )
    return lines


def bounds_of_keys(authentication: Authentication, catalog: Catalog) -> tuple[list[str], list[str]]:
    """Return the limits of each key on tool arguments, and warnings about entries without effect.

    The warnings name limits of created keys that apply to no tool; in the configuration such a limit is a
    fault. They also name each key's ``tools`` that match none.
    """
    bounds: list[str] = []
    warnings: list[str] = []
    keys = authentication.ring.keys()
    for key in keys:
        bounds += bound_lines(catalog, narrowed_policy(Policy(), key.caller.rights), f" for key {key.name}")
        for setting, patterns in key.caller.rights.tools:
            warnings += [f"warning: {line}" for line in idle_lines(setting, patterns, catalog)]
        if key.caller.name.startswith(DECLARED):
            continue
        for where, arguments in own_bounds(key.caller.rights).items():
            faults = misplaced_bounds(catalog, where, arguments)
            warnings += [
                f"warning: {fault.error.setting}: {fault.error.problem}, so this limit has no effect"
                for fault in faults
            ]
    return bounds, warnings


_IF_SET: Final = (
    ("web__fetch_page", "tools.web_hosts names hosts"),
    ("web__search", "tools.web_search names an engine"),
)


def idle_lines(where: str, patterns: Iterable[str], catalog: Catalog) -> list[str]:
    """Return a line for each pattern that matches no tool, with the most similar name."""
    names = [spec.name for spec in catalog.tools()]
    lines: list[str] = []
    for pattern in patterns:
        if any(fits(name, pattern) for name in names):
            continue
        near = get_close_matches(pattern, names, n=1, cutoff=0.75)
        remedy = f'. Did you mean "{near[0]}"?' if near else ""
        # The only bundled tools that are not always loaded.
        needed = [f"{name} is loaded only if {setting}" for name, setting in _IF_SET if fits(name, pattern)]
        if needed:
            remedy = f". {'; '.join(needed)}"
        lines.append(f'{where}: "{pattern}" matches no loaded tool{remedy}')
    return lines


def bound_lines(catalog: Catalog, policy: Policy, whose: str = "") -> list[str]:
    """Return a line for each limited argument, with the allowed values and the setting."""
    return [
        f"argument limit of {spec.name}{whose}: {path} {bound}{_left_out(bound, path, spec)} ({where})"
        for spec in catalog.tools()
        for where, bounds in policy.bounds_of(spec.name)
        for path, bound in bounds.items()
        if may_have(spec.parameters, path)
    ]


def _left_out(bound: ArgumentBound, path: str, spec: ToolSpec) -> str:
    """Return a note if the tool's own default violates the limit."""
    if not must_be_given(bound, path, spec.schema_with_defaults):
        return ""
    return ", and the model must give it because the tool's default is not allowed"


def print_decisions(authentication: Authentication, catalog: Catalog, policy: Policy) -> None:
    """Print a table of the decisions about each tool for each client key; nothing without keys."""
    keys = authentication.ring.keys()
    if authentication.mode not in ("keys", "start_token") or not keys:
        return
    rows: list[Sequence[object]] = []
    for key in keys:
        narrowed = narrowed_policy(policy, key.caller.rights)
        if key.caller.rights.tools:
            rows += [(key.name, *decision_cells(spec, narrowed.decide(spec))) for spec in catalog.tools()]
        else:
            rows.append((key.name, "all", "as above", ""))
    console().print()
    print_table(("client key", "tool", "decision", "rule"), rows)


def decision_cells(spec: ToolSpec, decision: Decision, *more: object) -> Sequence[object]:
    """Return the cells of a table for a tool's name, what is ``more``, a policy's decision and its rule."""
    outcome = text(decision.outcome.replace("_", " "), "green" if decision.allowed else "yellow")
    return (spec.name, *more, outcome, decision.rule)
