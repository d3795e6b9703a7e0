"""Addresses of images and files that cross dialects: only those that mean the same for every upstream."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from proxy.base.conversation import Conversation, Image, Remote
from proxy.base.errors import RequestError
from proxy.net.public_addresses import is_public_url
from proxy.wires.anthropic.crossing.from_client import read_conversation as from_anthropic
from proxy.wires.chat.crossing.from_client import read_conversation as from_chat
from proxy.wires.responses.crossing.from_client import read_conversation as from_responses

GOOD = (
    "https://a.example/x.png",
    "http://a.example:8080/x y.png?q=ü#f",
    "HTTPS://A.example/x.png",
    "https://8.8.8.8/x.png",
    "https://[2606:4700::1111]/x.png",
    "data:image/svg+xml,%3Csvg/%3E",
)
BAD = (
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "/etc/passwd",
    "gopher://a.example/",
    "ftp://a.example/x.png",
    "s3://bucket/x.png",
    " https://a.example/x.png",
    "\tfile:///etc/passwd",
    "http:\\\\127.0.0.1\\x",
    "http://a.example\\@127.0.0.1/",
    "http://a.example@127.0.0.1/",
    "http://localhost/x.png",
    "http://LOCALHOST./x.png",
    "http://127.0.0.1/x.png",
    "http://127.1/x.png",
    "http://2130706433/x.png",
    "http://0x7f.0.0.1/x.png",
    "http://0/x.png",
    "http://[::1]/x.png",
    "http://[::ffff:10.0.0.1]/x.png",
    "http://[fe80::1%25eth0]/x.png",
    "http://169.254.169.254/latest/meta-data",
    "http://10.0.0.8/x.png",
    "http://metadata.google.internal/x",
    "http://printer.local/x",
    "http://minio/x.png",
    "http://１２７.0.0.1/x.png",
    "http://a.example:port/x",
    "http://",
    "https:a.example/x.png",
)


def chat(url: str) -> Any:
    return {"type": "image_url", "image_url": {"url": url}}


def chat_flat(url: str) -> Any:
    return {"type": "image_url", "image_url": url}


def responses(url: str) -> Any:
    return {"type": "input_image", "image_url": url}


def responses_file(url: str) -> Any:
    return {"type": "input_file", "file_url": url}


def anthropic(url: str) -> Any:
    return {"type": "image", "source": {"type": "url", "url": url}}


def anthropic_file(url: str) -> Any:
    return {"type": "document", "source": {"type": "url", "url": url}}


PLACES: Any = [
    (chat, from_chat, "messages[0].content[0].image_url.url"),
    (chat_flat, from_chat, "messages[0].content[0].image_url"),
    (responses, from_responses, "input[0].content[0].image_url"),
    (responses_file, from_responses, "input[0].content[0].file_url"),
    (anthropic, from_anthropic, "messages[0].content[0].source.url"),
    (anthropic_file, from_anthropic, "messages[0].content[0].source.url"),
]
"""How a part holds an address, how a request with it is read, and the path of the field."""

Reader = Callable[..., Conversation]


def read(reader: Reader, part: Any) -> Conversation:
    """Read a request whose only message has the part, for an upstream of another dialect."""
    said = [{"role": "user", "content": [part]}]
    body: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": said}
    if reader is from_responses:
        body = {"model": "m", "input": said}
    return reader(json.loads(json.dumps(body)))


@pytest.mark.parametrize("url", BAD)
@pytest.mark.parametrize(("part", "reader", "path"), PLACES, ids=lambda one: getattr(one, "__name__", ""))
def test_what_an_upstream_could_fetch_elsewhere_does_not_cross(
    part: Any, reader: Reader, path: str, url: str
) -> None:
    """Files, other schemes, inner hosts in any spelling and ambiguous addresses are a 400 at their field."""
    with pytest.raises(RequestError) as refused:
        read(reader, part(url))
    assert (refused.value.status, refused.value.param) == (400, path)
    assert "Send the content itself as a data: URL" in refused.value.message


@pytest.mark.parametrize("url", GOOD)
@pytest.mark.parametrize(("part", "reader", "path"), PLACES, ids=lambda one: getattr(one, "__name__", ""))
def test_public_addresses_cross_as_they_are(part: Any, reader: Reader, path: str, url: str) -> None:
    """A public http or https address and a data: URL stay as the client wrote them."""
    (found,) = read(reader, part(url)).messages[0].parts
    assert found.source == Remote(url)  # type: ignore[union-attr]
    assert isinstance(found, Image) or "file" in part.__name__
    assert is_public_url(url) or url.startswith("data:")
