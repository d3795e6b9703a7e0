"""The start names what the store does not keep."""

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.commands.serve.serve import banner
from proxy.config.load import Config
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ({"url": "memory:"}, ["when this process ends", "hidden turns", "repeating side effects"]),
        ({"content": "none"}, ["writes no content", "hidden turns", "large results", "runs replay"]),
        ({"content": "tools"}, []),
    ],
    ids=["memory", "none", "tools"],
)
def test_a_start_names_what_its_record_turns_off(store: dict[str, Any], words: list[str]) -> None:
    """Rule R3: if the store keeps nothing or no content, the start names the features that this turns off."""
    services: Any = SimpleNamespace(catalog=Catalog(), policy=Policy(allow=()))
    authentication: Any = SimpleNamespace(mode="open", ring=SimpleNamespace(keys=tuple))
    lines = banner(Config.model_validate({"store": store}), services, "http://127.0.0.1:1", authentication)
    said = [line for line in lines if line.startswith("store.")]
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)
