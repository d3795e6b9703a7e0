"""The description of the admin API is valid OpenAPI and matches the API's real answers."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from approvals_rig import ECHO, config_of, turns_of
from chat_script import DONE, call, finish, role
from client_keys import ALICE, declared
from openapi_spec_validator import validate
from raw_upstream import RawUpstream, chunked
from running_proxy import Answer, Proxy, make_config, running

from proxy.api.reference.admin_openapi import admin_openapi
from proxy.api.reference.admin_paths import ADMIN_PATHS, query_of

ADMIN = {"Authorization": f"Bearer {ALICE}"}
NO_IDS = {"/admin/approvals/grants": "grant_" + "0" * 32, "/admin/approvals": "appr_" + "0" * 32}


def strict(schema: Any) -> Any:
    """Return the same schema, in which an object may have no other members than the described ones."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(part) for name, part in schema.items()}
    if "properties" in schema and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def faults(name: str, value: Any) -> list[str]:
    """Return the differences of an answer from its schema."""
    document = {**strict(copy.deepcopy(admin_openapi())), "$ref": f"#/components/schemas/{name}"}
    return [
        f"{error.instance_path}: {error.message}"
        for error in jsonschema_rs.Draft202012Validator(document).iter_errors(value)
    ]


def no_one(path: str) -> str:
    """Return the path with an id that does not exist."""
    known = [no_id for start, no_id in NO_IDS.items() if path.startswith(start)]
    return path.replace("{id}", known[0] if known else "run_1")


async def look(proxy: Proxy, path: str, method: str = "GET", body: Any = None) -> Answer:
    """Send one request of an administrator."""
    return await proxy.ask(body, ADMIN, method=method, path=path)


def test_it_is_valid() -> None:
    """The official schema of OpenAPI 3.1 accepts the document, and each operation has a name of its own."""
    document = admin_openapi()
    validate(document)
    names = [one.name for one in ADMIN_PATHS]
    assert len(names) == len(set(names)) >= 8


async def test_real_answers_are_as_described(tmp_path: Path) -> None:
    """Each path answers by its schema on a server that has run a tool and has a call awaiting approval."""
    steps = turns_of("chat", stream=True)
    turns = (
        chunked(role(), call("call_e", ECHO, '{"text": "hi"}'), finish("tool_calls"), DONE),
        steps[1],
        *steps,
    )
    async with (
        RawUpstream(*turns) as upstream,
        running(config_of(upstream.url, tmp_path, keys={"alice": declared(ALICE, admin=True)})) as proxy,
    ):
        for text in ("Say hi.", "Buy milk."):
            asked = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
            assert (await proxy.ask(asked, ADMIN)).status == 200
        runs = await look(proxy, "/admin/runs")
        assert len(runs.json["data"]) == 2
        waiting = await look(proxy, "/admin/approvals?waiting=true")
        assert len(waiting.json["data"]) == 1
        seen: dict[str, list[Any]] = {"RunList": [runs.json], "ApprovalList": [waiting.json]}
        for run in runs.json["data"]:
            for query in ("", "?content=true"):
                detail = await look(proxy, f"/admin/runs/{run['id']}{query}")
                seen.setdefault("RunDetail", []).append(detail.json)
        approval = f"/admin/approvals/{waiting.json['data'][0]['id']}"
        decision = {"approve": True, "grant": {"for": "1h"}}
        assert faults("Decision", {"approve": False, "reason": "Not today."}) == []
        assert faults("Decision", decision) == []
        for answer in (
            await look(proxy, approval),
            await look(proxy, f"{approval}?content=true"),
            await look(proxy, approval, "POST", decision),
        ):
            seen.setdefault("Approval", []).append(answer.json)
        grants = await look(proxy, "/admin/approvals/grants")
        assert len(grants.json["data"]) == 1
        grant = await look(proxy, f"/admin/approvals/grants/{grants.json['data'][0]['id']}")
        seen |= {"GrantList": [grants.json], "Grant": [grant.json]}
        seen["ToolList"] = [(await look(proxy, "/admin/tools")).json]
        seen["ServerList"] = [(await look(proxy, "/admin/mcp")).json]
        described = await look(proxy, "/admin/openapi.json")
        assert described.json == admin_openapi()
        for name, values in seen.items():
            for value in values:
                assert faults(name, value) == [], name
        assert any(detail["messages"] for detail in seen["RunDetail"] if "messages" in detail)
        assert any(detail["invocations"] for detail in seen["RunDetail"])
        assert {one.answer for one in ADMIN_PATHS} <= {*seen, "OpenApi"}


async def test_refusals_are_as_described() -> None:
    """Each path refuses a missing key, an unknown parameter and a wrong method with the described error."""
    async with running(make_config(keys={"alice": declared(ALICE, admin=True)})) as proxy:
        for one in ADMIN_PATHS:
            path = no_one(one.path)
            refused = [
                (await proxy.ask(None, method=one.method, path=path), 401),
                (await look(proxy, path, "PUT"), 405),
            ]
            if one.method == "GET":
                refused.append((await look(proxy, f"{path}?colour=red"), 400))
            for answer, status in refused:
                assert answer.status == status, (one, answer.body)
                assert faults("Error", answer.json) == []
                assert status in {401, *one.statuses}


@pytest.mark.parametrize("path", sorted({one.path for one in ADMIN_PATHS if query_of(one.path)}))
async def test_each_parameter_is_known(path: str) -> None:
    """The API does not refuse any described parameter as unknown."""
    async with running(make_config(keys={"alice": declared(ALICE, admin=True)})) as proxy:
        at = no_one(path)
        answers = await asyncio.gather(*(look(proxy, f"{at}?{name}=true") for name in query_of(path)))
        for name, answer in zip(query_of(path), answers, strict=True):
            assert b"not known here" not in answer.body, name
