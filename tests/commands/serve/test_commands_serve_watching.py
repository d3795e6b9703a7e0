"""Which files ``serve --reload`` watches."""

from pathlib import Path

from proxy.commands.serve.watching import stamps, watched_places
from proxy.config.load import load_config

KEY = {"OPENAI_API_KEY": "sk-test"}


def test_the_env_file_beside_the_configuration_is_watched(tmp_path: Path) -> None:
    """The .env that the configuration reads is watched, also before it exists."""
    path = tmp_path / "toolrelay.toml"
    path.write_text("")
    files, _ = watched_places(path, load_config(path, KEY))
    assert set(files) == {path, tmp_path / ".env"}
    before = stamps(files)
    (tmp_path / ".env").write_text("A=1")
    assert stamps(files) != before


def test_without_a_configuration_that_of_this_folder_is(tmp_path: Path) -> None:
    """Without a file the .env of the current folder counts."""
    files, _ = watched_places(None, load_config(None, KEY))
    assert files == (Path(".env").absolute(),)
