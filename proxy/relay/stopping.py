"""A response that the server itself has to end before it is whole."""

import asyncio

from proxy.errors import ServerStopping

__all__ = ["stopped"]


def stopped() -> ServerStopping:
    """Answer for the cancellation by which the server ends a response, and say why to its client.

    Called where ``CancelledError`` was caught and ``ClientStream.cut_off`` is set: the task goes on, so
    the cancellation must not count against its later time-outs.
    """
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    return ServerStopping()
