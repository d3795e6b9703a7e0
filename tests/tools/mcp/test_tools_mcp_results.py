"""How results of MCP tools are converted to what the model reads."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.errors import ToolFailure
from proxy.tools.mcp.results import MAX_ITEMS, failure_of_error, read_result

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n0000").decode()


def words(*blocks: Any, **more: Any) -> str:
    """The text of a result of these blocks."""
    return read_result({"content": list(blocks), **more}).text


def test_texts_are_joined_by_lines() -> None:
    """Text blocks are joined by line breaks, without invisible characters."""
    assert words({"type": "text", "text": "a"}, {"type": "text", "text": "b\u200b"}) == "a\nb"


def test_an_image_is_passed_on_as_bytes() -> None:
    """An image block gives the decoded bytes and the declared media type."""
    result = read_result({"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]})
    (image,) = result.images
    assert image.data == base64.b64decode(PNG)
    assert image.media_type == "image/png"


@pytest.mark.parametrize(
    ("block", "note"),
    [
        ("text", "no content block"),
        ({"type": "text", "text": 3}, "text was left out"),
        ({"type": "image", "data": "%%%"}, "no base64"),
        ({"type": "audio", "data": PNG, "mimeType": "audio/wav"}, "sound was left out (audio/wav"),
        ({"type": "hologram"}, "not known here"),
        (
            {"type": "resource", "resource": {"uri": "x:y", "blob": PNG, "mimeType": "a/b"}},
            "x:y was left out",
        ),
        ({"type": "resource_link", "uri": "javascript:alert(1)"}, "points at javascript:"),
        ({"type": "resource_link"}, "no address"),
        ({"type": "text", "text": "psst", "annotations": {"audience": ["user"]}}, "for a person only"),
    ],
)
def test_what_is_not_taken_is_noted(block: Any, note: str) -> None:
    """A block that cannot be passed on is replaced by a note, and the rest of the result is kept."""
    text = words({"type": "text", "text": "kept"}, block)
    assert text.startswith("kept\n[toolrelay: ")
    assert note in text
    assert "psst" not in text


def test_a_resource_is_its_text_and_a_link_is_never_fetched() -> None:
    """The model gets a resource's URI and text; of a link it gets the URI and the name."""
    text = words({"type": "resource", "resource": {"uri": "file:///a", "text": "hello"}})
    assert text == "[resource file:///a]\nhello"
    result = read_result({"content": [{"type": "resource_link", "uri": "https://x.example/a", "name": "A"}]})
    (link,) = result.links
    assert (link.uri, link.title) == ("https://x.example/a", "A")


@pytest.mark.parametrize(
    ("text", "structured", "said"),
    [
        ('{"a": 1}', {"a": 1}, '{"a": 1}'),
        ("3", {"result": 3}, "3"),
        ("hello", {"result": "hello"}, "hello"),
        ("hello", {"content": "hello"}, "hello"),
        ("done", {"a": 1}, 'done\n{"a": 1}'),
        (None, {"a": 1}, '{"a": 1}'),
    ],
)
def test_structured_content_is_added_where_no_text_says_it(
    text: str | None, structured: Any, said: str
) -> None:
    """Structured content is added as JSON unless a text block says the same."""
    blocks = [] if text is None else [{"type": "text", "text": text}]
    assert words(*blocks, structuredContent=structured) == said


def test_an_error_is_a_failure_in_the_servers_words() -> None:
    """An error result becomes a failure with the server's text, cut after 1,000 characters."""
    with pytest.raises(ToolFailure, match="no such file") as raised:
        read_result({"isError": True, "content": [{"type": "text", "text": "no such file"}]})
    assert raised.value.code == "execution_failed"
    with pytest.raises(ToolFailure) as raised:
        read_result({"isError": True, "content": [{"type": "text", "text": "x" * 5000}]})
    assert len(raised.value.message) == 1000


@pytest.mark.parametrize(
    "result",
    [None, [], "x", {"resultType": "input_required", "inputRequests": {}}, {"resultType": "task"}],
)
def test_what_is_no_result_is_a_failure(result: Any) -> None:
    """A result of another form, or one that asks for input, is a failure."""
    with pytest.raises(ToolFailure):
        read_result(result)


def test_a_result_that_says_nothing_says_so() -> None:
    """A result without content says so, instead of giving the model an empty text."""
    assert words() == '{"ok": true, "message": "no content"}'


def test_a_result_has_a_bound_of_parts() -> None:
    """A result may have ``MAX_ITEMS`` blocks; one note replaces the others."""
    text = words(*({"type": "text", "text": "a"} for _ in range(MAX_ITEMS + 50)))
    assert text.count("a\n") == MAX_ITEMS
    assert text.count("toolrelay") == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ({"code": -32602, "message": "bad path"}, "invalid_arguments", "bad path"),
        ({"code": -32602}, "invalid_arguments", "the server does not take these arguments"),
        ({"code": -32601, "message": "gone"}, "execution_failed", "gone"),
        ({"code": -32601, "message": ""}, "execution_failed", "the server does not have this tool any more"),
        ({"code": 1, "message": "a\u200bb" + "x" * 5000}, "execution_failed", "ab" + "x" * 998),
        ({"code": 1}, "execution_failed", "the server answered with an error"),
        ({"message": 3}, "execution_failed", "the server answered with an error"),
    ],
)
def test_protocol_errors_are_failures(error: dict[str, Any], code: str, said: str) -> None:
    """A protocol error becomes a failure with the server's words, cut, or with ours if it has none."""
    failure = failure_of_error(error)
    assert (failure.code, failure.message) == (code, said)


FIELDS = ("text", "data", "uri", "resource", "mimeType", "annotations")

json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.lists(
        json_values
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "image", "audio", "resource", "resource_link", "x"])},
            optional=dict.fromkeys(FIELDS, json_values),
        ),
        max_size=6,
    ),
    json_values,
)
def test_nothing_that_a_server_says_breaks_the_reader(blocks: list[Any], structured: Any) -> None:
    """Any content blocks and structured content give a result, and never an exception."""
    assert read_result({"content": blocks, "structuredContent": structured}).text is not None
