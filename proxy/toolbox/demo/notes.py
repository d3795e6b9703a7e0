"""A tool with a side effect, so that ``toolrelay demo`` can ask for an approval.

It writes notes to a file in the demo's own folder. A module in that folder creates the tool.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from proxy.base.errors import ToolFailure
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import tool

NOTES_FILE: Final = "notes.txt"
MODULE_FILE: Final = "demo.py"
"""The module's name is that of the tool's provider: ``demo__leave_note``."""
MODULE: Final = '''"""The demo's tool that a person must approve."""

from pathlib import Path

from proxy.toolbox.demo.notes import note_tool

leave_note = note_tool(Path(__file__).parent)
'''
"""The content of that file: an entry of ``tools.modules``."""
_MOST_BYTES: Final = 64 * 1024
"""The largest file of notes."""


def note_tool(folder: Path) -> Callable[..., dict[str, Any]]:
    """Build ``leave_note``, which appends a line to ``notes.txt`` in ``folder``."""
    file = folder / NOTES_FILE

    @tool(
        name="leave_note",
        description="Leave a note for somebody",
        effect="state_change",
        redaction=Redaction(output=("left_for", "notes")),
        describe="note for {recipient}",
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

    return leave_note
