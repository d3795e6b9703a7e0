"""The exceptions of this package: one root, and one branch for each party that can be at fault.

``ConfigError`` is the operator's fault, ``RequestError`` the client's, ``UpstreamError`` the model
provider's, ``ToolFailure`` a tool's, and ``StoreError`` the record's. ``WireError`` is a message that its
wire does not allow. This module does no I/O, and no message contains a key or a tool argument.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

ToolErrorCode = Literal[
    "invalid_json",
    "invalid_arguments",
    "unknown_tool",
    "policy_denied",
    "approval_required",
    "approval_denied",
    "client_call_required",
    "login_required",
    "timeout",
    "rate_limited",
    "result_too_large",
    "execution_failed",
    "already_ran",
    "redaction_missing",
    "budget_exhausted",
    "cancelled",
    "url_not_in_prior_context",
    "url_not_allowed",
]
"""The error codes of tool results; the model reads them (rule T3)."""


class ToolRelayError(Exception):
    """Root of every error that this package raises on purpose."""


class ConfigError(ToolRelayError):
    """The operator's configuration cannot be used.

    ``setting`` is the dotted name (``server.port``), ``problem`` says what is wrong with it, and ``remedy``
    what to do. The command prints them as one line. ``others`` are the faults that were found together
    with this one.
    """

    others: "tuple[ConfigError, ...]" = ()

    def __init__(self, setting: str, problem: str, remedy: str = "") -> None:
        self.setting = setting
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{setting}: {problem}" + (f". {remedy}" if remedy else ""))


class NoRecord(ConfigError):
    """There is no record at the configured place: no server was started yet, or it uses another file."""


class Faults(list[ConfigError]):
    """Collects configuration faults, for callers that report all of them and not only the first."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Catch and keep a fault that ends the block, so that the code after the block still runs."""
        try:
            yield
        except ConfigError as fault:
            self.append(fault)


Guard = Callable[[], AbstractContextManager[None]]
"""Makes the context manager around each part of a start that may fail independently: :meth:`Faults.kept`, or
one that does nothing."""


class RequestError(ToolRelayError):
    """The proxy cannot serve the client's request; the client gets OpenAI's error shape.

    ``status`` is an HTTP status from 400 to 499, or 503 if the proxy itself cannot serve now. ``param``
    names the offending field (``messages[2].tool_call_id``).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.type = type
        self.headers = headers or {}
        super().__init__(message)


class ModelMissing(RequestError):
    """A body names no model. The message is OpenAI's."""

    def __init__(self) -> None:
        super().__init__(400, "You must provide a model parameter.", param="model")


class RunFault(ToolRelayError):
    """An error that ends a run and that the client gets.

    ``status`` is the HTTP status, used if the response has not started yet. ``code`` and ``type`` are
    always part of the error. ``headers`` are added to the response.
    """

    status = 502
    code = "upstream_malformed"
    type = "upstream_error"
    headers: Sequence[tuple[str, str]] = ()


class UpstreamError(RunFault):
    """The model provider failed.

    ``unsent`` means that there was no connection, so the upstream cannot have worked on the request.
    """

    code = "upstream_error"

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, unsent: bool = False
    ) -> None:
        self.message = message
        self.unsent = unsent
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code
        super().__init__(message)


class UpstreamUnreachable(UpstreamError):
    """The proxy got no connection, or it closed before a single response byte arrived."""

    code = "upstream_unreachable"


class UpstreamTimeout(UpstreamError):
    """The upstream did not connect, answer or continue within its configured time limit."""

    status = 504
    code = "upstream_timeout"


class UpstreamBroken(UpstreamError):
    """The response began and then broke: a reset, a short body, malformed framing."""

    code = "upstream_broken"


class ServerStopping(RunFault):
    """The server is shutting down and can no longer wait for an open response."""

    status = 503
    code = "draining"
    type = "server_error"

    def __init__(self) -> None:
        self.message = "The server is shutting down and cannot wait for the end of this response."
        super().__init__(self.message)


class NotOnRecord(RunFault):
    """The proxy could not store what the client's next request needs.

    By default this is the turn that waits for the client's results, so no request could continue it.
    """

    status = 503
    code = "store_unavailable"
    type = "server_error"

    def __init__(self, message: str = "") -> None:
        self.message = message or (
            "The proxy could not store the turn that these calls belong to, so it could not use their "
            "results. Do not run these calls; send the request again."
        )
        super().__init__(self.message)


class WireError(RunFault):
    """A message that its wire does not allow."""


class FrameTooLarge(WireError):
    """One event exceeded its size limit before its end arrived."""


class Unreadable(WireError):
    """The proxy cannot read what an upstream sent, and it may hold a call of a server tool (rule W5)."""


class TooManyValues(Unreadable):
    """The JSON that an upstream sent would take far more memory than it has bytes."""

    code = "upstream_too_large"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"The upstream sent {what} of over {limit} JSON values, which is more than is read.")


class StoreError(ToolRelayError):
    """The record could not be read or written."""


class StoreUnavailable(StoreError):
    """A write that had to be durable failed: the database is locked, full, read-only or closed."""


class StoreTooNew(StoreError):
    """The database was written by a later schema than this code supports."""


class ToolFailure(ToolRelayError):
    """A refusal or failure that a tool raises, with a message that is safe for the model to read.

    Any other exception becomes ``execution_failed``, with a message that says nothing about the cause.
    ``transient`` says that the same call may succeed a moment later. ``untrusted`` has the sources of
    untrusted text in the message, empty for none.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ToolErrorCode = "execution_failed",
        transient: bool = False,
        untrusted: str = "",
    ) -> None:
        self.message = str(message)
        self.code: ToolErrorCode = code
        self.transient = transient
        self.untrusted = untrusted
        super().__init__(self.message)


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra; no package index has this package."""
    return f"In the folder of toolrelay's source, run: pip install '.[{extra}]'"


def fault_facts(error: BaseException) -> dict[str, str]:
    """Return the type and the place of an exception, without its text, which may contain arguments."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return {"exception": type(error).__name__, "raised_at": place}
