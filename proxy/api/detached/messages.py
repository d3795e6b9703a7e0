"""Build the messages that clients get about background responses that failed or cannot be continued."""

from collections.abc import Sequence
from typing import Final

from proxy.records.background import StartedEffect

DIED: Final = "The server process that ran this response ended before the response was finished."
NOT_CONTINUED: Final = f"{DIED} Another one could not continue it, because its configuration differs."
STOPPED: Final = "The server was stopped before the response was finished."
RESTARTED: Final = (
    "Another server process goes on with this response from a place before your last event, so the events "
    "that you have are void. Discard them, and retrieve the response with stream=true and without "
    "starting_after."
)
_MOST_NAMED: Final = 5


def failure(message: str) -> dict[str, str]:
    """Return the ``error`` object of a failed response."""
    return {"code": "server_error", "message": message}


TOO_LONG: Final = failure("The response took longer than this server allows (tools.background_s).")


def after_effects(what: str, effects: Sequence[StartedEffect]) -> dict[str, str]:
    """Return the error of a response that ended early, after calls with effects; ``what`` is the reason."""
    unknown = _named([effect.tool for effect in effects if not effect.is_known])
    known = _named([effect.tool for effect in effects if effect.is_known])
    words = [what]
    if unknown:
        words.append(f"A call of {unknown} had begun, and nobody knows whether it took effect.")
    if known:
        words.append(f"It had called {known}.")
    if effects:
        words.append("Therefore the request was not run again.")
    return failure(" ".join(words))


def too_many_deaths(times: int) -> dict[str, str]:
    """Return the error of a response after ``times`` processes died, one after the other, while they ran
    it."""
    return failure(f"The {times} server processes that ran this response ended before it was finished.")


def _named(tools: Sequence[str]) -> str:
    names = list(dict.fromkeys(tools))
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more tools"
