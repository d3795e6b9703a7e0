"""Errors for clients whose response ends early."""

import asyncio
from collections.abc import Mapping
from typing import Any

from proxy.base.errors import ServerStopping


def stopped() -> ServerStopping:
    """Accept the cancellation by which the server ends a response, and return the error for its client.

    Call it where ``CancelledError`` was caught and ``ClientStream.stopped_by_server`` is set. The task
    continues, so the cancellation must not count against its later timeouts.
    """
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    return ServerStopping()


def message_of(error: Mapping[str, Any]) -> str:
    """Return the message of an error object that an upstream sent inside its stream."""
    message = error.get("message")
    return message[:1000] if isinstance(message, str) and message else "The upstream reported an error."
