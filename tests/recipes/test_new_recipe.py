"""`relm new`: files that load, that mean the recipe they extend, and that never replace another."""

import os
import shutil
from pathlib import Path

import pytest

from relm.cli import main
from relm.errors import RelmError
from relm.recipes.identity import folder_files
from relm.recipes.new_recipe import write_new
from relm.recipes.project import Project
from small_project import CHECKOUT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the shipped recipes, and two texts."""
    shutil.copytree(CHECKOUT / "recipes", tmp_path / "recipes")
    (tmp_path / "texts").mkdir()
    for name in ("one", "two"):
        (tmp_path / "texts" / f"{name}.txt").write_text(f"The text of {name}.\n" * 50)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_shipped_recipe_can_be_extended_and_the_comments_are_its_present_values(folder: Path) -> None:
    project = Project()
    for name in project.names()[::4]:
        write_new(project, f"new_{name}", name, None, None)
        path = folder / "recipes" / f"new_{name}.yaml"
        commented = path.read_text()
        head, comments = commented.split("\n\n")
        path.write_text("\n".join([head, *(line.removeprefix("# ") for line in comments.splitlines())]))
        assert Project().plan(f"new_{name}").fingerprint == Project().plan(name).fingerprint, name
        assert "\n# pretrain:\n" in commented
        path.unlink()


def test_a_comment_can_be_removed_by_itself_or_with_those_above_it(folder: Path) -> None:
    write_new(Project(), "mine", None, None, None)
    path = folder / "recipes" / "mine.yaml"
    path.write_text(
        path.read_text().replace("# seed: 1 ", "seed: 7 ").replace("# run:", "run:").replace("#   threads: 2", "  threads: 1")
    )
    plan = Project().plan("mine")
    assert (plan.recipe.seed, plan.recipe.run.threads) == (7, 1)


def test_without_a_name_a_recipe_is_named_after_its_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "texts").rename(folder / "my own texts")
    assert main(["new", "--data", "my own texts/"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "wrote recipes/data/my_own_texts.yaml",
        "wrote recipes/my_own_texts.yaml",
    ]
    assert main(["new", "--from", "quickstart"]) == 1
    assert "the new recipe has no name; give relm new NAME, or --data FOLDER" in capsys.readouterr().err
    (folder / "…").mkdir()
    assert main(["new", "--data", "…"]) == 1
    assert "give relm new NAME --data …" in capsys.readouterr().err


def test_a_folder_of_texts_becomes_a_dataset_with_a_count(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mine", "--data", "texts"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote recipes/data/mine.yaml",
        "wrote recipes/mine.yaml",
        "next:",
        "  edit recipes/mine.yaml         change the keys that are there as comments",
        "  relm estimate mine             memory, time and disk, before anything is downloaded",
        "  snakemake results/smoke/mine   its small twin, in about a minute",
        "  snakemake results/mine         the run",
    ]
    assert "# Found in texts: 2 files (**/*.txt), 1.7 kB." in (folder / "recipes" / "data" / "mine.yaml").read_text()
    plan = Project().plan("mine")
    assert (plan.dataset.folder, plan.dataset.held_out_end) == ("texts", 0.1)
    assert plan.recipe.model.layers == 3


def test_a_folder_outside_the_project_comes_with_the_consent_that_recipes_need(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = folder.with_name(f"{folder.name} texts")
    (folder / "texts").rename(outside)
    assert main(["new", "mine", "--data", str(outside)]) == 0
    consent = f"export RELM_DATA_FOLDERS='{outside}'"
    assert f"  {consent}   recipes may read this folder, in this shell\n" in capsys.readouterr().out
    with pytest.raises(RelmError, match=r"RELM_DATA_FOLDERS='.* texts' snakemake results/mine$"):
        _ = Project().plan("mine").fingerprint
    monkeypatch.setenv("RELM_DATA_FOLDERS", str(outside))
    assert Project().plan("mine").fingerprint
    assert main(["new", "again", "--data", str(outside)]) == 0
    assert "export" not in capsys.readouterr().out


def test_many_files_are_held_out_whole(folder: Path) -> None:
    for number in range(60):
        (folder / "texts" / f"{number}.md").write_text("text")
    write_new(Project(), "mine", None, "texts", "*.md")
    dataset = Project().dataset("mine")
    assert (dataset.held_out_end, dataset.one_in, dataset.file_pattern) == (None, 10, "*.md")


def test_what_is_not_read_is_counted_and_named_by_the_command_and_by_the_reader(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (".hidden.txt", ".git/a.txt", "A.TXT", "b.Txt", "c.tXt", "d.TxT", "notes.md"):
        (folder / "texts" / name).parent.mkdir(exist_ok=True)
        (folder / "texts" / name).write_text("A text.\n" * 20)
    os.mkfifo(folder / "texts" / "pipe.txt")
    for link, target in {"linked": "../recipes", "gone.txt": "nothing", "three.txt": "one.txt"}.items():
        (folder / "texts" / link).symlink_to(target)
    not_read = "not read: 9 (.git/a.txt, .hidden.txt, A.TXT, b.Txt, c.tXt, d.TxT, ...)"
    assert main(["new", "mine", "--data", "texts"]) == 0
    assert f"wrote recipes/mine.yaml\n{not_read}\nnext:" in capsys.readouterr().out
    assert [path.name for path in folder_files(Project().dataset("mine"))] == ["one.txt", "three.txt", "two.txt"]
    extract = ["extract", "--dataset", "recipes/data/mine.yaml", "--source", "texts", "--train", "t", "--held-out", "h"]
    assert main(extract) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"; {not_read}")
    hidden = Project().dataset("mine").model_copy(update={"pattern": ".git/*.txt"})
    assert [path.name for path in folder_files(hidden)] == ["a.txt"]


def test_folders_that_cannot_be_read_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "texts" / "closed").mkdir()
    monkeypatch.setattr("relm.recipes.files.folder_contents.os.access", lambda path, mode: path.name != "closed")
    assert main(["new", "mine", "--data", "texts"]) == 0
    assert "not read: 1 (closed)\n" in capsys.readouterr().out


# Files of a folder without texts -> the option that the message advises.
ADVISED = {
    ("A.TXT", "b.md", "c.md"): ["--pattern", "**/*.[tT][xX][tT]"],
    ("link ->",): ["--pattern", "link/**/*.txt"],
    ("a/b/link ->", "a/.hidden.md"): ["--pattern", "a/b/link/**/*.txt"],
    ("A.md",): ["--pattern", "**/*.md"],
}


@pytest.mark.parametrize(("names", "advised"), ADVISED.items(), ids=map(" ".join, ADVISED))
def test_advice_for_a_folder_without_texts_helps(
    folder: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...], advised: list[str]
) -> None:
    for name in names:
        path = folder / "own" / name.removesuffix(" ->")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(folder / "texts") if name.endswith("->") else path.write_text("A text.")
    assert main(["new", "mine", "--data", "own"]) == 1
    assert f"give --pattern '{advised[1]}'" in capsys.readouterr().err
    assert main(["new", "mine", "--data", "own", *advised]) == 0
    assert folder_files(Project().dataset("mine"))


# What a folder has -> the message about it.
UNUSABLE = {
    b"caf\xe9.txt": r"b'own/caf\xe9.txt': the file's name is not valid UTF-8; rename it",
    b"a.jsonl": "it has 1 .jsonl; give --pattern '**/*.jsonl' for texts, or copy a file in recipes/data/ for another format",
    b".hidden.txt": "it has files that are not read: 1 (.hidden.txt); give a folder of text files",
    b"\xe9\n.TXT ->": r"it has files that are not read: 1 (\udce9\n.TXT); give a folder of text files",
    b"system.txt -> /etc/hosts": "in /etc, a folder of the system, from which data are never read",
}


@pytest.mark.parametrize(("name", "message"), UNUSABLE.items(), ids=map(str, UNUSABLE))
def test_a_folder_without_usable_texts_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], name: bytes, message: str
) -> None:
    file, _, target = os.fsdecode(name).partition(" ->")
    (folder / "own").mkdir()
    path = folder / "own" / file
    path.symlink_to(target.strip() or "nothing") if "->" in os.fsdecode(name) else path.write_text("A text.")
    assert main(["new", "mine", "--data", "own"]) == 1
    assert message in capsys.readouterr().err
    assert not (folder / "recipes/data/mine.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["quickstart"],
            "recipes/quickstart.yaml: exists already and stays as it is; choose another name, such as my_quickstart",
        ),
        (["smoke"], "choose another name, such as my_smoke"),
        (["my run"], "did you mean my_run?"),
        (["mine", "--from", "quickstrt"], "did you mean results/quickstart?"),
        (["mine", "--from", "quickstart+seed=2"], "give --from quickstart"),
        (["mine", "--data", "text"], "--data text: no such folder"),
        (["mine", "--data", "texts", "--pattern", "*.md"], "it has 2 .txt; give --pattern '**/*.txt'"),
        (["mine", "--data", "texts", "--pattern", "**.txt"], "pattern '**.txt': no glob of files"),
        (["mine", "--data", "texts", "--pattern", "."], "pattern '.': no glob of files"),
        (["mine", "--data", "texts", "--pattern", ""], "pattern: String should match"),
        (["mine", "--data", "te\nxts"], "folder: expected one line of text, found the character U+000A"),
        (["mine", "--data", "z\udce9"], r"--data b'z\xe9': the folder's name is not valid UTF-8"),
        (["enwik8", "--data", "texts"], "recipes/data/enwik8.yaml: exists already and stays as it is"),
    ],
)
def test_a_fault_is_one_message_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["new", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_outside_a_checkout_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="give the command in the checkout"):
        write_new(Project(tmp_path), "mine", None, None, None)
