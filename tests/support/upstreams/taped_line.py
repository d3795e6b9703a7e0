"""The connection of an exchange in tests: it says what it was asked for."""

__all__ = ["Taped"]


class Taped:
    """A line that writes down what an exchange asks of it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, data: bytes) -> None:
        self.said.append("write")

    async def writable(self) -> None:
        return

    def pause(self) -> None:
        self.said.append("pause")

    def resume(self) -> None:
        self.said.append("resume")

    def release(self, *, reusable: bool) -> None:
        self.said.append(f"release {reusable}")

    def abort(self) -> None:
        self.said.append("abort")
