"""Where the user is, as each search engine takes it; an engine gets no part that it does not document.

Sources: Brave's "Web Search API Request Headers" (``X-Loc-*``) and its country codes; Tavily's reference
"Search" (``country``, a name in English); Exa's "Geolocation Filter Support" (``userLocation``). SearXNG's
"Search API" has a language but no place, and a country does not tell which language its user reads.
"""

import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

_Part = Annotated[str, Field(min_length=1, max_length=255)]
_LONGEST_STATE: Final = 3
"""The characters of a code of ISO 3166-2 in ``X-Loc-State``; longer is a name."""
_OF_BRAVE: Final = """
AR AU AT BE BR CA CL DK FI FR DE HK IN ID IT JP KR MY MX NL NZ NO CN PL PT PH RU SA ZA ES SE CH TW TR GB US"""
"""The countries from which Brave can take its results; for any other it refuses the request."""
_OF_TAVILY: Final = """
AR argentina,AU australia,AT austria,BD bangladesh,BE belgium,BG bulgaria,BR brazil,CA canada,CH switzerland,
CL chile,CN china,CO colombia,CZ czech republic,DE germany,DK denmark,EE estonia,EG egypt,ES spain,FI finland,
FR france,GB united kingdom,GR greece,HR croatia,HU hungary,ID indonesia,IE ireland,IL israel,IN india,
IS iceland,IT italy,JP japan,KE kenya,KR south korea,LT lithuania,LU luxembourg,LV latvia,MA morocco,
MX mexico,MY malaysia,NG nigeria,NL netherlands,NO norway,NZ new zealand,PE peru,PH philippines,PK pakistan,
PL poland,PT portugal,RO romania,RS serbia,SA saudi arabia,SE sweden,SG singapore,SI slovenia,SK slovakia,
TH thailand,TN tunisia,TR turkey,TW taiwan,UA ukraine,AE united arab emirates,US united states,UY uruguay,
VN vietnam,ZA south africa"""
"""Those of Tavily's names that are the common English ones; it refuses a request with another name."""
_BRAVE: Final = frozenset(_OF_BRAVE.split())
_TAVILY: Final[Mapping[str, str]] = MappingProxyType(
    {name.strip()[:2]: name.strip()[3:] for name in _OF_TAVILY.split(",")}
)


class Place(BaseModel):
    """Where the user is, as far as it is known."""

    model_config = ConfigDict(extra="forbid")

    country: Annotated[str, Field(pattern=r"^[A-Za-z]{2}$")] | None = None
    region: _Part | None = None
    city: _Part | None = None
    timezone: _Part | None = None

    @property
    def code(self) -> str:
        """The country in capitals; empty if it is not known."""
        return (self.country or "").upper()


def brave_country(place: Place) -> dict[str, str]:
    """Return the parameter that says from where Brave's results come."""
    return {"country": place.code} if place.code in _BRAVE else {}


def brave_headers(place: Place) -> dict[str, str]:
    """Return the headers that say where the client of Brave is.

    A header takes ASCII alone: accents are left out, and so is a name in another script.
    """
    region = place.region or ""
    parts = {
        "X-Loc-Country": place.code,
        "X-Loc-State" if len(region) <= _LONGEST_STATE else "X-Loc-State-Name": region,
        "X-Loc-City": place.city or "",
        "X-Loc-Timezone": place.timezone or "",
    }
    plain = {name: _without_accents(part) for name, part in parts.items()}
    return {name: part for name, part in plain.items() if part and part.isascii() and part.isprintable()}


def tavily_country(place: Place) -> dict[str, str]:
    """Return the member that names the country for Tavily."""
    return {"country": name} if (name := _TAVILY.get(place.code)) else {}


def exa_country(place: Place) -> dict[str, str]:
    """Return the member that names the country for Exa."""
    return {"userLocation": place.code} if place.code else {}


def _without_accents(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text)
    return "".join(part for part in parts if not unicodedata.combining(part))
