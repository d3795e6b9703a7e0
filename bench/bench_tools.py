"""The tools of the bench: they only return the time of their call."""

import time

from proxy.tools import Redaction, tool


@tool(effect="read_only", redaction=Redaction(output=(), private_arguments=("text",)))
async def work(text: str) -> dict[str, str]:
    """Say when this ran."""
    return {"at": f"@{time.monotonic_ns()}@"}


@tool(effect="state_change", repeatable=True, redaction=Redaction(output=(), private_arguments=("text",)))
async def act(text: str) -> dict[str, str]:
    """Say when this ran; its row is committed before."""
    return {"at": f"@{time.monotonic_ns()}@"}
