"""The tools that a request chooses in its body, found among those that its caller may use."""

from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.records.rows import ToolEffect
from proxy.relay.offering.choosing import Choice, choose
from proxy.relay.offering.offer import Offer, OfferRules, decide
from proxy.relay.offering.wanted import parse_wanted
from proxy.tools.access.catalog import Catalog, Selection
from proxy.tools.contract.spec import ToolOrigin, ToolSpec
from proxy.wires.chat.wire import ChatWire
from proxy.wires.chosen import read_chosen

READ, WRITE, TIME = "mcp__files__read", "mcp__files__write_9a3c", "core__time"


def spec(name: str, origin: ToolOrigin | None = None, *, reads: bool = True) -> ToolSpec:
    """A tool with that id."""
    return ToolSpec(
        name=name,
        description=f"does {name}",
        parameters={"type": "object"},
        effect=ToolEffect.READ_ONLY if reads else ToolEffect.EXTERNAL_SIDE_EFFECT,
        provider=name.partition("__")[0],
        validate=lambda arguments: arguments,
        digest="d",
        origin=origin,
    )


TOOLS = (
    spec(TIME),
    spec(READ, ToolOrigin("files", "read", "1")),
    spec(WRITE, ToolOrigin("files", "write.all", "2"), reads=False),
)


def entry(name: str = "files", **more: Any) -> dict[str, Any]:
    """An element of ``tools`` that chooses a server."""
    return {"type": "mcp", "server_label": "docs", "server_url": f"toolrelay/{name}", **NEVER, **more}


NEVER = {"require_approval": "never"}


def choice(*tools: Any) -> Choice:
    """What these elements choose."""
    return choose(read_chosen(tools), TOOLS)


def fault(*tools: Any) -> RequestError:
    """The error with which these elements are refused."""
    with pytest.raises(RequestError) as caught:
        choice(*tools)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, {READ, WRITE}),
        ({"allowed_tools": ["write.all"]}, {WRITE}),
        ({"allowed_tools": {"read_only": True}}, {READ}),
        ({"allowed_tools": {"tool_names": ["read"]}}, {READ}),
        ({"allowed_tools": []}, set()),
    ],
)
def test_the_tools_of_a_server(more: dict[str, Any], found: set[str]) -> None:
    """A request names the tools of a server by the server's own names, whatever their ids are."""
    assert choice(entry(**more)).ids == found


def test_a_group_of_tools_is_a_server_too() -> None:
    """A request chooses the built-in tools in the same way, and all tools with an empty name."""
    (shown,) = choice(entry("core")).shown.servers
    assert [(tool.id, tool.name) for tool in shown.tools] == [(TIME, "time")]
    assert choice(entry("")).ids == {READ, WRITE, TIME}


def test_a_server_comes_before_a_group_of_its_name() -> None:
    """If a configured server has the name of a group of tools, the request gets the server's tools."""
    tools = (*TOOLS, spec("mcp__core__x", ToolOrigin("core", "x", "3")))
    assert choose(read_chosen([entry("core")]), tools).ids == {"mcp__core__x"}


def test_single_tools() -> None:
    """A request can choose single tools by their ids, beside a server."""
    chosen = choice(entry(allowed_tools=["read"]), {"type": f"toolrelay:{TIME}"})
    assert chosen.ids == {READ, TIME}
    assert chosen.shown.called(TIME) is None
    assert chosen.shown.called(READ) == ("docs", "read")


@pytest.mark.parametrize(
    ("element", "param", "remedy"),
    [
        (entry("nowhere"), "tools[0].server_url", "toolrelay, toolrelay/core, toolrelay/files"),
        (entry(allowed_tools=["read", "rm"]), "tools[0].allowed_tools", "read, write.all"),
        ({"type": "toolrelay:core__x"}, "tools[0].type", f"toolrelay:{TIME}, toolrelay:{READ}"),
    ],
)
def test_an_unknown_name(element: Any, param: str, remedy: str) -> None:
    """Rule E1: the error names the field and lists what may stand there."""
    error = fault(element)
    assert error.param == param
    assert param in str(error)
    assert f"Write one of: {remedy}" in str(error)


def test_what_is_denied_is_not_told_from_what_does_not_exist() -> None:
    """Rule T2: a client cannot tell a server whose tools are denied from one that does not exist."""
    with pytest.raises(RequestError) as denied:
        choose(read_chosen([entry()]), [spec(TIME)])
    with pytest.raises(RequestError) as unknown:
        choose(read_chosen([entry("filez")]), [spec(TIME)])
    assert str(denied.value).replace("files", "filez") == str(unknown.value)
    with pytest.raises(RequestError, match="may not use any server tool"):
        choose(read_chosen([entry()]), ())


@pytest.mark.parametrize(
    "said", [None, "always", {"never": {"tool_names": ["read"]}}, {"never": {"read_only": True}}]
)
def test_an_approval_that_cannot_be_given_is_refused(said: Any) -> None:
    """If calls cannot wait for an approval, the proxy refuses a choice that asks for approvals."""
    error = fault(entry(require_approval=said))
    assert error.param == "tools[0].require_approval"
    assert '"never"' in str(error)
    # The refusal concerns only tools that would be offered.
    if isinstance(said, dict):
        assert choice(entry(require_approval=said, allowed_tools=["read"])).ids == {READ}
    # If calls can wait, every tool needs an approval except those under ``never``.
    asked = choose(read_chosen([entry(require_approval=said)]), TOOLS, asks=True).asked
    assert asked
    assert (READ in asked) is not isinstance(said, dict)


# ---------------------------------------------------------------- together with the header, in an offer


def offer(header: str | None, *tools: Any, **fields: Any) -> Offer:
    """The offer for a request with this header and these tools."""
    payload = {"model": "m", "messages": [], "tools": list(tools), **fields}
    asked, selection = ChatWire().parse(payload), Selection(Catalog(), offered=TOOLS)
    return decide(asked, selection, OfferRules(), parse_wanted(header))


def test_a_choice_narrows_the_offer() -> None:
    """A choice in the body narrows the offer; the tools that the header names are offered as well."""
    assert offer(None, entry(allowed_tools=["read"])).tool_ids() == (READ,)
    assert offer(TIME, entry(allowed_tools=["read"])).tool_ids() == (TIME, READ)
    assert offer("all", entry(allowed_tools=["read"])).tool_ids() == (TIME, READ, WRITE)
    with pytest.raises(RequestError) as caught:
        offer("none", entry())
    assert caught.value.param == "x-toolrelay-tools"


def test_what_was_chosen_cannot_be_had_in_many_answers() -> None:
    """The proxy refuses a request that chooses tools and asks for several answers."""
    with pytest.raises(RequestError) as caught:
        offer(None, entry(), n=2)
    assert caught.value.param == "n"


def test_a_tool_that_the_client_calls_otherwise() -> None:
    """If a client gives a chosen tool an alias, the offer uses the alias and keeps the server's label."""
    asked = ChatWire().parse(
        {
            "model": "m",
            "messages": [],
            "tools": [entry(allowed_tools=["read"]), {"type": "function", "function": {"name": "look"}}],
        }
    )
    rules = OfferRules(aliases={"look": READ})
    found = decide(asked, Selection(Catalog(), offered=TOOLS), rules, None)
    assert found.names == {"look": READ}
    assert found.shown.called("look") == ("docs", "read")
