"""Every recorded answer in each other dialect, read by the official client of that dialect."""

from collections import Counter
from itertools import permutations

import pytest
from cases import case
from crossed_recordings import WIRES, Recording, comparable, crossed, meant, ours, read, recordings
from official_clients import READERS

SMALL = 2048
"""Smaller recordings, in bytes, are read byte by byte; larger ones in larger pieces, to save time."""


@pytest.mark.parametrize(("wire", "client"), [*permutations(WIRES, 2)])
def test_the_official_client_reads_it(wire: str, client: str) -> None:
    """The client reads without error the text, calls, reason and tokens of each answer of another dialect."""
    for recording in recordings():
        if recording.wire == wire:
            with case(recording.name):
                _client_reads_it(recording, client)


def _client_reads_it(recording: Recording, client: str) -> None:
    said = meant(read(recording))
    assert said is not None
    wanted = comparable(said, recording, client)
    for size in (0, 1 if len(recording.data) < SMALL else 61):
        data = crossed(recording, client, size=size)
        pieces = [data[at : at + size] for at in range(0, len(data), size)] if size else [data]
        heard = READERS[client](pieces, stream=recording.stream)
        assert comparable(heard, recording, client) == wanted


MISREAD = {
    *("azure.chat/empty-first-chunk-2", "gateway.chat/double-encoded-1", "gateway.chat/repeated-ids-1"),
    *("gateway.chat/sparse-index-1", "gemini.chat/missing-index-1", "gemini.chat/thought-signature-1"),
    *("mistral.chat/content-parts-1", "ollama.chat/shared-index-1", "openai.chat/legacy-function-call-1"),
    *("openai.chat/stop-with-calls-1", "perplexity.chat/cumulative-usage-1", "qwen.chat/empty-ids-1"),
    *("vllm.chat/null-arguments-1", "llamacpp.chat/n2-1", "llamacpp.chat/object-arguments-1"),
    *(f"llamacpp.responses/{name}-1" for name in ("length", "parallel", "text", "think-tool")),
    *("llamacpp.responses/tool-2", "llamacpp.responses/weather-2"),
}
"""Answers that the native client cannot read, or reads wrongly; the proxy repairs them."""


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("wire", [*READERS])
def test_the_native_client_reads_the_same(wire: str) -> None:
    """The native client reads the values that the test above compares, except for the ``MISREAD`` answers."""
    whole = recordings()
    for recording in ours():
        if recording.wire == wire and recording in whole:
            with case(recording.name):
                assert _native_client_reads_it(recording) is (recording.name not in MISREAD)


def _native_client_reads_it(recording: Recording) -> bool:
    said = meant(read(recording))
    assert said is not None
    try:
        heard = READERS[recording.wire]([recording.data], stream=recording.stream)
    except (AttributeError, IndexError, TypeError, RuntimeError, AssertionError, ValueError):
        return False  # The client fails on these defects of a server.
    return comparable(heard, recording, recording.wire) == comparable(said, recording, recording.wire)


def test_there_are_recordings_of_every_dialect() -> None:
    """Every dialect is tested as an upstream's and as a client's, with enough recordings."""
    assert set(READERS) == set(WIRES)
    whole = Counter(recording.wire for recording in recordings() if recording in list(ours()))
    assert {wire: least for wire, least in LEAST.items() if whole[wire] < least} == {}


LEAST = {"chat": 60, "responses": 10, "anthropic": 20, "ollama": 19}
"""How many complete answers the project must have recorded, at least, for each dialect."""
