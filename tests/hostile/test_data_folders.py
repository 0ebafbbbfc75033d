"""Folders that a recipe from somebody else names as data: those of the system and of programs' settings are never read."""

from pathlib import Path
from typing import Any

import pytest

from relm.containers.placement import place_step
from relm.errors import RelmError
from relm.recipes.datasets import Dataset
from relm.recipes.identity import content_of, folder_content, folder_files, model_content
from relm.recipes.new_recipe import new_dataset
from relm.recipes.own_folders import resolve_own_folder
from relm.recipes.published_models import PretrainedModel

SURFACE = "folders of datasets"
NAMED = {
    "root": "/",
    "root with dots": "/tmp/..",
    "etc": "/etc",
    "inside etc": "/etc/ssl",
    "proc": "/proc/self",
    "sys": "/sys",
    "dev": "/dev/shm",
    "run": "/run",
    "dots into etc": "data/../../../../../../../../etc",
    "home": "~",
    "keys": "~/.ssh",
    "settings": "~/.config/gcloud",
    "home by its path": "{home}",
    "keys by their path": "{home}/.ssh",
    "link to etc": "link",
    "behind a link": "link/ssl",
    "link to keys": "keys",
}
KINDS = ("dataset", "model", "container", "relm new --data")
REFUSED = {f"{kind}: {name}": (kind, folder) for kind in KINDS for name, folder in NAMED.items()} | {
    "file: link to a system's file": ("file", "/etc/passwd"),
    "file: link to a key": ("file", "{home}/.ssh/id"),
}
SURVIVED = {
    "in the checkout": "texts",
    "in the home": "~/texts",
    "by its path": "{home}/texts",
    "link to texts": "other",
    "dot folder of the checkout": ".texts",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a checkout with texts, the latter as the current folder."""
    home, checkout = tmp_path / "home", tmp_path / "checkout"
    for folder in (
        home / "texts",
        home / ".ssh",
        home / ".config/gcloud",
        checkout / "texts",
        checkout / ".texts",
        checkout / "data",
    ):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("A text.")
    (home / ".ssh/id").write_text("secret")
    for name, target in {"link": "/etc", "keys": home / ".ssh", "other": "texts"}.items():
        (checkout / name).symlink_to(target)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(checkout)
    return home


def dataset(folder: str) -> Dataset:
    content: dict[str, Any] = {"title": "t", "licence": "l", "language": "en", "format": "text_files", "folder": folder}
    return Dataset.model_validate(content)


def read(kind: str, folder: str, tmp_path: Path) -> object:
    if kind == "dataset":
        return folder_content(dataset(folder), tmp_path / "known")
    if kind == "model":
        model = PretrainedModel.model_validate({"title": "t", "licence": "l", "weights": True, "folder": folder})
        return model_content("m", model, tmp_path / "known")
    if kind == "relm new --data":
        return new_dataset("mine", folder, None)
    Path("a.yaml").write_text(f"title: t\nlicence: l\nlanguage: en\nformat: text_files\nfolder: '{folder}'\n")
    return place_step(["extract", "--dataset", "a.yaml"], None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "folder"), [case for case in REFUSED.values() if case[0] != "file"])
def test_a_folder_that_no_recipe_may_read_is_refused(kind: str, folder: str, home: Path, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"from which no data are read; copy the data into a folder of their own"):
        read(kind, folder.format(home=home), tmp_path)


@pytest.mark.parametrize("target", [target for kind, target in REFUSED.values() if kind == "file"])
def test_a_link_in_a_folder_leads_to_no_file_outside(target: str, home: Path) -> None:
    (Path("texts") / "b.txt").symlink_to(target.format(home=home))
    with pytest.raises(RelmError, match=r"folder: texts/b\.txt, which is .*: in .*from which no data are read"):
        folder_files(dataset("texts"))


@pytest.mark.parametrize("folder", SURVIVED.values(), ids=SURVIVED)
def test_the_users_own_data_are_read_as_before(folder: str, home: Path, tmp_path: Path) -> None:
    assert [inside for inside, _ in folder_content(dataset(folder.format(home=home)), tmp_path / "known")] == ["a.txt"]  # type: ignore[misc]
    assert "format: text_files" in new_dataset("mine", folder.format(home=home), None)


def test_without_a_home_folder_a_tilde_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(RelmError, match="folder: there is no home folder for ~/texts; give the whole path"):
        resolve_own_folder("~/texts", "folder")


@pytest.mark.parametrize("damage", ["[]", '{"a.txt": 1}', '{"a.txt": [[1], 2]}', "[" * 100_000, '{"a.txt": [[1e999], "x"]}'])
def test_damaged_hashes_of_a_folder_are_computed_anew(damage: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    files = {"a.txt": tmp_path / "a.txt"}
    good = content_of(files, tmp_path / "known.json")
    (tmp_path / "known.json").write_text(damage)
    assert content_of(files, tmp_path / "known.json") == good
