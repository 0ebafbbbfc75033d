"""The folders and variables that a step gets in real Apptainer."""

from pathlib import Path

import pytest

from relm.containers.apptainer import BIND, describe_surroundings
from relm.errors import RelmError
from relm.recipes.files.own_folders import CONSENT


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (BIND, "RELM_WORK", "RELM_MIRROR", "RELM_EXTENSIONS", CONSENT):
        monkeypatch.delenv(name, raising=False)
    for name in ("checkout/mirror", "scratch", "mirror", "texts"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "checkout")
    return tmp_path / "checkout"


def test_only_the_checkout_is_mounted_where_it_has_all_folders(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_MIRROR", str(checkout / "mirror"))
    assert describe_surroundings(checkout)[BIND] == str(checkout)


def test_folders_elsewhere_are_mounted_with_those_of_the_caller(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = checkout.parent
    given = {"RELM_WORK": "scratch/work", "RELM_MIRROR": "mirror", CONSENT: "texts", BIND: "/opt/tools"}
    for name, value in given.items():
        monkeypatch.setenv(name, value if value.startswith("/") else str(above / value))
    mounts = describe_surroundings(checkout)[BIND].split(",")
    read_only = [f"{above / name}:{above / name}:ro" for name in ("texts", "mirror")]
    assert mounts == ["/opt/tools", str(checkout), str(above / "scratch/work"), *read_only]
    monkeypatch.setenv(BIND, ",".join(mounts))
    assert describe_surroundings(checkout)[BIND].split(",") == mounts, (
        "a job gets the variable of the command that submitted it"
    )


def test_a_folder_that_is_absent_is_left_out(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_MIRROR", str(checkout.parent / "gone"))
    assert describe_surroundings(checkout)[BIND] == str(checkout)


def test_the_home_folder_of_the_caller_is_known_and_its_python_path_is_not(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("PYTHONPATH", "/home/somebody/lib")
    found = describe_surroundings(checkout)
    assert (found["APPTAINERENV_RELM_HOME"], found["APPTAINERENV_PYTHONPATH"]) == ("/home/somebody", "")


def test_a_folder_of_the_system_is_not_mounted(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONSENT, "/etc")
    with pytest.raises(RelmError, match="a folder of the system"):
        describe_surroundings(checkout)


@pytest.mark.parametrize("name", ["one,two", "one:two"])
def test_a_path_that_would_be_cut_into_two_is_refused_by_name(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = checkout.parent / name
    folder.mkdir()
    monkeypatch.setenv("RELM_WORK", str(folder))
    with pytest.raises(RelmError, match=f"{name}: Apptainer cannot mount a path with '{name[3]}'"):
        describe_surroundings(checkout)
