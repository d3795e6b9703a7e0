"""If an upstream repeats the proxy's key, the proxy neither stores it nor composes it into an answer."""

import json
from pathlib import Path

import pytest
from faults_rig import ECHO, ask, before
from raw_upstream import LAST_CHUNK, RawUpstream, Step, chunk, head, whole
from running_proxy import SERVER_KEY, make_config, running
from wire_kits import Kit

ESCAPED = SERVER_KEY.replace("s", "\\u0073", 1)


def in_the_middle(before: int, after: int, last: str = "") -> str:
    """Return a text with the proxy's key in the second of three equal parts, as the kits cut texts."""
    return f"{'a' * before}{SERVER_KEY:<30}{last:b>{after}}"


def cut_in_two(script: list[Step], at: bytes) -> list[Step]:
    """Return the same body in two reads of the network, the first of which ends within ``at``."""
    if isinstance(script[0], bytes) and not script[0].endswith(b"\r\n\r\n"):
        middle = script[0].index(at) + 5
        return [script[0][:middle], 0.02, script[0][middle:], *script[1:]]
    data = next(step for step in script if isinstance(step, bytes) and at in step)
    _, _, body = data.partition(b"\r\n")
    body = body.removesuffix(b"\r\n")
    middle = body.index(at) + 5
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    return [opening, chunk(body[:middle]), 0.02, chunk(body[middle:]), LAST_CHUNK, script[-1]]


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("spelled", [SERVER_KEY, ESCAPED], ids=["plain", "escaped"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "reply"])
async def test_our_key_is_not_kept(kit: Kit, tmp_path: Path, stream: bool, spelled: str, cut: bool) -> None:
    """C42: the key is removed from what a turn says, so the record, tools and later requests lack it."""
    arguments = json.dumps({"text": in_the_middle(20, 28)})
    first = kit.result(stream, in_the_middle(30, 30), ("call_1", ECHO, arguments))
    last = kit.result(stream, in_the_middle(30, 30, "it is."))
    scripts = [[_spelled(step, spelled) for step in script] for script in (first, last)]
    if cut:
        scripts = [cut_in_two(script, spelled.encode()) for script in scripts]
    store = {"url": f"sqlite:///{tmp_path}/record.db", "content": "all"}
    more = {"store": True} if kit.name == "responses" else {}
    async with before(*scripts, store=store) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=stream, **more)
        assert (answer.status, answer.clean, len(upstream.requests)) == (200, True, 2)
        assert kit.said(stream, answer.body).text.endswith("it is.")
        said = answer.body + upstream.requests[1].body
        if kit.name == "responses":
            path = "/v1/responses/resp_1"
            for form in ("", "?stream=true"):
                again = await proxy.ask(None, method="GET", path=path + form)
                assert again.status == 200
                assert b"it is." in again.body
                said += again.body
    at_rest = files_of(tmp_path)
    assert b"probe_tools__echo" in at_rest
    for each in (said, at_rest):
        for spelling in (SERVER_KEY, ESCAPED, ESCAPED.replace("\\", "\\\\")):
            assert spelling.encode() not in each


def files_of(folder: Path) -> bytes:
    """Return the content of all files in a folder."""
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


def _spelled(step: Step, spelled: str) -> Step:
    """Return a step with another spelling of the key, and the length or frame corrected."""
    if not isinstance(step, bytes) or SERVER_KEY.encode() not in step or spelled == SERVER_KEY:
        return step
    body = step.replace(SERVER_KEY.encode(), spelled.encode())
    grown = len(body) - len(step)
    opening, blank, rest = step.partition(b"\r\n\r\n")
    if step.startswith(b"HTTP/"):
        length = len(rest)
        opening = opening.replace(b"Content-Length: %d" % length, b"Content-Length: %d" % (length + grown))
        return opening + blank + rest.replace(SERVER_KEY.encode(), spelled.encode())
    _, _, framed = body.partition(b"\r\n")
    return chunk(framed.removesuffix(b"\r\n"))


@pytest.mark.parametrize("spelled", [SERVER_KEY, ESCAPED], ids=["plain", "escaped"])
async def test_a_list_of_models_has_no_key_of_ours(spelled: str) -> None:
    """C42: lists of models and single models that the proxy composes do not contain its key."""
    said = b'{"object":"list","data":[{"id":"m","note":"it is %s now"}]}' % spelled.encode()
    none = whole(b'{"object":"list","data":[]}')
    async with RawUpstream(whole(said)) as one, RawUpstream(none) as other:
        config = make_config(one.url, {"name": "other", "base_url": other.url, "models": ["x"]})
        async with running(config) as proxy:
            for path in ("/v1/models", "/v1/models/m"):
                answer = await proxy.ask(None, method="GET", path=path)
                assert answer.status == 200
                assert b'"note":"it is *****' in answer.body
                assert SERVER_KEY.encode() not in answer.body
