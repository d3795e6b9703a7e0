"""The texts of several turns at an Ollama client, and how a conversation with them goes on."""

from pathlib import Path
from typing import Any

import pytest
from looping import ECHO
from pair_kits import Call, Message, Turn
from pair_runs import ANSWER, QUESTION, SAY, pair_of, scripts


@pytest.mark.parametrize("upstream", ["ollama", "chat", "anthropic", "responses"])
async def test_a_conversation_with_joined_texts_goes_on(upstream: str, tmp_path: Path) -> None:
    """Rules W8, R4: two turns' texts are two paragraphs, and the hidden call is still found again."""
    config: dict[str, Any] = {"store": {"url": f"sqlite:///{tmp_path / 'record.db'}"}}
    turns = (
        Turn("I will look.", (Call("call_1", ECHO, SAY),)),
        Turn("Yours.", (Call("call_2", "mine", {"a": 1}),)),
        ANSWER,
    )
    async with pair_of("ollama", upstream, *scripts(upstream, *turns), **config) as pair:
        seen = pair.client.seen(await pair.ask([QUESTION], tools=["mine"]), hidden=(ECHO,))
        assert seen.text == "I will look.\n\nYours."
        returned = [QUESTION, *seen.returned, Message("tool", "mine too", call_id=seen.calls[0].id)]
        last = pair.client.seen(await pair.ask(returned, tools=["mine"]), hidden=(ECHO,))
        assert (last.text, last.error) == ("It is noon.", "")
        assert [call.name for call in pair.got()[-1].calls] == [ECHO, "mine"]
