"""Folders of compiled programs: whoever can write into one has their code run, so they belong to only one user."""

import os
import stat
from pathlib import Path

import pytest

from relm.devices.private_cache import INDUCTOR, keep_compiler_cache, make_private_folder
from relm.devices.torch import TorchDevice
from relm.errors import RelmError
from relm.recipes.run import Run


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_the_cache_of_torch_compile_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INDUCTOR, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0)  # the widest rights that a user can have set
    try:
        TorchDevice(Run(threads=1))
    finally:
        os.umask(before)
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert Path(cache_dir()) == tmp_path / "cache/relm/inductor"
    assert mode_of(tmp_path / "cache/relm/inductor") == 0o700


def test_a_folder_that_the_user_or_the_image_has_set_stays(tmp_path: Path) -> None:
    environment = {INDUCTOR: str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "other")}
    keep_compiler_cache(environment)
    assert environment[INDUCTOR] == str(tmp_path)
    assert not (tmp_path / "other").exists()


def test_without_a_home_the_cache_has_a_random_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    found = []
    for _ in range(2):
        environment = {"XDG_CACHE_HOME": str(tmp_path / "file")}
        keep_compiler_cache(environment)
        found.append(Path(environment[INDUCTOR]))
    assert found[0] != found[1]
    assert {mode_of(folder) for folder in found} == {0o700}


def make_link(folder: Path) -> None:
    (folder.parent / "target").mkdir()
    folder.symlink_to("target")


def make_shared(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


SURFACE = "caches of programs"
REFUSED = {"link": make_link, "writable by others": make_shared, "file": Path.touch}
SURVIVED = ["default of torch.compile", "set by the user", "without a home", "readable by others"]


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_a_cache_that_others_prepared_is_refused(make: object, tmp_path: Path) -> None:
    make(folder := tmp_path / "cache")  # type: ignore[operator]
    for _ in range(2):  # what lies in it does not become trusted by a change of its mode
        with pytest.raises(RelmError, match="compiled programs and must be private"):
            make_private_folder(folder)


def test_a_cache_that_others_can_only_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    assert mode_of(make_private_folder(tmp_path / "cache")) == 0o700
