"""Which names a query may have on the way to an upstream.

An upstream that reads its query as it reads its body takes ``?model=`` for the model, whatever the body
says; rights, prices and limits hang on the body alone.  So a query on an inference path consists of names
on a list.
"""

import re
from collections.abc import Iterable
from typing import Final

from proxy.errors import RequestError
from proxy.relay.routing.router import Route
from proxy.wires.dialects.table import DIALECTS

__all__ = ["check_query"]

_NAMES: Final = frozenset(name for dialect in DIALECTS.values() for name in dialect.query)

_SEPARATOR = re.compile("[&;]")
"""Some servers end a parameter at a semicolon, too."""


def check_query(query: str, routes: Iterable[Route]) -> None:
    """Check the query of an inference request against what each of its upstreams may be sent.

    Names are compared as they were sent: an escaped one is not on any list.  Raises
    :class:`~proxy.errors.RequestError` (400) for a name that one of the upstreams does not list.
    """
    if not query:
        return
    names = {part.partition("=")[0] for part in _SEPARATOR.split(query) if part}
    for route in routes:
        for name in sorted(names - _NAMES - route.served.query_names):
            raise RequestError(
                400,
                f"The query parameter {name[:100]!r} is not accepted here. Send it in the body, or ask the "
                f"proxy's operator to list it in upstreams.{route.served.upstream.name}.forward_query.",
                param=name[:100],
                code="unknown_query_parameter",
            )
