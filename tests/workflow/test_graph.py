"""The graph: what a dry-run shows, what parsing costs, and what happens when a target does not exist."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import write_json
from relm.forecast.compilation.compiling import recipe_facts, topology_of
from relm.recipes.project import Project
from small_project import CHECKOUT, TINY_RECIPE, Commands

ALL_STEPS = {
    "download_data": 1,
    "extract": 1,
    "train_tokenizer": 1,
    "pregenerate": 1,
    "manifest": 1,
    "pretrain": 1,
    "evaluate": 2,
    "verify": 1,
    "report": 1,
    "publish": 1,
}


def test_a_dry_run_shows_the_whole_way_from_the_dump_to_the_verdict(project: Commands) -> None:
    assert project.jobs("results/tiny") == ALL_STEPS
    assert project.jobs("results/smoke/tiny") == ALL_STEPS


def test_a_dry_run_needs_no_network(project: Commands) -> None:
    done = subprocess.run(
        ["unshare", "--net", "--map-root-user", *project.command("results/tiny", "-n")],
        cwd=project.folder,
        env=project.environment,
        text=True,
        capture_output=True,
    )
    if "unshare" in done.stderr and done.returncode != 0:
        pytest.skip(f"this machine forbids network namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_parsing_imports_nothing_heavy(project: Commands) -> None:
    code = (
        "import sys; from relm import graph; from relm.cluster import supervision; graph.papers(); "
        "graph.asking.PROJECT.plan('tiny').fingerprint; "
        "heavy = ('torch', 'numpy', 'tokenizers', 'transformers', 'matplotlib', 'scipy'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, env=project.environment, text=True, capture_output=True
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("results/tyni", "did you mean results/tiny?"),
        ("tiny", "did you mean results/tiny?"),
        pytest.param("tiny@h100", "did you mean results/tiny@h100?", marks=pytest.mark.full),
        ("results/tiny@h100/report.html", "did you mean results/tiny@h100?"),
        pytest.param("al", "did you mean all?", marks=pytest.mark.full),
    ],
)
def test_an_unknown_target_suggests_the_nearest_name(project: Commands, target: str, hint: str) -> None:
    done = project.snakemake(target, "-n")
    assert done.returncode != 0
    assert hint in done.stdout


@pytest.mark.parametrize(
    "target",
    ["results/wrong", "results/reference/wrong", "paper_nobody2026", "tyni", "all"],
)
def test_a_fault_of_a_target_ends_in_its_message_and_leaves_no_lock(project: Commands, target: str) -> None:
    paper = "paper: {key: nobody2026, title: Nothing, url: 'https://example.org'}\n"
    (project.folder / "recipes" / "wrong.yaml").write_text(TINY_RECIPE.replace("layers:", "layrs:") + paper)
    done = project.snakemake(target, "--quiet", "all")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    assert "Exception" not in done.stdout
    assert ("did you mean results/tiny?" if target == "tyni" else "recipes/wrong.yaml: 1 error") in done.stdout
    assert "model.layrs: unknown key; did you mean layers?" in done.stdout or target == "tyni"
    assert not list((project.folder / ".snakemake" / "locks").glob("*"))


def test_a_paper_and_all_are_targets(project: Commands) -> None:
    paper = "paper: {key: nobody2026, title: Nothing, url: 'https://example.org'}\n"
    for name in ("one", "two"):
        (project.folder / "recipes" / f"{name}.yaml").write_text(f"extends: tiny\n{paper}seed: {len(name) + (name == 'two')}\n")
    shared = {"download_data": 1, "extract": 1, "train_tokenizer": 1, "pregenerate": 1, "manifest": 1}
    jobs = project.jobs("paper_nobody2026")
    assert {rule: jobs[rule] for rule in shared} == shared
    assert jobs["publish"] == 2
    assert project.jobs("all")["publish"] == 3
    done = project.snakemake("list", "--quiet", "all")
    assert "one" in done.stdout
    assert "[paper_nobody2026]" in done.stdout


ON_A_TPU = "run: {{device: tpu, topology: {topology}, micro_batch_size: {size}, activation_checkpointing: {anew}}}"


def write_tpu_recipe(path: Path, **settings: Any) -> None:
    """The tiny recipe with a batch for 8 devices."""
    larger = TINY_RECIPE.replace("global_batch_size: 4", "global_batch_size: 32")
    path.write_text(larger.partition("run:")[0] + ON_A_TPU.format(**settings))


def test_what_only_the_compiled_programs_follow_from_compiles_again(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    recipe = project.folder / "recipes" / "on_tpu.yaml"
    before = {"topology": "v3-8", "size": 8, "anew": False}
    write_tpu_recipe(recipe, **before)
    target = Project().plan("on_tpu").compilation
    # The compiler is not in this environment: the rule is the real one, and its step makes a file and no more.
    rules = project.folder / "src" / "rules" / "train.smk"
    rules.parents[1].unlink()
    shutil.copytree(CHECKOUT / "src" / "rules", rules.parent)
    before_rule, _, rule = rules.read_text().partition("rule compile:")
    rules.write_text(f"{before_rule}rule compile:{rule.replace('{params.command} --log', 'echo {{}} > {output:q}; true')}")
    done = project.snakemake(str(target))
    assert done.returncode == 0, done.stdout
    plan = Project().plan("on_tpu")
    write_json(target, {"topology": topology_of(plan), **recipe_facts(plan)})
    assert project.jobs(str(target)) == {}
    for changed in ({"size": 16}, {"anew": True}, {"topology": "v5e-8"}):
        write_tpu_recipe(recipe, **before | changed)
        assert Project().plan("on_tpu").compilation == target
        assert project.jobs(str(target)) == {"compile": 1}, changed


def test_thirty_recipes_of_fifty_shards_share_their_data(project: Commands) -> None:
    write_synthetic_recipes(project.folder, recipes=30, shards=50)
    assert project.jobs("all") == {
        "download_data": 50,
        "extract": 50,
        "train_tokenizer": 1,
        "pregenerate": 50,
        "manifest": 1,
        **dict.fromkeys(("pretrain", "evaluate", "verify", "report", "publish"), 30),
        "all": 1,
    }


def write_synthetic_recipes(folder: Path, recipes: int, shards: int) -> None:
    """Recipes that differ in their seed, over one dataset of many shards; `benchmarks/parsing.py` uses them too."""
    for path in (folder / "recipes").glob("*.yaml"):
        path.unlink()
    files = "".join(
        f"  shard-{number:03d}.xml.bz2:\n    sha256: '{number:064x}'\n    size: 1000\n"
        f"    sources: [{{url: 'https://example.org/{number}'}}]\n"
        for number in range(shards)
    )
    head = "title: Many shards\nlicence: CC0-1.0\nlanguage: en\nformat: mediawiki_xml\nfiles:\n"
    (folder / "recipes" / "data" / "sample.yaml").write_text(head + files)
    for number in range(recipes):
        text = TINY_RECIPE.replace("evaluate: [held_out, samples]", "evaluate: [held_out]")
        (folder / "recipes" / f"recipe-{number:02d}.yaml").write_text(f"{text}seed: {number}\n")


def test_two_phases_follow_each_other_and_starting_weights_are_downloaded(project: Commands) -> None:
    source = "{sha256: '%s', size: 9, sources: [{url: 'https://example.org/x'}]}"
    files = "".join(
        f"  {name}: {source % (letter * 64)}\n" for name, letter in (("model.safetensors", "a"), ("config.json", "b"))
    )
    (project.folder / "recipes" / "models" / "start.yaml").write_text(f"title: S\nlicence: MIT\nweights: true\nfiles:\n{files}")
    phase = TINY_RECIPE[TINY_RECIPE.index("  main:") : TINY_RECIPE.index("evaluate:")].replace("main:", "second:")
    (project.folder / "recipes" / "two.yaml").write_text(f"extends: tiny\ninit_from: start\npretrain:\n{phase}")
    jobs = project.jobs("results/two")
    assert (jobs["pretrain"], jobs["download_model"], jobs["publish"]) == (2, 2, 1)
    shown = " ".join(project.snakemake("results/two", "-n", "-p").stdout.split())
    assert "--init-from work/downloads/models/start/" in shown
    assert "/main/model --output" in shown


def test_lint_and_format_are_clean(checkout: Path, project: Commands) -> None:
    done = project.snakemake("--lint")
    assert "your workflow is in a good condition" in done.stdout, done.stdout
    formatted = subprocess.run(
        [f"{Path(sys.executable).parent}/snakefmt", "--check", "Snakefile", "src/rules"],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert formatted.returncode == 0, formatted.stderr
