"""Show keys, usage, upstreams, settings and health."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from aiohttp import web
from msgspec import Struct, field

from proxy.api.admin.json_output import usage_to_json
from proxy.api.admin.queries import json_answer, page, parse_query
from proxy.api.admin.run_filters import parse_moment
from proxy.base.errors import ConfigError, RequestError
from proxy.records.rows import ClientKey, RunRecord
from proxy.relay.routing.router import Router
from proxy.server.auth.key_names import named_callers
from proxy.server.auth.key_ring import DECLARED, KeyRing
from proxy.store.base import Store, UsageFilter, UsageKey
from proxy.ui.diagnoses import read_diagnosis
from proxy.ui.pages.key_use import add_use
from proxy.ui.pages.recent import MOST_RUNS, add_messages, error_kinds, recent_runs, sums
from proxy.ui.runs.run_rows import caller_name
from proxy.ui.surface import UiRequest

_MOST_GROUPED: Final = 3
_MOST_ROWS: Final = 2000
_MOST_KINDS: Final = 50
_DAY_S: Final = 86_400.0
_RECENT_BY: Final[Mapping[str, Callable[[RunRecord], str]]] = {
    "model": lambda run: run.model,
    "upstream": lambda run: run.upstream,
}
_USAGE_KEYS: Final[tuple[UsageKey, ...]] = get_args(UsageKey)


class ServerFacts(Struct, frozen=True):
    """The facts of the configuration, without secrets.

    ``settings`` are rows with ``name``, ``value``, ``default``, ``changed``, ``secret`` and ``description``.
    ``declared`` are the grants of the configuration's keys; ``addresses`` are those of the upstreams.
    """

    settings: Sequence[Mapping[str, Any]] = ()
    declared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)


class ServerPages:
    """Answers for ``keys``, ``usage``, ``upstreams``, ``settings`` and ``health``."""

    def __init__(
        self, store: Store, ring: KeyRing, router: Router, facts: ServerFacts, listeners: Callable[[], int]
    ) -> None:
        self._store = store
        self._ring = ring
        self._router = router
        self._facts = facts
        self._listeners = listeners

    async def keys(self, request: UiRequest) -> web.Response:
        """Return every client key with its rights, without secrets and their digests."""
        request.only_get()
        ring = self._ring.keys()
        valid = {key.caller.name for key in ring}
        rows = [
            _key_row(f"{DECLARED}{name}", name, grants, source="config")
            for name, grants in self._facts.declared.items()
        ]
        rows += [_made_row(key) for key in (await self._store.read_keys()).keys]
        for row in rows:
            row["valid"] = row["id"] in valid
        await add_use(self._store, rows)
        return json_answer(page(rows, more=False))

    async def usage(self, request: UiRequest) -> web.Response:
        """Return the usage of runs, grouped as the query asks, or what the newest runs were like."""
        request.allow("GET")
        if request.rest == "recent":
            return await self._recent(request)
        query = parse_query(request.target.query, "by", "since", "until")
        if request.rest:
            raise request.unknown()
        columns = [word for word in query.get("by", "").split(",") if word]
        by = tuple(key for word in columns for key in _USAGE_KEYS if key == word)
        if len(by) != len(columns) or len(set(by)) != len(by) or len(by) > _MOST_GROUPED:
            raise RequestError(
                400,
                f"by must list at most {_MOST_GROUPED} of these, with commas: {', '.join(_USAGE_KEYS)}.",
                param="by",
            )
        since, until = (_moment(name, query) for name in ("since", "until"))
        usage = await self._store.usage(UsageFilter(by, since, until))
        names = named_callers((await self._store.read_keys()).keys)
        rows = [usage_to_json(by, row) for row in usage[:_MOST_ROWS]]
        for row in rows:
            for key in ("key", "caller"):
                if key in row["group"]:
                    row[f"{key}_name"] = caller_name(str(row["group"][key]), names)
        return json_answer(page(rows, more=len(usage) > _MOST_ROWS))

    async def _recent(self, request: UiRequest) -> web.Response:
        """Return the latencies and the errors of the newest runs."""
        query = parse_query(request.target.query, "since", "by")
        by = query.get("by", "model")
        if by not in _RECENT_BY:
            raise RequestError(400, f"by must be one of {', '.join(_RECENT_BY)}.", param="by")
        runs = await recent_runs(self._store, _moment("since", query))
        errors = error_kinds(runs)[:_MOST_KINDS]
        await add_messages(self._store, errors)
        rows = [{"name": name, **row} for name, row in sums(runs, _RECENT_BY[by]).items()]
        return json_answer(
            {"object": "ui.recent", "data": rows, "errors": errors, "runs": len(runs), "most": MOST_RUNS}
        )

    async def upstreams(self, request: UiRequest) -> web.Response:
        """Return every upstream, with its health as this process knows it, what the newest runs of a day say
        about it, and doctor's last findings."""
        request.only_get()
        kept = await self._store.read_diagnoses()
        seen = sums(await recent_runs(self._store, time.time() - _DAY_S), lambda run: run.upstream)
        await add_messages(self._store, [row["last_error"] for row in seen.values() if row["last_error"]])
        rows = [
            {
                "id": served.upstream.name,
                "base_url": self._facts.addresses.get(served.upstream.name),
                "wires": sorted(served.wires),
                "models": list(served.renamed or served.models),
                "tools": served.tools,
                "recent": seen.get(served.upstream.name),
                "breaker": {
                    "state": served.breaker.state,
                    "failures": served.breaker.in_a_row,
                    "open_for_s": served.breaker.left_s,
                },
                "doctor": read_diagnosis(
                    kept.get(served.upstream.name, ""), self._facts.addresses.get(served.upstream.name)
                ),
                "doctor_with": f"toolrelay doctor --upstream {served.upstream.name}",
            }
            for served in self._router.served
        ]
        return json_answer(page(rows, more=False))

    async def settings(self, request: UiRequest) -> web.Response:
        """Return every setting in force; for a secret, only its source."""
        request.only_get()
        return json_answer({"object": "ui.settings", "data": [dict(row) for row in self._facts.settings]})

    async def health(self, request: UiRequest) -> web.Response:
        """Return the state of this process and its record."""
        request.only_get()
        healthy = await self._store.healthy()
        record = {"healthy": healthy, "waiting": self._store.waiting, "lost": self._store.lost}
        body = {**self._facts.health, "status": "ok" if healthy else "store unavailable"}
        return json_answer(
            {
                "object": "ui.health",
                **body,
                "record": {**dict(self._facts.health.get("record", {})), **record},
                "listeners": self._listeners(),
            }
        )


def _moment(name: str, query: Mapping[str, str]) -> float | None:
    try:
        return parse_moment(name, query.get(name))
    except ConfigError as error:
        raise RequestError(400, f"{error}.", param=error.setting) from None


def _made_row(key: ClientKey) -> dict[str, Any]:
    row = _key_row(key.id, key.name, key.grants, source="record")
    return row | {
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }


def _key_row(key_id: str, name: str, grants: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    return {
        "id": key_id,
        "name": name,
        "source": source,
        "created_at": None,
        "expires_at": grants.get("expires"),
        "revoked_at": None,
        **{word: value for word, value in grants.items() if word != "expires"},
    }
