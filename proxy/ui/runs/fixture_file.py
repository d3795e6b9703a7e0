"""Save a captured run as a fixture: a ZIP archive of one exchange, as ``toolrelay record`` writes it."""

import base64
import io
import time
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.http.bodies import REDACTED
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
from proxy.wires.registry.table import STREAM_TYPES


def fixture_of(run: RunRecord, wire: str, tape: Mapping[str, Any], shapes: Sequence[bytes]) -> bytes:
    """Return the archive.

    ``wire`` is the dialect of the upstream, ``tape`` holds the captured bytes of the run. ``shapes`` are
    forms of secrets, which are removed from every body. The only header in the archive is ``Content-Type``,
    because no other is captured.
    """
    bodies: dict[str, bytes] = {}
    times: dict[str, list[tuple[float, int]]] = {}
    for chunk in tape["chunks"]:
        data = base64.b64decode(chunk["data"])
        bodies[chunk["leg"]] = bodies.get(chunk["leg"], b"") + data
        times.setdefault(chunk["leg"], []).append((chunk["at_ms"], len(data)))
    began = time.strftime("%Y-%m-%d", time.gmtime(run.started_at))
    files = {META: meta_text(run.id, f"{began}, {run.upstream}", wire).encode()}
    for leg in tape["legs"]:
        body = bodies.get(leg["id"], b"")
        clean = _scrubbed(body, shapes)
        folder = CLIENT if leg["side"] == "client" else f"{TURN}{leg['turn']}"
        if leg["id"].endswith(".request"):
            files[f"{folder}/{REQUEST}"] = clean
            continue
        streamed = str(leg["content_type"]).partition(";")[0].strip() in STREAM_TYPES
        files[f"{folder}/{EVENTS if streamed else JSON}"] = clean
        if folder != CLIENT:
            sent_at = min(
                (at_ms for at_ms, _ in times.get(leg["id"].replace("response", "request"), ())), default=0.0
            )
            pieces = times.get(leg["id"], ()) if streamed and clean == body else ()
            files[f"{folder}/{RESPONSE}"] = response_text(
                int(leg["status"]),
                [("Content-Type", str(leg["content_type"]))],
                [(max(0.0, at_ms - sent_at), size) for at_ms, size in pieces],
            ).encode()
    return _zipped(run.id, files)


def _scrubbed(data: bytes, shapes: Sequence[bytes]) -> bytes:
    for shape in shapes:
        data = data.replace(shape, REDACTED)
    return data


def _zipped(folder: str, files: Mapping[str, bytes]) -> bytes:
    """Zip the files in one folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{folder}/{name}", data)
    return buffer.getvalue()
