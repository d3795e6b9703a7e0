"""URLs as arguments: their canonical form, and the policy's bounds for what is fetched."""

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from yarl import URL

from proxy.tools.contract.bounds import ArgumentBound, FetchBounds
from proxy.tools.contract.capabilities import Capabilities
from proxy.tools.contract.provider import ArgumentsInvalid
from proxy.tools.contract.schemas.url_argument import Url, canonical_url
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider, tool

CANONICAL = [
    "https://docs.example.com/",
    "https://docs.example.com/3/library/os.html?q=a+b&c=%20",
    "http://docs.example.com:8080/a//b;v=1/%C3%A9",
    "https://[2001:db8::1]/",
    "https://xn--bcher-kva.de/~a/100%25",
]


@pytest.mark.parametrize("address", CANONICAL)
def test_the_canonical_form_is_taken(address: str) -> None:
    """A URL in canonical form stays unchanged."""
    assert canonical_url(address) == address


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("https://docs.example.com", "https://docs.example.com/"),
        ("HTTPS://DOCS.example.com:443/a", "https://docs.example.com/a"),
        ("https://docs.example.com./a", "https://docs.example.com/a"),
        ("https://docs.example.com/a#part", "https://docs.example.com/a"),
        ("https://docs.example.com/3/../admin", "https://docs.example.com/admin"),
        ("https://docs.example.com/3/%2e%2e/admin", "https://docs.example.com/admin"),
        ("https://docs.example.com/3/.%2E/./admin", "https://docs.example.com/admin"),
        ("https://docs.example.com/%61?", "https://docs.example.com/a"),
        ("https://docs.example.com/\u00e9", "https://docs.example.com/%C3%A9"),
        ("https://b\u00fccher.de/", "https://xn--bcher-kva.de/"),
    ],
)
def test_another_form_means_the_canonical_one(written: str, canonical: str) -> None:
    """Other spellings of a URL are converted to its canonical form."""
    assert canonical_url(written) == canonical


@pytest.mark.parametrize(
    "written",
    [
        "",
        "docs.example.com",
        "/a",
        "https:a",
        "https://",
        "ftp://docs.example.com/",
        "file:///etc/passwd",
        "https://user@docs.example.com/",
        "https://user:pw@docs.example.com/",
        "https://docs.example.com\\@evil.example/",
        "https://docs.example.com/a\\..\\b",
        "https://docs.example.com/a b",
        " https://docs.example.com/",
        "https://docs.example.com/\n",
        "https://ex%61mple.com/",
        "https://docs.example.com:99999/",
        "https://docs.example.com/3/..%2fadmin",
        "https://docs.example.com/a%5C..%5Cb",
        "https://docs.example.com/3/%252e%252e/admin",
        "https://docs.example.com/3/..;/admin",
        "https://docs.example.com/%00",
    ],
)
def test_what_means_more_than_one_thing_has_no_form(written: str) -> None:
    """An ambiguous URL has no canonical form: servers interpret it differently, so no bound could hold."""
    assert canonical_url(written) is None


@given(st.text(max_size=12) | st.text(alphabet="./%2eE5cf;\\a?#:@[]", max_size=16))
def test_the_form_of_a_form_is_itself(text: str) -> None:
    """A canonical URL is its own canonical form, is what the client sends, and has no dot segments."""
    form = canonical_url(f"https://x.example/{text}")
    if form is not None:
        assert canonical_url(form) == form == str(URL(form))
        assert not {".", ".."} & set(URL(form).raw_path.split("/"))


class Where(BaseModel):
    """Arguments as a model."""

    page: Annotated[Url, Field(alias="address")]


def load(private: tuple[str, ...] = (), *, model: bool = False) -> Any:
    """Load a tool that takes a URL, as a parameter or as a field of a model."""

    @tool(effect="read_only", redaction=Redaction(private_arguments=private))
    def visit(url: Annotated[Url, Field(max_length=300)], note: str = "") -> str:
        """Visit."""
        return url + note

    @tool(effect="read_only", redaction=Redaction())
    def visit_where(where: Where) -> str:
        """Visit."""
        return where.page

    return FunctionProvider("t", [visit_where if model else visit], Capabilities()).specs[0]


def test_a_tool_says_which_arguments_are_addresses() -> None:
    """A tool lists its URL arguments by the names in its schema, for functions and for models."""
    assert load().url_arguments == ("url",)
    assert load(model=True).url_arguments == ("address",)
    assert load().parameters["properties"]["url"]["type"] == "string"


def refusal(spec: Any, arguments: dict[str, Any]) -> str:
    """The message with which a tool refuses these arguments."""
    with pytest.raises(ArgumentsInvalid) as caught:
        spec.validate(arguments)
    return str(caught.value)


def test_the_model_is_told_the_form_that_is_taken() -> None:
    """Rule T3: the refusal names the argument and its canonical form, unless the argument is private."""
    written = {"url": "https://x.example/a/../s3cret"}
    assert refusal(load(), written) == "url: must be written in its canonical form: https://x.example/s3cret"
    assert "s3cret" not in refusal(load(private=("url",)), written)
    assert "canonical form" in refusal(load(private=("url",)), written)
    assert "one meaning" in refusal(load(), {"url": "https://x.example/..%2fs3cret"})
    long = refusal(load(), {"url": "https://x.example/../" + "y" * 270})
    assert len(long) < 400


def test_bounds_of_what_is_fetched() -> None:
    """A request to an argument's URL has the argument's bounds; a page at any other URL has all bounds."""
    one, other = ArgumentBound(pattern="https://a/.*"), ArgumentBound(max_length=20)
    bounds = FetchBounds((("https://a/1", (one,)), ("https://b/", (other,))))
    assert bounds.starting_at("https://a/1", page=False) == (one,)
    assert bounds.starting_at("https://c/", page=False) == ()
    assert bounds.starting_at("https://c/", page=True) == (one, other)
    assert str(bounds) != str(FetchBounds((("https://a/1", (other,)),)))
