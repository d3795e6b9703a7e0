"""Reads a request whose tools have types of their own as one with functions only.

Declarations become functions, the items of their calls become calls of functions, and those of their outputs
become results. Everything behind this, from planning to the record, knows functions alone;
:mod:`proxy.wires.responses.typed_tools.answer` turns the answer back.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import orjson

from proxy.base.errors import RequestError
from proxy.wires.responses.typed_tools.answer import FunctionOrigin, ResponsesAnswer
from proxy.wires.responses.typed_tools.table import (
    ADDITIONAL_TOOLS,
    BRINGING,
    CUSTOM,
    NAMED,
    NAMESPACE,
    TYPED_TOOLS,
    TYPES,
    TypedTool,
    check_direct,
    described_input,
    types_in,
)
from proxy.wires.typed_tools.functions import (
    EVERY_TYPE,
    PLAIN_NAME,
    AsFunctions,
    FunctionNames,
    UpstreamTypes,
)
from proxy.wires.typed_tools.shapes import check_grammar, check_members, check_name

_BY_TYPE: Final = {tool.type: tool for tool in TYPED_TOOLS}
_BY_CALL: Final = {tool.call: tool for tool in TYPED_TOOLS}
_BY_OUTPUT: Final = {tool.output: tool for tool in TYPED_TOOLS}
_BY_PREFIX: Final = {tool.prefix: tool for tool in TYPED_TOOLS}
_SEARCH: Final = _BY_TYPE["tool_search"]
_NAMED: Final = ("function", "custom")
_CALLS: Final = ("function_call", "custom_tool_call")
_ACTING: Final = frozenset(_BY_TYPE) - {"tool_search", CUSTOM}
"""Types whose calls no model waits with."""
_SEARCHED: Final = frozenset({"tool_search", NAMESPACE, ADDITIONAL_TOOLS})
"""Types that go together: only a search finds the tools that wait in the others."""
_IDS: Final = {"id": str, "call_id": str}
_MOST: Final = 4096
"""The most tools of a request, those in namespaces included. No model can use that many."""


def as_functions(payload: Mapping[str, Any], upstream: UpstreamTypes) -> AsFunctions | None:
    """Return a request with functions in place of its typed tools; ``None`` if it has none of them.

    If the model may call server tools in the same turn, only the calls of functions tell that the client has
    to act. Raises
    :class:`RequestError` (400), which names the field, for a declaration or an item that cannot be read, and
    for a tool that is declared twice.
    """
    native, mixes, earlier = upstream.native, upstream.mixes, upstream.earlier
    if EVERY_TYPE in native and not mixes:
        return None
    brought = orjson.loads(earlier) if earlier else []
    if not (types := types_in(payload) | types_in({"input": brought})):
        return None
    passing = TYPES if EVERY_TYPE in native else frozenset(native)
    if mixes:
        passing -= _ACTING
        if _searches(payload, brought):
            passing -= _SEARCHED
    return None if types <= passing else _Request(payload, passing, brought).read()


def _searches(payload: Mapping[str, Any], brought: Sequence[Any]) -> bool:
    """Return whether the client searches for tools, which it has to do before the model can go on."""
    given = payload.get("input")
    holders = [payload, *brought, *(given if isinstance(given, list) else ())]
    lists = [tools for holder in holders if isinstance(holder, dict) and (tools := holder.get("tools"))]
    tools = [tool for tools in lists if isinstance(tools, list) for tool in tools if isinstance(tool, dict)]
    return any(tool.get("type") == _SEARCH.type and _SEARCH.is_local(tool) for tool in tools)


class _Request:
    """Reads one request."""

    def __init__(
        self, payload: Mapping[str, Any], native: frozenset[str], earlier: Sequence[Mapping[str, Any]]
    ) -> None:
        self._payload = payload
        self._native = native
        self._items = _objects(payload, "input")
        before = {f"previous_response_id[{at}]": item for at, item in enumerate(earlier)}
        self._bringing = {
            place: item
            for place, item in (*before.items(), *self._items.items())
            if item.get("type") in BRINGING and not self._keeps(item)
        }
        self._declared = dict(self._brought())
        self._check()
        named = [tool for tool in self._declared.values() if tool.get("type") in _NAMED]
        self._names = FunctionNames({tool["name"] for tool in named if isinstance(tool.get("name"), str)})
        self._origins: dict[str, FunctionOrigin] = {}
        self._tools: list[Any] = []
        self._offered: dict[tuple[str, str], str] = {}
        self._places: dict[str, str] = {}
        self._custom: set[str] = set()
        self._defers = any(self._reads(tool) is _SEARCH for tool in self._declared.values())

    def read(self) -> AsFunctions:
        for place, tool in self._declared.items():
            self._offer(place, tool)
        if len(self._tools) > _MOST:
            raise RequestError(
                400, f"tools has {len(self._tools)} tools. Send at most {_MOST}.", param="tools"
            )
        given = self._payload.get("input")
        payload = {**self._payload, "input": self._read_items() if isinstance(given, list) else given}
        if self._tools or "tools" in payload:
            payload["tools"] = self._tools
        if "tool_choice" in payload:
            payload["tool_choice"] = self._choice(payload["tool_choice"])
        return AsFunctions(payload, ResponsesAnswer(self._payload, self._origins), self._places)

    # ------------------------------------------------------------ declarations

    def _brought(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each tool of the request with its place, those that items bring after the others."""
        yield from _objects(self._payload, "tools").items()
        for place, item in self._bringing.items():
            yield from _objects(item, "tools", f"{place}.").items()

    def _keeps(self, item: Mapping[str, Any]) -> bool:
        """Return whether an item that brings tools goes to the upstream as it is."""
        kind = _SEARCH.type if item.get("type") == _SEARCH.output else ADDITIONAL_TOOLS
        replaced = TYPES - self._native
        return kind in self._native and all(
            tool.get("type") not in replaced for tool in _objects(item, "tools").values()
        )

    def _check(self) -> None:
        """Raise for a tool that cannot be read or is declared twice in one list; what items bring may repeat
        what is declared elsewhere."""
        seen: set[tuple[str, str, str]] = set()
        for place, tool in self._declared.items():
            for path, group, name in self._identities(place, tool):
                identity = (place.rpartition("[")[0], group, name)
                if identity in seen:
                    what = name or tool.get("type")
                    said = f"{path}: the tool {str(what)[:64]!r} is declared twice."
                    raise RequestError(400, said, param=path)
                seen.add(identity)

    def _identities(self, place: str, tool: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """Yield the place, the group and the name of each function that a declaration means.

        Raises :class:`RequestError` for a declaration that cannot be read, and for a name that the provider
        refuses, if the name is replaced here: the upstream cannot refuse it.
        """
        kind = tool.get("type")
        if kind in _NAMED:
            name = _name(tool, place)
            if kind == CUSTOM and CUSTOM not in self._native:
                check_name(name, f"{place}.name")
                _check_format(tool, place)
            yield f"{place}.name", "", name
        elif kind == NAMESPACE:
            group, is_replaced = _text(tool, "name", place), NAMESPACE not in self._native
            if is_replaced:
                check_name(group, f"{place}.name")
            check_members(tool, {"description": str}, place)
            for path, inner in _objects(tool, "tools", f"{place}.", needed=True).items():
                if inner.get("type") not in _NAMED:
                    raise RequestError(400, f"{path}.type must be function or custom.", param=f"{path}.type")
                name = _name(inner, path)
                if is_replaced:
                    check_name(name, f"{path}.name")
                    _check_format(inner, path)
                yield f"{path}.name", f"{group}.", name
        elif isinstance(kind, str) and kind in _BY_TYPE:
            if kind not in self._native:
                check_members(tool, _BY_TYPE[kind].declared, place)
            yield place, kind, ""

    def _reads(self, tool: Mapping[str, Any]) -> TypedTool | None:
        """Return the type of a tool that becomes a function here; ``None`` for any other tool."""
        kind = tool.get("type")
        typed = _BY_TYPE.get(kind) if isinstance(kind, str) and kind != CUSTOM else None
        return typed if typed is not None and kind not in self._native and typed.is_local(tool) else None

    def _offer(self, place: str, tool: Mapping[str, Any]) -> None:
        """Add what a declaration means to the tools, if it is not there yet."""
        kind, item = tool.get("type"), self._bringing.get(place.partition(".")[0], {})
        is_loaded = item.get("type") == _SEARCH.output
        if kind == NAMESPACE and kind not in self._native:
            about = tool.get("description") or ""
            for at, inner in enumerate(tool["tools"]):
                group = str(tool["name"])
                written = self._named(inner, group)
                if about:
                    written["description"] = f"{written.get('description') or ''}\n\n{about}"
                where = f"{place}.tools[{at}]"
                check_direct(inner, where)
                if self._add(where, f"{group}.", inner["name"], written, is_loaded=is_loaded):
                    about = ""  # It is about all of them, so it is said once.
        elif (typed := self._reads(tool)) is not None:
            check_direct(tool, place)
            name = self._function(typed=typed)
            written = {
                "type": "function",
                "name": name,
                "description": tool.get("description") or typed.description,
                "parameters": tool.get("parameters") or typed.parameters,
                "strict": False,
            }
            self._add(place, typed.type, "", written, is_loaded=True)
        elif kind in _NAMED:
            if kind == CUSTOM and kind not in self._native:
                check_direct(tool, place)
            self._add(place, "", tool["name"], self._named(tool), is_loaded=is_loaded)
        else:
            self._append(place, tool)

    def _append(self, place: str, tool: Mapping[str, Any]) -> None:
        self._places[f"tools[{len(self._tools)}]"] = place
        self._tools.append(tool)

    def _named(self, tool: Mapping[str, Any], namespace: str = "") -> dict[str, Any]:
        """Return a function or custom tool as it is offered."""
        name, is_custom = tool["name"], tool["type"] == CUSTOM and CUSTOM not in self._native
        typed = _BY_TYPE[CUSTOM] if is_custom else None
        if namespace or is_custom:
            name = self._function(name, namespace=namespace, typed=typed)
        if typed is None:
            return {**tool, "name": name}
        kept = {member: value for member, value in tool.items() if member != "format"}
        written = {"name": name, "description": described_input(tool), "parameters": typed.parameters}
        return {**kept, "type": "function", **written, "strict": False}

    def _add(self, place: str, group: str, name: str, tool: Mapping[str, Any], *, is_loaded: bool) -> bool:
        """Add a tool that is not there yet, unless the model has to find it by a search first.

        A tool that the choice names is there from the beginning: a model can be forced to call only what it
        has.

        Return whether it was added.
        """
        waits = self._defers and tool.get("defer_loading") is True and not is_loaded
        waits = waits and not self._is_chosen(group, name)
        if waits or (group, name) in self._offered:
            return False
        if self._defers:
            tool = {member: value for member, value in tool.items() if member != "defer_loading"}
        self._offered[group, name] = tool["name"]
        self._append(place, tool)
        if tool["type"] == CUSTOM:
            self._custom.add(tool["name"])
        return True

    def _function(self, name: str = "", *, namespace: str = "", typed: TypedTool | None = None) -> str:
        """Return the name of the function that stands for a tool; without a ``name``, for the only one of
        its type."""
        if namespace:
            found = self._names.of(f"{namespace}.", name, f"{namespace}__{name}")
        elif name:
            found = name if PLAIN_NAME.fullmatch(name) else self._names.of("", name, name)
        else:
            kind = typed.type if typed is not None else ""
            found = self._names.of(kind, "", kind)
        self._origins[found] = FunctionOrigin(namespace, name, typed)
        return found

    # ------------------------------------------------------------ choices

    def _choice(self, choice: Any) -> Any:
        """Return a ``tool_choice`` that names functions."""
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
            # A type or a namespace that is named again and again counts once.
            named: dict[bytes, Any] = {}
            for at, tool in enumerate(choice["tools"]):
                if (said := orjson.dumps(tool)) not in named:
                    named[said] = self._chosen(tool, f"tool_choice.tools[{at}]")
            return {**choice, "tools": [one for found in named.values() for one in found]}
        found = self._chosen(choice, "tool_choice")
        if len(found) == 1:
            return found[0]
        return {"type": "allowed_tools", "mode": "required", "tools": found}

    def _is_chosen(self, group: str, name: str) -> bool:
        """Return whether the choice names a tool of the client's, alone or with its namespace."""
        return not self._choosable.isdisjoint(((group, ""), (group, name), ("", name)))

    @cached_property
    def _choosable(self) -> frozenset[tuple[str, str]]:
        """What the choice names: ``("", NAME)`` and ``(NAMESPACE., NAME)``, and ``(NAMESPACE., "")`` for all
        tools of a namespace."""
        choice = self._payload.get("tool_choice")
        listed = choice.get("tools") if isinstance(choice, dict) else None
        found = set()
        for tool in [choice, *(listed if isinstance(listed, list) else ())]:
            if isinstance(tool, dict) and isinstance(name := tool.get("name"), str):
                space = tool.get("namespace")
                group = f"{space}." if isinstance(space, str) and space else ""
                found.add((f"{name}.", "") if tool.get("type") == NAMESPACE else (group, name))
        return frozenset(found)

    def _chosen(self, tool: Any, place: str) -> list[Any]:
        """Return the functions that an element of a choice means."""
        if not isinstance(tool, dict) or not isinstance(kind := tool.get("type"), str):
            return [tool]
        check_members(tool, {"name": str, "namespace": str}, place)
        name, space = tool.get("name") or "", tool.get("namespace")
        if kind == NAMESPACE and kind not in self._native:
            if found := self._in_spaces.get((f"{name}.", "")):
                return [self._choosing(function) for function in found]
            raise RequestError(400, f"{place}.name is not a namespace of tools.", param=f"{place}.name")
        if kind in _BY_TYPE and (kind, "") in self._offered:
            return [self._choosing(self._offered[kind, ""])]
        if kind not in _NAMED:
            return [tool]
        if kind == CUSTOM and CUSTOM not in self._native:
            kind = "function"
        function = self._offered.get((f"{space}." if space else "", name))
        if function is None and not space and len(alike := self._in_spaces.get(("", name), ())) == 1:
            function = alike[0]
        return [{**tool, "type": kind} if function is None else self._choosing(function)]

    def _choosing(self, name: str) -> dict[str, str]:
        """Return the choice of a tool that is offered under this name."""
        return {"type": CUSTOM if name in self._custom else "function", "name": name}

    @cached_property
    def _in_spaces(self) -> Mapping[tuple[str, str], Sequence[str]]:
        """The functions of namespaces: by ``(GROUP., "")``, and by ``("", name)``."""
        found: dict[tuple[str, str], list[str]] = {}
        for (group, name), function in self._offered.items():
            if group.endswith("."):
                found.setdefault((group, ""), []).append(function)
                found.setdefault(("", name), []).append(function)
        return found

    # ------------------------------------------------------------ items

    def _read_items(self) -> list[Any]:
        """Return the items with calls of functions and their results."""
        items = self._items.values()
        calls = {item["id"]: item["call_id"] for item in items if _has_texts(item, "id", "call_id")}
        made: list[Any] = []
        for place, item in self._items.items():
            read = self._read_item(item, place, calls)
            if read is not None:
                self._places[f"input[{len(made)}]"] = place
                made.append(read)
        return made

    def _read_item(
        self, item: Mapping[str, Any], place: str, calls: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Return an item as one of functions; ``None`` for one that the model does not see."""
        kind = item.get("type")
        if not isinstance(kind, str):
            return item
        if kind in _BY_CALL and _BY_CALL[kind].type not in self._native:
            check_members(item, {**_IDS, **_BY_CALL[kind].called}, place)
            # No upstream takes a call without a result; a client has none for a call that broke off.
            ids = item.get("call_id"), item.get("id")
            broke_off = item.get("status") == "incomplete" and self._answered.isdisjoint(ids)
            return (
                None if item.get("call_id") is None or broke_off else self._call(item, _BY_CALL[kind], place)
            )
        if kind in _BY_OUTPUT and _BY_OUTPUT[kind].type not in self._native:
            check_members(item, {**_IDS, **_BY_OUTPUT[kind].returned}, place)
            # Some clients put the id of the call of a local shell into ``id``, as the types of openai do.
            named = item.get("call_id")
            if not named and kind != _SEARCH.output:
                named = calls.get(item.get("id") or "", item.get("id"))
            if not named:
                return None
            result = self._result(item, _BY_OUTPUT[kind], place)
            return {"type": "function_call_output", "call_id": named, "output": result}
        if kind == ADDITIONAL_TOOLS and place in self._bringing:
            return None
        if item.get("namespace") is not None and NAMESPACE not in self._native:
            check_members(item, {"name": str, "namespace": str}, place)
            return self._without_namespace(item, kind)
        if kind == "item_reference":
            return {**item, "id": self._as_function_id(item.get("id"))}
        return item

    @cached_property
    def _answered(self) -> frozenset[str]:
        """What the outputs of typed tools name: calls by their ids, or the items of calls."""
        outputs = [item for item in self._items.values() if item.get("type") in tuple(_BY_OUTPUT)]
        named = [item.get("call_id") or item.get("id") for item in outputs]
        return frozenset(name for name in named if isinstance(name, str))

    def _call(self, item: Mapping[str, Any], typed: TypedTool, place: str) -> dict[str, Any]:
        name, group = (
            (_text(item, "name", place), item.get("namespace")) if typed.type == CUSTOM else ("", "")
        )
        name = self._function(name, namespace=group or "", typed=typed)
        arguments = orjson.dumps(typed.arguments(item)).decode()
        call = {"type": "function_call", "call_id": item["call_id"], "name": name, "arguments": arguments}
        kept = {member: item[member] for member in ("id", "status") if item.get(member) is not None}
        if "id" in kept:
            kept["id"] = self._as_function_id(kept["id"])
        return {**kept, **call}

    def _result(self, item: Mapping[str, Any], typed: TypedTool, place: str) -> Any:
        if typed is not _SEARCH:
            return typed.result(item)
        names = []
        for path, tool in _objects(item, "tools", f"{place}.").items():
            for _, group, name in self._identities(path, tool):
                names.append({"name": self._offered.get((group, name), name)})
        return typed.result({"tools": names})

    def _as_function_id(self, item_id: Any) -> Any:
        """Return the id of an item; one of a type that is replaced here is now a call of a function."""
        prefix, mark, rest = item_id.partition("_") if isinstance(item_id, str) else ("", "", "")
        typed = _BY_PREFIX.get(prefix)
        return f"fc_{rest}" if mark and typed is not None and typed.type not in self._native else item_id

    def _without_namespace(self, item: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Return a call, or the output of one, under the name of its function."""
        space, name = item["namespace"], item.get("name")
        left = {member: value for member, value in item.items() if member != "namespace"}
        if kind not in _CALLS or name is None:
            left.pop("name", None)
            return left
        # A function that a search loaded has its own name as its namespace.
        is_plain = not space or (space == name and ("", name) in self._offered)
        return left if is_plain else {**left, "name": self._function(name, namespace=space)}


def _has_texts(item: Any, *names: str) -> bool:
    return isinstance(item, dict) and all(isinstance(item.get(name), str) for name in names)


def _name(tool: Mapping[str, Any], place: str) -> str:
    """Return the name of a function or custom tool whose members have the right types."""
    check_members(tool, NAMED, place)
    return _text(tool, "name", place)


def _check_format(tool: Mapping[str, Any], place: str) -> None:
    """Raise :class:`RequestError` for a format of a custom tool that is an incomplete grammar."""
    form = tool.get("format") or {}
    if form.get("type") == "grammar":
        check_grammar(form, f"{place}.format")


def _text(tool: Mapping[str, Any], name: str, place: str) -> str:
    """Return a name in a declaration; raises :class:`RequestError` if there is none."""
    value = tool.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(400, f"{place}.{name} must be a name.", param=f"{place}.{name}")
    return value


def _objects(
    holder: Mapping[str, Any], field: str, before: str = "", *, needed: bool = False
) -> dict[str, Mapping[str, Any]]:
    """Return the objects of a list by their places; raises :class:`RequestError` for anything else in it."""
    entries = holder.get(field)
    if entries is None and not needed:
        return {}
    if isinstance(entries, str) and field == "input":
        return {}
    if not isinstance(entries, list):
        raise RequestError(400, f"{before}{field} must be a list.", param=f"{before}{field}")
    found: dict[str, Mapping[str, Any]] = {}
    for place, entry in enumerate(entries):
        path = f"{before}{field}[{place}]"
        if not isinstance(entry, dict):
            raise RequestError(400, f"{path} must be an object.", param=path)
        found[path] = entry
    return found
