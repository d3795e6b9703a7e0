"""Where the user is, as each search engine takes it; an engine gets no part that it does not document.

Sources: Brave's "Web Search API Request Headers" (``X-Loc-*``) and its country codes; Tavily's reference
"Search" (``country``, a name in English), with the names that its server for MCP lists (tavily-mcp 0.2.9);
Exa's "Geolocation Filter Support" (``userLocation``). SearXNG's "Search API" has a language but no place, and
a country does not tell which language its user reads.
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
AF afghanistan, AL albania, DZ algeria, AD andorra, AO angola, AR argentina, AM armenia, AU australia,
AT austria, AZ azerbaijan, BS bahamas, BH bahrain, BD bangladesh, BB barbados, BY belarus, BE belgium,
BZ belize, BJ benin, BT bhutan, BO bolivia, BA bosnia and herzegovina, BW botswana, BR brazil, BN brunei,
BG bulgaria, BF burkina faso, BI burundi, KH cambodia, CM cameroon, CA canada, CV cape verde,
CF central african republic, TD chad, CL chile, CN china, CO colombia, KM comoros, CG congo, CR costa rica,
HR croatia, CU cuba, CY cyprus, CZ czech republic, DK denmark, DJ djibouti, DO dominican republic,
EC ecuador, EG egypt, SV el salvador, GQ equatorial guinea, ER eritrea, EE estonia, ET ethiopia, FJ fiji,
FI finland, FR france, GA gabon, GM gambia, GE georgia, DE germany, GH ghana, GR greece, GT guatemala,
GN guinea, HT haiti, HN honduras, HU hungary, IS iceland, IN india, ID indonesia, IR iran, IQ iraq,
IE ireland, IL israel, IT italy, JM jamaica, JP japan, JO jordan, KZ kazakhstan, KE kenya, KW kuwait,
KG kyrgyzstan, LV latvia, LB lebanon, LS lesotho, LR liberia, LY libya, LI liechtenstein, LT lithuania,
LU luxembourg, MG madagascar, MW malawi, MY malaysia, MV maldives, ML mali, MT malta, MR mauritania,
MU mauritius, MX mexico, MD moldova, MC monaco, MN mongolia, ME montenegro, MA morocco, MZ mozambique,
MM myanmar, NA namibia, NP nepal, NL netherlands, NZ new zealand, NI nicaragua, NE niger, NG nigeria,
KP north korea, MK north macedonia, NO norway, OM oman, PK pakistan, PA panama, PG papua new guinea,
PY paraguay, PE peru, PH philippines, PL poland, PT portugal, QA qatar, RO romania, RU russia, RW rwanda,
SA saudi arabia, SN senegal, RS serbia, SG singapore, SK slovakia, SI slovenia, SO somalia, ZA south africa,
KR south korea, SS south sudan, ES spain, LK sri lanka, SD sudan, SE sweden, CH switzerland, SY syria,
TW taiwan, TJ tajikistan, TZ tanzania, TH thailand, TG togo, TT trinidad and tobago, TN tunisia, TR turkey,
TM turkmenistan, UG uganda, UA ukraine, AE united arab emirates, GB united kingdom, US united states,
UY uruguay, UZ uzbekistan, VE venezuela, VN vietnam, YE yemen, ZM zambia, ZW zimbabwe"""
"""Tavily's names of countries; it refuses a request with another name."""
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
