"""Repeat background work that must not end: a failure is logged, and the work begins again.

A task that dies of an unexpected error says nothing until it is collected. What it did, such as following
revoked permissions, would just not happen any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog


async def keep_running(
    name: str, work: Callable[[], Awaitable[object]], *, every_s: float = 0.0, after_failure_s: float = 5.0
) -> NoReturn:
    """Await ``work()`` again and again until cancelled, whatever it raises.

    ``every_s`` are the seconds between two rounds, ``after_failure_s`` the least seconds after one that
    failed. The log has ``background_work_failed`` with the task's ``name`` and the traceback, for failures
    in a row of the same kind once, and ``background_work_goes_on`` after the first round that succeeds.
    """
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.background")
    failed: type[Exception] | None = None
    while True:
        try:
            await work()
        # The boundary of the task: there is nobody to whom an error could go.
        except Exception as error:
            if type(error) is not failed:
                log.exception("background_work_failed", task=name)
            failed = type(error)
            await asyncio.sleep(max(every_s, after_failure_s))
            continue
        if failed is not None:
            failed = None
            log.warning("background_work_goes_on", task=name)
        await asyncio.sleep(every_s)
