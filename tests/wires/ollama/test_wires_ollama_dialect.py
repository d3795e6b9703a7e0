"""Ollama's chat as data: the lines of a stream."""

import json

import pytest

from proxy.wires.ollama.dialect import line


@pytest.mark.parametrize(
    "text",
    [
        "",
        "so",
        "\x85",
        "one\u2028two\u2029\u2029",
        "Zürich 👩‍👩‍👧 \u2027\u202a\u0084",
        "\n\r\x0b\x0c\x1c\\u2028",
    ],
)
def test_a_line_is_one_for_every_client(text: str) -> None:
    """The proxy escapes every character at which ollama-python, like ``str.splitlines``, would end a line."""
    data = line({"message": {"content": text}})
    assert data.endswith(b"\n")
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data) == {"message": {"content": text}}
