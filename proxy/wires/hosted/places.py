"""Where the user is, as the declaration of a search says it (``user_location``).

Sources: the types of openai 3.57 (``web_search_tool_param.UserLocation``; Chat has it one level deeper, in
``approximate``) and of anthropic 2.14 (``user_location_param``); Anthropic's reference "Create a Message" for
the lengths.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from proxy.base.errors import RequestError

_LONGEST: Final = 255
_COUNTRY: Final = re.compile(r"[A-Za-z]{2}")
_FIELDS: Final = ("country", "region", "city", "timezone")


def place_of(value: Any, field: str) -> dict[str, str]:
    """Return the parts of a place that are given; none if there is no place.

    Raises :class:`~proxy.base.errors.RequestError` for a value that is no place; ``field`` names it.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or value.get("type", "approximate") != "approximate":
        raise RequestError(400, f'{field} must be an object with the type "approximate".', param=field)
    if isinstance(inner := value.get("approximate"), Mapping):
        value, field = inner, f"{field}.approximate"
    place: dict[str, str] = {}
    for name in _FIELDS:
        part = value.get(name)
        if part is None or part == "":
            continue
        if not isinstance(part, str) or len(part) > _LONGEST or not part.isprintable():
            words = f"a text of at most {_LONGEST} characters on one line"
            raise RequestError(400, f"{field}.{name} must be {words}.", param=f"{field}.{name}")
        place[name] = part
    if "country" in place and not _COUNTRY.fullmatch(place["country"]):
        raise RequestError(
            400, f"{field}.country must have two letters, such as DE.", param=f"{field}.country"
        )
    return place
