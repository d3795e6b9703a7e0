"""If a provider refuses the operator's key, the log says once which setting it came from."""

import io
import json
from typing import Any

import pytest
from client_keys import OK, bearer
from logged import logged_to
from raw_upstream import RawUpstream, whole
from running_proxy import SERVER_KEY, make_config, running
from structlog.testing import capture_logs

from proxy.config.secret import Secret
from proxy.telemetry.refused_keys import RefusedKeys

NO = whole(b'{"error":{"message":"Incorrect API key"}}', status="401 Unauthorized")
FORBIDDEN = whole(b'{"error":{"message":"no"}}', status="403 Forbidden")
BROKEN = whole(b'{"error":{"message":"later"}}', status="500 Oops")
ASKS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/embeddings", {"model": "m", "input": "x"}),
]


async def warned(*answers: Any, **served: Any) -> list[dict[str, Any]]:
    """Send one request for each answer, and return the log lines about the provider's key."""
    log = io.StringIO()
    auth = served.pop("auth", {})
    key = {"api_key": Secret("env:PROVIDER_KEY", SERVER_KEY), **served}
    async with RawUpstream(*answers) as upstream:
        config = make_config({"base_url": upstream.url, **key}, auth=auth)
        with logged_to(log, secrets=config.secrets()):
            async with running(config) as proxy:
                for number in range(len(answers)):
                    path, ask = ASKS[number % 2]
                    await proxy.ask(ask, bearer("sk-client"), path=path)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert SERVER_KEY not in log.getvalue()
    return [line for line in lines if line["event"] == "provider_key_refused"]


async def test_one_line_for_many_requests() -> None:
    """A key that is refused many times makes one warning, which names the setting and the variable."""
    (line,) = await warned(*[NO] * 6)
    assert line["level"] == "warning"
    assert (line["upstream"], line["status"]) == ("default", 401)
    assert line["setting"] == "upstreams.default.api_key (env:PROVIDER_KEY)"
    assert "upstreams.default.api_key (env:PROVIDER_KEY)" in line["hint"]


@pytest.mark.parametrize(
    ("answers", "times"),
    [
        ([NO, OK, NO, NO], 2),
        ([NO, BROKEN, NO], 1),
        ([OK, OK], 0),
        ([BROKEN, OK], 0),
        ([FORBIDDEN, FORBIDDEN], 1),
        ([FORBIDDEN, OK, FORBIDDEN], 1),
        ([FORBIDDEN, OK, NO], 2),
    ],
)
async def test_it_is_logged_again_once_the_key_has_worked(answers: list[Any], times: int) -> None:
    """After a success the next 401 is logged again, but not a 403 so soon, as that may concern one model."""
    assert len(await warned(*answers)) == times


async def test_a_clients_own_key_is_not_ours() -> None:
    """With ``auth.mode`` forward the refused key is the client's, so the log has no warning."""
    assert await warned(NO, NO, auth={"mode": "forward"}) == []


async def test_a_key_in_a_header_is_named_as_that() -> None:
    """The log names the setting of a header with the credential, or says that no key is set."""
    headers = {"x-api-key": Secret("env:OTHER_KEY", "other-other-0123456789")}
    (line,) = await warned(NO, api_key=None, headers=headers)
    assert line["setting"] == "upstreams.default.headers (env:OTHER_KEY)"
    (line,) = await warned(NO, api_key=None)
    assert line["setting"] == "upstreams.default.api_key (not set)"


def test_a_403_is_news_after_a_while() -> None:
    """A 403 is logged again ten minutes after the last one, if the key has worked in between."""
    now = [0.0]
    keys = RefusedKeys({"main": "upstreams.main.api_key"}, clock=lambda: now[0])
    with capture_logs() as lines:
        for at, count in ((0.0, 1), (599.0, 1), (600.0, 2), (700.0, 2)):
            now[0] = at
            keys.refused("main", 403)
            keys.worked("main")
            assert len(lines) == count
        keys.refused("unknown", 401)
    assert len(lines) == 2
