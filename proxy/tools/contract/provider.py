"""Where tools come from: the port that built-in tools, a user's module and MCP servers share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.errors import ToolRelayError
from proxy.events import ToolProgress
from proxy.tools.contract.bounds import FetchBounds
from proxy.tools.contract.capabilities import CacheControl, IdempotencyKey
from proxy.tools.contract.spec import ToolSpec

__all__ = ["ArgumentsInvalid", "CallContext", "CallSignals", "ToolProvider"]


class ArgumentsInvalid(ToolRelayError):
    """Arguments do not fit the schema.

    ``problems`` names each field and its fault; no message repeats a value the model sent
    (rule T3).
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class CallSignals:
    """What a tool says about its result beside the result itself.

    ``untrusted`` is set for a result that holds a stranger's text though the tool is not declared
    to give such.
    """

    __slots__ = ("cache", "untrusted")

    def __init__(self) -> None:
        self.cache = CacheControl()
        self.untrusted = False


@dataclass(frozen=True, slots=True)
class CallContext:
    """The context of a call, for tools that need it.  It contains no key and no token.

    ``max_result_bytes`` is the size of a result that the model gets, ``max_image_bytes`` that of its images
    together.  ``idempotency_key`` is the same for every try of this call, and differs from all other calls;
    only a tool with effects, or one that takes the key, has one.  ``fetches`` bounds its HTTP requests.
    ``on_progress`` receives its progress, ``None`` if nobody listens.  Calls that share one execution (see
    ``cache_ttl_s``) have the context of the first.
    """

    run_id: str
    invocation_id: str
    caller: str
    call_id: str
    max_result_bytes: int = 32768
    max_image_bytes: int = 4 << 20
    idempotency_key: IdempotencyKey | None = None
    fetches: FetchBounds | None = field(default=None, repr=False, compare=False)
    on_progress: Callable[[ToolProgress], None] | None = field(default=None, repr=False, compare=False)
    signals: CallSignals = field(default_factory=CallSignals, repr=False, compare=False)


class ToolProvider(Protocol):
    """A source of tools.  Only the runner calls ``call_tool`` (rule T1)."""

    @property
    def name(self) -> str:
        """The part of a tool id before the double underscore."""
        ...

    async def list_tools(self) -> Sequence[ToolSpec]: ...

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Run one tool with arguments that ``spec.validate`` returned.

        Returns anything JSON can say (or a pydantic model).  Raises
        :class:`~proxy.errors.ToolFailure` for a failure the model should read about.
        """
        ...

    async def aclose(self) -> None: ...
