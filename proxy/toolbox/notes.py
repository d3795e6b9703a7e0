"""The provider ``demo``: a tool that changes something, so that ``toolrelay demo`` has one to ask about.

It leaves notes in a file of the demo's own folder.  No configuration can load it.
"""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from proxy.errors import ToolFailure
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider, tool

__all__ = ["NOTES_FILE", "notes_provider"]

NOTES_FILE: Final = "notes.txt"
_MOST_BYTES: Final = 64 * 1024
"""The largest file of notes."""


def notes_provider(folder: Path) -> FunctionProvider:
    """``demo__leave_note``, which appends a line to ``notes.txt`` in ``folder``."""
    file = folder / NOTES_FILE

    @tool(
        name="leave_note",
        description="Leave a note for somebody",
        effect="state_change",
        redaction=Redaction(output=("left_for", "notes")),
    )
    def leave_note(
        recipient: Annotated[str, Field(description="Who the note is for", min_length=1, max_length=80)],
        text: Annotated[str, Field(description="What it says", min_length=1, max_length=500)],
    ) -> dict[str, Any]:
        """Return ``{"left_for", "notes"}``; ``notes`` is how many there are now."""
        line = f"{recipient}: {text}".replace("\n", " ") + "\n"
        before = file.read_text("utf-8") if file.exists() else ""
        if len(before.encode()) + len(line.encode()) > _MOST_BYTES:
            raise ToolFailure(f"there is no room for another note; empty {NOTES_FILE}")
        file.write_text(before + line, "utf-8")
        return {"left_for": recipient, "notes": before.count("\n") + 1}

    return FunctionProvider("demo", [leave_note])
