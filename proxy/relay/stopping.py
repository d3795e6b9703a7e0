"""Errors for clients whose response ends early."""

import asyncio
from collections.abc import Mapping
from typing import Any

from proxy.errors import ServerStopping

__all__ = ["message_of", "stopped"]


def stopped() -> ServerStopping:
    """Answer for the cancellation by which the server ends a response, and say why to its client.

    Called where ``CancelledError`` was caught and ``ClientStream.cut_off`` is set: the task goes on, so
    the cancellation must not count against its later time-outs.
    """
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    return ServerStopping()


def message_of(error: Mapping[str, Any]) -> str:
    """The words of an error object an upstream sent inside its stream."""
    message = error.get("message")
    return message[:1000] if isinstance(message, str) and message else "The upstream reported an error."
