"""Every file of a finished run, damaged between the steps: whoever reads it names it, or makes the same bytes without it."""

import contextlib
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from finished_stages import ANOTHER, DETECTED, FAULTS, FLIPS, SAME, WRONG, Bench, list_stages, make_another_run

from small_project import TINY_BERT_RECIPE, TINY_RECIPE, Commands, make_project

SEED = 21
HEADER = "| stage | files | tried | detected | same bytes | silently wrong |"
# The stage that makes a file, by a pattern of its path.
STAGES = {
    "download": r"work/downloads/.+",
    "extract": r"work/documents/.+",
    "tokenizer": r"work/tokenizers/.+",
    "pregenerate": r"work/examples/.+\.(bin|idx)(\..+)?",
    "manifest": r"work/examples/.+",
    "pretrain": r"work/runs/[^/]+/[^/]+/(main/.+|resolved\.json)",
    "evaluate": r"work/runs/[^/]+/[^/]+/eval/.+",
    "verify": r"work/runs/[^/]+/[^/]+/verify/.+",
    "report": r"work/runs/[^/]+/[^/]+/report/.+",
    "publish": r"results/.+",
}
# No command of these reads them: a change has no effect on any figure, model or page.
UNREAD = {
    r"work/logs/.+\.log": "a step's messages, for people",
    r"work/checked/.+": "hashes with times, which spare `relm status` from hashing again; `relm check` reads every byte",
    r"work/runs/.+/main/lock": "held while training runs",
    r"work/runs/.+/resolved\.json": "the recipe as it was, for `relm runs`, which leaves a changed one out",
    r"work/runs/.+/checkpoints/step-00000030/.+": "older than the newest; read when that one is damaged",
}


OTHER_RECIPES = {
    "masked run (a BERT)": TINY_BERT_RECIPE,
    "seq2seq run (an mT5)": """
title: Diacritics put back
data: {dataset: sample}
tokenizer: {train: byte_level_bpe, vocabulary_size: 400}
model: {architecture: mt5, layers: 1, heads: 2, head_size: 8, hidden_size: 16, intermediate_size: 32}
pretrain:
  main:
    objective: seq2seq
    sequence_length: 24
    global_batch_size: 4
    steps: 40
    optimizer: {learning_rate: 1e-3}
    schedule: {name: constant}
evaluate: [diacritics]
diacritics: {examples: 12}
run: {threads: 1, checkpoint_interval: 10, micro_batch_size: 2, log_interval: 5}
""",
    "run of two seeds": f"{TINY_RECIPE}seeds: 2\n",
}


@pytest.fixture(scope="module")
def bench(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The finished run in a separate folder, which is the current one."""
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(finished_project.folder, folder, symlinks=True, dirs_exist_ok=True)
    with opened(folder) as bench:
        yield bench


@pytest.fixture(params=OTHER_RECIPES)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of another run."""
    return str(request.param)


@pytest.fixture
def other_bench(kind: str, tmp_path: Path) -> Iterator[Bench]:
    """A finished run of another kind, in the current folder."""
    folder = tmp_path / "other"
    folder.mkdir()
    project = make_project(folder)
    (folder / "recipes" / "tiny.yaml").write_text(OTHER_RECIPES[kind])
    done = project.snakemake("results/tiny")
    assert done.returncode == 0, done.stdout
    with opened(folder) as bench:
        yield bench


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Bench]:
    """Make the folder of a finished run the current one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("RELM_WORK", raising=False)
        patch.setenv("RELM_MIRROR", str(folder / "mirror"))
        for stage in (stage for stage in list_stages() if stage.name in ("report", "publish")):
            assert stage.run()[0] == 0  # the page differs where another process of the machine wrote it
        yield Bench()


def stage_of(name: str) -> str:
    """The stage that makes a file."""
    return next(stage for stage, pattern in STAGES.items() if re.fullmatch(pattern, name))


def is_unread(name: str) -> bool:
    """Return whether a file is one of those that no command reads."""
    return any(re.fullmatch(pattern, name) for pattern in UNREAD)


def damaged(bench: Bench, name: str, fault: str) -> bytes:
    """The content of a file with a fault; its places follow from the seed, the file and the fault."""
    return FAULTS[fault](bench.files[name], Random(f"{SEED} {name} {fault}"))


def test_every_file_is_read_by_some_command_or_its_change_has_no_effect(bench: Bench) -> None:
    unread = {name for name, readers in bench.readers.items() if not readers}
    assert unread == {name for name in bench.files if is_unread(name)}
    assert all(any(re.fullmatch(pattern, name) for name in unread) for pattern in UNREAD)


def test_some_damaged_files_are_named_or_healed(bench: Bench) -> None:
    cases = [(name, fault) for name in bench.files if not is_unread(name) for fault in FAULTS]
    for name, fault in Random(SEED).sample(sorted(cases), 40):
        outcome = bench.damage(name, damaged(bench, name, fault))
        assert outcome != WRONG, f"{name}: {fault}"


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_every_damaged_file_is_named_or_healed(bench: Bench, checkout: Path, tmp_path: Path) -> None:
    counts, wrong = damage_every_file(bench, make_another_run(tmp_path / "another"))
    rows = [(stage, *(found[key] for key in ("files", DETECTED, SAME, WRONG))) for stage, found in counts.items()]
    assert wrong == []
    for found, stated in zip(format_table(rows), table_of(checkout), strict=True):
        (*one, one_detected, _, _), (*other, other_detected, _, _) = split_row(found), split_row(stated)
        assert one == other
        # state.json has times in it, so that a flipped byte meets another key, and the checkpoint is refused or not used.
        assert abs(int(one_detected) - int(other_detected)) <= len(FLIPS), (found, stated)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_every_damaged_file_of_another_kind_of_run_is_named_or_healed(
    other_bench: Bench, kind: str, checkout: Path, tmp_path: Path
) -> None:
    counts, wrong = damage_every_file(other_bench, make_another_run(tmp_path / "another"))
    assert wrong == []
    found = sum(counts.values(), Counter())
    row = f"| {kind} | {found['files']} | {found[DETECTED] + found[SAME]} |"
    assert row in (checkout / "docs/trust.md").read_text(), dict(found)


def damage_every_file(bench: Bench, others: Mapping[str, bytes]) -> tuple[dict[str, Counter[str]], list[str]]:
    """Damage each file in each way, and return the counts of files and of outcomes by stage, and what was silently wrong."""
    counts: dict[str, Counter[str]] = {stage: Counter() for stage in STAGES}
    wrong = []
    for name in (name for name in sorted(bench.files) if not is_unread(name)):
        contents = {fault: damaged(bench, name, fault) for fault in FAULTS} | {ANOTHER: others.get(name, bench.files[name])}
        counts[stage_of(name)]["files"] += 1
        for fault, content in contents.items():
            if content != bench.files[name]:  # two runs may have the same configuration
                outcome = bench.damage(name, content)
                counts[stage_of(name)][outcome] += 1
                wrong += [f"{name}: {fault}"] if outcome == WRONG else []
    return counts, wrong


def format_table(rows: list[tuple[str, int, int, int, int]]) -> list[str]:
    """The rows as they should stand in docs/trust.md."""
    sums = ("all", *(sum(row[column] for row in rows) for column in range(1, 5)))
    return [f"| {stage} | {files} | {sum(found)} | {' | '.join(map(str, found))} |" for stage, files, *found in [*rows, sums]]


def table_of(checkout: Path) -> list[str]:
    """The rows that stand in docs/trust.md."""
    text = (checkout / "docs/trust.md").read_text(encoding="utf-8")
    found = re.search(rf"{re.escape(HEADER)}\n[|:-]+\n((?:\|.*\n)+)", text)
    assert found is not None
    return found[1].splitlines()


def split_row(row: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_table_has_every_stage_and_its_files(bench: Bench, checkout: Path) -> None:
    files = Counter(stage_of(name) for name in bench.files if not is_unread(name))
    rows = [[int(cell) if cell.isdigit() else cell for cell in split_row(row)] for row in table_of(checkout)]
    assert {row[0]: row[1] for row in rows} == {**files, "all": files.total()}
    assert all(tried == detected + same and wrong == 0 for _, _, tried, detected, same, wrong in rows)
