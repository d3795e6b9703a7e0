"""What the scripts of this folder share: they run in an environment of their own, with clients' libraries.

In: {"root", "models", "questions"} on standard input. Out: for each library and model, the answers and the
arguments of the client's tool, or the error.
"""

import asyncio
import json
import sys

ASKED = json.load(sys.stdin)
ROOT = ASKED["root"]
QUESTIONS = ASKED["questions"]


def calendar(days):
    """Return the client's tool, which notes the days that it is asked about."""

    def get_calendar(day: str) -> str:
        """Return what is on a day."""
        days.append(day)
        return "free at noon"

    return get_calendar


def report(libraries, converse):
    """Print what came of a conversation of each library with each model."""

    async def ask():
        found = {}
        for library, make in libraries.items():
            for name in ASKED["models"]:
                days = []
                try:
                    answers = await converse(make(name), calendar(days))
                    found[f"{library} {name}"] = {"answers": answers, "days": days}
                except Exception as error:  # noqa: BLE001  # The test shows it.
                    found[f"{library} {name}"] = f"{type(error).__name__}: {error}"
        return found

    print(json.dumps(asyncio.run(ask())))
