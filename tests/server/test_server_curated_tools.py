"""The curated tools, set up from a configuration, with a local server in place of their services."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer

from proxy.app.app import create_services
from proxy.base.errors import ConfigError
from proxy.base.events import ToolCall
from proxy.config.load import Config, load_config
from proxy.tools.running.ledger import RunContext

ANSWERS: dict[str, Any] = {
    "/geo/v1/search": {"results": [{"name": "Rome", "latitude": 41.9, "longitude": 12.5}]},
    "/meteo/v1/forecast": {"current": {"temperature_2m": 19.0, "weather_code": 2}},
    "/air/offer_requests": {"data": {"offers": []}},
    "/calendar/v3/calendars/primary/events": {"items": []},
}


@pytest.fixture
async def services(aiohttp_server: AiohttpServer) -> tuple[str, list[tuple[str, str]]]:
    """Start a server that plays every service; return its address, and the path and token of each request."""
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, request.headers.get("Authorization", "")))
        if request.path == "/token":
            return web.json_response({"access_token": "fresh", "expires_in": 3600, "token_type": "Bearer"})
        if request.path == "/page":
            return web.Response(text="plain words", content_type="text/plain")
        return web.json_response(ANSWERS[request.path])

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    return str((await aiohttp_server(app)).make_url("")).rstrip("/"), asked


def config_for(folder: Path, address: str, more: str = "") -> Config:
    """A configuration that allows every tool and has every service at one address."""
    host = address.removeprefix("http://")
    path = folder / "toolrelay.toml"
    path.write_text(
        f"""
[store]
url = "memory:"
[policy]
allow = ["*"]
[tools]
networks = ["127.0.0.0/8"]
web_hosts = ["{host}"]
[tools.base_urls]
geocoding = "{address}/geo/v1/search"
weather = "{address}/meteo/v1/forecast"
flights = "{address}"
calendar = "{address}/calendar/v3"
[credentials.duffel]
token = "env:DUFFEL_TOKEN"
[credentials.google_calendar]
client_id = "env:GOOGLE_ID"
client_secret = "env:GOOGLE_SECRET"
refresh_token = "env:GOOGLE_REFRESH"
token_url = "{address}/token"
{more}""",
        encoding="utf-8",
    )
    secrets = {"DUFFEL_TOKEN": "duffel-1", "GOOGLE_ID": "id", "GOOGLE_SECRET": "s", "GOOGLE_REFRESH": "r"}
    return load_config(path, {"OPENAI_API_KEY": "x", **secrets})


CALLS: list[tuple[str, dict[str, Any], Any]] = [
    ("core__calculate", {"expression": "6 * 7"}, {"result": "42", "exact": True}),
    (
        "core__get_weather",
        {"location": "Rome"},
        {"location": "Rome", "temperature_c": 19.0, "conditions": "partly cloudy"},
    ),
    (
        "flights__search_flights",
        {"origin": "BER", "destination": "LHR", "departure_date": "2090-01-01"},
        [],
    ),
    (
        "calendar__list_events",
        {"time_min": "2026-11-21T00:00:00Z", "time_max": "2026-11-22T00:00:00Z"},
        [],
    ),
]


async def test_every_tool_reaches_its_service(
    tmp_path: Path, services: tuple[str, list[tuple[str, str]]]
) -> None:
    """Each tool calls the address from the settings, and no service gets the token of another."""
    address, asked = services
    composed = await create_services(config_for(tmp_path, address))
    try:
        for number, (name, arguments, wanted) in enumerate(CALLS):
            call = ToolCall("call_1", name, json.dumps(arguments), 0)
            result = await composed.runner.run(call, RunContext(f"run_{number}", 1, "open"))
            assert (name, result.ok, json.loads(result.content)) == (name, True, wanted)
        call = ToolCall("call_1", "web__fetch_page", json.dumps({"url": f"{address}/page"}), 0)
        result = await composed.runner.run(call, RunContext("run_page", 1, "open"))
    finally:
        await composed.aclose()
    assert json.loads(result.content)["text"] == "plain words"
    assert asked == [
        ("/geo/v1/search", ""),
        ("/meteo/v1/forecast", ""),
        ("/air/offer_requests", "Bearer duffel-1"),
        ("/token", ""),
        ("/calendar/v3/calendars/primary/events", "Bearer fresh"),
        ("/page", ""),
    ]


async def test_pages_need_hosts_and_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no page tool without tools.web_hosts; with it, a missing library is an error with a remedy."""
    path = tmp_path / "toolrelay.toml"
    path.write_text('[store]\nurl = "memory:"\n', encoding="utf-8")
    composed = await create_services(load_config(path, {"OPENAI_API_KEY": "x"}))
    names = [spec.name for spec in composed.catalog.tools()]
    await composed.aclose()
    assert names == [
        "core__calculate",
        "core__get_current_time",
        "core__get_weather",
        "core__read_result",
        "core__search_tools",
    ]
    path.write_text('[store]\nurl = "memory:"\n[tools]\nweb_hosts = ["a.example"]\n', encoding="utf-8")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[web\]'"):
        await create_services(load_config(path, {"OPENAI_API_KEY": "x"}))


@pytest.mark.parametrize(
    ("more", "loaded"),
    [
        ('[credentials.duffel]\ntoken = "env:TOKEN"\n', {"flights__search_flights"}),
        ('[policy]\nallow = ["calendar__*"]\n', {"calendar__list_events"}),
        ('[policy]\nallow = ["*"]\n', set()),
    ],
)
async def test_tools_of_accounts_are_loaded_where_there_is_one(
    more: str, loaded: set[str], tmp_path: Path
) -> None:
    """The tools of flights and of the calendar exist if their credentials do, or if the policy names them."""
    path = tmp_path / "toolrelay.toml"
    path.write_text(f'[store]\nurl = "memory:"\n{more}', encoding="utf-8")
    composed = await create_services(load_config(path, {"OPENAI_API_KEY": "x", "TOKEN": "t" * 20}))
    names = {spec.name for spec in composed.catalog.tools()}
    await composed.aclose()
    assert names & {"flights__search_flights", "calendar__list_events"} == loaded


async def test_plain_http_needs_an_open_network(
    tmp_path: Path, services: tuple[str, list[tuple[str, str]]]
) -> None:
    """A tool calls a local address from the configuration only if tools.networks allows its network."""
    address, asked = services
    config = config_for(tmp_path, address)
    closed = config.model_copy(update={"tools": config.tools.model_copy(update={"networks": ()})})
    composed = await create_services(closed)
    try:
        call = ToolCall("call_1", *(CALLS[2][0], json.dumps(CALLS[2][1])), 0)
        result = await composed.runner.run(call, RunContext("run_1", 1, "open"))
    finally:
        await composed.aclose()
    assert not result.ok
    assert asked == []
