"""Images of tool results: which ones are sent, and when a note replaces them."""

from proxy.base.events import ResultImage
from proxy.wires.turn.result_images import ImageBudget, choose_images, takes_no_images


def _image(size: int) -> ResultImage:
    return ResultImage("data:" + "x" * (size - 5), "image/png", size)


def test_images_go_along_while_there_is_room() -> None:
    """A large image that does not fit leaves the budget to a smaller one after it."""
    room = ImageBudget(100)
    images = [_image(60), _image(50), _image(40)]
    text, passed = choose_images("said", images, lambda image: room.take(len(image.url)))
    assert passed == [images[0], images[2]]
    assert text.startswith("said\n")
    assert text.count("\n") == 1
    assert not room.take(1)


def test_a_result_without_images_keeps_its_text() -> None:
    """The text of a result without images stays unchanged, even if it is empty."""
    assert choose_images("", [], lambda image: True) == ("", [])
    assert choose_images("a\n\nb", [], lambda image: True) == ("a\n\nb", [])


def test_a_refusal_of_one_image_says_nothing_of_others() -> None:
    """The proxy remembers only a refusal of all images; it looks at the message and the code."""
    for message, code, refused in (
        ("this model does not support images", None, True),
        ("could not process image", None, False),
        ("bad request", "image_parse_error", False),
        ("", None, False),
    ):
        assert takes_no_images(message, code) is refused, message
