"""Credentials of end users: one login each, shared by all processes, and none for everybody."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from oauth_rig import Brokers, brokers, log_in
from oauth_server import OAuthServer, running

from proxy.base.errors import ToolFailure
from proxy.tools.access.credentials import CredentialBroker, LoginNeeded
from proxy.tools.access.placement import GIVEN
from proxy.tools.contract.capabilities import Unconnected
from proxy.tools.contract.provider import Person
from proxy.tools.oauth.grants import LoggedIn, login_place

ALICE, BOB = Person("key/alice", "alice@example.com"), Person("key/bob")


@pytest.fixture
async def server() -> AsyncIterator[OAuthServer]:
    """An authorization server."""
    async with running() as one:
        yield one


@pytest.fixture
async def rig(server: OAuthServer) -> AsyncIterator[Brokers]:
    """Brokers that share a vault."""
    async with brokers(server) as one:
        yield one


def connection_of(server: OAuthServer) -> LoggedIn:
    """A connection to which each user logs in."""
    return LoggedIn(issuer=server.url, per_user=True)


def broker_of(rig: Brokers) -> CredentialBroker:
    """The broker of a new process."""
    http = rig.pools.http(issuer=rig.server.url)
    return CredentialBroker(
        {"crm": connection_of(rig.server)},
        rig.egress,
        lambda connection: http,
        vault=rig.vault,
        link=lambda name, person: f"https://proxy.example.com/connect/{name}?t={person.name}",
    )


async def header(broker: CredentialBroker, person: Person) -> str:
    """Return the header of a person's requests."""
    client = broker.placing_client("crm", ("a.example",), GIVEN, person)
    assert client is not None
    assert client._authorizer is not None
    return await client._authorizer.authorization()


async def logged_in(rig: Brokers, person: Person) -> None:
    """Keep a login for a person."""
    tokens = await log_in(rig.server, rig.vault, "for a moment", connection=connection_of(rig.server))
    await rig.vault.save(login_place("crm", person.name), tokens.to_json())


async def test_each_person_has_a_token_of_their_own(rig: Brokers) -> None:
    """The same broker gives each person's requests that person's token, and others a link of their own."""
    await logged_in(rig, ALICE)
    broker = broker_of(rig)
    assert await header(broker, ALICE) == f"Bearer {rig.server.logins[0].access_token}"
    with pytest.raises(LoginNeeded, match="t=key/bob") as caught:
        await header(broker, BOB)
    assert caught.value.code == "login_required"
    await logged_in(rig, BOB)
    assert await header(broker_of(rig), BOB) == f"Bearer {rig.server.logins[1].access_token}"
    assert await header(broker, ALICE) == f"Bearer {rig.server.logins[0].access_token}"


async def test_workers_take_turns_to_refresh_the_login_of_a_person(rig: Brokers) -> None:
    """Of many workers one refreshes: the server accepts each refresh token once."""
    rig.server.expires_in = 3600
    await logged_in(rig, ALICE)
    stored = rig.vault.kept[login_place("crm", ALICE.name)]
    old = stored.replace(b'"made_at":', b'"made_at":0,"was":')
    assert old != stored
    rig.vault.kept[login_place("crm", ALICE.name)] = old
    workers = [broker_of(rig) for _ in range(5)]
    headers = await asyncio.gather(*(header(worker, ALICE) for worker in workers))
    assert len(set(headers)) == 1
    assert [form["grant_type"] for form in rig.server.forms] == ["authorization_code", "refresh_token"]
    assert not rig.server.logins[0].ended


async def test_a_connection_per_user_has_no_token_for_all(rig: Brokers) -> None:
    """A built-in tool, and a call for nobody in particular, get no token of anybody."""
    await logged_in(rig, ALICE)
    broker = broker_of(rig)
    assert isinstance(broker.client("crm", ("a.example",)), Unconnected)
    with pytest.raises(ToolFailure, match="not known who that is") as caught:
        broker.placing_client("crm", ("a.example",), GIVEN, None)
    assert caught.value.code == "login_required"
    await broker.prepare("crm")


async def test_the_login_of_one_connection_is_not_that_of_another(rig: Brokers) -> None:
    """Where a login is kept depends on both names, however they are cut."""
    places = {
        login_place("a", "b/c"),
        login_place("a/b", "c"),
        login_place("ab", "c"),
        login_place("a"),
        login_place("b"),
    }
    assert len(places) == 5


async def test_people_are_forgotten_beyond_a_bound(rig: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process keeps the latest people at hand; another one is read again when needed."""
    monkeypatch.setattr("proxy.tools.access.credentials._MOST_PEOPLE", 2)
    await logged_in(rig, ALICE)
    broker = broker_of(rig)
    for name in ("key/1", "key/2", "key/3"):
        with pytest.raises(LoginNeeded):
            await header(broker, Person(name))
    assert len(broker._of_people) == 2
    began = time.monotonic()
    assert (await header(broker, ALICE)).startswith("Bearer ")
    assert time.monotonic() >= began
