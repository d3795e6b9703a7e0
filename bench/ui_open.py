"""``python -m bench.ui_open``: the cost of streams while two pages of the web UI watch the runs.

Two proxies run side by side. Two browsers have signed in at one of them, and each receives the live events
of the list of runs: one row for each run that begins or ends.
"""

import contextlib
import http.client
import json
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

from bench.contestants import PROXY_CORE, toolrelay
from bench.pairs import Pair, compare

_PAGES = 2
_WAIT_S = 10.0


class _Page:
    """A browser with the list of runs open: it receives events until it is closed."""

    def __init__(self, port: int, secret: str) -> None:
        """Sign in and open the stream; raise ``RuntimeError`` if either is refused."""
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)
        sent = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
        writes = {
            "Origin": f"http://127.0.0.1:{port}",
            "x-toolrelay-ui": "1",
            "Content-Type": "application/json",
        }
        signed_in = self._ask("POST", "session", json.dumps({"key": secret}), {**sent, **writes})
        signed_in.read()
        cookie = (signed_in.getheader("set-cookie") or "").partition(";")[0]
        self._stream = self._ask("GET", "events", None, {**sent, "Cookie": cookie})
        self.taken = 0
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _ask(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        self._connection.request(method, f"/ui/api/{path}", body, headers)
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"/ui/api/{path} answered {answer.status}: {answer.read()[:300]!r}")
        return answer

    def _take(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while piece := self._stream.read1(65536):
                self.taken += len(piece)

    def close(self) -> None:
        """Close the connection."""
        if self._connection.sock is not None:
            self._connection.sock.close()


@contextlib.contextmanager
def proxies(folder: Path, upstream: int) -> Iterator[Pair]:
    """Run a proxy without viewers, and one with two pages that watch it."""
    secret = secrets.token_hex(24)
    key = folder / "boss.key"
    key.write_text(secret)
    more = f'[keys.boss]\nsecret = "file:{key}"\nadmin = true\n'
    with (
        toolrelay("closed", folder, upstream, tools=False, core=PROXY_CORE, more=more) as closed,
        toolrelay("open", folder, upstream, tools=False, core=PROXY_CORE, more=more) as watched,
    ):
        pages = [_Page(watched.port, secret) for _ in range(_PAGES)]
        yield closed, watched
        if not all(page.taken for page in pages):
            raise RuntimeError("a page got no event, so nothing was measured")
        for page in pages:
            page.close()


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    return compare(
        "bench.ui_open",
        "Measure the cost of an open web UI.",
        ("UI closed", "two pages open"),
        proxies,
        arguments,
    )


if __name__ == "__main__":
    raise SystemExit(main())
