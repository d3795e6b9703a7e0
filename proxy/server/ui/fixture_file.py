"""A captured run as a fixture: a ZIP archive of one exchange, as ``toolrelay record`` writes them."""

import base64
import io
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from proxy.http.bodies import REDACTED
from proxy.records import RunRecord
from proxy.wires.dialects.table import STREAM_TYPES

__all__ = ["fixture_of"]


def fixture_of(run: RunRecord, wire: str, tape: Mapping[str, Any], shapes: Sequence[bytes]) -> bytes:
    """The archive.  ``wire`` is the dialect of the upstream, ``tape`` what was captured of the run.

    ``shapes`` are texts of secrets, which are taken out of every body.  No header is written but
    ``Content-Type``: nothing else is captured.
    """
    bodies: dict[str, bytes] = {}
    times: dict[str, list[tuple[float, int]]] = {}
    for chunk in tape["chunks"]:
        data = base64.b64decode(chunk["data"])
        bodies[chunk["leg"]] = bodies.get(chunk["leg"], b"") + data
        times.setdefault(chunk["leg"], []).append((chunk["at_ms"], len(data)))
    began = time.strftime("%Y-%m-%d", time.gmtime(run.started_at))
    meta = {"title": run.id, "recorded": f"{began}, {run.upstream}", "wire": wire}
    files = {"meta.toml": "".join(f"{name} = {_toml(text)}\n" for name, text in meta.items()).encode()}
    for leg in tape["legs"]:
        body = bodies.get(leg["id"], b"")
        clean = _scrubbed(body, shapes)
        folder = "client" if leg["side"] == "client" else f"turn-{leg['turn']}"
        if leg["id"].endswith(".request"):
            files[f"{folder}/request.json"] = clean
            continue
        streamed = str(leg["content_type"]).partition(";")[0].strip() in STREAM_TYPES
        files[f"{folder}/response.{'sse' if streamed else 'json'}"] = clean
        if folder != "client":
            sent_at = min(
                (at for at, _ in times.get(leg["id"].replace("response", "request"), ())), default=0.0
            )
            pieces = times.get(leg["id"], ()) if streamed and clean == body else ()
            files[f"{folder}/response.toml"] = _answer(leg, [(at - sent_at, size) for at, size in pieces])
    return _zipped(run.id, files)


def _answer(leg: Mapping[str, Any], pieces: Iterable[tuple[float, int]]) -> bytes:
    """The text of a ``response.toml``."""
    lines = [
        f"status = {leg['status']}",
        f'headers = [["Content-Type", {_toml(str(leg["content_type"]))}]]',
    ]
    shown = "".join(f"  [{max(0.0, at):.2f}, {size}],\n" for at, size in pieces)
    if shown:
        lines += ["# network pieces: [milliseconds since the request, bytes]", f"chunks = [\n{shown}]"]
    return ("\n".join(lines) + "\n").encode()


def _toml(text: str) -> str:
    """A TOML string: JSON's are that, too."""
    return orjson.dumps(text).decode()


def _scrubbed(data: bytes, shapes: Sequence[bytes]) -> bytes:
    for shape in shapes:
        data = data.replace(shape, REDACTED)
    return data


def _zipped(folder: str, files: Mapping[str, bytes]) -> bytes:
    """The files in one folder of an archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{folder}/{name}", data)
    return buffer.getvalue()
