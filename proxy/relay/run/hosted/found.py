"""Notes what calls of the provider's tools found: pages that the answer cites, and addresses to fetch."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from proxy.base.events import ToolCall, ToolResult
from proxy.json.in_thread import in_thread
from proxy.relay.run.hosted.limits import declared_tool
from proxy.relay.run.hosted.sources import note_images
from proxy.relay.run.job import Job
from proxy.relay.run.state import State
from proxy.tools.access.prior_addresses import repeats
from proxy.wires.hosted.markers import numbered, pages_in
from proxy.wires.hosted.tools import FoundPage, fetched_page, found_pages, is_list_of_pages, url_of
from proxy.wires.upstream_port import CitingPort

_MOST_RESULTS: Final = 1000
"""Results of earlier turns whose pages can be cited."""


async def note_earlier(job: Job) -> None:
    """Let the answer cite pages that hidden turns of earlier requests have found.

    A search beside a call of the client's, or one that waited for an approval, is in such a turn.
    """
    port = job.upstream.port
    if not (job.continuity.restored and job.tools.offer.shown.hosted and isinstance(port, CitingPort)):
        return

    def found() -> list[tuple[FoundPage, int]]:
        conversation = job.client.port.spoken(orjson.loads(job.upstream.editor.history()))
        results = (text for speaker, text in conversation if speaker == "result")
        return [page for text in itertools.islice(results, _MOST_RESULTS) for page in pages_in(text)]

    port.cite_earlier(await in_thread(found) if job.upstream.is_large else found())


def note_found(job: Job, state: State, made: Iterable[tuple[ToolCall, ToolResult]]) -> Sequence[ToolResult]:
    """Note the pages in the results of calls, if the client declared a tool of its provider.

    Return the results for the model, which may say how to cite each page.
    """
    if not (hosted := state.tools.offer.shown.hosted):
        return [result for _, result in made]
    noted: list[ToolResult] = []
    port = job.upstream.port
    fetches = any(tool.pages is not None for tool in hosted.values())
    for call, result in made:
        noted.append(result)
        tool = declared_tool(state, call)
        if tool is None or not result.ok:
            continue
        if tool.kind == "image_generation":
            note_images(state, result)
            continue
        pages = (
            [fetched_page(result, url_of(result.arguments_redacted))] if tool.pages else found_pages(result)
        )
        if isinstance(port, CitingPort):
            noted[-1] = numbered(result, port.cite(pages, job.upstream.editor.history))
        # What is no list of pages may only repeat what the model wrote, and so may an address in one.
        if fetches and tool.pages is not None:
            state.outcome.found.texts += [page.text for page in pages]
        elif fetches and is_list_of_pages(result):
            written = _written(call)
            state.outcome.found.texts += [page.url for page in pages if not repeats(written, page.url)]
    return noted


def _written(call: ToolCall) -> str:
    """Return what a model wrote into a call, without escapes of letters."""
    try:
        return orjson.dumps(orjson.loads(call.arguments)).decode()
    except orjson.JSONDecodeError:
        return call.arguments
