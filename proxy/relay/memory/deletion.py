"""Delete at the upstream what belongs to a deleted response of the proxy.

A run of several turns is several responses upstream. The first of them has the same id that the client has.
If it stayed there, the client could read it by this id, with everything that the proxy had hidden.
"""

import asyncio
import re
from collections.abc import Callable, Sequence

import structlog

from proxy.base.errors import StoreError, UpstreamError
from proxy.base.hard_timeout import HardTimeout
from proxy.http.headers import Headers
from proxy.records.rows import ResponseRecord
from proxy.relay.routing.router import Router, ServedUpstream
from proxy.store.base import Store
from proxy.upstreams.base import UpstreamRequest
from proxy.wires.dialect import Endpoint

_PATIENCE_S = 10.0
_MOST = 64
_ID = re.compile(r"[A-Za-z0-9_:-]{1,256}\Z")
"""Ids that may be part of a path sent with the proxy's own key. The upstream chooses the ids, and other
characters could change what the path means."""


class UpstreamDeletion:
    """Deletes the responses at the upstream that belong to a response of the proxy.

    ``upstream_ids`` reads from a continuation which responses the upstream has stored; ``endpoint`` deletes
    a response.
    """

    def __init__(
        self,
        store: Store,
        router: Router,
        upstream_ids: Callable[[bytes], Sequence[str]],
        endpoint: Endpoint,
    ) -> None:
        self._store = store
        self._router = router
        self._upstream_ids = upstream_ids
        self._endpoint = endpoint
        self._hard_timeout = HardTimeout()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.relay")

    async def __call__(self, record: ResponseRecord, headers: Headers = ()) -> None:
        """Delete the upstream's responses that belong to ``record``. A failure is only logged: the proxy's
        own response is deleted in any case.

        ``headers`` are the client's, for an upstream that accepts the client's own key.
        """
        ids = self._upstream_ids(record.continuation)[:_MOST]
        if not ids:
            return
        try:
            served = await self._hard_timeout.run(self._served(record.run_id), _PATIENCE_S)
        except (StoreError, TimeoutError):
            # Another upstream would answer 404, which counts as deleted.
            self._log.warning("responses_left_upstream", run_id=record.run_id, responses=len(ids))
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                deleted = await asyncio.gather(
                    *(self._delete(served, upstream_id, headers) for upstream_id in ids)
                )
        except TimeoutError:
            deleted = [False]
        if not all(deleted):
            self._log.warning("responses_left_upstream", run_id=record.run_id, responses=deleted.count(False))

    async def _served(self, run_id: str) -> ServedUpstream:
        """Return the upstream that served the run; the default one if that is no longer on record.

        Raise :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """
        if len(self._router.served) == 1:
            return self._router.default
        detail = await self._store.get_run(run_id)
        name = detail.run.upstream if detail is not None else ""
        return next((s for s in self._router.served if s.upstream.name == name), self._router.default)

    async def _delete(self, served: ServedUpstream, upstream_id: str, headers: Headers) -> bool:
        if not _ID.match(upstream_id):
            return False
        try:
            response = await served.upstream.open(
                UpstreamRequest(self._endpoint.method, self._endpoint.path_of(upstream_id), headers=headers)
            )
        except UpstreamError:
            return False
        await response.aclose()
        return response.status < 300 or response.status == 404
