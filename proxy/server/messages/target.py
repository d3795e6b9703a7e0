"""Accept one normal form of a request's target, so that the target that is checked is the one that is
sent."""

import re
from typing import Final

from msgspec import Struct

from proxy.base.caches import Memo
from proxy.base.error_codes import ERROR_DOCS
from proxy.base.errors import RequestError
from proxy.server.messages.azure_paths import SLASH, below_openai, without_slashes
from proxy.server.messages.heads.head import Head
from proxy.telemetry.hooks import OWN_PATHS
from proxy.wires.dialect import Dialect, Endpoint
from proxy.wires.registry.table import EndpointTable, dialect_of

_PATH = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*\Z")
_QUERY = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@%/?\[\]]*\Z")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
MAX_TARGET = 8192
"""The most characters of a target; a longer one is refused unread."""
_NOT_NORMAL = (
    "The path of the request is not in normal form. Send it without dot segments, '//' and encoded slashes."
)
_SHORT: Final = 64
_TARGET_BYTES: Final = 1000 + 12 * _SHORT
_MOST_TARGETS: Final = 256
_UI: Final = "/ui/"
_CONNECT: Final = "/connect/"
_UI_DATA: Final = f"{_UI}api/"
_NO_PAGES: Final = (_UI_DATA, f"{_UI}static/")
_OWN_FAMILIES: Final = frozenset({"admin", "toolrelay"})
_OWN_ROOTS: Final = ("/admin/", _CONNECT, f"{ERROR_DOCS}/", _UI_DATA, _UI)


class Target(Struct, frozen=True):
    """A request's target: its ``path`` as sent (still percent-encoded) and its ``query`` without question
    mark.

    ``below`` is the path below the prefix of a dialect, or ``None`` for other paths; ``endpoint`` is the
    endpoint there. ``label`` is the class of the path in metrics. ``deployment`` is the model that one of
    Azure's paths names, or empty.
    """

    path: str
    query: str
    below: str | None
    endpoint: Endpoint
    label: str
    deployment: str = ""

    @property
    def is_page(self) -> bool:
        """Whether the path is a page for people: about errors, for logins, or of ``/ui`` but no data."""
        path = f"{self.path}/"
        if path.startswith(f"{ERROR_DOCS}/"):
            return True
        if path.startswith(_CONNECT):
            return True
        return path.startswith(_UI) and not path.startswith(_NO_PAGES) and "." not in path.split("/")[-2]

    @property
    def shown(self) -> str:
        """The path as errors show it: below the prefix, and shortened to 100 characters."""
        return self.endpoint.dialect.shown((self.below or "")[:100])


class Targets:
    """Reads the targets of requests and finds their endpoints; this is the first stage of a request.

    As a rule of a :class:`~proxy.server.messages.heads.head.Head` it returns the target of that head. It
    caches short targets, because nearly all requests use a few of them.
    """

    def __init__(self, endpoints: EndpointTable) -> None:
        self._endpoints = endpoints
        self._known: Memo[tuple[str, str], Target] = Memo(
            "targets", _MOST_TARGETS * _TARGET_BYTES, lambda key, target: _TARGET_BYTES
        )

    def __call__(self, head: Head) -> Target:
        message = head.message
        method, raw = message.method, message.path
        if len(raw) > _SHORT or len(method) > _SHORT:
            return self.read(method, raw)
        return self._known.get((method, raw)) or self._known.put((method, raw), self.read(method, raw))

    def dialect(self, head: Head) -> Dialect:
        """Return the dialect for errors to the sender of a head, even if its target cannot be read."""
        try:
            return dialect_of(head[self].endpoint, head.headers)
        except RequestError:
            return self._endpoints.other.dialect

    def read(self, method: str, raw: str) -> Target:
        """Read a request target.

        Raises :class:`RequestError` for every target that two readers could read as different paths. These
        are targets in absolute form, and paths with dot segments, empty segments, encoded slashes,
        backslashes or controls. Java servers read ``..;x`` as a dot segment, too. Also refused are percent
        signs that escape nothing, and escapes of characters that need none (RFC 3986, 6.2.2.2).

        A path of a rooted dialect below another prefix is a 404. Some clients encode the slashes in the name
        of a model whose description they ask for (openai-python in ``models.retrieve``); this path is read as
        if they had not.
        """
        if len(raw) > MAX_TARGET:
            raise RequestError(414, f"The URL is longer than {MAX_TARGET} characters.")
        path, _, query = raw.partition("?")
        if "%2" in path and self._names_model(method, path):
            path = SLASH.sub("/", path)
        decisive = without_slashes(path, self._endpoints)
        if (
            not _PATH.match(path)
            or not _QUERY.match(query)
            or "//" in path
            or any(not _stands_for_itself(escape[1]) for escape in _ESCAPE.finditer(decisive))
            or any(segment.partition(";")[0] in (".", "..") for segment in decisive.split("/"))
        ):
            raise RequestError(400, _NOT_NORMAL, code="invalid_path")
        deployment = ""
        if (below := self._endpoints.below(path)) is None:
            below, deployment = below_openai(path, self._endpoints)
        if below is not None and below != path and self._endpoints.is_rooted(below):
            # These paths exist at the root only. An upstream whose base URL ends before its prefix would
            # take one that is passed on for its own, and some of them change the upstream.
            raise RequestError(
                404,
                f"There is no endpoint at {path[:100]}. Paths like {below[:100]} begin at the root: leave "
                "out what stands before it, in the client's base URL or host, too.",
                code="not_found",
            )
        if path.startswith("/v1/") and (below or "").startswith("/v1/"):
            raise RequestError(
                404,
                f"There is no endpoint at {path[:100]}: /v1 stands twice. End the client's base URL before "
                "/v1 if the client adds it, as Anthropic's do (http://HOST:PORT), and with one /v1 otherwise "
                "(http://HOST:PORT/v1).",
                code="not_found",
            )
        endpoint = self._endpoints.other if below is None else self._endpoints.find(method, below)
        return Target(path, query, below, endpoint, self._label(path, below, endpoint), deployment)

    def _names_model(self, method: str, path: str) -> bool:
        """Return whether all that follows the collection in a path is the name of a model."""
        below = self._endpoints.below(path) or below_openai(path, self._endpoints)[0]
        endpoint = self._endpoints.find(method, below) if below is not None else self._endpoints.other
        return endpoint.kind == "models" and endpoint.path.endswith("/{rest}")

    def _label(self, path: str, below: str | None, endpoint: Endpoint) -> str:
        """Return the class of a path, from a closed list, so that clients cannot create new labels.

        For example, ``/v1/files/file-17`` has the class ``/v1/files/*``.
        """
        if below is None:
            if path in OWN_PATHS:
                return path
            family = next((own for own in _OWN_ROOTS if f"{path}/".startswith(own)), "")
            return f"{family}*" if family else "other"
        shown = endpoint.dialect.shown
        if below in self._endpoints.labels:
            return shown(below)
        family, _, rest = below[1:].partition("/")
        if family not in self._endpoints.families and family not in _OWN_FAMILIES:
            return shown("/*")
        return shown(f"/{family}/*" if rest else f"/{family}")


def _stands_for_itself(digits: str | None) -> bool:
    """Return whether every reader understands an escape in a path in the same way."""
    if digits is None:
        return False
    character = chr(int(digits, 16))
    unreserved = character.isascii() and (character.isalnum() or character in "-._~")
    return not unreserved and character >= " " and character not in "/\\\x7f"
