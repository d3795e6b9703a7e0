"""Images of tools: which pass, which are left out, and that no record contains their bytes."""

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_kit import MakeCall, MakeRunner, MemoryLog
from structlog.testing import capture_logs

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolCall, ToolResult
from proxy.tools import Image, Redaction, ResourceLink, RichResult, ToolTester, tool
from proxy.tools.access.policy import Policy
from proxy.tools.contract.results.images import ImageBounds, check_images
from proxy.tools.contract.results.results import cut_to_limit, to_output
from proxy.tools.running.ledger import Claim, RunContext, RunLedger

PNG = b"\x89PNG\r\n\x1a\n" + b"SECRETPIXELS" * 20
KINDS = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0 and more",
    "image/gif": b"GIF89a and more",
    "image/webp": b"RIFF\x00\x00\x00\x00WEBPVP8 ",
}
READ: dict[str, Any] = {"effect": "read_only", "redaction": Redaction(output=("images.*.media_type", "text"))}


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("kind", KINDS)
def test_four_kinds_pass(kind: str) -> None:
    """PNG, JPEG, GIF and WebP pass; bytes and a data URL of them give the same result."""
    data = KINDS[kind]
    for image in (Image(data, kind), Image(url=data_url(data, kind)), Image(data, f"{kind.upper()}; q=1")):
        checked = check_images([image], ImageBounds())
        (one,) = checked.images
        assert (one.url, one.media_type, one.size) == (data_url(data, kind), kind, len(data))
        assert checked.notes == ()
        assert checked.seen == [{"media_type": kind, "title": "", "bytes": len(data), "url": ""}]


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (Image(b"<svg/>", "image/svg+xml"), "only PNG, JPEG, WebP and GIF of that media type are passed on"),
        (Image(PNG, "image/jpeg"), "only PNG, JPEG, WebP and GIF of that media type are passed on"),
        (Image(PNG, ""), "only PNG, JPEG, WebP and GIF of that media type are passed on"),
        (Image(b"<html>", "image/png"), "only PNG, JPEG, WebP and GIF of that media type are passed on"),
        (Image(), "it is empty or no base64"),
        (Image(url="data:image/png;base64,@@@@"), "it is empty or no base64"),
        (Image(url="data:image/png;base64,iVBO Rw0K"), "it is empty or no base64"),
        (Image(url="data:image/png,plain"), "it is empty or no base64"),
        (Image(url="data:"), "it is empty or no base64"),
        (Image(PNG + b"x" * 1000, "image/png"), "the images of one result may have 1000 bytes"),
        (Image(url=data_url(PNG + b"x" * 1000)), "the images of one result may have 1000 bytes"),
        (Image(url="data:image/png;base64," + "@" * 100_000), "the images of one result may have 1000 bytes"),
        (Image(url="http://a.example/x.png"), "only public https addresses are passed on"),
        (Image(url="https://10.0.0.1/x.png"), "only public https addresses are passed on"),
        (Image(url="https://[::1]/x.png"), "only public https addresses are passed on"),
        (Image(url="https://0x7f.1/x.png"), "only public https addresses are passed on"),
        (Image(url="https://localhost/x.png"), "only public https addresses are passed on"),
        (Image(url="https://a.internal./x.png"), "only public https addresses are passed on"),
        (Image(url="https://me:secret@a.example/x.png"), "only public https addresses are passed on"),
        (Image(url="https://a.example:8443/x.png"), "only public https addresses are passed on"),
        (Image(url="https://a.example:x/"), "only public https addresses are passed on"),
        (Image(url="https://a.example/" + "x" * 2048), "only public https addresses are passed on"),
        (Image(url="file:///etc/passwd"), "only public https addresses are passed on"),
    ],
)
def test_what_does_not_fit_is_left_out(image: Image, why: str) -> None:
    """An image that is not accepted is left out, and a note tells the model why."""
    checked = check_images([image], ImageBounds(max_bytes=1000))
    assert checked.images == ()
    (note,) = checked.notes
    assert note.startswith("[toolrelay: an image (")
    assert note.endswith(f"was left out; {why}]")


def test_an_address_passes_as_it_is() -> None:
    """An image's public URL is passed on unchanged, unless URLs are not allowed."""
    image = Image(url="https://a.example/x.png?a=1", title="a  map\nof it")
    (one,) = check_images([image], ImageBounds()).images
    assert (one.url, one.size, one.words) == (
        "https://a.example/x.png?a=1", 0, '"a map of it" (https://a.example/x.png?a=1)',
    )  # fmt: skip
    checked = check_images([image], ImageBounds(addresses=False))
    assert checked.images == ()
    assert "addresses from untrusted sources are not passed on" in checked.notes[0]


def test_images_are_bounded_together() -> None:
    """Rule T7: the limits of bytes and number count over all images of a result, in order."""
    three = [Image(PNG, "image/png", str(n)) for n in range(3)]
    checked = check_images(three, ImageBounds(max_bytes=2 * len(PNG)))
    assert [image.title for image in checked.images] == ["0", "1"]
    assert '"2"' in checked.notes[0]
    checked = check_images((Image(PNG, "image/png") for _ in iter(int, 1)), ImageBounds())
    assert len(checked.images) == 16
    assert checked.notes == ("[toolrelay: further images were left out; one result may have 16]",)
    assert check_images(three, ImageBounds(max_bytes=0)).images == ()


class Odd(str):
    """Text that returns a wrong length and cannot be encoded."""

    __slots__ = ()

    def __len__(self) -> int:
        return 3

    def encode(self, *_: Any) -> bytes:
        raise SystemExit


@pytest.mark.parametrize(
    "image", [None, "x", Image("text", "image/png"), Image(PNG, 5), Image(PNG, "image/png", url="https://a.example/")]  # type: ignore[arg-type]
)  # fmt: skip
def test_what_is_no_image_is_a_failure(image: Any) -> None:
    """An object that is no valid image, or has both data and a URL, fails the call."""
    with pytest.raises(ToolFailure):
        check_images([image], ImageBounds())


def test_texts_that_lie_are_taken_plainly() -> None:
    """The proxy does not call the overridden methods of a subclass of ``str``."""
    (one,) = check_images([Image(PNG, "image/png", Odd("a title of some length"))], ImageBounds()).images
    assert one.title == "a title of some length"


@given(
    st.builds(
        Image,
        data=st.one_of(st.just(b""), st.binary(max_size=40), st.sampled_from(list(KINDS.values()))),
        media_type=st.one_of(st.text(max_size=20), st.sampled_from(list(KINDS))),
        title=st.text(max_size=200),
        url=st.one_of(st.just(""), st.text(max_size=30).map("data:".__add__), st.text(max_size=40).map("https://".__add__)),
    )
)  # fmt: skip
def test_nothing_odd_gets_through(image: Image) -> None:
    """Any image passes as valid base64 or as an https URL, is left out with a note, or fails."""
    try:
        checked = check_images([image], ImageBounds(max_bytes=30))
    except ToolFailure:
        return
    assert len(checked.images) + len(checked.notes) == 1
    json.dumps(checked.seen).encode()
    for one in checked.images:
        assert one.url.startswith("https://") or base64.b64decode(one.url.partition(",")[2], validate=True)
        assert one.url.isascii()
        assert "\n" not in one.words
        one.words.encode()


def test_words_about_images_count_as_result() -> None:
    """Rule T7: text, notes and the texts that can replace images fit into the size limit together."""
    images = [Image(PNG, "image/png", "x" * 90)] * 3 + [Image(b"no", "image/png", "y" * 90)]
    for bound in (256, 700, 1500):
        output = to_output(RichResult("z" * 5000, images=images), bound)
        text, truncated = cut_to_limit(output, bound, lambda whole: None)
        said = [
            f"[toolrelay: an image {one.words} was left out; only text can be passed on]"
            for one in output.images
        ]
        assert truncated
        assert len("\n".join([text, *said])) <= bound
    assert (len(output.images), output.weight) == (3, 5000 + 3 * len(PNG))
    # If there is no room for texts about the images, the images are dropped.
    assert to_output(RichResult("", images=images), 256).images == ()


def test_the_whole_of_a_long_text_can_be_read_on() -> None:
    """A long text with images is truncated and kept for paging like any other text."""
    kept: list[str] = []

    def keep(whole: str) -> str:
        kept.append(whole)
        return "res_1"

    output = to_output(RichResult("a" * 3000, images=[Image(PNG, "image/png")]), 2000)
    text, truncated = cut_to_limit(output, 2000, keep)
    assert (truncated, kept) == (True, ["a" * 3000])
    assert 'handle "res_1"' in text
    assert len(output.images) == 1


async def test_no_byte_of_an_image_is_on_record(
    make_runner: MakeRunner, context: RunContext, call: MakeCall, log: MemoryLog
) -> None:
    """Rule R3: the result has the image, but its row, the log, redacted views and reprs do not."""

    @tool(**READ)
    async def draw() -> RichResult:
        """Draw."""
        return RichResult("A chart.", [Image(PNG, "image/png", "chart")], [ResourceLink("urn:y")])

    with capture_logs() as lines:
        result = await (await make_runner([draw])).run(call("draw"), context)
    assert result.content == "A chart.\n[link: urn:y]"
    assert [image.url for image in result.images] == [data_url(PNG)]
    assert result.redacted == {"images": [{"media_type": "image/png"}], "text": "A chart."}
    assert log.closed[0].result_bytes == len(result.content) + len(PNG)
    seen = repr((log.opened, log.closed, log.native, lines, result))
    assert base64.b64encode(PNG).decode()[:40] not in seen
    assert "SECRETPIXELS" not in seen


async def test_the_policy_bounds_images(make_runner: MakeRunner, context: RunContext, call: MakeCall) -> None:
    """The policy's limit of image bytes decides whether an image passes; with 0 none passes."""

    @tool(**READ)
    async def draw() -> RichResult:
        """Draw."""
        return RichResult(images=[Image(PNG, "image/png")])

    runner = await make_runner([draw])
    for seq, (most, passed) in enumerate([(len(PNG), 1), (len(PNG) - 1, 0), (0, 0)]):
        narrow = Policy(allow=("*",), max_image_bytes=most)
        result = await runner.run(call("draw", seq=seq), context, policy=narrow)
        assert len(result.images) == passed
        assert ("was left out" in result.content) is not bool(passed)


async def test_an_untrusted_tools_addresses_stay(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Image URLs of an untrusted tool are left out, so that no provider fetches them."""

    @tool(**READ, untrusted_output=True)
    async def draw() -> RichResult:
        """Draw."""
        return RichResult(images=[Image(url="https://a.example/?secret"), Image(PNG, "image/png")])

    result = await (await make_runner([draw])).run(call("draw"), context)
    assert [image.size for image in result.images] == [len(PNG)]
    assert "untrusted" in result.content


async def test_kept_results_have_their_images(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """A cached result includes its images."""
    runs = []

    @tool(**READ, cache_ttl_s=60)
    async def draw() -> RichResult:
        """Draw."""
        runs.append(1)
        return RichResult("a", images=[Image(PNG, "image/png")])

    runner = await make_runner([draw])
    results = [await runner.run(call("draw", seq=seq), context) for seq in range(2)]
    assert (len(runs), [len(result.images) for result in results]) == (1, [1, 1])


def test_the_tester_shows_images() -> None:
    """The tester shows the images of a result to the tool's author."""

    @tool(**READ)
    async def draw() -> RichResult:
        """Draw."""
        return RichResult("a", images=[Image(PNG, "image/png")])

    result = ToolTester(draw).call()
    assert (result.content, [image.media_type for image in result.images]) == ("a", ["image/png"])
    result.assert_hidden("SECRETPIXELS", data_url(PNG))
    assert ToolTester(draw, max_image_bytes=10).call().images == ()


async def test_a_ledger_that_is_kept_has_no_images() -> None:
    """After a run has ended, its ledger keeps results as text with a note instead of the images."""
    (image,) = check_images([Image(PNG, "image/png", "chart")], ImageBounds()).images
    ledger = RunLedger()
    loop = asyncio.get_running_loop()
    early, late = (Claim(f"inv_{n}", "f", loop.create_future()) for n in "12")
    ledger.take_effect("early", early)
    ledger.take_effect("late", late)
    ledger.take_place(1, 0, late)
    measured: list[int] = []
    result = ToolResult("call_1", True, "done", images=(image,))
    early.result.set_result(result)
    ledger.ended(lambda: measured.append(1))
    late.result.set_result(result)
    await asyncio.sleep(0)
    assert ledger.place(1, 0) is None
    assert len(measured) == 2
    for claim in (ledger.effect("early"), ledger.effect("late")):
        assert claim is not None
        kept = await claim.result
        assert kept.images == ()
        assert kept.content == (
            'done\n[toolrelay: an image "chart" (image/png, 248 bytes) was left out; '
            "it was given to an earlier try]"
        )


async def test_an_equal_effect_of_a_run_has_the_same_image(make_runner: MakeRunner, call: MakeCall) -> None:
    """Rule R5: two equal calls of a run cause one effect, and both get its image."""
    runs = []

    @tool(effect="external_side_effect", redaction=Redaction())
    async def paint() -> RichResult:
        """Paint."""
        runs.append(1)
        return RichResult("a", images=[Image(PNG, "image/png")])

    runner = await make_runner([paint])
    context = RunContext("run_1", 1, "open")
    results = [await runner.run(ToolCall(f"c{n}", "t__paint", "{}", n), context) for n in range(2)]
    assert (len(runs), [len(result.images) for result in results]) == (1, [1, 1])
