"""Answers with every field that Duffel documents for offer requests."""

from typing import Any

_CITIES = {
    "LHR": ("Heathrow Airport", "London", "GB", "Europe/London"),
    "JFK": ("John F. Kennedy International Airport", "New York", "US", "America/New_York"),
    "DUB": ("Dublin Airport", "Dublin", "IE", "Europe/Dublin"),
}


def airport(code: str, **changed: Any) -> dict[str, Any]:
    """Return an airport."""
    name, city, country, zone = _CITIES[code]
    return {
        "type": "airport",
        "time_zone": zone,
        "name": name,
        "longitude": -0.45,
        "latitude": 51.47,
        "id": f"arp_{code.lower()}_{country.lower()}",
        "icao_code": f"K{code}",
        "iata_country_code": country,
        "iata_code": code,
        "iata_city_code": code,
        "city_name": city,
        "city": None,
        "airports": None,
        **changed,
    }


def airline(code: str | None, name: str) -> dict[str, Any]:
    """Return an airline."""
    return {
        "name": name,
        "logo_symbol_url": None,
        "logo_lockup_url": None,
        "id": f"arl_{code}",
        "iata_code": code,
        "conditions_of_carriage_url": None,
    }


def segment(start: str, end: str, leaves: str, arrives: str, **changed: Any) -> dict[str, Any]:
    """Return one flight."""
    return {
        "id": "seg_00009htYpSCXrwaB9Dn456",
        "origin": airport(start),
        "origin_terminal": "5",
        "destination": airport(end),
        "destination_terminal": "8",
        "departing_at": leaves,
        "arriving_at": arrives,
        "duration": "PT07H55M",
        "distance": "5540.2",
        "aircraft": {"id": "arc_1", "iata_code": "77W", "name": "Boeing 777-300ER"},
        "marketing_carrier": airline("BA", "British Airways"),
        "marketing_carrier_flight_number": "0117",
        "operating_carrier": airline("AA", "American Airlines"),
        "operating_carrier_flight_number": "6143",
        "stops": [],
        "media": [],
        "passengers": [
            {
                "passenger_id": "pas_00009hj8USM7Ncg31cBCLL",
                "fare_basis_code": "OXZ0RO",
                "cabin_class": "economy",
                "cabin_class_marketing_name": "Economy Basic",
                "cabin": {"name": "economy", "marketing_name": "Economy", "amenities": None},
                "baggages": [{"type": "checked", "quantity": 1}, {"type": "carry_on", "quantity": 1}],
            }
        ],
        **changed,
    }


def trip_slice(*segments: dict[str, Any], duration: str | None = "PT07H55M") -> dict[str, Any]:
    """Return one direction of a journey."""
    return {
        "id": "sli_00009htYpSCXrwaB9Dn123",
        "origin": segments[0]["origin"],
        "origin_type": "airport",
        "destination": segments[-1]["destination"],
        "destination_type": "airport",
        "duration": duration,
        "fare_brand_name": "Basic",
        "comparison_key": "BmlZDw==",
        "ngs_shelf": 1,
        "conditions": {"change_before_departure": None, "advance_seat_selection": None},
        "segments": list(segments),
    }


def offer(*slices: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return an offer; without slices it is a flight from London to New York."""
    there = segment("LHR", "JFK", "2027-03-01T09:25:00", "2027-03-01T12:20:00")
    return {
        "id": "off_00009htYpSCXrwaB9DnUm0",
        "live_mode": False,
        "partial": False,
        "created_at": "2026-11-21T13:05:00.123456Z",
        "updated_at": "2026-11-21T13:05:00.123456Z",
        "expires_at": "2026-11-21T13:25:00.123456Z",
        "owner": airline("BA", "British Airways"),
        "slices": list(slices) or [trip_slice(there)],
        "passengers": [{"id": "pas_00009hj8USM7Ncg31cBCLL", "type": "adult", "age": None}],
        "conditions": {"refund_before_departure": None, "change_before_departure": None},
        "payment_requirements": {
            "requires_instant_payment": True,
            "price_guarantee_expires_at": None,
            "payment_required_by": None,
        },
        "supported_passenger_identity_document_types": ["passport"],
        "passenger_identity_documents_required": False,
        "supported_loyalty_programmes": [],
        "available_services": None,
        "private_fares": [],
        "base_amount": "250.50",
        "base_currency": "GBP",
        "tax_amount": "40.80",
        "tax_currency": "GBP",
        "total_amount": "291.30",
        "total_currency": "GBP",
        "total_emissions_kg": "460",
        **changed,
    }


def offers(*found: Any) -> dict[str, Any]:
    """Return the answer to an offer request with ``return_offers``."""
    return {
        "data": {
            "id": "orq_00009hjdomFOCJyxHG7k7k",
            "live_mode": False,
            "created_at": "2026-11-21T13:05:00.123456Z",
            "cabin_class": "economy",
            "client_key": "SFMyNTY.s3cret",
            "passengers": [{"id": "pas_00009hj8USM7Ncg31cBCLL", "type": "adult", "age": None}],
            "slices": [
                {
                    "origin_type": "airport",
                    "origin": airport("LHR"),
                    "destination_type": "airport",
                    "destination": airport("JFK"),
                    "departure_date": "2027-03-01",
                }
            ],
            "offers": list(found),
        }
    }


def error(status: int, type: str, code: str, source: Any = None) -> dict[str, Any]:
    """Return an error whose secret title and message the tool must not repeat."""
    one = {
        "type": type,
        "title": "s3cret title",
        "message": "s3cret message",
        "documentation_url": "https://duffel.com/docs/api/overview/errors",
        "code": code,
    }
    if source is not None:
        one["source"] = source
    return {"meta": {"status": status, "request_id": "FZW0H3HdJwKk5HMAAKxB"}, "errors": [one]}
