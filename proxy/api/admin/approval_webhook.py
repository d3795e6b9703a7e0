"""The webhook of approvals: tells the operator's service that a call waits for a person.

It only informs: the service's response decides nothing, and the message has no secret and no link that acts.
Messages are signed as in Standard Webhooks 1.0 (https://www.standardwebhooks.com), so that its libraries can
verify them.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import structlog
from msgspec import Struct

from proxy.base.plain_text import ascii_json
from proxy.records.approvals import Approval
from proxy.tools.access.egress import AddressForbidden, EgressPool
from proxy.tools.contract.capabilities import HttpFailure

MOST_QUEUED: Final = 256
"""The most messages that wait in a process; the proxy drops further ones and logs each."""

_TRIES: Final = 8
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
_ENCODED: Final = "whsec_"


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header ``webhook-signature`` of a message; ``timestamp`` is in seconds since the epoch."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    """Return the bytes of a secret: after ``whsec_`` it is base64, the form that the libraries generate."""
    if secret.startswith(_ENCODED):
        with contextlib.suppress(binascii.Error):
            return base64.b64decode(secret.removeprefix(_ENCODED), validate=True)
    return secret.encode()


class _Message(Struct, frozen=True):
    approval_id: str
    expires_at: float
    body: bytes


class ApprovalWebhook:
    """The sender of the messages: one for each call that starts to wait, in order, in its own task, so that
    no run waits for it.

    Messages go to ``url`` at ``host`` over ``pool``, which checks the address that it connects to.
    ``arguments`` adds the redacted arguments. ``page`` is the page where people decide; empty for none.
    """

    def __init__(
        self,
        url: str,
        secret: str,
        pool: EgressPool,
        host: str,
        *,
        arguments: bool = False,
        page: str = "",
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._url = url
        self._secret = secret
        self._pool = pool
        self._client = pool.client((host,))
        self._arguments = arguments
        self._page = page
        self._now = now
        self._sleep = sleep
        self._queue: asyncio.Queue[_Message] = asyncio.Queue(MOST_QUEUED)
        self._task: asyncio.Task[None] | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.approvals")

    def on_event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Queue a message if an approval was requested; see :data:`~proxy.relay.approvals.grants.OnApproval`.

        Returns at once.
        """
        approval = facts.get("approval")
        if kind != "approval_requested" or not isinstance(approval, Approval):
            return
        try:
            self._queue.put_nowait(_Message(approval.id, approval.expires_at, self._body(approval)))
        except asyncio.QueueFull:
            self._log.warning(
                "approval_webhook_dropped", approval_id=approval.id, reason=f"{MOST_QUEUED} messages wait"
            )
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="approval-webhook")

    async def aclose(self) -> None:
        """Stop sending; queued messages are dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._queue.qsize():
            self._log.warning(
                "approval_webhook_dropped", count=self._queue.qsize(), reason="the server stops"
            )
        await self._pool.aclose()

    def _body(self, approval: Approval) -> bytes:
        asked_at = datetime.fromtimestamp(approval.created_at, UTC)
        data: dict[str, Any] = {
            "id": approval.id,
            "status": str(approval.status),
            "tool": approval.tool,
            "effect": approval.effect,
            "why": approval.rule,
            "caller": approval.caller,
            "run_id": approval.run_id,
            "created_at": approval.created_at,
            "expires_at": approval.expires_at,
            "arguments_digest": approval.arguments_digest,
            "spec_digest": approval.spec_digest,
            "url": self._page or None,
        }
        if self._arguments:
            # Whole or not at all: who reads them must not take a part for all.
            shown = ascii_json(approval.arguments_shown, compact=True)
            data["arguments"] = orjson.Fragment(shown) if approval.fits_text else None
            data["arguments_cut"] = not approval.fits_text
        return orjson.dumps({"type": "approval.requested", "timestamp": asked_at.isoformat(), "data": data})

    async def _run(self) -> None:
        while True:
            message = await self._queue.get()
            try:
                await self._deliver(message)
            except Exception:  # noqa: BLE001
                # The boundary of this task: if it ended, no later message would be sent.
                self._log.exception("approval_webhook_failed", approval_id=message.approval_id)

    async def _deliver(self, message: _Message) -> None:
        """Send a message; retry until the service accepts it, the approval expires, or the tries are used
        up."""
        wait_s, reason = _FIRST_WAIT_S, ""
        for attempt in range(_TRIES):
            if self._now() >= message.expires_at:
                reason = f"the approval has expired ({reason})" if reason else "the approval has expired"
                break
            try:
                status = await self._post(message)
            except AddressForbidden:
                reason = "its address is not public; approvals.webhook_networks can open its network"
                break
            except HttpFailure as error:
                reason = str(error)
            else:
                if 200 <= status < 300:
                    self._log.info(
                        "approval_webhook_sent", approval_id=message.approval_id, tries=attempt + 1
                    )
                    return
                reason = f"the service answered {status}"
            if attempt + 1 < _TRIES:
                await self._sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        self._log.warning("approval_webhook_failed", approval_id=message.approval_id, reason=reason)

    async def _post(self, message: _Message) -> int:
        # A retry keeps the id, so that a service can recognise a repeated message.
        message_id, timestamp = f"msg_{message.approval_id}", int(self._now())
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._secret, message_id, timestamp, message.body),
        }
        return await self._client.notify(self._url, message.body, headers)
