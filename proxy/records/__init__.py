"""The rows of the record, as data; here, what the help of the command line shows of them."""

from typing import Final, Literal

MOST_REASON: Final = 500
"""The greatest length of the reason for a decision, in characters."""

RunStatus = Literal["running", "completed", "suspended", "failed", "cancelled", "interrupted"]
