"""Tools with credentials in a whole server: missing ones are found at start, and no result shows them."""

from pathlib import Path

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer

from proxy.app.app import create_app, create_services
from proxy.base.errors import ConfigError
from proxy.base.events import ToolCall
from proxy.commands.doctor.check import hosted_lines, withheld_lines
from proxy.commands.doctor.withholding import untrusted_lines
from proxy.config.load import Config, load_config
from proxy.tools.running.ledger import RunContext

MODULE = """
from proxy.tools import HttpClient, Redaction, tool

@tool(effect="read_only", redaction=Redaction(output=("ok",)), hosts=("127.0.0.1:*",), connection="shop")
async def order(url: str, http: HttpClient) -> dict:
    "Look an order up."
    return await http.get_json(url)
"""

DESK = """
from proxy.tools import Redaction, tool

@tool(effect="read_only", redaction=Redaction(), untrusted_output=True)
def page() -> str:
    "A page."
    return ""

@tool(redaction=Redaction())
def send(text: str) -> str:
    "Send."
    return ""

@tool(effect="read_only", redaction=Redaction())
def look() -> str:
    "Look."
    return ""
"""


def config_for(folder: Path, more: str, allow: str = "shop__order") -> Config:
    """Write and load a configuration with a module that needs a connection."""
    (folder / "shop.py").write_text(MODULE, encoding="utf-8")
    path = folder / "toolrelay.toml"
    path.write_text(
        f'[store]\nurl = "memory:"\n[policy]\nallow = ["{allow}"]\n'
        f'[tools]\nmodules = ["shop.py"]\nnetworks = ["127.0.0.0/8"]\n{more}',
        encoding="utf-8",
    )
    return load_config(path, {"OPENAI_API_KEY": "x", "SHOP_TOKEN": "s3cret-token"})


@pytest.fixture
async def shop(aiohttp_server: AiohttpServer) -> str:
    """Run a service that knows one token."""

    async def answer(request: web.Request) -> web.Response:
        known = request.headers.get("Authorization") == "Bearer s3cret-token"
        return web.json_response({"ok": known})

    app = web.Application()
    app.router.add_get("/", answer)
    return str((await aiohttp_server(app)).make_url("/"))


async def test_a_named_tool_without_its_connection_stops_the_start(tmp_path: Path) -> None:
    """Rule T6: the start fails if an allowed tool lacks its connection; other tools need no connection."""
    with pytest.raises(ConfigError, match=r"shop__order, which policy\.allow names, needs it") as caught:
        await create_app(config_for(tmp_path, ""))
    assert caught.value.setting == "credentials.shop"
    for allow, more in (("core__*", ""), ("shop__order", '[credentials.shop]\ntoken = "env:SHOP_TOKEN"')):
        app = await create_app(config_for(tmp_path, more, allow))
        await app.aclose()


async def test_an_entry_that_allows_nothing_is_named(tmp_path: Path) -> None:
    """An entry of ``policy.allow`` that matches no tool is reported, with the nearest name or the reason."""
    config = config_for(tmp_path, "", "core__get_wether")
    app = await create_app(config)
    said = [line for line in withheld_lines(config, app.services) if line.startswith("policy.allow")]
    assert said == [
        'policy.allow: "core__get_wether" matches no loaded tool. Did you mean "core__get_weather"?'
    ]
    await app.aclose()
    for pattern, words in (
        ("web__*", "tools.web_hosts"),
        ("zz__*", "matches no loaded tool"),
        ("*__calculate", ""),
    ):
        config = config_for(tmp_path, "", pattern)
        app = await create_app(config)
        said = [line for line in withheld_lines(config, app.services) if line.startswith("policy.allow")]
        assert all(words in line for line in said)
        assert len(said) == bool(words)
        await app.aclose()


async def test_an_alias_that_means_nothing_is_named(tmp_path: Path) -> None:
    """An alias of a tool that is not loaded is reported with the nearest name; other aliases are not."""
    more = '[tools.aliases]\nweather = "core__get_wether"\ntime = "core__get_current_time"\n'
    config = config_for(tmp_path, more)
    app = await create_app(config_for(tmp_path, more, "core__*"))
    said = [line for line in withheld_lines(config, app.services) if line.startswith("tools.aliases")]
    await app.aclose()
    assert said == [
        'tools.aliases.weather: no tool "core__get_wether" is loaded. Did you mean "core__get_weather"?'
    ]


async def test_what_a_stranger_s_text_withholds_is_said(tmp_path: Path) -> None:
    """Rule T2: the check names what ``policy.after_untrusted`` withholds, and whose results cause it."""
    (tmp_path / "desk.py").write_text(DESK)
    modules = f'[tools]\nmodules = ["{tmp_path / "desk.py"}"]\n'
    said = "after a run has read a result of desk__page: asks first: desk__send (policy.after_untrusted)"
    for allow, more, lines in (
        ('"desk__*"', "", [said]),
        ('"desk__*"', 'after_untrusted = "allow"\n', []),
        ('"desk__send", "desk__look"', "", []),
    ):
        (tmp_path / "toolrelay.toml").write_text(
            f'[policy]\nallow = [{allow}]\n{more}{modules}[store]\nurl = "memory:"\n'
        )
        config = load_config(tmp_path / "toolrelay.toml", {"OPENAI_API_KEY": "x"})
        app = await create_app(config)
        assert untrusted_lines(config, app.services.catalog, app.services.policy) == lines
        await app.aclose()


async def test_a_pattern_does_not_ask_for_every_account(tmp_path: Path) -> None:
    """Rule T2: a tool that only a pattern allows is withheld while its connection is missing."""
    config = config_for(tmp_path, "", "*")
    app = await create_app(config)
    services = app.services
    selection = services.catalog.select(services.policy)
    assert selection.withheld["shop__order"] == "credentials.shop is missing"
    assert "not offered: shop__order: credentials.shop is missing" in withheld_lines(config, services)
    call = ToolCall("call_1", "shop__order", '{"url":"http://127.0.0.1/"}', 0)
    result = await services.runner.run(call, RunContext("run_1", 1, "open"))
    assert result.error_code == "policy_denied"
    await app.aclose()


async def test_a_tool_calls_with_its_connection(tmp_path: Path, shop: str) -> None:
    """Rule T6: the configured token reaches the service, but no result and no text of the configuration."""
    config = config_for(tmp_path, '[credentials.shop]\ntoken = "env:SHOP_TOKEN"')
    services = await create_services(config)
    try:
        call = ToolCall("call_1", "shop__order", f'{{"url":"{shop}"}}', 0)
        result = await services.runner.run(call, RunContext("run_1", 1, "open"))
    finally:
        await services.aclose()
    assert (result.ok, result.content) == (True, '{"ok":true}')
    assert "s3cret" not in repr(result) + repr(config)


async def test_who_runs_the_tools_of_providers_is_said(tmp_path: Path) -> None:
    """The check says which server tool runs a provider's tool, and if that tool is not loaded."""
    for target, lines, faults in (
        ("core__calculate", ["clients that declare their provider's web_search get core__calculate"], []),
        ("web__search", [], ['tools.hosted.web_search: no tool "web__search" is loaded']),
    ):
        config = config_for(tmp_path, f'[tools.hosted]\nweb_search = "{target}"\n', "core__*")
        app = await create_app(config)
        told = hosted_lines(config, app.services)
        assert [line.partition(", unless")[0] for line in told] == lines
        said = [line for line in withheld_lines(config, app.services) if line.startswith("tools.hosted")]
        assert said == faults
        await app.aclose()
