"""Rows about client requests that have no run."""

from msgspec import Struct


class RequestRecord(Struct, frozen=True):
    """One client request that passed through, was refused, or failed before a run began.

    ``caller`` is as in a run, and empty if nobody was authenticated. ``dialect`` is the name of the request's
    dialect, ``operation`` its GenAI operation (empty if it asks no model), and ``endpoint`` the class of its
    path. ``model`` is the name that the client sent, ``upstream`` the last one that was asked; both are empty
    if the request did not get that far. ``status`` is what the client got, 499 if it left before the end.
    ``error_code`` is the proxy's own; an upstream's error that passed through has only its status.

    ``started_at`` is in seconds since the epoch; ``duration_s`` and ``first_byte_s`` are seconds since then,
    the second ``None`` if no byte of a body was relayed. The token counts are ``None`` if none were reported.
    ``cost`` is in billionths of the currency of the prices, ``None`` if it is not known.
    """

    id: str
    request_id: str
    caller: str
    dialect: str
    operation: str
    endpoint: str
    model: str
    upstream: str
    status: int
    started_at: float
    duration_s: float
    error_code: str | None = None
    first_byte_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cost: int | None = None

    @property
    def unreported(self) -> bool:
        """Whether a model answered and its upstream reported no usage.

        A client that comes back to a run gets an answer for which no upstream was asked.
        """
        asked = self.operation != "" and self.upstream != ""
        return asked and self.total_tokens is None and self.status < 400
