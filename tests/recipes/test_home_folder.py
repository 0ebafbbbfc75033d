"""`~` in recipes' files is the caller's home folder, in a container too, whose HOME is another."""

from pathlib import Path

import pytest

from relm.recipes.files.own_folders import expand_home, needs_consent, resolve_own_folder
from relm.recipes.redaction import expand_path, shorten_path


@pytest.fixture(params=[True, False], ids=["in a container", "outside"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's home folder."""
    monkeypatch.setenv("HOME", "/tmp" if request.param else str(tmp_path))
    monkeypatch.setenv("RELM_HOME", str(tmp_path)) if request.param else monkeypatch.delenv("RELM_HOME", raising=False)
    return tmp_path


def test_a_tilde_is_the_callers_home_folder(home: Path) -> None:
    assert expand_home("~/texts/of mine") == home / "texts/of mine"
    assert [expand_home(text) for text in ("~", "texts/~", "/data/~")] == [home, Path("texts/~"), Path("/data/~")]
    assert expand_path("~/texts") == home / "texts"
    assert shorten_path(home / "texts") == "~/texts"


def test_consent_with_a_tilde_holds_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = home / "texts"
    texts.mkdir()
    monkeypatch.setenv("RELM_DATA_FOLDERS", "~/texts")
    assert not needs_consent(resolve_own_folder("~/texts", "folder"))


def test_another_users_home_is_not_taken_for_it(home: Path) -> None:
    assert expand_home("~root/texts") == Path("~root").expanduser() / "texts"
