"""A request whose typed tools were replaced by functions, and the names of these functions."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple, Protocol

from proxy.base.errors import RequestError
from proxy.base.values import value_class
from proxy.wires.typed_tools.searching import ClientSearch

EVERY_TYPE: Final = "*"
"""In a list of native types: the upstream understands every type of its own dialect."""

_MOST: Final = 64
"""The longest name of a function that all providers accept."""
_DIGEST: Final = 8
_ODD: Final = re.compile(r"[^A-Za-z0-9_-]")
PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A name that all providers accept."""
_PLACE: Final = re.compile(r"\b(?:tools|input)\[\d+\]")
"""A place in a list of the request."""
_SERVER_PREFIX: Final = "core__"
"""Names that begin so mean server tools, wherever a client declares them."""


class UpstreamTypes(NamedTuple):
    """What decides which tools of a request stay as the client declared them.

    ``native`` are the types that the upstream itself understands; with ``crosses`` it speaks another dialect.
    With ``mixes`` the model may call server tools in the same turn. ``earlier`` are the items that brought
    tools to the response that the request continues, as JSON; empty for none.
    """

    native: Sequence[str] = ()
    crosses: bool = False
    mixes: bool = False
    earlier: str = ""


class TypedAnswer(Protocol):
    """Turns what the client is sent back into the form in which it declared its tools."""

    def stream(self, data: bytes) -> bytes:
        """Return the events for the client in place of whole events of a stream."""

    def reply(self, body: bytes) -> bytes:
        """Return the body for the client in place of a response that was not streamed."""

    def resource(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response as the client knows it."""

    def input_items(self) -> bytes:
        """Return the input as the client sent it, as a JSON array of items."""
        ...

    def returned(self, name: str, arguments: str) -> str:
        """Return the arguments of a call as they are once the client has sent the call back."""
        ...

    def as_asked(self, message: bytes) -> bytes:
        """Return a turn of an upstream of this dialect with calls of functions only, as it was asked.

        It may answer with calls of a special type all the same.
        """
        ...


@value_class
class AsFunctions:
    """A request in which the typed tools and their items are functions, calls and results.

    ``answer`` turns the answer back; ``None`` if calls of these tools look like calls of functions anyway.
    ``places`` are the paths of the tools and items as the client wrote them, by those in ``payload``.
    ``search`` is the tool search that the client declared, if the proxy runs it.
    """

    payload: Mapping[str, Any]
    answer: TypedAnswer | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    search: ClientSearch | None = None

    def name_as_declared(self, error: RequestError) -> None:
        """Let an error about ``payload`` name the fields of the client's own request."""
        if not self.places:
            return
        error.message = _PLACE.sub(self._declared, error.message)
        error.args = (error.message,)
        if error.param is not None:
            error.param = _PLACE.sub(self._declared, error.param)

    def _declared(self, found: re.Match[str]) -> str:
        return self.places.get(found[0], found[0])


def with_grammar(told: str, grammar: Mapping[str, Any] | None) -> str:
    """Return the description of a function in place of a tool whose input is a text: ``told``, and the
    grammar that the input must have, if there is one."""
    if not grammar:
        return told
    return (
        f"{told}\n\nThe input must match this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}"
    )


class FunctionNames:
    """The names of the functions of one request: none is used twice, and each has at most 64 characters."""

    def __init__(self, taken: set[str]) -> None:
        """``taken`` are the names that the client chose itself."""
        self._taken = taken
        self._given: dict[tuple[str, str], str] = {}

    def of(self, group: str, name: str, wish: str) -> str:
        """Return the name of a tool that its ``group`` and ``name`` identify: ``wish`` if that can be used.

        Otherwise it ends in a digest of both, so that it is the same in each request.
        """
        given = self._given.get((group, name))
        if given is not None:
            return given
        found = _ODD.sub("_", wish)
        if found.startswith(_SERVER_PREFIX):
            found = f"client_{found}"
        beginning, salt = found[: _MOST - _DIGEST - 1], 0
        while (salt == 0 and found != wish) or len(found) > _MOST or found in self._taken:
            identity = "\0".join((group, name, str(salt))).encode("utf-8", "surrogatepass")
            found = f"{beginning}_{hashlib.blake2b(identity, digest_size=_DIGEST // 2).hexdigest()}"
            salt += 1
        self._taken.add(found)
        self._given[group, name] = found
        return found
