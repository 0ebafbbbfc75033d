"""Folders that a recipe from somebody else names as data: those of the system and of programs' settings are never read, and
others outside the project only with consent.
"""

from pathlib import Path
from typing import Any

import pytest

from relm.cli import main
from relm.containers.placement import place_step
from relm.errors import RelmError
from relm.recipes.datasets import Dataset
from relm.recipes.files.own_folders import resolve_own_folder
from relm.recipes.identity import content_of, folder_content, folder_files, model_content
from relm.recipes.new_recipe import new_dataset
from relm.recipes.plan import Plan
from relm.recipes.published_models import PretrainedModel
from tiny_runs import recipe_of

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
# A folder outside the checkout, as a recipe names it, and what RELM_DATA_FOLDERS allows.
WITHOUT_CONSENT = {
    "in the home": ("~/texts", ""),
    "by its path": ("{home}/texts", ""),
    "by dots": ("../home/texts", ""),
    "link to the home": ("mine", ""),
    "behind a link": ("all/texts", ""),
    "absent folder": ("~/absent", ""),
    "sibling of an allowed folder": ("~/texts", "~/other"),
    "longer name than an allowed folder": ("~/texts", "~/text"),
    "parent of an allowed folder": ("~/texts", "~/texts/inside"),
    "dots out of an allowed folder": ("~/other/../texts", "~/other"),
    "link inside an allowed folder": ("~/other/link", "~/other"),
}
# What nobody can allow.
WRONG_CONSENT = {"root": "/", "home": "~", "etc": "~/texts:/etc", "keys": "{home}/.ssh", "link to etc": "link"}
CONSENTING = ("dataset", "model", "container")
FORBIDDEN = {f"{kind}: {name}": (kind, folder) for kind in KINDS for name, folder in NAMED.items()}
LINKED = {"file: link to a system's file": "/etc/passwd", "file: link to a key": "{home}/.ssh/id"}
REFUSED = {
    **FORBIDDEN,
    **LINKED,
    **{f"{kind}: {name}, no consent": (kind, *case) for kind in CONSENTING for name, case in WITHOUT_CONSENT.items()},
    **{f"consent to {name}": value for name, value in WRONG_CONSENT.items()},
    "file: link out of the folder, no consent": "{home}/other/b.txt",
    "file: behind a link out of the folder, no consent": "{home}/other",
}
INSIDE = {"in the checkout": "texts", "link to texts": "other", "dot folder of the checkout": ".texts"}
WITH_CONSENT = {
    "in the home": ("~/texts", "~/texts"),
    "in the home by its path": ("{home}/texts", "~/texts"),
    "by its path": ("~/texts", "{home}/texts"),
    "second of two": ("~/texts", "~/other:~/texts"),
    "inside an allowed folder": ("~/other/inside", "~/other/"),
    "link to an allowed folder": ("mine", "{home}/texts"),
    "allowed by a link": ("~/texts", "mine"),
    "empty names": ("~/texts", ":~/texts:"),
}
SURVIVED = {**INSIDE, **{f"{name}, with consent": case for name, case in WITH_CONSENT.items()}, "typed": "~/texts"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a checkout with texts, the latter as the current folder."""
    home, checkout = tmp_path / "home", tmp_path / "checkout"
    for folder in (
        home / "texts",
        home / "other/inside",
        home / ".ssh",
        home / ".config/gcloud",
        checkout / "texts",
        checkout / ".texts",
        checkout / "data",
    ):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("A text.")
    (home / ".ssh/id").write_text("secret")
    links = {"link": "/etc", "keys": home / ".ssh", "other": "texts", "mine": home / "texts", "all": home}
    for name, target in links.items():
        (checkout / name).symlink_to(target)
    (home / "other/link").symlink_to(home / "texts")
    (home / "other/b.txt").write_text("Another text.")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("RELM_DATA_FOLDERS", raising=False)
    monkeypatch.delenv("RELM_WORK", raising=False)
    monkeypatch.chdir(checkout)
    return home


def dataset(folder: str) -> Dataset:
    content: dict[str, Any] = {"title": "t", "licence": "l", "language": "en", "format": "text_files", "folder": folder}
    return Dataset.model_validate(content)


def write_dataset(folder: str) -> None:
    Path("a.yaml").write_text(f"title: t\nlicence: l\nlanguage: en\nformat: text_files\nfolder: '{folder}'\n")


def read(kind: str, folder: str, tmp_path: Path) -> object:
    if kind == "dataset":
        plan = Plan(
            "mine", recipe_of("causal", {"data": {"dataset": "letters"}}), dataset(folder), None, None, work=tmp_path / "work"
        )
        return plan.documents_job.key
    if kind == "model":
        model = PretrainedModel.model_validate({"title": "t", "licence": "l", "weights": True, "folder": folder})
        return model_content("m", model, tmp_path / "known")
    if kind == "relm new --data":
        return new_dataset("mine", folder, None)
    write_dataset(folder)
    return place_step(["extract", "--dataset", "a.yaml"], None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "folder"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_folder_that_no_recipe_may_read_is_refused(kind: str, folder: str, home: Path, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"from which data are never read; copy the data into another folder"):
        read(kind, folder.format(home=home), tmp_path)


@pytest.mark.parametrize("target", LINKED.values(), ids=LINKED)
def test_a_link_in_a_folder_leads_to_no_file_outside(target: str, home: Path) -> None:
    (Path("texts") / "b.txt").symlink_to(target.format(home=home))
    with pytest.raises(RelmError, match=r"folder: texts/b\.txt, which is .*: in .*from which data are never read"):
        folder_files(dataset("texts"))


@pytest.mark.parametrize("kind", CONSENTING)
@pytest.mark.parametrize(("folder", "allowed"), WITHOUT_CONSENT.values(), ids=WITHOUT_CONSENT)
def test_a_folder_outside_the_project_is_refused_without_consent(
    kind: str, folder: str, allowed: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELM_DATA_FOLDERS", allowed)
    with pytest.raises(RelmError, match="outside the project, where a recipe reads only with your consent") as refusal:
        read(kind, folder.format(home=home), tmp_path)
    assert f"give RELM_DATA_FOLDERS={allowed}{':' if allowed else ''}" in str(refusal.value)


def test_the_refusal_has_the_dataset_the_folder_and_the_command_that_allows_it(home: Path, tmp_path: Path) -> None:
    with pytest.raises(RelmError) as refusal:
        read("dataset", "mine", tmp_path)
    assert str(refusal.value) == (
        f"recipes/data/letters.yaml: folder mine, which is {home}/texts: outside the project, where a recipe reads only "
        f"with your consent. To allow it, give RELM_DATA_FOLDERS={home}/texts snakemake results/mine"
    )


@pytest.mark.parametrize("allowed", WRONG_CONSENT.values(), ids=WRONG_CONSENT)
def test_nobody_can_allow_a_folder_that_no_recipe_may_read(
    allowed: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELM_DATA_FOLDERS", allowed.format(home=home))
    with pytest.raises(RelmError, match=r"RELM_DATA_FOLDERS: .*from which data are never read"):
        read("dataset", "~/texts", tmp_path)


@pytest.mark.parametrize("path", ["b.txt", "inside/b.txt"])
def test_a_link_in_a_folder_leads_to_another_folder_only_with_consent(
    path: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Path("texts", path) if path == "b.txt" else Path("texts/inside")
    link.symlink_to(home / "other" / path if path == "b.txt" else home / "other")
    texts = dataset("texts").model_copy(update={"pattern": path if path == "b.txt" else "inside/*.txt"})
    with pytest.raises(RelmError, match=f"folder: {link}, which is .*give RELM_DATA_FOLDERS={home}/other before the command"):
        folder_files(texts)
    monkeypatch.setenv("RELM_DATA_FOLDERS", "~/other")
    assert [file.name for file in folder_files(texts)] == ["b.txt"]


@pytest.mark.parametrize("folder", INSIDE.values(), ids=INSIDE)
def test_folders_of_the_project_are_read_without_consent(folder: str, home: Path, tmp_path: Path) -> None:
    assert [inside for inside, _ in folder_content(dataset(folder), tmp_path / "known")] == ["a.txt"]  # type: ignore[misc]
    assert read("dataset", folder, tmp_path) == read("dataset", "texts", tmp_path)
    assert "format: text_files" in new_dataset("mine", folder, None)[0]


@pytest.mark.parametrize(("folder", "allowed"), WITH_CONSENT.values(), ids=WITH_CONSENT)
def test_folders_with_consent_are_read(
    folder: str, allowed: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "other/inside/a.txt").write_text("A text.")
    monkeypatch.setenv("RELM_DATA_FOLDERS", allowed.format(home=home))
    assert read("dataset", folder.format(home=home), tmp_path) == read("dataset", "texts", tmp_path)
    assert read("container", folder.format(home=home), tmp_path).reads == (
        Path(folder.format(home=home)).expanduser().resolve(),
    )  # type: ignore[attr-defined]


def test_who_types_a_folder_in_a_command_allows_it(home: Path, tmp_path: Path) -> None:
    write_dataset("~/elsewhere")
    with open("a.yaml", "a") as file:
        file.write("held_out_end: 0.5\n")
    (home / "texts/a.txt").write_text("A line.\n" * 20)
    arguments = ["extract", "--dataset", "a.yaml", "--source", str(home / "texts"), "--train", "t", "--held-out", "h"]
    assert main(arguments) == 0
    assert "format: text_files" in new_dataset("mine", "~/texts", None)[0]


def test_without_a_home_folder_a_tilde_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(RelmError, match="folder: no home folder for ~/texts; give the whole path"):
        resolve_own_folder("~/texts", "folder")


@pytest.mark.parametrize("damage", ["[]", '{"a.txt": 1}', '{"a.txt": [[1], 2]}', "[" * 100_000, '{"a.txt": [[1e999], "x"]}'])
def test_damaged_hashes_of_a_folder_are_recomputed(damage: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    files = {"a.txt": tmp_path / "a.txt"}
    good = content_of(files, tmp_path / "known.json")
    (tmp_path / "known.json").write_text(damage)
    assert content_of(files, tmp_path / "known.json") == good
