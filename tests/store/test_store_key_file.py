"""The key file that a store makes for itself: its permissions, what it opens, and its loss."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from store_records import T0, files_below, hidden, hidden_of, kept, query, response, run

from proxy.base.errors import ConfigError, StoreError
from proxy.store.base import RunFilter, Store
from proxy.store.factory import open_sealed, open_store, peek_keys
from proxy.store.key_file import KeyFile
from proxy.store.options import StoreOptions
from proxy.store.seal import Seal

SECRET = "a secret sentence"


def file_of(folder: Path) -> Path:
    return folder / "r.db.seal-key"


async def opened(folder: Path, **more: object) -> Store:
    """A started store in a folder; unless told otherwise it seals with its own key file."""
    options = StoreOptions(clock=lambda: T0 + 10)
    store = open_store("sqlite:///r.db", options, base=folder, **{"seal": True, **more})  # type: ignore[arg-type]
    await store.start()
    return store


async def test_a_start_makes_a_key_for_its_user_alone(tmp_path: Path) -> None:
    """Rule R3: without a configured key the store makes a key file of mode 0600 and seals content with it."""
    store = await opened(tmp_path)
    assert store.sealed is True
    store.put_run(run("run_1"))
    store.put_response(response("resp_1", response=SECRET.encode()))
    await store.aclose()
    assert stat.S_IMODE(file_of(tmp_path).stat().st_mode) == 0o600
    assert SECRET.encode() not in (tmp_path / "r.db").read_bytes()
    again = await opened(tmp_path)
    found = await again.find_response("resp_1", "open")
    await again.aclose()
    assert found is not None
    assert found.response == SECRET.encode()
    assert [path.name for path in files_below(tmp_path) if "seal-key." in path.name] == []


async def test_nothing_is_made_before_the_start_nor_by_a_command_that_reads(tmp_path: Path) -> None:
    """A store makes no key file before its start, nor when a command only reads older content."""
    store = open_store("sqlite:///r.db", base=tmp_path, seal=True)
    assert store.sealed is True
    assert files_below(tmp_path) == []
    await (await opened(tmp_path, seal=False)).aclose()
    reading = await opened(tmp_path, must_exist=True)
    await reading.list_runs(RunFilter())
    await reading.aclose()
    assert await peek_keys("sqlite:///r.db", tmp_path, seal=True) is not None
    assert not file_of(tmp_path).exists()


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    """If several processes make the key file at once, all of them use the key of the first one."""
    program = (
        "import sys; from pathlib import Path; from proxy.store.key_file import KeyFile; "
        "print(KeyFile(Path(sys.argv[1])).make().hex())"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "r.db")], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    keys = {process.communicate()[0].strip() for process in started}
    assert len(keys) == 1
    assert keys == {(KeyFile(tmp_path / "r.db").read() or b"").hex().encode()}


async def test_a_file_system_without_links_has_a_key_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hard links the store writes the key file in place, and never overwrites an existing one."""

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    file = KeyFile(tmp_path / "r.db")
    key = file.make()
    assert (file.read(), file.make()) == (key, key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
async def test_a_key_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    """The error at the start names the file, its mode and the command that repairs it, but not the key."""
    await (await opened(tmp_path)).aclose()
    key = file_of(tmp_path).read_text().strip()
    file_of(tmp_path).chmod(mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}.*Run: chmod 600 ") as caught:
        await opened(tmp_path)
    assert str(file_of(tmp_path)) in str(caught.value)
    assert key not in str(caught.value)
    file_of(tmp_path).chmod(0o600)
    await (await opened(tmp_path)).aclose()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """A key file of another user is an error: that user could read the key or replace it."""
    await (await opened(tmp_path)).aclose()
    os.chown(file_of(tmp_path), 12345, -1)
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid 12345\)"):
        await opened(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_key_that_root_makes_is_the_users_whose_record_it_is(tmp_path: Path) -> None:
    """A key file that root makes belongs to the owner of the database, so the server can read it."""
    (tmp_path / "r.db").touch()
    os.chown(tmp_path / "r.db", 12345, 12345)
    KeyFile(tmp_path / "r.db").make()
    assert file_of(tmp_path).stat().st_uid == 12345
    assert KeyFile(tmp_path / "r.db").read() is not None


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
async def test_what_is_no_file_is_no_key_file(tmp_path: Path, kind: str) -> None:
    """A start refuses a link, a pipe or a folder as the key file, and does not block on the pipe."""
    place = file_of(tmp_path)
    if kind == "link":
        (tmp_path / "elsewhere").write_text("00" * 32)
        place.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(place, 0o600)
    else:
        place.mkdir(0o700)
    with pytest.raises(
        ConfigError, match=r"store\.seal: the key file .*r\.db\.seal-key is not a regular file"
    ):
        await opened(tmp_path)


async def test_a_file_without_a_key_is_refused_unrepeated(tmp_path: Path) -> None:
    """A key file without a complete key is an error that does not quote it; the file stays as it is."""
    file_of(tmp_path).write_text("hunter2")
    file_of(tmp_path).chmod(0o600)
    with pytest.raises(ConfigError, match="does not hold 32 bytes") as caught:
        await opened(tmp_path)
    assert "hunter2" not in str(caught.value)
    assert file_of(tmp_path).read_text() == "hunter2"


async def test_a_lost_key_file_is_not_replaced_while_content_needs_it(tmp_path: Path) -> None:
    """Without the key file that content needs, the start fails, deletes nothing and makes no new key.
    After ``forget_sealed`` it succeeds."""
    store = await opened(tmp_path)
    store.put_run(run("run_1"))
    store.put_hidden(hidden("h-1", run_id="run_1", payload=SECRET.encode()))
    await store.aclose()
    kept_away = file_of(tmp_path).rename(tmp_path / "backup")
    with pytest.raises(StoreError, match=r"If .*r\.db\.seal-key was lost, put it back") as caught:
        await opened(tmp_path)
    assert "--forget-sealed" in str(caught.value)
    assert not file_of(tmp_path).exists()
    kept_away.rename(file_of(tmp_path))
    again = await opened(tmp_path)
    assert [turns.payload for turns in await hidden_of(again, "h-1")] == [SECRET.encode()]
    await again.aclose()
    lost = Seal(KeyFile(tmp_path / "r.db").read() or b"").id
    file_of(tmp_path).unlink()
    giving_up = open_sealed("sqlite:///r.db", base=tmp_path, seal=True)
    await giving_up.start()
    assert await giving_up.forget_sealed(lost) == 1
    await giving_up.aclose()
    await (await opened(tmp_path)).aclose()


async def test_a_configured_key_seals_and_the_file_still_opens(tmp_path: Path) -> None:
    """The key file still opens older content when a key is configured or sealing is off.
    After ``reseal`` with the configured key the file is not needed."""
    store = await opened(tmp_path)
    store.put_run(run("run_1"))
    store.put_result(kept("res_1", run_id="run_1", content=SECRET))
    await store.aclose()
    for how in ({"seal_key": "11" * 32}, {"seal": False}):
        store = await opened(tmp_path, **how)
        found = await store.find_result("res_1", "open")
        await store.aclose()
        assert found is not None
        assert found.content == SECRET
    sealed = open_sealed("sqlite:///r.db", base=tmp_path, seal_key="11" * 32, seal=True)
    await sealed.start()
    assert await sealed.reseal() == 1
    await sealed.aclose()
    file_of(tmp_path).unlink()
    await (await opened(tmp_path, seal_key="11" * 32)).aclose()
    assert query(tmp_path / "r.db", "SELECT sealed_by FROM kept_results") == [(Seal(b"\x11" * 32).id,)]


async def test_what_was_written_in_the_clear_is_read_and_can_be_sealed(tmp_path: Path) -> None:
    """A store that seals also reads content that was written unsealed, and ``reseal`` encrypts it."""
    store = await opened(tmp_path, seal=False)
    store.put_run(run("run_1"))
    store.put_hidden(hidden("h-1", run_id="run_1", payload=SECRET.encode()))
    await store.aclose()
    store = await opened(tmp_path)
    store.put_hidden(hidden("h-2", run_id="run_1", payload=SECRET.encode()))
    for key in ("h-1", "h-2"):
        assert [turns.payload for turns in await hidden_of(store, key)] == [SECRET.encode()]
    await store.aclose()
    assert query(tmp_path / "r.db", "SELECT count(*) FROM hidden_turns WHERE sealed_by IS NULL") == [(1,)]
    sealing = open_sealed("sqlite:///r.db", base=tmp_path, seal=True)
    await sealing.start()
    assert await sealing.reseal() == 1
    await sealing.aclose()


async def test_client_keys_do_not_need_the_file(tmp_path: Path) -> None:
    """Client keys are hashed with a pepper in the database, so a lost key file locks no client out."""
    store = await opened(tmp_path)
    name, _ = await store.hash_key()
    await store.aclose()
    assert name == "pepper"


async def test_tokens_are_sealed_with_the_file(tmp_path: Path) -> None:
    """A store with its own key file keeps tokens sealed, from its first start on."""
    store = open_store("sqlite:///r.db", base=tmp_path, seal=True)
    vault = store.vault
    assert vault is not None
    await store.start()
    await vault.save("a", SECRET.encode())
    await store.aclose()
    assert SECRET.encode() not in (tmp_path / "r.db").read_bytes()
    again = await opened(tmp_path)
    assert again.vault is not None
    assert await again.vault.load("a") == SECRET.encode()
    await again.aclose()


async def test_a_record_in_memory_has_no_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory writes no content, so it makes no key file."""
    monkeypatch.chdir(tmp_path)
    store = open_store("memory:", seal=True)
    await store.start()
    await store.aclose()
    assert files_below(tmp_path) == []
