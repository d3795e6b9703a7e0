"""The catalog of tools, and the registry that replaces it with newer versions."""

import asyncio

import pytest
from changing_tools import ChangingProvider, changing_tool
from structlog.testing import capture_logs

from proxy.base.caches import Derived
from proxy.base.errors import ConfigError
from proxy.tools.access import catalog as catalogs
from proxy.tools.access.catalog import Catalog, Registry
from proxy.tools.contract.spec import ToolSpec

A, B, C = (changing_tool(f"t__{letter}") for letter in "abc")


def names(catalog: Catalog) -> list[str]:
    """The names of the tools of a catalog."""
    return [spec.name for spec in catalog.tools()]


async def test_a_newer_catalog_leaves_the_old_one_as_it_was() -> None:
    """A refresh makes a new version of the catalog and leaves the old catalog unchanged."""
    provider = ChangingProvider("t", B, A)
    registry = await Registry.load([provider])
    old = registry.current
    provider.specs = (C, A)
    derived: Derived[str, str] = Derived("of a test", 100, lambda key, value: len(value))
    derived.of(old).put("names", "a b")
    new = await registry.refresh()
    assert registry.current is new
    assert derived.of(old).get("names") is None, "what was worked out from the old one goes at once"
    assert (old.version, new.version) == (1, 2)
    assert (names(old), names(new)) == (["t__a", "t__b"], ["t__a", "t__c"])
    assert (old.get("t__b"), new.get("t__b")) == (B, None)
    assert old.provider("t__b") is provider
    assert provider.closed == 0
    await registry.aclose()
    assert provider.closed == 1


async def test_a_replacement_is_in_the_log() -> None:
    """The log line says how many tools were added, removed and changed, without their untrusted names."""
    registry = await Registry.load([provider := ChangingProvider("t", A, B)])
    with capture_logs() as lines:
        registry.replace([(changing_tool("t__b", arguments=("x",)), provider), (C, provider)])
    assert lines == [
        {
            "event": "tools_replaced",
            "log_level": "info",
            "version": 2,
            "tools": 2,
            "added": 1,
            "removed": 1,
            "changed": 1,
        }
    ]


@pytest.mark.parametrize(
    "refused", [(A, A), (changing_tool("u__a"),), (changing_tool("t__a", redaction=None),)]
)
async def test_what_cannot_be_served_replaces_nothing(refused: tuple[ToolSpec, ...]) -> None:
    """Rules T4, T5: the registry keeps the old catalog if a new one is invalid, and uses up no version."""
    provider = ChangingProvider("t", A)
    registry = await Registry.load([provider])
    old = registry.current
    provider.specs = refused
    with pytest.raises(ConfigError):
        await registry.refresh()
    assert registry.current is old
    provider.specs = (B,)
    assert (await registry.refresh()).version == 2


async def test_a_provider_that_cannot_say_its_tools_changes_nothing() -> None:
    """If a provider cannot list its tools, the refresh raises the error; a later refresh works."""
    registry = await Registry.load([provider := ChangingProvider("t", A)])

    async def fail() -> None:
        raise ConnectionResetError

    provider.specs, provider.listing = (B,), fail
    with pytest.raises(ConnectionResetError):
        await registry.refresh()
    assert names(registry.current) == ["t__a"]
    provider.listing = None
    assert names(await registry.refresh()) == ["t__b"]


async def test_the_configuration_has_a_word_on_each_catalog() -> None:
    """The check set by ``set_check`` leaves tools out of each new catalog; the log names each once."""
    registry = await Registry.load([provider := ChangingProvider("t", A)])

    def no_b(catalog: Catalog) -> dict[str, str]:
        return {"t__b": "no b"} if catalog.get("t__b") else {}

    registry.set_check(no_b)
    with capture_logs() as lines:
        for _ in range(2):
            assert names(registry.replace([(B, provider), (C, provider)])) == ["t__c"]
    assert registry.left_out == {"t__b": "no b"}
    assert "t__b" not in registry
    left_out = [(line["tool"], line["reason"]) for line in lines if line["event"] == "tool_left_out"]
    assert left_out == [("t__b", "no b")]
    assert names(registry.replace([(C, provider)])) == ["t__c"]
    assert registry.left_out == {}


async def test_the_last_change_is_the_one_that_is_served() -> None:
    """Of two concurrent refreshes, the one requested later takes effect last."""
    registry = await Registry.load([provider := ChangingProvider("t", A)])
    slow, at_once = asyncio.Event(), asyncio.Event()
    at_once.set()
    answers = iter([slow, at_once])
    provider.specs, provider.listing = (B,), lambda: next(answers).wait()
    first = asyncio.create_task(registry.refresh())
    await asyncio.sleep(0)
    provider.specs = (C,)
    second = asyncio.create_task(registry.refresh())
    for _ in range(5):
        await asyncio.sleep(0)
    slow.set()
    assert names(await first) == ["t__b"]
    assert names(await second) == ["t__c"]
    assert registry.current is second.result()


async def test_a_name_is_remembered_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry remembers the names of removed tools, but only up to a maximum number of names."""
    monkeypatch.setattr(catalogs, "_MOST_NAMES", 3)
    registry = await Registry.load([provider := ChangingProvider("t", A)])
    registry.replace([(B, provider), (C, provider)])
    assert [name in registry for name in ("t__a", "t__b", "t__c", "t__d")] == [True, True, True, False]
    registry.replace([(changing_tool("t__d"), provider)])
    assert names(registry.current) == ["t__d"]
    assert [name in registry for name in ("t__a", "t__d")] == [True, False]
