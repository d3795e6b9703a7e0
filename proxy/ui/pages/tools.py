"""Show tools, MCP servers, and why a tool is offered or not."""

import time
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from proxy.api.admin.admin import Admin
from proxy.api.admin.queries import json_answer, parse_query
from proxy.base.errors import RequestError
from proxy.relay.routing.router import Router
from proxy.server.auth.key_ring import Key, KeyRing
from proxy.server.auth.permissions import narrowed_policy
from proxy.store.base import Store, UsageFilter
from proxy.tools.contract.spec import ToolSpec
from proxy.ui.remedies import remedy_of
from proxy.ui.runs.runs import OfferFacts
from proxy.ui.surface import UiRequest

_DAY_S: Final = 86400.0


class ToolPages:
    """Answers for ``tools``, ``mcp`` and ``explain``."""

    def __init__(
        self,
        admin: Admin,
        store: Store,
        offer: OfferFacts,
        router: Router,
        ring: KeyRing,
        *,
        tools_enabled: bool,
    ) -> None:
        self._admin = admin
        self._store = store
        self._offer = offer
        self._router = router
        self._ring = ring
        self._tools_enabled = tools_enabled

    async def tools(self, request: UiRequest) -> web.Response:
        """Return every loaded tool with its decision, its pin and its use in the last 24 hours."""
        request.only_get()
        answer = self._admin.tools()
        used = await self._used()
        pins = {
            tool["id"]: tool["state"]
            for server in (await self._admin.servers())["data"]
            for tool in server["tools"]
        }
        for row in answer["data"]:
            withheld = row["withheld"]
            row["provider"] = row["id"].partition("__")[0]
            row["change"] = None if withheld is None else self._change(withheld, row["id"], "")
            row["used"] = used.get(row["id"])
            row["pin"] = _pin(row["id"], pins)
        return json_answer(answer)

    async def servers(self, request: UiRequest) -> web.Response:
        """Return every MCP server, its tools with their allowed definitions, and the commands to allow
        them."""
        request.only_get()
        answer = await self._admin.servers()
        for server in answer["data"]:
            for tool in server["tools"]:
                tool["allow_with"] = _allow_with(tool["id"], tool["state"])
        return json_answer(answer)

    async def explain(self, request: UiRequest) -> web.Response:
        """Return why a tool is offered to a key at an upstream or not: each decision in order."""
        request.allow("GET")
        query = parse_query(request.target.query, "tool", "key", "upstream")
        name = query.get("tool")
        if request.rest or not name:
            raise RequestError(400, "tool must be the id of a tool.", param="tool")
        key = self._key(query.get("key"))
        upstream = query.get("upstream") or next((s.upstream.name for s in self._router.served), "")
        served = next((route for route in self._router.served if route.upstream.name == upstream), None)
        if served is None:
            raise RequestError(400, f"There is no upstream {upstream[:64]!r}.", param="upstream")
        spec = self._offer.registry.current.get(name)
        steps = [
            _step("loaded", spec is not None, None if spec is not None else "no tool with this id is loaded")
        ]
        steps.append(
            _step(
                "tools.enabled",
                self._tools_enabled,
                None if self._tools_enabled else "tools.enabled is false",
            )
        )
        if spec is not None:
            steps += self._decided(spec, key, upstream)
        steps.append(
            _step(
                f"upstream {upstream} takes tools",
                served.tools,
                None if served.tools else "the upstream takes no tools",
            )
        )
        if key is not None and key.caller.rights.upstreams is not None:
            may = upstream in key.caller.rights.upstreams
            steps.append(
                _step(
                    f"key {key.name} may use {upstream}",
                    may,
                    None if may else "its upstreams do not include it",
                )
            )
        failed = next((step for step in steps if step["outcome"] != "allowed"), None)
        return json_answer(
            {
                "object": "ui.explanation",
                "tool": name,
                "key": key.name if key is not None else None,
                "upstream": upstream,
                "outcome": "unknown" if spec is None else "withheld" if failed else "offered",
                "steps": steps,
                "change": self._change(str(failed["rule"]), name, upstream) if failed else None,
            }
        )

    def _decided(self, spec: ToolSpec, key: Key | None, upstream: str) -> list[dict[str, Any]]:
        policy = self._offer.policy
        decisions = [("policy", policy.decide(spec))]
        if key is not None:
            policy = narrowed_policy(policy, key.caller.rights)
            decisions.append((f"key {key.name}", policy.decide(spec)))
        served = next(route for route in self._router.served if route.upstream.name == upstream)
        decisions.append((f"tools of upstream {upstream}", served.policy(policy).decide(spec)))
        return [{"what": what, "outcome": made.outcome, "rule": made.rule} for what, made in decisions]

    def _key(self, name: str | None) -> Key | None:
        if name is None:
            return None
        ring = self._ring.keys()
        entry = next((key for key in ring if name in (key.name, key.caller.name)), None)
        if entry is None:
            raise RequestError(400, f"There is no valid key {name[:64]!r}.", param="key")
        return entry

    def _change(self, rule: str, tool: str, upstream: str) -> dict[str, Any] | None:
        return remedy_of(rule, tool, upstream, self._offer.lines)

    async def _used(self) -> dict[str, dict[str, Any]]:
        rows = await self._store.usage(UsageFilter(("tool",), since=time.time() - _DAY_S))
        return {
            str(row.group[0]): {
                "calls": row.tool_calls,
                "errors": row.errors,
                "p50_ms": _ms(row.tool_p50_s),
                "p95_ms": _ms(row.tool_p95_s),
            }
            for row in rows
        }


def _step(what: str, allowed: bool, rule: str | None) -> dict[str, Any]:
    return {"what": what, "outcome": "allowed" if allowed else "denied", "rule": rule}


def _pin(tool: str, pins: Mapping[str, str]) -> dict[str, Any] | None:
    state = pins.get(tool)
    return None if state is None else {"state": state, "allow_with": _allow_with(tool, state)}


def _allow_with(tool: str, state: str) -> str | None:
    """Return the command that shows the present definition of a tool and allows it."""
    return None if state in ("pinned", "gone") else f"toolrelay tools allow {tool}"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
