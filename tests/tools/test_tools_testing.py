"""``ToolTester``, with which authors test their tools: it behaves like the proxy."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from proxy.base.errors import ConfigError
from proxy.tools import CacheControl, Clock, HttpClient, HttpFailure, Redaction, ToolFailure, ToolTester, tool
from proxy.tools.testing import UnexpectedRequest

URL = "https://api.shop.example/orders"


class Order(BaseModel):
    """An order."""

    total: float


@tool(
    effect="read_only",
    redaction=Redaction(output=("total",), private_arguments=("pin",)),
    hosts=("api.shop.example",),
    connection="shop",
    output=Order,
)
async def order(number: str, pin: str, http: HttpClient, clock: Clock) -> Any:
    """Look an order up."""
    if number == "leak":
        raise ToolFailure("no such order")
    if number == "crash":
        raise KeyError(pin)
    try:
        found = await http.get_json(URL, {"number": number})
    except HttpFailure as failure:
        raise ToolFailure(f"the shop says: {failure.json['error']}") from failure
    await http.post_json(URL, {"seen": clock.now(UTC).isoformat()}, headers={"X-Version": "2"})
    return found


@pytest.fixture
def tester() -> ToolTester:
    """A tester with answers of the shop."""
    one = ToolTester(order)
    one.http.answer(URL, {"total": 42.5, "internal": "x"}, params={"number": "A-17"})
    one.http.answer(URL, {"error": "closed"}, params={"number": "B-1"}, status=503)
    one.http.answer(URL, None, method="POST")
    return one


def test_a_call(tester: ToolTester) -> None:
    """A test can inspect the result, the redacted views, the schema, the requests and the connections."""
    tester.clock.set("2026-11-21T14:05:00+01:00")
    result = tester.call(number="A-17", pin="4711-secret")
    assert (result.ok, result.json) == (True, {"total": 42.5})
    assert result.redacted == {"total": 42.5}
    assert result.arguments_redacted == {"number": "A-17", "pin": "[private]"}
    result.assert_hidden("4711-secret", "internal")
    assert list(tester.spec.parameters["properties"]) == ["number", "pin"]
    assert tester.connections == ["shop"]
    first, second = tester.http.requests
    assert (first.method, first.params) == ("GET", {"number": "A-17"})
    assert (second.body, second.headers) == ({"seen": "2026-11-21T13:05:00+00:00"}, {"X-Version": "2"})


def test_what_is_shown_is_found(tester: ToolTester) -> None:
    """``assert_hidden`` fails if the value appears in the log."""
    result = tester.call(number="A-17", pin="x")
    with pytest.raises(AssertionError, match="appears in the log"):
        result.assert_hidden("A-17")


def test_errors(tester: ToolTester) -> None:
    """For errors of all kinds the tester gives the message and the code that the model gets."""
    assert tester.call(number="B-1", pin="x").message == "the shop says: closed"
    assert tester.call(number="leak", pin="x").message == "no such order"
    bad = tester.call(number=1, pin="x")
    assert (bad.error_code, bad.exception) == ("invalid_arguments", None)
    assert tester.call_text('{"number":').error_code == "invalid_json"
    crash = tester.call(number="crash", pin="s3cret")
    assert (crash.message, type(crash.exception)) == ("the tool failed", KeyError)
    crash.assert_hidden("s3cret")


def test_a_request_nobody_answers_fails_the_test(tester: ToolTester) -> None:
    """A request without a prepared answer fails the test; it is not a failure of the tool."""
    with pytest.raises(UnexpectedRequest, match="no answer for GET"):
        tester.call(number="C-1", pin="x")
    assert tester.call(number="A-17", pin="x").ok, "and the next call is as new"


def test_hosts_are_held_as_the_real_client_holds_them() -> None:
    """The tester refuses a call to a host or port that the tool does not declare, like the real client."""

    @tool(effect="read_only", redaction=Redaction(), hosts=("API.shop.example", "*.cdn.example"))
    async def fetch(url: str, http: HttpClient) -> Any:
        """Fetch."""
        return await http.get_json(url)

    tester = ToolTester(fetch)
    for url in ("https://api.shop.example/a", "https://x.cdn.example/b", "https://www.shop.example/c"):
        tester.http.answer(url, 1)
    assert tester.call(url="https://api.shop.example/a").ok
    assert tester.call(url="https://x.cdn.example/b").ok
    assert tester.call(url="https://www.shop.example/c").message == "this tool may not call that host"
    assert tester.call(url="https://api.shop.example:8443/a").message == "this tool may not call that host"
    assert len(tester.http.requests) == 2


def test_headers_are_held_as_the_real_client_holds_them() -> None:
    """Rule T6: the tester refuses headers that a tool may not set, like the real client."""

    @tool(redaction=Redaction(), hosts=("a.example",))
    async def send(http: HttpClient) -> Any:
        """Send."""
        return await http.post_json("https://a.example/", {}, headers={"Authorization": "Bearer x"})

    tester = ToolTester(send)
    tester.http.answer("https://a.example/", 1, method="POST")
    assert "may not set: authorization" in str(tester.call().exception)
    assert not tester.http.requests


def test_clock_takes_a_moment_in_either_form(tester: ToolTester) -> None:
    """The clock accepts text or a ``datetime``, but only with a zone."""
    tester.clock.set(datetime(2030, 1, 2, 3, tzinfo=UTC))
    assert tester.clock.now(UTC) == datetime(2030, 1, 2, 3, tzinfo=UTC)
    with pytest.raises(ValueError, match="with its zone"):
        tester.clock.set(datetime(2030, 1, 2, 3))


async def test_in_a_coroutine(tester: ToolTester) -> None:
    """``acall`` does the same as ``call``, for tests that are coroutines."""
    assert (await tester.acall(number="A-17", pin="x")).ok


def test_answers_are_not_shared() -> None:
    """Each request gets its own copy of an answer, and the newest matching answer is used."""

    @tool(effect="read_only", redaction=Redaction(), hosts=("a.example",))
    async def change(http: HttpClient) -> int:
        """Change."""
        found = await http.get_json("https://a.example/")
        found.append(1)
        return len(found)

    tester = ToolTester(change)
    tester.http.answer("https://a.example/", ["old", "old"])
    tester.http.answer("https://a.example/", [])
    assert [tester.call().json for _ in range(2)] == [1, 1]


def test_pages_and_the_clock() -> None:
    """``get_text`` gives a prepared page, and the test moves the clock."""

    @tool(effect="read_only", redaction=Redaction(), hosts=("a.example",))
    async def read(http: HttpClient, clock: Clock) -> list[str]:
        """Read."""
        page = await http.get_text("https://a.example/")
        return [page.text, page.content_type, clock.now(UTC).isoformat()]

    tester = ToolTester(read)
    tester.http.answer("https://a.example/", "<p>hi", content_type="text/html")
    tester.clock.advance(1.5)
    assert tester.call().json == ["<p>hi", "text/html", "2026-01-01T12:00:01.500000+00:00"]
    with pytest.raises(ValueError, match="zone"):
        tester.clock.set("2026-01-01T00:00:00")


@pytest.mark.parametrize(("keep", "runs"), [(False, 2), (True, 1)])
def test_cache(keep: bool, runs: int) -> None:
    """The tester caches results between calls only with ``keep_cache``, and until they expire."""
    times = 0

    @tool(effect="read_only", redaction=Redaction(), cache_ttl_s=60)
    async def count(cache: CacheControl) -> int:
        """Count."""
        nonlocal times
        times += 1
        cache.expire_at(datetime(2026, 1, 1, 13, tzinfo=UTC))
        return times

    tester = ToolTester(count, keep_cache=keep)
    tester.call()
    assert tester.call().json == runs
    tester.clock.advance(3600)
    assert tester.call().json == runs + 1


def test_a_tool_that_cannot_load() -> None:
    """A tool that would stop the start fails in the tester with the same error."""

    @tool
    async def bare() -> None:
        """Do."""

    with pytest.raises(ConfigError, match="redaction_missing"):
        ToolTester(bare)


def test_a_failed_assertion_in_a_tool_is_the_tests() -> None:
    """An ``AssertionError`` in a tool fails the test instead of becoming "the tool failed"."""

    @tool(effect="read_only", redaction=Redaction())
    async def check() -> None:
        """Check."""
        raise AssertionError("broken")

    with pytest.raises(AssertionError, match="broken"):
        ToolTester(check).call()
