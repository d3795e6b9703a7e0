"""The states of a response that arrives, and what may follow on each."""

from enum import StrEnum
from typing import Final

from proxy.records.transitions import Transitions


class ResponseState(StrEnum):
    """The progress of a response."""

    SENT = "sent"
    """No byte has arrived."""
    BEGUN = "begun"
    """The head is not complete."""
    BODY = "body"
    """The head has arrived."""
    COMPLETE = "complete"
    FAILED = "failed"
    """There is an error to raise, after the data that came before it."""


class ResponseEvent(StrEnum):
    """The events of a response."""

    BYTES = "bytes"
    """The first bytes arrived."""
    HEAD = "head"
    """The head is complete, and it is not that of an interim response."""
    END = "end"
    """The body is complete."""
    FAILURE = "failure"
    """The connection, the upstream or the request broke off."""
    REFUSAL = "refusal"
    """The consumer of the body failed."""


SENT, BEGUN, BODY, COMPLETE, FAILED = ResponseState
BYTES, HEAD, END, FAILURE, REFUSAL = ResponseEvent

NEXT: Final = Transitions(
    {
        (SENT, BYTES): BEGUN,
        (SENT, FAILURE): FAILED,
        (BEGUN, HEAD): BODY,
        (BEGUN, FAILURE): FAILED,
        (BODY, END): COMPLETE,
        (BODY, FAILURE): FAILED,
        (BODY, REFUSAL): FAILED,
        # A request body that fails after the answer is complete does not change the answer.
        (COMPLETE, FAILURE): COMPLETE,
        # The refused piece came together with the end.
        (COMPLETE, REFUSAL): FAILED,
        # The first failure is raised.
        (FAILED, FAILURE): FAILED,
    }
)
