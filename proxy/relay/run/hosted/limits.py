"""Decides which calls of the provider's tools may run, by their declaration and by the addresses in them.

A page is fetched only if its address occurred in the conversation before
(:mod:`proxy.tools.access.prior_addresses`), or if the operator has named its host. The conversation is
searched only when such a call comes.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson
from msgspec.structs import replace
from yarl import URL

from proxy.base.errors import ToolErrorCode
from proxy.base.events import MIDDLE_LEFT_OUT, ToolCall, ToolResult
from proxy.json.in_thread import in_thread
from proxy.relay.run.job import Job
from proxy.relay.run.run import failed_result
from proxy.relay.run.state import State
from proxy.tools.access.hosts import fits_domain, may_call
from proxy.tools.access.prior_addresses import LONGEST_ADDRESS, mentions, occurred
from proxy.tools.contract.redaction import redact_written
from proxy.tools.contract.schemas.url_argument import canonical_url
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.hosted.tools import URL_ARGUMENTS, HostedTool, PageRule, url_of

_MOST: Final = "max_characters"
"""The argument by which a fetch bounds the text of a page, also of the part that is read later."""
_NOT_KNOWN: Final = (
    "Not fetched: this address has not occurred in the conversation. Fetch an address exactly as a message "
    "or a result has it, or find it by a search first."
)
_NOT_ALLOWED: Final = "Not fetched: this request does not allow pages of this domain."


def declared_tool(state: State, call: ToolCall) -> HostedTool | None:
    """Return the declaration that a call is of; that of a fetch also covers its server tool by other
    names."""
    offer = state.tools.offer
    if not (hosted := offer.shown.hosted) or call.name in hosted:
        return hosted.get(call.name)
    id_ = state.tools.id_of(call.name)
    return next(
        (tool for name, tool in hosted.items() if tool.pages is not None and offer.names.get(name) == id_),
        None,
    )


async def refused_calls(job: Job, state: State, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """Return the results of those calls of a turn that may not run; count the others."""
    if not state.tools.offer.shown.hosted:
        return []
    refused: list[ToolResult] = []
    wanted: list[tuple[ToolCall, PageRule]] = []
    for call in calls:
        if (tool := declared_tool(state, call)) is None:
            continue
        if is_used_up(state, call):
            said = f"Not run: this request allows {tool.most} calls of {call.name}."
            refused.append(failed_result(call.call_id, "budget_exhausted", said))
            continue
        state.run.uses[tool.kind] = state.run.uses.get(tool.kind, 0) + 1
        if tool.pages is not None:
            wanted.append((call, tool.pages))
    if wanted:
        refused += await in_thread(_refused_fetches, job, state, wanted)
    return refused


def is_used_up(state: State, call: ToolCall) -> bool:
    """Return whether a call is of a provider's tool that ran as often as its declaration allows."""
    tool = declared_tool(state, call)
    return tool is not None and tool.most is not None and state.run.uses.get(tool.kind, 0) >= tool.most


def bound_arguments(tool: HostedTool, call: ToolCall, spec: ToolSpec) -> str:
    """Return the arguments of a call with those that its declaration sets.

    A fetch gets nothing but its address, in its canonical spelling, and the most characters that it may give:
    other arguments could carry data out.
    """
    properties = spec.parameters.get("properties", {})
    if tool.pages is None:
        return tool.arguments(call.arguments, properties)
    taken = next(name for name in URL_ARGUMENTS if name in properties)
    arguments: dict[str, Any] = {taken: _wanted(call) or ""}
    if tool.pages.most_characters is not None and (known := properties.get(_MOST)) is not None:
        most = tool.pages.most_characters
        # A schema may also be ``true``.
        arguments[_MOST] = min(most, known.get("maximum", most)) if isinstance(known, dict) else most
    return orjson.dumps(arguments).decode()


def limited(state: State, call: ToolCall, result: ToolResult) -> ToolResult:
    """Return the result of a call as far as its declaration allows it: a redirect may have left the domains
    that it names."""
    tool = declared_tool(state, call)
    return result if tool is None else _within(tool, result)


def limited_later(hosted: Sequence[tuple[HostedTool, str]], id_: str, result: ToolResult) -> ToolResult:
    """Do the same for a call of the server tool ``id_`` that a person has approved, for a request whose
    declarations are ``hosted``."""
    tool = next((tool for tool, target in hosted if target == id_ and tool.pages is not None), None)
    return result if tool is None else _within(tool, result)


def _within(tool: HostedTool, result: ToolResult) -> ToolResult:
    if tool.pages is None or not result.ok:
        return result
    try:
        content = orjson.loads(result.content)
    except orjson.JSONDecodeError:
        content = None  # The middle of a large result is left out, so that it is no JSON any more.
    if not _allows(tool.pages, url_of(content) or url_of(result.redacted)):
        return replace(
            failed_result(result.call_id, "url_not_allowed", _NOT_ALLOWED),
            arguments_redacted=result.arguments_redacted,
            milliseconds=result.milliseconds,
            cost=result.cost,
        )
    most, given = tool.pages.most_characters, result.arguments_redacted
    if most is None:
        return result
    if result.truncated and not (isinstance(given, dict) and _MOST in given):
        # What can be read on would not be bounded.
        return replace(result, content=result.content.partition(MIDDLE_LEFT_OUT)[0][:most])
    if len(result.content) <= most:
        return result
    if isinstance(content, dict) and isinstance(text := content.get("text"), str):
        return replace(result, content=orjson.dumps({**content, "text": text[:most]}).decode())
    return replace(result, content=result.content[:most])


def with_arguments(state: State, call: ToolCall, result: ToolResult) -> ToolResult:
    """Return the result of a call that does not run with its redacted arguments, so that it can be shown."""
    spec = state.tools.catalog.get(state.tools.id_of(call.name))
    if result.arguments_redacted is not None or spec is None:
        return result
    try:
        return replace(result, arguments_redacted=orjson.loads(redact_written(call.arguments, spec)))
    except orjson.JSONDecodeError:
        return result


def _wanted(call: ToolCall) -> str | None:
    """Return the address that a call is to fetch, in its canonical spelling; ``None`` if it has no single
    meaning."""
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    address = url_of(arguments)
    return canonical_url(address) if len(address) <= LONGEST_ADDRESS else None


def _allows(pages: PageRule, address: str) -> bool:
    """Return whether a declaration allows a page, by its domain; one without an address is allowed."""
    try:
        url = URL(address)
    except ValueError:
        return False
    if pages.allowed and address and not any(fits_domain(url, domain) for domain in pages.allowed):
        return False
    return not any(fits_domain(url, domain) for domain in pages.blocked)


def _is_at(hosts: Sequence[str], address: str) -> bool:
    """Return whether an address is of one of the operator's hosts."""
    try:
        return may_call(URL(address, encoded=True), hosts)
    except ValueError:  # Of a name that only looks like one of the DNS: xn--a.
        return False


def _was_found(state: State, address: str) -> bool:
    """Return whether a search or a page of this run has an address."""
    read: set[str] = set()
    return any(mentions(text, address, read=read) for text in state.outcome.found.texts)


def _refused_fetches(job: Job, state: State, wanted: Sequence[tuple[ToolCall, PageRule]]) -> list[ToolResult]:
    """Return the results of those fetches whose address may not be fetched."""
    history = b""
    refused: list[ToolResult] = []
    for call, pages in wanted:
        code: ToolErrorCode | None = None
        address = _wanted(call)
        if address is None:
            code = "url_not_in_prior_context"
        elif not _allows(pages, address):
            code = "url_not_allowed"
        elif not _is_at(pages.known, address) and not _was_found(state, address):
            history = history or job.upstream.editor.history()
            if not occurred(address, job.client.port.spoken(orjson.loads(history))):
                code = "url_not_in_prior_context"
        if code is not None:
            said = _NOT_ALLOWED if code == "url_not_allowed" else _NOT_KNOWN
            refused.append(failed_result(call.call_id, code, said))
    return refused
