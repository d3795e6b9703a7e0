"""What the wire page says became of a request's members in another dialect, from the tables of both."""

from itertools import permutations

import pytest

from proxy.ui.runs.members import members_of, reasons_of
from proxy.wires.registry.wires import built_in_wires

FIELDS = {name: wire.codec.fields for name, wire in built_in_wires().items()}


@pytest.mark.parametrize(("client", "upstream"), list(permutations(FIELDS, 2)))
def test_every_member_is_translated_or_has_a_reason(client: str, upstream: str) -> None:
    """Between any two dialects, a member that has no other in the upstream's request says why."""
    members = members_of(FIELDS[client], FIELDS[upstream])
    assert {name.partition(".")[0].partition("[")[0] for name in FIELDS[client].read} == set(members)
    assert [name for name, one in members.items() if not one["to"] and not one["why"]] == []
    assert members["model"]["to"] == ["model"]


def test_members_of_other_names_and_places_are_found() -> None:
    """A member may become another one, several, or a part of one."""
    members = members_of(FIELDS["anthropic"], FIELDS["chat"])
    assert members["system"]["to"] == ["messages"]
    assert members["stop_sequences"]["to"] == ["stop"]
    assert members["output_config"]["to"] == ["response_format", "reasoning_effort"]
    assert members_of(FIELDS["chat"], FIELDS["ollama"])["temperature"]["to"] == ["options"]
    assert members_of(FIELDS["chat"], FIELDS["chat"]) == {}


def test_fields_that_were_left_out_have_the_reason_of_their_dialect() -> None:
    """A field within a member has the reason of its own path; an unknown one has none."""
    assert reasons_of(FIELDS["anthropic"], ["messages[0].content[1].cache_control", "unheard_of"]) == [
        {
            "field": "messages[0].content[1].cache_control",
            "why": "Only the provider that a cache mark was written for understands it.",
        },
        {"field": "unheard_of", "why": None},
    ]
