"""The resolver looks names up in threads: it shares look-ups, bounds them, and keeps the last answers."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from waiting import PATIENCE_S, until

from proxy.net.aiohttp_resolver import AiohttpResolver
from proxy.net.resolver import AddressInfo, Resolver, numeric

pytestmark = pytest.mark.both_loops


class Dns:
    """A test double of DNS: a test can keep names silent until it releases them, or let them fail."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, str | OSError] = {}
        self.silent: dict[str, threading.Event] = {}

    def __call__(self, host: str) -> Sequence[AddressInfo]:
        self.asked.append(host)
        if host in self.silent and not self.silent[host].wait(PATIENCE_S):
            raise socket.gaierror(socket.EAI_AGAIN, "nobody answered")
        answer = self.answers.get(host, "127.0.0.9")
        if isinstance(answer, OSError):
            raise answer
        return numeric(answer, 0) or ()


@pytest.fixture
def dns() -> Iterator[Dns]:
    """A ``Dns`` whose silent names are released at the end, so that no thread is left."""
    dns = Dns()
    yield dns
    for event in dns.silent.values():
        event.set()


def clocked(dns: Callable[[str], Sequence[AddressInfo]], **options: Any) -> tuple[Resolver, list[float]]:
    """A resolver, and the time of its clock, which a test can change."""
    now = [1000.0]
    return Resolver("tests", look_up=dns, clock=lambda: now[0], **options), now


def hosts(infos: Sequence[AddressInfo]) -> list[tuple[object, object]]:
    """Address and port of each."""
    return [(info[4][0], info[4][1]) for info in infos]


async def test_an_address_asks_nobody(dns: Dns) -> None:
    """IPv4 and IPv6 addresses resolve to themselves, with the port and without a look-up."""
    resolver, _ = clocked(dns)
    assert hosts(await resolver.resolve("127.0.0.1", 80)) == [("127.0.0.1", 80)]
    assert hosts(await resolver.resolve("::1", 81)) == [("::1", 81)]
    assert dns.asked == []


async def test_a_silent_name_holds_up_no_other(dns: Dns) -> None:
    """While one name gets no answer other names do, and all that wait for it share one look-up."""
    dns.silent["dead"] = threading.Event()
    resolver, _ = clocked(dns)
    waiting = [asyncio.create_task(resolver.resolve("dead", port)) for port in range(1, 20)]
    await until(lambda: dns.asked == ["dead"])
    for number in range(50):
        assert hosts(await resolver.resolve(f"live-{number}", 443)) == [("127.0.0.9", 443)]
    assert not any(task.done() for task in waiting)
    assert dns.asked.count("dead") == resolver.busy == 1
    dns.silent["dead"].set()
    assert [hosts(await task) for task in waiting] == [[("127.0.0.9", port)] for port in range(1, 20)]


async def test_too_many_silent_names_fail_at_once(dns: Dns) -> None:
    """While all threads wait, another name fails at once with the reason; later it can be looked up."""
    resolver, _ = clocked(dns, threads=3)
    for name in ("a", "b", "c"):
        dns.silent[name] = threading.Event()
    waiting = [asyncio.create_task(resolver.resolve(name, 1)) for name in ("a", "b", "c")]
    await until(lambda: len(dns.asked) == 3)
    with pytest.raises(socket.gaierror, match="3 other host names of tests wait"):
        await resolver.resolve("d", 1)
    dns.silent["b"].set()
    await waiting[1]
    assert hosts(await resolver.resolve("d", 1)) == [("127.0.0.9", 1)]
    dns.silent["a"].set()
    dns.silent["c"].set()
    await asyncio.gather(*waiting)
    assert resolver.busy == 0


async def test_the_last_good_answer_is_kept(dns: Dns) -> None:
    """While a new look-up is silent the last answer is used, and the new one as soon as it has come."""
    resolver, now = clocked(dns, patience_s=0.0)
    await resolver.resolve("api", 1)
    await resolver.resolve("api", 1)
    assert dns.asked == ["api"]
    now[0] += 11
    dns.silent["api"] = threading.Event()
    assert hosts(await resolver.resolve("api", 2)) == [("127.0.0.9", 2)]
    assert dns.asked == ["api", "api"]
    dns.answers["api"] = "127.0.0.10"
    dns.silent.pop("api").set()
    await until(lambda: resolver.busy == 0)
    assert hosts(await resolver.resolve("api", 2)) == [("127.0.0.10", 2)]


@pytest.mark.parametrize("code", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_NONAME])
async def test_a_failure_ends_an_answer_only_where_it_speaks_of_the_name(dns: Dns, code: int) -> None:
    """If DNS fails, the last answer serves for a limited time; "no such name" ends it at once."""
    resolver, now = clocked(dns)
    await resolver.resolve("api", 1)
    dns.answers["api"] = socket.gaierror(code, "no")
    now[0] += 11
    if code == socket.EAI_NONAME:
        for _ in range(2):
            with pytest.raises(socket.gaierror):
                await resolver.resolve("api", 1)
        return
    assert hosts(await resolver.resolve("api", 1)) == [("127.0.0.9", 1)]
    now[0] += 3600
    with pytest.raises(socket.gaierror):
        await resolver.resolve("api", 1)


async def test_a_name_that_nobody_answers_at_is_asked_for_anew(dns: Dns) -> None:
    """After ``forget`` the name is looked up again, and the last answer serves if that fails."""
    resolver, _ = clocked(dns)
    await resolver.resolve("api", 1)
    resolver.forget("api")
    resolver.forget("never-seen")
    dns.answers["api"] = socket.gaierror(socket.EAI_AGAIN, "no")
    assert hosts(await resolver.resolve("api", 1)) == [("127.0.0.9", 1)]
    assert dns.asked == ["api", "api"]


async def test_known_names_are_bounded(dns: Dns) -> None:
    """The resolver keeps 1024 names at most, so that ever new names cannot fill the memory."""
    resolver, _ = clocked(dns)
    for number in range(1100):
        await resolver.resolve(f"n{number}", 1)
    assert len(resolver._known) == 1024
    assert resolver._pending == {}


async def test_what_cannot_be_a_name_is_an_os_error() -> None:
    """An impossible host name raises ``socket.gaierror``, whatever the system's look-up raises."""
    resolver = Resolver("tests")
    for host in ("a" * 70 + ".test", "a\0b", ".."):
        with pytest.raises(socket.gaierror):
            await resolver.resolve(host, 1)


async def test_a_loop_that_is_gone_is_no_fault(dns: Dns) -> None:
    """A look-up that outlives its event loop ends without an error."""
    dns.silent["dead"] = threading.Event()
    resolver, _ = clocked(dns)

    def once() -> None:
        async def ask() -> None:
            task = asyncio.create_task(resolver.resolve("dead", 1))
            await until(lambda: dns.asked == ["dead"])
            task.cancel()

        asyncio.run(ask())

    await asyncio.to_thread(once)
    dns.silent["dead"].set()


async def test_aiohttp_is_given_addresses(dns: Dns) -> None:
    """aiohttp gets numeric addresses, in the form and of the family that its connector asks for."""
    resolver = AiohttpResolver(clocked(dns)[0])
    (found,) = await resolver.resolve("api", 443)
    assert (found["host"], found["port"], found["hostname"]) == ("127.0.0.9", 443, "api")
    assert found["flags"] & socket.AI_NUMERICHOST
    assert await resolver.resolve("api", 443, socket.AF_INET6) == []
    await resolver.close()
