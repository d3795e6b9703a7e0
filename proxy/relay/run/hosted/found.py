"""Notes what calls of the provider's tools found: pages that the answer cites, and addresses to fetch."""

from collections.abc import Iterable

from proxy.base.events import ToolCall, ToolResult
from proxy.relay.run.hosted.limits import declared_tool
from proxy.relay.run.job import Job
from proxy.relay.run.state import State
from proxy.wires.hosted.tools import fetched_page, found_pages, is_list_of_pages, url_of
from proxy.wires.upstream_port import CitingPort


def note_found(job: Job, state: State, made: Iterable[tuple[ToolCall, ToolResult]]) -> None:
    """Note the pages in the results of calls, if the client declared a tool of its provider."""
    if not (hosted := state.tools.offer.shown.hosted):
        return
    port = job.upstream.port
    fetches = any(tool.pages is not None for tool in hosted.values())
    for call, result in made:
        if (tool := declared_tool(state, call)) is None or not result.ok:
            continue
        pages = (
            [fetched_page(result, url_of(result.arguments_redacted))] if tool.pages else found_pages(result)
        )
        if isinstance(port, CitingPort):
            port.cite(pages)
        # A text that is no list may only repeat what the model wrote.
        if fetches and (tool.pages is not None or is_list_of_pages(result)):
            state.outcome.found += [page.text if tool.pages else page.url for page in pages]
