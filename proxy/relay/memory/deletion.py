"""What a deleted response leaves with the upstream, deleted too.

A run of several turns is several responses upstream, and the first of them goes by the very id that
the client has: left there, it would come back as it was before anything was hidden.
"""

import asyncio
import re
from collections.abc import Callable, Sequence

import structlog

from proxy.errors import StoreError, UpstreamError
from proxy.hard_timeout import HardTimeout
from proxy.http.headers import Headers
from proxy.records import ResponseRecord
from proxy.relay.routing.router import Router, ServedUpstream
from proxy.store.base import Store
from proxy.upstreams.base import UpstreamRequest
from proxy.wires.dialect import Endpoint

__all__ = ["UpstreamDeletion"]

_PATIENCE_S = 10.0
_MOST = 64
_ID = re.compile(r"[A-Za-z0-9_:-]{1,256}\Z")
"""What may stand in a path with our key: ids are the upstream's words, and a path means something."""


class UpstreamDeletion:
    """Deletes at the upstream what a response of ours stands for.

    ``upstream_ids`` reads from a continuation which responses the upstream was seen to keep; ``endpoint``
    is the one that deletes a response.
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
        """Delete what hangs on ``record`` upstream.  What fails is logged: ours is gone all the same.

        ``headers`` are the client's, for an upstream that takes the client's own key.
        """
        ids = self._upstream_ids(record.continuation)[:_MOST]
        if not ids:
            return
        try:
            served = await self._hard_timeout.run(self._served(record.run_id), _PATIENCE_S)
        except (StoreError, TimeoutError):
            # To ask any other would say that it is gone: what is not there is deleted.
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
        """Who served the run; the default where that is not on record any more.

        Raises :class:`~proxy.errors.StoreError` where the record cannot be asked.
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
