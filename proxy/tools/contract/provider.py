"""The protocol of tool providers: the built-in tools, a user's module and MCP servers implement it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from proxy.base.errors import ToolRelayError
from proxy.base.events import ImageSource, ToolProgress
from proxy.tools.contract.bounds import FetchBounds
from proxy.tools.contract.capabilities import CacheControl, IdempotencyKey
from proxy.tools.contract.spec import ToolSpec


class ArgumentsInvalid(ToolRelayError):
    """Arguments do not fit the schema.

    ``problems`` has one message per fault, with the field. No message repeats a value that the model sent
    (rule T3).
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class CallSignals:
    """Facts about one result that a tool reports beside the result itself.

    A tool that is not declared ``untrusted_output`` sets ``untrusted`` if this result contains text from an
    untrusted source. ``sources`` has the sources of that text (:func:`.join_sources`); empty
    means the tool itself.
    """

    __slots__ = ("cache", "sources", "untrusted")

    def __init__(self) -> None:
        self.cache = CacheControl()
        self.untrusted = False
        self.sources = ""


class Person(NamedTuple):
    """One person for whom calls are made: the name in the record, and the one that people know, if any."""

    name: str
    shown: str = ""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The context of a call, for tools that need it. It contains no key and no token.

    ``max_result_bytes`` is the largest result that the model gets, ``max_image_bytes`` the limit for all of
    its images together. ``idempotency_key`` is the same for every try of this call and unique to this call;
    only a tool with effects, or one that takes the key, has one. ``fetches`` bounds the call's HTTP
    requests. ``images`` gives images of the conversation; it is ``None`` if the tool may have none.
    ``person`` is ``None`` if the caller may be several people.
    ``on_progress`` receives the call's progress; it is ``None`` if nothing listens. Calls that
    share one execution (see ``cache_ttl_s``) have the context of the first.
    """

    run_id: str
    invocation_id: str
    caller: str
    call_id: str
    person: Person | None = None
    max_result_bytes: int = 32768
    max_image_bytes: int = 4 << 20
    idempotency_key: IdempotencyKey | None = None
    fetches: FetchBounds | None = field(default=None, repr=False, compare=False)
    images: ImageSource | None = field(default=None, repr=False, compare=False)
    on_progress: Callable[[ToolProgress], None] | None = field(default=None, repr=False, compare=False)
    signals: CallSignals = field(default_factory=CallSignals, repr=False, compare=False)


class ToolProvider(Protocol):
    """A source of tools. Only the runner calls ``call_tool`` (rule T1)."""

    @property
    def name(self) -> str:
        """The part of a tool id before the double underscore."""

    async def list_tools(self) -> Sequence[ToolSpec]: ...

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        """Run one tool with the arguments that ``spec.validate`` returned.

        Returns any JSON value, or a pydantic model. Raises :class:`ToolFailure` for a failure
        that the model should read.
        """

    async def aclose(self) -> None: ...
