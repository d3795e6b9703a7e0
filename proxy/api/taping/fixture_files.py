"""The files of a fixture, from the bytes of a run: one exchange, as ``toolrelay record`` writes it."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from proxy.api.taping.tape import Leg, Taped
from proxy.records.rows import RunRecord
from proxy.upstreams.recorded.format import (
    CLIENT,
    EVENTS,
    JSON,
    META,
    REQUEST,
    RESPONSE,
    TURN,
    meta_text,
    response_text,
)
from proxy.wires.registry.table import BY_WIRE, STREAM_TYPES

_REQUEST: Final = ".request"


def fixture_files(
    run: RunRecord, wire: str, taped: Taped, clean: Callable[[bytes], bytes]
) -> Mapping[str, bytes]:
    """Return the files by their paths in the folder of the exchange.

    ``wire`` is the dialect of the upstream; ``clean`` removes secrets from a body. The only header is
    ``Content-Type``, because no other is kept. Of the requests of one turn only the last is there: the
    upstream refused the others.
    """
    began = time.strftime("%Y-%m-%d", time.gmtime(run.started_at))
    client = BY_WIRE.get(run.wire)
    meta = meta_text(run.id, f"{began}, {run.upstream}", wire, client_path=client.path if client else "")
    folders: dict[str, dict[str, bytes]] = {}
    for leg in taped.legs.values():
        if leg.name.endswith(_REQUEST):
            folder = CLIENT if leg.side == "client" else f"{TURN}{leg.turn}"
            asked = taped.legs.get(f"{leg.name.removesuffix(_REQUEST)}.response")
            folders[folder] = _exchange(leg, asked, clean)
    paths = {f"{folder}/{name}": data for folder, files in folders.items() for name, data in files.items()}
    return {META: meta.encode(), **paths}


def _exchange(asked: Leg, answered: Leg | None, clean: Callable[[bytes], bytes]) -> dict[str, bytes]:
    """Return the files of one request; those of the answer only if there was one."""
    files = {REQUEST: clean(b"".join(data for _, data in asked.pieces))}
    if answered is None or answered.status is None:
        return files
    body = b"".join(data for _, data in answered.pieces)
    streamed = answered.content_type.partition(";")[0].strip() in STREAM_TYPES
    files[EVENTS if streamed else JSON] = cleaned = clean(body)
    sent_at = min((at for at, _ in asked.pieces), default=0.0)
    # The sizes of the pieces are those of the body as it was.
    pieces = answered.pieces if streamed and cleaned == body else ()
    files[RESPONSE] = response_text(
        answered.status,
        [("Content-Type", answered.content_type)],
        [(max(0.0, at - sent_at) * 1000, len(data)) for at, data in pieces],
        broken=answered.error is not None,
    ).encode()
    return files
