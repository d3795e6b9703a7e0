"""``python -m bench.tool_search``: what tool search saves of the ``tools`` in the requests of a conversation.

Made-up MCP servers have twenty tools each, with definitions of some 500 bytes, which is what those of the
reference servers have. The model searches twice, calls a tool after each search, and answers: five
requests. The table has the bytes of ``tools`` in all five, and what share of them is the beginning of the
request before, which a provider's prompt cache has. Four bytes are about a token.
"""

import asyncio
from itertools import pairwise

import orjson

from proxy.relay.offering.deferred import SearchRules
from proxy.relay.offering.offer import Offer, OfferRules, decide
from proxy.toolbox.search_tools import search_tools_tool
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.contract.spec import Redaction, ToolEffect, ToolSpec
from proxy.tools.providers.function import FunctionProvider
from proxy.tools.searching.listing import Searches
from proxy.wires.chat.wire import ChatWire

COUNTS = (20, 100, 500, 1000)
VERBS = ("list", "get", "create", "update", "delete")
NOUNS = ("issue", "branch", "invoice", "ticket")
QUERIES = ("list the open issues", "create an invoice for a customer")
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})


def definition(number: int) -> ToolSpec:
    """Return a tool of a made-up server."""
    verb, noun = VERBS[number % 5], NOUNS[number // 5 % 4]
    name = f"mcp__server{number // 20}__{verb}_{noun}"
    properties = {
        field: {"type": "string", "description": f"The {field} of the {noun}, as the server knows it."}
        for field in ("id", "project", "title", "state")
    }
    return ToolSpec(
        name=name,
        description=f"{verb.title()} one {noun} or several of them in a project of server {number // 20}. "
        "The result has all fields that the server knows.",
        parameters={"type": "object", "properties": properties, "required": ["id", "project"]},
        effect=ToolEffect.READ_ONLY,
        provider="mcp",
        validate=lambda arguments: arguments,
        digest=name,
        redaction=Redaction(),
    )


async def offer_of(count: int, rules: SearchRules) -> Offer:
    """Return what a request is offered of so many tools."""
    core: ToolProvider = FunctionProvider("core", [search_tools_tool(Searches())])
    mcp: ToolProvider = FunctionProvider("mcp", [])
    tools = [(spec, core) for spec in await core.list_tools()]
    catalog = Catalog([*tools, *((definition(number), mcp) for number in range(count))])
    request = ChatWire().parse(orjson.loads(BODY))
    return decide(request, catalog.select(Policy(allow=("*",))), OfferRules(search=rules), None)


def sent(offer: Offer) -> bytes:
    """Return the ``tools`` that an upstream gets of an offer, without the end of the list."""
    wire = ChatWire()
    editor = wire.editor(BODY, wire.parse(orjson.loads(BODY)))
    editor.offer(offer.added, offer.replaced)
    return orjson.dumps(orjson.loads(editor.render())["tools"])[:-1]


def requests_of(offer: Offer) -> list[bytes]:
    """Return the ``tools`` of each request of the conversation."""
    found = [sent(offer)]
    for query in QUERIES:
        names = [tool.name for tool in offer.search(query, lambda name: False)]
        offer = offer.with_loaded(names)
        found += [sent(offer)] * 2
    return found


def cached(requests: list[bytes]) -> float:
    """Return the share of all bytes that begins the request before."""
    again = sum(len(one) for one, following in pairwise(requests) if following.startswith(one))
    return again / sum(map(len, requests))


async def main() -> None:
    """Print the table."""
    print("tools | all shown, bytes | cached | with search, bytes | cached | saved | tokens saved")
    for count in COUNTS:
        every = requests_of(await offer_of(count, SearchRules("off")))
        found = requests_of(await offer_of(count, SearchRules("auto")))
        before, after = sum(map(len, every)), sum(map(len, found))
        print(
            f"{count} | {before:,} | {cached(every):.0%} | {after:,} | {cached(found):.0%} | "
            f"{1 - after / before:.0%} | {(before - after) // 4:,}"
        )


if __name__ == "__main__":
    asyncio.run(main())
