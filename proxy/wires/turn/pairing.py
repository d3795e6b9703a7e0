"""Which call each result of a client answers, also where the client sends no ids back."""

from collections.abc import Sequence

from proxy.values import value_class

__all__ = ["CallReference", "pair_results"]


@value_class
class CallReference:
    """What a client says of a call or of a result: its id and the tool's name, each empty where it says none.

    ollama-python keeps no ids: its results have the tool's name, or, through LangChain, nothing at all.
    """

    call_id: str = ""
    name: str = ""


def pair_results(calls: Sequence[CallReference], results: Sequence[CallReference]) -> list[int | None]:
    """For each result the place of the call that it answers, ``None`` where it answers none of them.

    A result answers the call of its id.  One without an id that is known answers the first call of its name
    that has no result yet; one without a name, too, answers the first call that has none.  A result that
    names a tool which was not called answers nothing.  No call is answered twice.
    """
    answered: list[int | None] = [None] * len(results)
    places: dict[str, int] = {}
    for place, call in enumerate(calls):
        if call.call_id:
            places.setdefault(call.call_id, place)
    # Results that say most choose first, so that those that say less get what is left.
    for at, result in enumerate(results):
        answered[at] = places.pop(result.call_id, None) if result.call_id else None
    open_places = dict.fromkeys(place for place in range(len(calls)) if place not in set(answered))
    for named in (True, False):
        for at, result in enumerate(results):
            if answered[at] is not None or bool(result.name) is not named:
                continue
            fitting = (place for place in open_places if not named or calls[place].name == result.name)
            if (chosen := next(fitting, None)) is not None:
                answered[at] = chosen
                del open_places[chosen]
    return answered
