"""The access log: its line has the code of a refusal, and tells the upstream's errors from the proxy's."""

import io
import json
from typing import Any

import pytest
from chat_script import call, finish, role, stream
from closed_port import closed_port
from logged import logged_to
from raw_upstream import RawUpstream, Step, whole
from running_proxy import make_config, running
from waiting import until

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TIME = "core__get_current_time"
REFUSED = whole(
    b'{"error":{"message":"slow down","type":"x","param":null,"code":"theirs"}}',
    status="429 Too Many Requests",
)
CALLED = stream(role(), call("c1", TIME, '{"timezone":"UTC"}'), finish("tool_calls"))


async def logged(*scripts: list[Step], ask: Any = ASK, **config: Any) -> dict[str, Any]:
    """Send one request, and return its line of the access log."""
    sink = io.StringIO()
    target = {name: config.pop(name) for name in ("method", "path") if name in config}
    headers = config.pop("headers", ())
    with logged_to(sink):
        async with RawUpstream(*scripts or [REFUSED]) as upstream:
            url = config.pop("url", upstream.url)
            async with running(make_config(url, **config)) as proxy:
                answer = await proxy.ask(ask, headers, **target)
        await until(lambda: '"event":"request"' in sink.getvalue())
    line: dict[str, Any]
    (line,) = [made for made in map(json.loads, sink.getvalue().splitlines()) if made["event"] == "request"]
    assert line["status"] == answer.status
    return line


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"method": "GET", "path": "/nowhere"}, "not_found"),
        ({"ask": b"{"}, ""),
        ({"headers": [("Origin", "http://elsewhere.example")]}, ""),
    ],
)
async def test_a_refusal_of_ours_says_why(config: dict[str, Any], code: str) -> None:
    """If the proxy refuses a request, its log line has the error code, or else the error's type."""
    line = await logged(**config)
    assert 400 <= line["status"] < 500
    assert line["error_code"]
    assert not code or line["error_code"] in (code, "invalid_request_error")
    assert "upstream_status" not in line


@pytest.mark.parametrize("allow", [(), (TIME,)], ids=["passed", "orchestrated"])
async def test_an_upstream_that_is_not_there_is_our_word(allow: tuple[str, ...]) -> None:
    """If the upstream cannot be reached, the log line has the proxy's code, with tools and without."""
    with closed_port() as port:
        line = await logged(url=f"http://127.0.0.1:{port}/v1", allow=allow)
    assert (line["status"], line["error_code"]) == (502, "upstream_unreachable")


async def test_an_error_of_the_upstream_that_passes_through_is_not_ours() -> None:
    """An upstream's error that passes through is logged with its status, without a code of the proxy."""
    line = await logged(REFUSED, allow=())
    assert (line["status"], line["upstream_status"]) == (429, 429)
    assert "error_code" not in line


async def test_an_upstream_that_refuses_a_later_turn_is_named_as_the_cause() -> None:
    """A failed later turn is logged as ``upstream_error``, since a provider's own code may be anything."""
    line = await logged(CALLED, REFUSED, REFUSED, REFUSED, ask={**ASK, "stream": True}, allow=(TIME,))
    assert line["error_code"] == "upstream_error"
