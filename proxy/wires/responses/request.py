"""Responses: the client's request.

Source: OpenAI's API reference, "Create a model response".
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import orjson

from proxy.base.errors import RequestError
from proxy.base.values import value_class
from proxy.wires.chosen import NOTHING_CHOSEN, read_chosen
from proxy.wires.client_port import Answer, CarriedTurn, ClientRequest, ReturnedCalls
from proxy.wires.past.clock import SystemRule, without_clock
from proxy.wires.past.evidence import Evidence, Place, Speaker
from proxy.wires.responses.items import (
    answer_length,
    answer_spans,
    is_model_item,
    is_ours,
    is_reference,
    item_text,
    mint_item_id,
    names_image,
    own_mark,
    sealed_turn,
)
from proxy.wires.responses.own_items.programs import is_of_program
from proxy.wires.responses.typed_tools.table import ADDITIONAL_TOOLS, NAMESPACE, brought_names, types_in
from proxy.wires.turn.digest import (
    PrefixDigests,
    conversation_digest,
    conversation_digests,
    encoded,
    sent_arguments,
    user_key,
)
from proxy.wires.turn.request_members import (
    answers_server_call,
    declared_names,
    listed_tools,
    model_name,
    preview_of,
)
from proxy.wires.turn.texts import joined_texts

_TEXTS = ("text", "input_text", "output_text")
_CALLS = ("function_call", "custom_tool_call")
_OPEN = frozenset({NAMESPACE, ADDITIONAL_TOOLS, "tool_search"})
"""Types by which the model knows tools that are not listed by their names."""
_HOSTED = ("web_search_call", "image_generation_call")
"""Types of items that show calls of the provider's tools."""
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


@value_class
class ResponsesRequest(ClientRequest):
    """The parts of a request that decide how the proxy handles it.

    ``items`` is ``input`` as a list. ``asked`` is the whole body, for fields of the resource that repeat it.
    ``instructions`` go to the model beside the input. ``prompt`` is a stored prompt in canonical form, empty
    for none.
    """

    items: Sequence[Mapping[str, Any]]
    asked: Mapping[str, Any] = field(repr=False)
    instructions: Any = None
    prompt: str = ""

    _beginnings: PrefixDigests = field(init=False, repr=False, compare=False)
    _response_id: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The items in a conversation are not sent again, so they cannot be compared.
        items = () if self.conversation else self.items
        object.__setattr__(self, "_beginnings", PrefixDigests(items, _visible, _speaker, _said))

    @property
    def has_proxy_calls(self) -> bool:
        labels = self.chosen.labels
        return any(is_ours(item, labels) for item in self.items)

    def carries(self) -> bool:
        """See :meth:`proxy.wires.client_port.ClientRequest.carries`.

        A client whose answers are not stored sends each item of an answer back, as OpenAI's guides on
        reasoning and on conversation state say. With a ``conversation`` it sends none.
        """
        include = self.asked.get("include")
        asks = isinstance(include, list) and "reasoning.encrypted_content" in include
        return not self.conversation and (asks or not self.may_store)

    def carried(self) -> Sequence[CarriedTurn]:
        likely = [(at, item) for at, item in enumerate(self.items) if item.get("type") == "reasoning"]
        turns = ((position, sealed_turn(item)) for position, item in likely)
        return [CarriedTurn(position, sealed) for position, sealed in turns if sealed is not None]

    @property
    def lists(self) -> Collection[str]:
        """The labels of the proxy's servers whose list of tools the client sends back."""
        listed = [item for item in self.items if str(item.get("id")).startswith(own_mark("mcpl"))]
        if any(map(is_reference, listed)):
            return self.chosen.labels
        return frozenset([str(item.get("server_label")) for item in listed])

    @property
    def references(self) -> Sequence[str]:
        return [str(item.get("id")) for item in self.items if is_reference(item) and not is_ours(item)]

    @property
    def named_images(self) -> Sequence[str]:
        """The ids of the proxy's own images that the client names and does not send."""
        return [str(item.get("id")) for item in self.items if names_image(item)]

    def part_ids(self) -> Mapping[int, Sequence[str]]:
        if not self.has_proxy_calls:
            return {}
        shown = {at: str(item.get("id")) for at, item in enumerate(self.items) if item.get("type") in _HOSTED}
        spans = answer_spans(self.items) if shown else ()
        return {start: [shown[at] for at in range(start, end) if at in shown] for start, end in spans}

    @property
    def response_id(self) -> str:
        """The id of the response to this request, if the proxy may choose it: always the same one."""
        if not self._response_id:
            object.__setattr__(self, "_response_id", mint_item_id("response"))
        return self._response_id

    @property
    def preview(self) -> str:
        for item in reversed(self.items):
            if item.get("role") == "user":
                return preview_of(item_text(item))
        return ""

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Raise unless each output answers one call, once. If all calls are in this input, so must be that
        call."""
        calls = [item for item in self.items if item.get("type") == "function_call"]
        self._check_ours(reserved)
        # Some models repeat an id in a later turn: each call with it needs its own output.
        unanswered = Counter(str(item.get("call_id")) for item in calls)
        elsewhere = self.continues is not None or bool(self.conversation) or self._has_references
        for position, item in enumerate(self.items):
            if item.get("type") != "function_call_output":
                continue
            param = f"input[{position}].call_id"
            call_id = item.get("call_id")
            if not isinstance(call_id, str) or not call_id:
                raise RequestError(400, f"{param} must name the call that this answers.", param=param)
            if call_id not in unanswered and elsewhere:
                unanswered[call_id] = 1
            if call_id not in unanswered:
                raise RequestError(400, f"{param} does not match a call of this input.", param=param)
            if not unanswered[call_id]:
                raise RequestError(400, f"{param} answers a call that already has an output.", param=param)
            unanswered[call_id] -= 1

    def _check_ours(self, reserved: Callable[[str], bool]) -> None:
        """Raise if an output answers a call of a server tool, in whatever form the two are written."""
        ours = {
            str(item.get("call_id"))
            for item in self.items
            if item.get("type") in _CALLS and isinstance(item.get("name"), str) and reserved(item["name"])
        }
        for position, item in enumerate(self.items if ours else ()):
            if item.get("type") in _OUTPUTS and str(item.get("call_id")) in ours:
                param = f"input[{position}].call_id"
                raise answers_server_call(param, "output")

    @property
    def _has_references(self) -> bool:
        return any(map(is_reference, self.items))

    @property
    def returns_calls(self) -> bool:
        return not self.conversation

    def returned_calls(self) -> Sequence[ReturnedCalls]:
        """Return each unbroken span of a model's items that contains a call of a client's tool.

        A client that continues a conversation sends only outputs: they are one span.
        """
        if self.conversation:
            places = [place for place, item in enumerate(self.items) if item.get("type") in _OUTPUTS]
            ids = frozenset(str(self.items[place].get("call_id")) for place in places)
            return [ReturnedCalls(places[0], ids)] if places else []
        found = []
        for start, end in answer_spans(self.items):
            if ids := self._client_calls(start, end):
                found.append(ReturnedCalls(start, ids))
        return found

    def _client_calls(self, start: int, end: int) -> frozenset[str]:
        """Return the ids of the client's calls among the model's items from ``start`` to ``end``.

        If a call is only a reference, the output that follows provides its id.
        """
        span = self.items[start:end]
        ids = {item["call_id"] for item in span if self._is_client_call(item)}
        if any(map(is_reference, span)):
            following = map(self.items.__getitem__, range(end, len(self.items)))
            answers = itertools.takewhile(lambda item: item.get("type") in _OUTPUTS, following)
            ids |= {str(item.get("call_id")) for item in answers}
        return frozenset(ids)

    def answers(self) -> Sequence[Answer]:
        """Return each unbroken span of a model's items that leaves no call for the client to answer."""
        if self.conversation:
            # The upstream has the hidden items.
            return []
        found = []
        for start, end in answer_spans(self.items):
            text = answer_text(self.items[start:end])
            if text and not self._client_calls(start, end):
                found.append(Answer(start, text))
        return found

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        if self.conversation:
            return True
        span = self.items[position : position + answer_length(self.items[position:])]
        made = [orjson.loads(item) for item in held["items"] if isinstance(item, str)]
        text = answer_text(span)
        referred = any(map(is_reference, span))
        # Some libraries join all texts of an answer, like ``output_text`` of the SDKs.
        if text and not referred and not is_shown(text) and _joined(span) != _joined(made):
            return False
        # What does not come back is hidden, or a library dropped it. Nothing may be new or moved.
        labels = self.chosen.labels
        known = iter(_told_apart(made, labels))
        ids = [item.get("id") for item in made]
        return all(
            one[1] in ids if one[0] == "item_reference" else one in known for one in _told_apart(span, labels)
        )

    def answer_keys(
        self, caller: str, shape: str, answers: Sequence[tuple[int | None, str]], rule: SystemRule = "clock"
    ) -> list[str]:
        words, digest = ("responses answer", *self._words(caller, rule), shape), self._beginnings.digest
        return conversation_digests(words, [(encoded(text), digest(upto, rule)) for upto, text in answers])

    def identity_words(self, caller: str) -> tuple[str, ...]:
        return ("responses", caller, self.people, self.model, self.prompt, self.continues or "")

    def places(self, ends: Sequence[int], rule: SystemRule = "clock") -> Iterator[Place | None]:
        system = self._system_text(rule).encode()
        for end in ends:
            found = None if self.conversation else self._beginnings.place(end, rule)
            yield found and found._replace(system=found.system + system)

    def evidence(self, upto: int | None = None, rule: SystemRule = "clock") -> Evidence | None:
        if self.conversation:
            return None
        return self._beginnings.evidence(upto, rule, self._system_text(rule).encode())

    def _is_client_call(self, item: Mapping[str, Any]) -> bool:
        """Return whether the client answers this call; other custom calls are the provider's."""
        if not isinstance(item.get("call_id"), str):
            return False
        kind = item.get("type")
        return kind == "function_call" or (kind == "custom_tool_call" and item.get("name") in self.declared)

    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        words = ("responses", *self._words(caller, rule), self.conversation, *sorted(call_ids))
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def _words(self, caller: str, rule: SystemRule) -> tuple[str, ...]:
        """Return what must be equal beside the items, for answers and for calls.

        Instructions count after a ``previous_response_id``, too: the API carries none over, so each request
        sends its own.
        """
        return (caller, self.people, self.model, self._system_text(rule), self.continues or "")

    @property
    def system_texts(self) -> Sequence[str]:
        spoken = [_spoken(item) for item in self.items if _speaker(item) == "system"]
        texts = [orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode() for said in spoken]
        return [text for text in (self._system_text("exact"), *texts) if text]

    def _system_text(self, rule: SystemRule) -> str:
        """Return ``instructions`` and the stored prompt in canonical form; ``""`` if there are none."""
        said = self.instructions.strip() if isinstance(self.instructions, str) else self.instructions
        if rule == "ignore":
            said = None
        elif rule == "clock":
            said = without_clock(said)
        told = [said or None, orjson.loads(self.prompt) if self.prompt else None]
        return orjson.dumps(told, option=orjson.OPT_SORT_KEYS).decode() if any(told) else ""


def _visible(item: Mapping[str, Any]) -> list[Any] | None:
    """Return the parts that identify an item, without the ids and states that libraries drop.

    Reasoning does not count, because libraries and settings drop and add it.
    """
    if item.get("type") == "reasoning":
        return None
    if is_reference(item):
        return [{"type": "item_reference", "id": item.get("id")}]
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        return ["system" if role == "developer" else role, *_spoken(item)]
    if kind == "function_call":
        return [kind, item.get("call_id"), item.get("name"), item.get("arguments")]
    if kind == "function_call_output":
        output = item.get("output")
        return [kind, item.get("call_id"), output.strip() if isinstance(output, str) else output]
    dropped = ("id", "status")
    return [_without_nulls({key: value for key, value in item.items() if key not in dropped})]


def _without_nulls(value: Any) -> Any:
    """Return a value without null members at any depth, because libraries add and drop these."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _spoken(item: Mapping[str, Any]) -> list[Any]:
    """Return the content of a message in order: texts as strings, everything else unchanged.

    A model's texts are joined, as some libraries join them. A client's texts stay separate.
    """
    content = item.get("content")
    spoken: list[Any] = []
    for part in content if isinstance(content, list) else [content]:
        known = isinstance(part, dict) and part.get("type", "text") in _TEXTS
        text = part.get("text") if isinstance(part, dict) and known else part
        if text:
            spoken.append(text if isinstance(text, str) else part)
    if is_model_item(item):
        spoken = joined_texts(spoken)
    # Blanks around a text do not count, because libraries trim them.
    trimmed = [part.strip() if isinstance(part, str) else part for part in spoken]
    return [part for part in trimmed if part != ""]


def _speaker(item: Mapping[str, Any]) -> Speaker:
    if (item.get("type") or "message") == "message" and item.get("role") in ("system", "developer"):
        return "system"
    if is_model_item(item):
        return "model"
    return "tool" if item.get("type") in _OUTPUTS else "user"


def _said(item: Mapping[str, Any]) -> str | None:
    spoken = _spoken(item) if (item.get("type") or "message") == "message" else []
    return "\n".join(spoken) if _is_text(spoken) else None


def _is_text(spoken: Sequence[Any]) -> bool:
    """Return whether a message holds only text. A message without content does not."""
    return bool(spoken) and all(isinstance(part, str) for part in spoken)


def _told_apart(items: Iterable[Mapping[str, Any]], labels: Collection[str]) -> list[Any]:
    """Return the parts of a model's items that must reappear among the items that the model made.

    Texts are left out, because they are compared as a whole; so are reasoning and the proxy's own items.
    """
    found: list[Any] = []
    for item in items:
        kind = item.get("type") or "message"
        if is_ours(item, labels) or kind == "reasoning":
            # References to them, too: some libraries send back only the id of a shown call.
            continue
        if is_reference(item):
            found.append(["item_reference", item.get("id")])
        elif kind == "function_call" and is_of_program(item.get("call_id")):
            continue  # The model has called the program alone.
        elif kind == "function_call":
            found.append([kind, item.get("call_id"), item.get("name"), sent_arguments(item.get("arguments"))])
        elif kind != "message" or not _is_text(_spoken(item)):
            found.append(_visible(item))
    return found


def answer_text(items: Iterable[Mapping[str, Any]]) -> str:
    """Return an answer's texts as one, each after its length, so that different lists never look alike."""
    return "".join(f"{len(text)}:{text}" for text in map(str.strip, _texts(items)) if text)


def _joined(items: Iterable[Mapping[str, Any]]) -> str:
    return "".join(_texts(items)).strip()


def _texts(items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return (item_text(item) for item in items if (item.get("type") or "message") == "message")


def parse_responses_request(payload: Mapping[str, Any]) -> ResponsesRequest:
    """Read the parts of a request that the proxy needs. The upstream checks everything else.

    Raises :class:`RequestError` for a model, an input or tools of the wrong type, and for a tool that is
    declared twice.
    """
    choice = payload.get("tool_choice")
    text = payload.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    continues = payload.get("previous_response_id")
    bound = payload.get("max_tool_calls")
    model, items = model_name(payload), _items(payload.get("input"))
    declared = declared_names(tools := listed_tools(payload), _declared_name, "tools[{}].name")
    return ResponsesRequest(
        model=model,
        stream=payload.get("stream") is True,
        items=items,
        declared=declared,
        brought=brought_names(payload),
        tool_count=len(tools),
        tools_forbidden=choice == "none",
        forced=_forced(choice),
        continues=continues if isinstance(continues, str) and continues else None,
        conversation=_conversation(payload.get("conversation")),
        background=payload.get("background") is True,
        may_store=payload.get("store") is not False,
        wants_json=isinstance(form, dict) and form.get("type") in ("json_object", "json_schema"),
        max_calls=bound if type(bound) is int and bound >= 0 else None,
        open_names=payload.get("prompt") is not None
        or ((not tools or len(tools) > len(declared)) and not _OPEN.isdisjoint(types_in(payload))),
        asked=payload,
        people=user_key(payload),
        instructions=payload.get("instructions"),
        prompt=_written(payload.get("prompt")),
        chosen=read_chosen(tools) if tools else NOTHING_CHOSEN,
    )


def _written(prompt: Any) -> str:
    """Return a stored prompt in canonical form; ``""`` if there is none."""
    return orjson.dumps(prompt, option=orjson.OPT_SORT_KEYS).decode() if prompt else ""


def _conversation(given: Any) -> str:
    """Return the id of a conversation, given as text or as an object; ``""`` if there is none."""
    named = given.get("id") if isinstance(given, dict) else given
    return named if isinstance(named, str) else ""


def _items(given: Any) -> list[Mapping[str, Any]]:
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise RequestError(400, "input must be a string or a list of items.", param="input")
    for position, item in enumerate(given):
        if not isinstance(item, dict):
            raise RequestError(400, f"input[{position}] must be an object.", param=f"input[{position}]")
    return given


def _declared_name(tool: Any) -> str | None:
    """Return the name of a function or custom tool. Models do not call hosted tools by name."""
    if not isinstance(tool, dict) or tool.get("type") not in ("function", "custom"):
        return None
    name = tool.get("name")
    return name if isinstance(name, str) else None


def _forced(choice: Any) -> frozenset[str] | None:
    """Return the only tools that may be called, hosted tools by their type; ``None`` if all may be."""
    if not isinstance(choice, dict):
        return None
    named = choice.get("tools") if choice.get("type") == "allowed_tools" else [choice]
    found = set()
    for tool in named if isinstance(named, list) else ():
        if isinstance(tool, dict):
            name = tool.get("name") or tool.get("type")
            if isinstance(name, str):
                found.add(name)
    return frozenset(found) or None
