"""Plugins of installed packages: loaded only if the settings name them, and faults are one clear line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pair_kits import SPEAKERS, Call, Message, Turn
from raw_upstream import RawUpstream
from running_proxy import make_config, running

from proxy.app.plugins import load_plugin
from proxy.base.errors import ConfigError

TOOLS = """
from proxy.tools import Redaction, tool

print("loaded")

@tool(effect="read_only", redaction=Redaction())
async def customer(name: str) -> str:
    "Look a customer up."
    return f"{name} is fine"
"""
HOOK = """
from proxy.hooks import OutcomeChange

class Loud:
    async def after_tool(self, outcome):
        return OutcomeChange(outcome.text.upper())
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """``install("package", code, group="name = module:attribute")`` puts a package where Python finds it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(package: str, code: str, **groups: str) -> None:
        (tmp_path / f"{package}.py").write_text(code)
        facts = tmp_path / f"{package}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        texts = [f"[toolrelay.{group}]\n{entry}\n" for group, entry in groups.items()]
        (facts / "entry_points.txt").write_text("\n".join(texts))
        monkeypatch.delitem(sys.modules, package, raising=False)

    return put


async def test_the_tools_and_hooks_of_a_package_are_loaded_if_they_are_named(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tool of a plugin runs like any other, and its hook sees the result."""
    install("our_crm", TOOLS, tools="crm = our_crm")
    install("our_hook", HOOK, hooks="loud = our_hook:Loud")
    chat = SPEAKERS["chat"]
    turns = Turn(calls=(Call("call_1", "crm__customer", {"name": "anna"}),)), Turn("Done.")
    plugins: dict[str, Any] = {"tools": ("crm",), "hooks": ("loud",)}
    async with RawUpstream(*(chat.script(turn) for turn in turns)) as server:
        async with running(make_config(server.url, allow=("crm__*",), plugins=plugins)) as proxy:
            await proxy.ask(chat.ask([Message("user", "Look.")]), path=chat.path)
        (result,) = chat.got(json.loads(server.requests[1].body)).results.values()
    assert result == "ANNA IS FINE"
    assert "loaded" in capsys.readouterr().out


async def test_an_installed_package_does_not_run_by_itself(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no setting names is not imported."""
    install("our_crm", TOOLS, tools="crm = our_crm", hooks="crm = our_crm", dialects="crm = our_crm")
    async with running(make_config("http://127.0.0.1:9", allow=("*",))) as proxy:
        names = {spec.name for spec in proxy.services.catalog.tools()}
    assert "crm__customer" not in names
    assert "our_crm" not in sys.modules
    assert "loaded" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_that_name", ("cannot be imported", "nothing_of_that_name")),
        ("raise SystemExit('gone')", ("cannot be imported", "SystemExit")),
        ("x = 1", ("has no tools", "@tool")),
    ],
)
async def test_a_plugin_that_fails_is_one_line(code: str, words: tuple[str, str], install: Install) -> None:
    """A start stops with the setting, the plugin and the reason."""
    install("our_crm", code, tools="crm = our_crm")
    with pytest.raises(ConfigError) as fault:
        async with running(make_config("http://127.0.0.1:9", plugins={"tools": ("crm",)})):
            pass
    line = str(fault.value)
    assert line.startswith('plugins.tools: "crm"')
    assert all(word in line for word in words), line
    assert "\n" not in line


def test_a_missing_or_ambiguous_plugin_says_what_there_is(install: Install) -> None:
    """The line names the group and the entry points that exist, or the packages that share a name."""
    with pytest.raises(ConfigError, match="no installed package has one"):
        load_plugin("tools", "crm")
    install("our_crm", TOOLS, tools="crm = our_crm")
    with pytest.raises(ConfigError, match=r"plugins.tools: .*\"cmr\".*there are: crm"):
        load_plugin("tools", "cmr")
    install("their_crm", TOOLS, tools="crm = their_crm")
    with pytest.raises(ConfigError, match="our_crm, their_crm"):
        load_plugin("tools", "crm")


async def test_a_dialect_of_a_package_is_served(install: Install) -> None:
    """Clients may speak the dialect of a plugin."""
    code = "from toy_dialect import TOY_ENDPOINTS, ToyWire\ndialect = (ToyWire(), TOY_ENDPOINTS)\n"
    install("our_toy", code, dialects="toy = our_toy:dialect")
    chat = SPEAKERS["chat"]
    ask = {"model": "m", "turns": [{"by": "user", "text": "Hello."}]}
    async with RawUpstream(chat.script(Turn("Hi."), stream=False)) as server:
        config = make_config({"base_url": server.url, "wires": ("chat",)}, plugins={"dialects": ("toy",)})
        async with running(config) as proxy:
            answer = await proxy.ask(ask, path="/v1/toy")
            assert (answer.status, "Hi." in answer.body.decode()) == (200, True)
    install("no_toy", "dialect = 5", dialects="five = no_toy:dialect")
    with pytest.raises(ConfigError, match='"five" is no dialect'):
        async with running(make_config("http://127.0.0.1:9", plugins={"dialects": ("five",)})):
            pass


STORE = """
from proxy.store.sqlite.memory import MemoryStore

OPENED = []

def opened(options):
    OPENED.append(options.content)
    return MemoryStore(options)
"""


async def test_a_store_of_a_package_keeps_the_record(install: Install) -> None:
    """``store.url`` names the plugin that opens the record, with the options of the settings."""
    install("our_store", STORE, stores="keeping = our_store:opened")
    chat, store = SPEAKERS["chat"], {"url": "plugin:keeping", "content": "all"}
    async with (
        RawUpstream(chat.script(Turn("Done."))) as server,
        running(make_config(server.url, modules=("probe_tools",), store=store)) as proxy,
    ):
        await proxy.ask(chat.ask([Message("user", "Look.")]), path=chat.path)
        assert (await proxy.only_run()).run.status == "completed"
    assert sys.modules["our_store"].OPENED == ["all"]
    with pytest.raises(ConfigError, match=r'store.url: .*"other".*there are: keeping'):
        async with running(make_config(server.url, store={"url": "plugin:other"})):
            pass
