"""The official client sends files through a proxy without client keys."""

import openai
import pytest
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running

pytestmark = pytest.mark.slow


async def test_the_official_client_sends_files() -> None:
    """An open proxy passes forms with files, and a call without a body, as the client sends them."""
    scripts = (
        whole(b'{"text": "heard"}'),
        whole(b'{"id": "file-1", "object": "file"}'),
        whole(b'{"created": 1, "data": []}'),
        whole(b'{"id": "batch-1", "object": "batch"}'),
    )
    async with RawUpstream(*scripts) as upstream, running(make_config(upstream.url)) as proxy:
        address = f"http://127.0.0.1:{proxy.port}/v1"
        async with openai.AsyncOpenAI(base_url=address, api_key="unused", max_retries=0) as client:
            heard = await client.audio.transcriptions.create(file=("a.wav", b"sound"), model="whisper-1")
            kept = await client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
            await client.images.edit(image=("a.png", b"picture"), prompt="blue")
            await client.batches.cancel("batch-1")
        assert (heard.text, kept.id) == ("heard", "file-1")
        assert [request.target for request in upstream.requests] == [
            "/v1/audio/transcriptions",
            "/v1/files",
            "/v1/images/edits",
            "/v1/batches/batch-1/cancel",
        ]
        forms = upstream.requests[:3]
        assert all((form.header("content-type") or "").startswith("multipart/form-data") for form in forms)
        assert [b"sound" in forms[0].body, b"{}" in forms[1].body, b"picture" in forms[2].body] == [True] * 3
