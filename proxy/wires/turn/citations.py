"""Sources of an answer, as the dialects of OpenAI name them.

Sources for the shapes: OpenAI's API reference, "The chat completion object" (``annotations`` of a message)
and "Streaming events" (``response.output_text.annotation.added``).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.events import CitationAdded

__all__ = [
    "LEFT_OUT",
    "annotated",
    "moved",
    "page_address",
    "read_annotations",
    "read_url_citation",
    "url_citation",
]

LEFT_OUT: Final = "answer.citations"
"""How the record of a run names citations that the client's dialect has no form for."""
_ADDRESSES: Final = ("https://", "http://")


def read_url_citation(said: Any, base: int = 0) -> CitationAdded:
    """A citation with the members of OpenAI's ``url_citation``.

    Its indices count from ``base``.  ``url`` is empty unless the source is a page with an address.
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
    """The citations of a list of annotations, of a message of Chat or a part of Responses."""
    for annotation in annotations if isinstance(annotations, list) else ():
        said = annotation.get("url_citation", annotation) if isinstance(annotation, Mapping) else None
        yield read_url_citation(said, base)


def page_address(value: Any) -> str:
    """An address of a page; empty for anything else, such as the name of a file."""
    return value if isinstance(value, str) and value.startswith(_ADDRESSES) else ""


def url_citation(citation: CitationAdded, base: int, said: int) -> dict[str, Any]:
    """The members of a ``url_citation`` whose indices count from ``base``.

    The dialect has no way to leave the indices out: where nobody knows them, they bound no text, behind all
    that was ``said``.
    """
    known = citation.end > citation.start
    return {
        "start_index": max(0, citation.start - base) if known else said,
        "end_index": max(0, citation.end - base) if known else said,
        "title": citation.title,
        "url": citation.url,
    }


def annotated(citation: CitationAdded, said: int) -> dict[str, Any]:
    """An annotation of a message of Chat."""
    return {"type": "url_citation", "url_citation": url_citation(citation, 0, said)}


def moved(annotations: Any, before: int, count: int = 0) -> Any:
    """Annotations of a message of Chat whose text stands behind ``before`` characters of other turns.

    Those of a stream may have numbers, which go on behind the ``count`` annotations of these turns.
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
    """Where the cited text begins and ends; twice 0 where the upstream does not say."""
    if type(start) is int and type(end) is int and 0 <= start < end:
        return base + start, base + end
    return 0, 0


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""
