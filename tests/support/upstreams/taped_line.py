"""A test double for the connection of an exchange, which records each method that the exchange calls."""


class Taped:
    """A connection that keeps the names of the methods that an exchange calls."""

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
