"""Reads and writes the sources of an answer in the form of OpenAI's dialects.

Sources for the shapes: OpenAI's API reference, "The chat completion object" (``annotations`` of a message)
and "Streaming events" (``response.output_text.annotation.added``).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.base.events import CitationAdded

LEFT_OUT: Final = "answer.citations"
"""The name, in the record of a run, for citations that the client's dialect cannot express."""
_ADDRESSES: Final = ("https://", "http://")


def read_url_citation(said: Any, base: int = 0) -> CitationAdded:
    """Return the citation that the members of OpenAI's ``url_citation`` describe.

    Its indices count from ``base``. ``url`` is empty unless the source is a page with an address.
    """
    if not isinstance(said, Mapping):
        return CitationAdded(0, 0, "")
    return CitationAdded(
        *_bounds(said.get("start_index"), said.get("end_index"), base),
        page_address(said.get("url")),
        _words(said.get("title")),
        # OpenRouter adds the text of the page.
        _words(said.get("content")),
    )


def read_annotations(annotations: Any, base: int = 0) -> Iterator[CitationAdded]:
    """Yield the citations of a list of annotations: those of a Chat message or of a Responses part."""
    for annotation in annotations if isinstance(annotations, list) else ():
        said = annotation.get("url_citation", annotation) if isinstance(annotation, Mapping) else None
        yield read_url_citation(said, base)


def page_address(value: Any) -> str:
    """Return ``value`` if it is a page's address; ``""`` for anything else, such as a file name."""
    return value if isinstance(value, str) and value.startswith(_ADDRESSES) else ""


def url_citation(citation: CitationAdded, base: int, said: int) -> dict[str, Any]:
    """Return the members of a ``url_citation`` whose indices count from ``base``.

    The dialect requires the indices. If they are unknown, both point behind all text so far, at ``said``.
    """
    known = citation.end > citation.start
    return {
        "start_index": max(0, citation.start - base) if known else said,
        "end_index": max(0, citation.end - base) if known else said,
        "title": citation.title,
        "url": citation.url,
    }


def chat_annotation(citation: CitationAdded, said: int) -> dict[str, Any]:
    """Return an annotation of a Chat message."""
    return {"type": "url_citation", "url_citation": url_citation(citation, 0, said)}


def with_moved_indices(annotations: Any, before: int, count: int = 0) -> Any:
    """Return a Chat message's annotations, moved by ``before``, the characters of earlier turns.

    Annotations of a stream may be numbered. Their numbers continue after the ``count`` annotations of those
    turns.
    """
    if not (before or count) or not isinstance(annotations, list):
        return annotations
    return [_moved(annotation, before, count) for annotation in annotations]


def _moved(annotation: Any, before: int, count: int) -> Any:
    said = annotation.get("url_citation") if isinstance(annotation, dict) else None
    if not isinstance(said, dict):
        return annotation
    places = {name: said.get(name) for name in ("start_index", "end_index")}
    further = {name: place + before for name, place in places.items() if type(place) is int}
    number = {"index": annotation["index"] + count} if type(annotation.get("index")) is int else {}
    return {**annotation, **number, "url_citation": {**said, **further}}


def _bounds(start: object, end: object, base: int) -> tuple[int, int]:
    """Return where the cited text begins and ends; ``(0, 0)`` if the upstream does not say."""
    if type(start) is int and type(end) is int and 0 <= start < end:
        return base + start, base + end
    return 0, 0


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""
