"""Answer ``/ui/api/capture``, and provide the captured bytes of a run."""

import asyncio
import io
import secrets
import zipfile
from collections.abc import Collection, Container, Iterable, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web

from proxy.api.admin.queries import json_answer, page, parse_query
from proxy.api.taping.fixture_files import fixture_files
from proxy.api.taping.tape import MAX_BYTES
from proxy.api.taping.taping import CAPTURES, MOST_RUNS, MOST_S, Order, Taping
from proxy.base.errors import RequestError
from proxy.records.rows import RunRecord
from proxy.server.auth.key_names import recorded_caller
from proxy.server.peers import Peers
from proxy.store.base import Store
from proxy.ui.requests import read_object
from proxy.ui.runs.aligning import aligned
from proxy.ui.runs.members import members_of, reasons_of
from proxy.ui.surface import UiRequest
from proxy.upstreams.recorded.scrubbing import Scrubbing
from proxy.wires.crossing.tables import FieldTable


def _zipped(folder: str, files: Mapping[str, bytes]) -> bytes:
    """Zip the files in one folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{folder}/{name}", data)
    return buffer.getvalue()


_MOST_ORDERS: Final = 10
_LONGEST_KEY: Final = 80


class Capturing:
    """Answers ``/ui/api/capture``. ``declared`` are the names of the keys in the configuration."""

    def __init__(
        self,
        taping: Taping,
        peers: Peers,
        store: Store,
        declared: Container[str],
        *,
        wires: Mapping[str, Collection[str]],
        tables: Mapping[str, FieldTable],
        secrets: Iterable[str] = (),
    ) -> None:
        """Create the handler. ``wires`` are the dialects of each upstream, ``tables`` say how each dialect's
        fields are translated; ``secrets`` are removed from fixtures."""
        self._wires = wires
        self._tables = tables
        self._clean = Scrubbing(secrets).clean
        self._taping = taping
        self._captures = taping.captures
        self._peers = peers
        self._store = store
        self._declared = declared

    async def answer(self, request: UiRequest) -> web.Response:
        """List the orders, start one, or end one."""
        parse_query(request.target.query)
        if request.method == "DELETE" and request.rest:
            if not await self._captures.end(request.rest):
                raise request.unknown()
            await self._peers.ask_all(CAPTURES)
            return web.Response(status=204)
        if request.rest:
            raise request.unknown()
        request.allow("GET", "POST")
        if request.method == "POST":
            return json_answer(await self._begin(request))
        return json_answer(page([order.as_json() for order in self._captures.live()], more=False))

    async def wire(self, run: RunRecord) -> dict[str, Any]:
        """Return the kept or captured bytes of a run, aligned, and what became of the request's members."""
        run_id = run.id
        taped = await self._taping.find(run_id)
        if taped is None:
            return {
                "object": "ui.wire",
                "run_id": run_id,
                "captured": False,
                "reason": self._missing(),
                "truncated": False,
                "legs": [],
                "chunks": [],
                "alignment": [],
                "members": {},
                "left_out": [],
            }
        content = await asyncio.to_thread(taped.json)
        spans = await asyncio.to_thread(aligned, content["legs"], content["chunks"])
        return {
            "object": "ui.wire",
            "run_id": run_id,
            "captured": True,
            "reason": None,
            **content,
            "alignment": spans,
            **self._meaning(run),
        }

    def _meaning(self, run: RunRecord) -> dict[str, Any]:
        client, upstream = self._tables.get(run.wire), self._tables.get(self._spoken(run))
        if client is None or upstream is None:
            return {"members": {}, "left_out": []}
        return {"members": members_of(client, upstream), "left_out": reasons_of(client, run.left_out)}

    def _spoken(self, run: RunRecord) -> str:
        """Return the dialect of a run's upstream."""
        spoken = self._wires.get(run.upstream or "", ())
        return run.wire if run.wire in spoken or not spoken else min(spoken)

    async def fixture(self, run: RunRecord) -> bytes:
        """Return the kept or captured bytes of a run as a ZIP archive of a fixture.

        Raises StoreError, and :class:`~proxy.base.errors.RequestError` (409) if that is not possible.
        """
        taped = await self._taping.find(run.id)
        if taped is None and self._captures.refused is not None and self._taping.not_kept:
            raise _no_fixture(f"it needs captured bytes, and {self._captures.refused}")
        if taped is None:
            hint = ". Capture the next run on its Wire page" if self._taping.not_kept else ""
            raise _no_fixture(self._missing() + hint)
        if taped.cut:
            raise _no_fixture(f"it is larger than the {MAX_BYTES >> 20} MiB that are kept of a run")
        files = partial(fixture_files, run, self._spoken(run), taped, self._clean)
        return await asyncio.to_thread(lambda: _zipped(run.id, files()))

    async def summary(self, run_id: str) -> dict[str, Any]:
        """Return whether any bytes of a run were kept or captured, and how many."""
        size = await self._taping.size(run_id)
        return {"captured": size is not None, "bytes": size or 0}

    def _missing(self) -> str:
        """Return why there are no bytes of a run."""
        if not self._taping.not_kept:
            return "its bytes were not kept when it ran, or they have been deleted since"
        return (
            "its bytes were not captured, or have expired; the bytes of each run are kept with "
            'store.content = "all"'
        )

    async def _begin(self, request: UiRequest) -> dict[str, Any]:
        if self._captures.refused is not None:
            raise RequestError(403, f"Nothing can be captured: {self._captures.refused}.", code="capture_off")
        number = (int, float)
        body = await read_object(
            request.edge_request, {"key": (str, type(None)), "runs": int, "minutes": number}
        )
        runs, minutes = body.get("runs", 20), body.get("minutes", 15)
        if not 1 <= runs <= MOST_RUNS:
            raise RequestError(400, f"runs must be a whole number from 1 to {MOST_RUNS}.", param="runs")
        if not 0 < minutes * 60 <= MOST_S:
            raise RequestError(
                400, f"minutes must be more than 0 and at most {MOST_S / 60:g}.", param="minutes"
            )
        if len(self._captures.live()) >= _MOST_ORDERS:
            raise RequestError(400, f"There are {_MOST_ORDERS} captures already. End one of them first.")
        name = (body.get("key") or "").strip()
        key = await recorded_caller(self._store, self._declared, name[:_LONGEST_KEY]) if name else ""
        order = Order(
            id=f"cap_{secrets.token_hex(6)}",
            key=key.partition("/")[0],
            runs=runs,
            until=self._store.now() + minutes * 60,
            by=request.session.name.replace(":", "_"),
            left=runs,
        )
        await self._captures.ask(order)
        # The other processes of this port read the order now; each counts its own runs.
        await self._peers.ask_all(CAPTURES)
        return {"object": "ui.capture", **order.as_json(name or None)}


def _no_fixture(why: str) -> RequestError:
    return RequestError(409, f"The run cannot be saved as a fixture: {why}.", code="cannot_save_fixture")
