"""Server tools that a request chooses in its body, in the form that all dialects share.

An element of ``tools`` is ours if it names this proxy as its server, as OpenAI's hosted MCP tools name
theirs::

    {"type": "mcp", "server_label": "docs", "server_url": "toolrelay/files", "allowed_tools": ["read"],
     "require_approval": "never"}
    {"type": "toolrelay:core__calculate"}

Every other element belongs to the client or its vendor and stays unchanged.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.errors import RequestError
from proxy.base.events import ToolResult
from proxy.wires.hosted.forms import CallForm
from proxy.wires.hosted.part_ids import PartIds
from proxy.wires.hosted.tools import HostedTool

SERVER_URL: Final = "toolrelay"
"""The address of all server tools; those of one server are at ``toolrelay/NAME``."""

SINGLE: Final = "toolrelay:"
"""The prefix of an element's ``type`` that chooses one server tool; the tool's id follows."""
_MOST_ENTRIES: Final = 64
_MOST_NAMES: Final = 256
_LONGEST: Final = 256
_NOT_RUN: Final = frozenset(
    {
        "invalid_json",
        "invalid_arguments",
        "unknown_tool",
        "policy_denied",
        "approval_required",
        "rate_limited",
        "already_ran",
        "redaction_missing",
        "budget_exhausted",
    }
)


# ---------------------------------------------------------------- what a request chooses


class ToolFilter(Struct, frozen=True):
    """A filter of tools: those in ``names`` (``None``: all), or only the read-only ones of them."""

    names: frozenset[str] | None = None
    read_only: bool = False

    def fits(self, name: str, reads: bool) -> bool:
        """Return whether the filter selects a tool; ``name`` is the server's own name for it."""
        return (self.names is None or name in self.names) and (reads or not self.read_only)


ANY_TOOL: Final = ToolFilter()


class ApprovalRequirement(Struct, frozen=True):
    """Which tools of a server need the client's approval before each call.

    Those that ``never`` selects do not; all others do, unless ``default`` is false.
    """

    default: bool = True
    never: ToolFilter | None = None

    def asks(self, name: str, reads: bool) -> bool:
        """Return whether a call of this tool needs the client's approval."""
        return self.default and not (self.never is not None and self.never.fits(name, reads))


class ChosenServer(Struct, frozen=True):
    """Tools of one server that a request chooses.

    ``label`` is what the client calls the server, and ``name`` the NAME of ``toolrelay/NAME``, empty for all
    server tools. ``allowed`` selects among its tools; ``left_out`` are the names of tools to exclude.
    ``at`` is the place in the body (``tools[0]``); ``url_at``, ``names_at`` and ``approval_at`` are the
    fields that hold the address, the names of tools and the approval.
    """

    at: str
    url_at: str
    names_at: str
    approval_at: str
    label: str
    name: str
    allowed: ToolFilter = ANY_TOOL
    left_out: frozenset[str] = frozenset()
    approval: ApprovalRequirement = ApprovalRequirement(default=False)


class ChosenTool(Struct, frozen=True):
    """One server tool that a request chooses by its id, at a place in the body."""

    at: str
    name: str


class Chosen(Struct, frozen=True):
    """All server tools that a request chooses in its body; most requests choose none.

    ``places`` holds, for each list of the body, the positions of the elements that choose them. ``hosted``
    are the provider's tools that server tools run, each with the id of its server tool.
    """

    servers: tuple[ChosenServer, ...] = ()
    tools: tuple[ChosenTool, ...] = ()
    places: tuple[tuple[str, frozenset[int]], ...] = ()
    hosted: tuple[tuple[HostedTool, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places)

    def serving(self, at: Collection[int], hosted: Sequence[tuple[HostedTool, str]]) -> "Chosen":
        """Return the same, with the elements of ``tools`` at these positions run by server tools."""
        places = dict(self.places)
        places["tools"] = places.get("tools", frozenset()).union(at)
        return replace(self, places=tuple(places.items()), hosted=tuple(hosted))

    @property
    def labels(self) -> frozenset[str]:
        """The client's names for the servers."""
        return frozenset([server.label for server in self.servers])


NOTHING_CHOSEN: Final = Chosen()


def read_chosen(tools: Sequence[Any]) -> Chosen:
    """Return the server tools that a list of tools chooses.

    Raises :class:`~proxy.base.errors.RequestError` for an element that names this proxy and is not valid.
    """
    servers: list[ChosenServer] = []
    single: list[ChosenTool] = []
    places: list[int] = []
    for place, tool in enumerate(tools):
        if not chooses(tool):
            continue
        places.append(place)
        if tool["type"] == "mcp":
            servers.append(_server(tool, f"tools[{place}]"))
        else:
            single.append(ChosenTool(f"tools[{place}]", tool["type"].removeprefix(SINGLE)))
    if not places:
        return NOTHING_CHOSEN
    check_labels(servers)
    if len(places) > _MOST_ENTRIES:
        said = (
            f"tools has more than {_MOST_ENTRIES} elements that choose server tools. Use one for each server."
        )
        raise RequestError(400, said, param="tools")
    return Chosen(tuple(servers), tuple(single), (("tools", frozenset(places)),))


def chooses(tool: Any) -> bool:
    """Return whether an element of a list of tools chooses server tools."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "mcp":
        return is_our_url(tool.get("server_url"))
    return isinstance(kind, str) and kind.startswith(SINGLE)


def check_labels(servers: Sequence[ChosenServer]) -> None:
    """Raise :class:`~proxy.base.errors.RequestError` if two servers have the same label."""
    seen: set[str] = set()
    for server in servers:
        if server.label in seen:
            raise RequestError(
                400,
                f"{server.at} has the same label as another server: {server.label[:64]!r}. "
                "Give each server a label of its own.",
                param=server.at,
            )
        seen.add(server.label)


def _server(tool: Mapping[str, Any], at: str) -> ChosenServer:
    name = server_name(tool["server_url"])
    label = tool.get("server_label")
    no_secrets(tool, at, ("headers", "authorization"))
    return ChosenServer(
        at,
        url_at=f"{at}.server_url",
        names_at=f"{at}.allowed_tools",
        approval_at=f"{at}.require_approval",
        label=text_of(label, f"{at}.server_label") if label is not None else name or SERVER_URL,
        name=name,
        allowed=filter_of(tool.get("allowed_tools"), f"{at}.allowed_tools"),
        approval=approval_of(tool.get("require_approval"), f"{at}.require_approval"),
    )


def is_our_url(url: Any) -> bool:
    """Return whether the address of an MCP server names this proxy."""
    return isinstance(url, str) and (url == SERVER_URL or url.startswith(f"{SERVER_URL}/"))


def server_name(url: str) -> str:
    """Return the NAME of ``toolrelay/NAME``; empty for all server tools."""
    return url.removeprefix(SERVER_URL).strip("/")


def no_secrets(entry: Mapping[str, Any], at: str, fields: Collection[str]) -> None:
    """Raise :class:`~proxy.base.errors.RequestError` if credentials are sent for a server of this proxy."""
    for field in fields:
        if entry.get(field):
            raise RequestError(
                400,
                f"{at}.{field} cannot be used with a server of this proxy, which has its own credentials. "
                "Leave it out.",
                param=f"{at}.{field}",
            )


def text_of(value: Any, param: str) -> str:
    """Return a text of reasonable length. Raises :class:`RequestError` for anything else."""
    if not isinstance(value, str) or not value or len(value) > _LONGEST:
        raise RequestError(400, f"{param} must be a text of 1 to {_LONGEST} characters.", param=param)
    return value


def names_of(value: Any, param: str) -> frozenset[str]:
    """Read a list of names. Raises :class:`~proxy.base.errors.RequestError` for anything else."""
    if not isinstance(value, list) or len(value) > _MOST_NAMES:
        raise RequestError(400, f"{param} must be a list of at most {_MOST_NAMES} names.", param=param)
    return frozenset([text_of(name, f"{param}[{place}]") for place, name in enumerate(value)])


def filter_of(value: Any, param: str) -> ToolFilter:
    """Read ``allowed_tools``: a list of names, or an object with ``tool_names`` and ``read_only``.

    Raises :class:`~proxy.base.errors.RequestError` for anything else.
    """
    if value is None:
        return ANY_TOOL
    if isinstance(value, list):
        return ToolFilter(names_of(value, param))
    if not isinstance(value, dict):
        raise RequestError(
            400, f"{param} must be a list of names, or an object with tool_names or read_only.", param=param
        )
    reads, names = value.get("read_only"), value.get("tool_names")
    if reads not in (None, True) or type(reads) is int:
        raise RequestError(400, f"{param}.read_only must be true, or left out.", param=f"{param}.read_only")
    return ToolFilter(
        None if names is None else names_of(names, f"{param}.tool_names"), read_only=reads is True
    )


def approval_of(value: Any, param: str) -> ApprovalRequirement:
    """Read ``require_approval``; as with OpenAI, a missing value means approval for every call.

    Raises :class:`RequestError` for a value that is not ``never``, ``always`` or an object of
    filters.
    """
    if value is None or value == "always":
        return ApprovalRequirement()
    if value == "never":
        return ApprovalRequirement(default=False)
    if not isinstance(value, dict) or not value.keys() <= {"never", "always"}:
        raise RequestError(
            400, f'{param} must be "never", "always", or an object with never or always.', param=param
        )
    filter_of(value.get("always"), f"{param}.always")
    never = filter_of(value.get("never"), f"{param}.never")
    # An empty filter exempts no tool: a forgotten name must not switch approvals off.
    return ApprovalRequirement() if never == ANY_TOOL else ApprovalRequirement(never=never)


# ---------------------------------------------------------------- what the client is shown


class ServedTool(Struct, frozen=True):
    """A tool of a server.

    ``id`` is its name for models, ``name`` its name at the server. ``reads`` says that it is read-only.
    """

    id: str
    name: str
    description: str
    schema: Mapping[str, Any]
    reads: bool


class ShownServer(Struct, frozen=True):
    """A server that the client chose, and its tools that the client gets."""

    label: str
    tools: tuple[ServedTool, ...]


class ShownTools(Struct, frozen=True):
    """What the client sees of the tools that it chose in its request.

    ``reports_calls`` says that it chose at least one; usage then reports how many calls ran. ``hosted`` are
    the provider's tools that server tools run, by the names that models use. ``forms`` show the calls of
    these and the searches for tools that the client declared, by the same names.
    """

    servers: tuple[ShownServer, ...] = ()
    reports_calls: bool = False
    hosted: Mapping[str, HostedTool] = msgspec.field(default_factory=dict)
    forms: Mapping[str, CallForm] = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.reports_calls or bool(self.hosted)

    def renamed(self, names: Mapping[str, str]) -> "ShownTools":
        """Return the same with other ids for some tools: ``names`` maps an id to the name that models use."""
        if not names or not self.servers:
            return self
        servers = [
            ShownServer(
                server.label,
                tuple([replace(tool, id=names.get(tool.id, tool.id)) for tool in server.tools]),
            )
            for server in self.servers
        ]
        return replace(self, servers=tuple(servers))

    def serving(self, hosted: Mapping[str, HostedTool]) -> "ShownTools":
        """Return the same with the provider's tools that server tools run, by the names that models use."""
        forms = {name: tool.form for name, tool in hosted.items() if tool.form is not None}
        return replace(self, hosted=hosted, forms={**self.forms, **forms}) if hosted else self

    def signed(self, ids: PartIds) -> "ShownTools":
        """Return the same; the parts that show calls of the provider's tools get these ids."""
        return replace(self, forms={name: form.signed(ids) for name, form in self.forms.items()})

    def called(self, name: str) -> tuple[str, str] | None:
        """Return the label and the server's own name of a tool that models call ``name``.

        Returns ``None`` for a tool that the client did not choose by its server.
        """
        for server in self.servers:
            for tool in server.tools:
                if tool.id == name:
                    return server.label, tool.name
        return None

    def id_of(self, label: str, name: str) -> str | None:
        """Return what models call a tool of the server that the client calls ``label``."""
        for server in self.servers:
            if server.label == label:
                return next((tool.id for tool in server.tools if tool.name == name), None)
        return None


NOTHING_SHOWN: Final = ShownTools()


def usage_of_call(shown: ShownTools, result: ToolResult) -> dict[str, Any]:
    """Return what a call adds to the usage of a run, in OpenRouter's fields.

    It is empty if the client chose no tools. A refused call did not run, so it does not count.
    """
    if not shown.reports_calls or result.error_code in _NOT_RUN:
        return {}
    return {"server_tool_use_details": {"tool_calls_executed": 1}}
