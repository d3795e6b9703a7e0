"""Masking of wrapper calls before they are written to a file: rule R3 holds for the calls inside, too."""

from proxy.wires.openai.parallel_tool_use import mask_parts

SEEN: list[tuple[str, str]] = []


def mask(name: str, arguments: str) -> str:
    """Note which arguments to mask, and mask all of them."""
    SEEN.append((name, arguments))
    return f'{{"masked":"{name}"}}'


def test_each_call_inside_a_wrapper_is_masked_by_its_own_tool() -> None:
    """Each call inside a wrapper is masked on its own; the wrapper keeps its form for later requests."""
    SEEN.clear()
    uses = (
        '{"recipient_name":"functions.core__x","parameters":{"secret":1},"note":"secret"},'
        '{"recipient_name":"core__y"}'
    )
    masked = mask_parts(f'{{"tool_uses":[{uses}],"note":"secret"}}', mask)
    assert SEEN == [("core__x", '{"secret":1}'), ("core__y", "{}")]
    assert masked == (
        '{"tool_uses":[{"recipient_name":"functions.core__x","parameters":{"masked":"core__x"}},'
        '{"recipient_name":"functions.core__y","parameters":{"masked":"core__y"}}]}'
    )


def test_a_wrapper_that_cannot_be_read_keeps_nothing() -> None:
    """A wrapper that cannot be read becomes ``{}``, because its text may be private."""
    for arguments in ("secret", "[]", "{}", '{"tool_uses":["secret"]}'):
        assert mask_parts(arguments, mask) == "{}"
