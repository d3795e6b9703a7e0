"""The tools of OpenAI that server tools run in its place: how requests declare them, and the items of calls.

The id of an item marks it as the proxy's own. When it comes back, it is left out: the turn that it shows
returns from the record, with its call and its result.

Sources: OpenAI's API reference, "Create a model response" and "Streaming events"; the guide "Web search".
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from proxy.base.conversation import Speaker, Spoken
from proxy.base.events import ToolCall, ToolProgress, ToolResult
from proxy.wires.hosted.forms import CallForm, SignedForm
from proxy.wires.hosted.spoken import spoken_in
from proxy.wires.hosted.tools import HostedTool, found_pages, query_of, url_of, web_fetch, web_search
from proxy.wires.openai.images import image_usage
from proxy.wires.responses.items import own_mark
from proxy.wires.responses.own_items.images import CALL as IMAGE_CALL
from proxy.wires.responses.own_items.images import image_generation
from proxy.wires.responses.own_items.programs import KIND, programmatic
from proxy.wires.turn.usage import add_usage

Item = dict[str, Any]

_SOURCES: Final = "web_search_call.action.sources"
"""The value of ``include`` with which a search lists the pages that it found."""


class _WebForm(SignedForm):
    """Shows what a model does on the web as the items of OpenAI's search."""

    def begun(self, call: ToolCall, arguments: Any) -> Item:
        return {
            "id": self.ids.make(own_mark("ws")),
            "type": "web_search_call",
            "status": "in_progress",
            "action": self._action(arguments),
        }

    def usage(self, result: ToolResult) -> dict[str, Any]:
        return {"web_search": {"num_requests": int(result.ok)}}

    def ended(self, begun: Item | None, call: ToolCall, result: ToolResult) -> Sequence[Item]:
        begun = begun or self.begun(call, None)
        action = {**begun["action"], **self._found(result)}
        return [{**begun, "status": "completed" if result.ok else "failed", "action": action}]

    @abstractmethod
    def _action(self, arguments: Any) -> Item:
        """Return the ``action`` of a call with these redacted arguments."""

    def _found(self, result: ToolResult) -> Item:
        """Return what the result adds to the action."""
        return {}


class SearchForm(_WebForm):
    """Shows searches; ``with_sources``: with the pages that they found."""

    def __init__(self, *, with_sources: bool) -> None:
        self._with_sources = with_sources

    def _action(self, arguments: Any) -> Item:
        query = query_of(arguments)
        return {"type": "search", "query": query, "queries": [query]}

    def _found(self, result: ToolResult) -> Item:
        if not self._with_sources:
            return {}
        return {"sources": [{"type": "url", "url": page.url} for page in found_pages(result)]}


class OpenForm(_WebForm):
    """Shows fetches of pages."""

    def _action(self, arguments: Any) -> Item:
        return {"type": "open_page", "url": url_of(arguments)}


def _search(at: str, tool: Mapping[str, Any], asked: Mapping[str, Any]) -> HostedTool | None:
    """Read a search, which opens pages, too; ``None`` for one that may see only what the provider stores:
    nobody else has that."""
    if tool.get("external_web_access") is False:
        return None
    filters = tool.get("filters")
    filters = filters if isinstance(filters, dict) else {}
    include = asked.get("include")
    domains: dict[str, Any] = {
        "allowed": filters.get("allowed_domains"),
        "blocked": filters.get("blocked_domains"),
        "within": "filters.",
    }
    search = web_search(
        at,
        tool,
        SearchForm(with_sources=isinstance(include, list) and _SOURCES in include),
        size=tool.get("search_context_size"),
        place=tool.get("user_location"),
        **domains,
    )
    return replace(search, beside=web_fetch(at, {}, OpenForm(), **domains))


def _images(at: str, tool: Mapping[str, Any], asked: Mapping[str, Any]) -> HostedTool:
    return image_generation(at, tool, streams=asked.get("stream") is True)


def _programs(at: str, tool: Mapping[str, Any], asked: Mapping[str, Any]) -> HostedTool:
    return programmatic(int(at[len("tools[") : -1]), asked)


_Reader = Callable[[str, Mapping[str, Any], Mapping[str, Any]], HostedTool | None]
_READERS: Final[Mapping[str, _Reader]] = {
    **dict.fromkeys(("web_search", "web_search_2025_08_26"), _search),
    **dict.fromkeys(("web_search_preview", "web_search_preview_2025_03_11"), _search),
    "image_generation": _images,
    KIND: _programs,
}
"""How a declaration is read, by its type; the last argument is the whole request."""
_STATES: Final[Mapping[str, Sequence[str]]] = {
    "web_search_call": ("in_progress", "searching"),
    IMAGE_CALL: ("in_progress", "generating"),
}
"""The events with which an item begins after it was added, by its type."""
_BROKEN: Final[Mapping[str, Item]] = {IMAGE_CALL: {"result": ""}}
"""What clients need of an item whose call did not end, by its type."""
_ONLY_AT_END: Final = ("action",)
"""Members that an item has only when it is done."""


def hosted_tools(payload: Mapping[str, Any]) -> dict[int, HostedTool]:
    """See :meth:`proxy.wires.wire.Wire.hosted_tools`."""
    tools = payload.get("tools")
    found: dict[int, HostedTool] = {}
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is not None:
            read_tool = read(f"tools[{place}]", tool, payload)
            found |= {} if read_tool is None else {place: read_tool}
    return found


class OwnCalls:
    """The calls of one answer that have ``forms`` of their own, by the names of their tools.

    ``used`` is what those that have ended have used.
    """

    def __init__(self, forms: Mapping[str, CallForm]) -> None:
        self._forms = forms
        self._begun: dict[str, tuple[int, Item]] = {}
        self.used: Mapping[str, Any] = {}

    def is_whole(self, call: ToolCall) -> bool:
        """Return whether the item that shows that a call begins never changes."""
        return (form := self._forms.get(call.name)) is not None and form.begun_is_whole

    def begin(self, call: ToolCall, arguments: Any, index: int) -> Item | None:
        """Return the item that shows at this index of the output that a call begins, if there is one."""
        form = self._forms.get(call.name)
        item = None if form is None else form.begun(call, arguments)
        if form is not None and item is not None and not form.begun_is_whole:
            self._begun[call.call_id] = index, item
        return item

    def progress(self, call: ToolCall, progress: ToolProgress) -> Iterator[Item]:
        """Yield the events that show how far a call has come."""
        if (begun := self._begun.get(call.call_id)) is not None:
            place = {"output_index": begun[0], "item_id": begun[1]["id"]}
            yield from ({**event, **place} for event in self._forms[call.name].progressed(progress))

    def end(self, call: ToolCall, result: ToolResult) -> tuple[int, list[Item]] | None:
        """Return the items that show how a call ended; ``None`` if it has no form.

        The first one belongs at the index with which the call began, if that is not -1.
        """
        if (form := self._forms.get(call.name)) is None:
            return None
        index, begun = self._begun.pop(call.call_id, (-1, None))
        self.used = add_usage(self.used, form.usage(result))
        return index, list(form.ended(begun, call, result))

    def broken(self) -> Iterator[tuple[int, Item]]:
        """Yield the items of the calls that have not ended and never will, with their indices."""
        for index, begun in self._begun.values():
            yield index, {**begun, "status": "failed", **_BROKEN.get(begun["type"], {})}


def spoken(payload: Mapping[str, Any]) -> Iterator[Spoken]:
    """See :meth:`proxy.wires.wire.Wire.spoken`."""
    yield from spoken_in(payload.get("instructions"), "client")
    given = payload.get("input")
    if isinstance(given, str):
        yield "client", given
    for item in given if isinstance(given, list) else ():
        kind = str(item.get("type") or "message")
        outputs = spoken_in(item.pop("output", None), "result")
        speaker: Speaker = "client" if kind == "message" and item.get("role") != "assistant" else "model"
        yield from spoken_in(item, speaker)
        yield from outputs


def begin_events(item: Item, index: int) -> Iterator[Item]:
    """Yield the events with which a call begins, as the item at an index of the output."""
    place = {"output_index": index}
    bare = {key: value for key, value in item.items() if key not in _ONLY_AT_END}
    yield {"type": "response.output_item.added", **place, "item": bare}
    for state in _STATES[item["type"]]:
        yield {"type": f"response.{item['type']}.{state}", **place, "item_id": item["id"]}


def end_events(item: Item, index: int) -> Iterator[Item]:
    """Yield the events with which a call ends."""
    place = {"output_index": index}
    if item["status"] == "completed":
        yield {"type": f"response.{item['type']}.completed", **place, "item_id": item["id"]}
    yield {"type": "response.output_item.done", **place, "item": item}


def tool_usage(used: Mapping[str, Any]) -> Item:
    """Return the member ``tool_usage`` of a response whose calls have used this; all families are there."""
    return add_usage({"image_gen": image_usage({}), "web_search": {"num_requests": 0}}, used)
