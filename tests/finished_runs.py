"""A finished run made by hand: every file is written through the real sidecars and records, only the figures are invented."""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from made_once import made_once
from relm.artifact import companions, sidecar_of, write_json, write_sidecar
from relm.plan.products import published_files
from relm.provenance.step_record import record
from relm.recipes.jobs import SPLITS
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.reporting.publish import publish
from relm.reporting.report import write_report
from relm.reporting.verify import JudgedRun, verify

FIGURES = {
    "nats_per_token": 4.25,
    "perplexity_per_token": 70.11,
    "perplexity_per_word": 412.5,
    "bits_per_byte": 1.875,
    "unigram_nats_per_token": 6.5,
    "bigram_nats_per_token": 5.0,
    "nats_below_unigram": 2.25,
    "nats_below_bigram": 0.75,
    "tokens_scored": 123456,
    "documents": 12,
    "words": 90000,
    "bytes": 500000,
}
SAMPLES = [{"prompt": "The history of", "text": "The history of <b>the</b> river & its towns."}]


def recipe_content(**changes: Any) -> dict[str, Any]:
    """A recipe of one phase; top-level keys may be replaced."""
    phase = {"objective": "causal", "sequence_length": 64, "global_batch_size": 4, "steps": 50}
    return {
        "title": "A tiny GPT-2 on two texts",
        "data": {"dataset": "texts"},
        "tokenizer": {"from_model": "some_tokenizer"},
        "model": {"architecture": "gpt2", "layers": 2, "heads": 2, "hidden_size": 64, "positions": 64},
        "pretrain": {"main": {**phase, "optimizer": {"learning_rate": 0.001}}},
        "evaluate": ["held_out", "samples"],
        **changes,
    }


def remote(name: str, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A file as a dataset or model lists it; its content is its name."""
    content = name.encode()
    entry = source or {"url": f"https://example.org/{name}"}
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "sources": [entry]}


@dataclass(frozen=True)
class FinishedRun:
    """A run after `verify` and before `report`."""

    plan: Plan
    verify: Path
    evaluations: Mapping[str, Path]

    @property
    def model(self) -> Path:
        return self.plan.model_folder(self.plan.phases[-1]) / "model.safetensors"

    def judged(self, **changes: Any) -> list[JudgedRun]:
        """The runs as `verify` takes them; keys of the first may be replaced."""
        runs = [
            JudgedRun(
                run.recipe.seed, run.fingerprint, run.model_folder(run.phases[-1]) / "model.safetensors", run.evaluations()
            )
            for run in self.plan.runs
        ]
        return [runs[0]._replace(**changes), *runs[1:]]

    def report(self) -> Path:
        """Write the report, and return its folder."""
        write_report(self.plan, self.verify, self.evaluations, self.plan.report_folder, None, self.other_seeds)
        return self.plan.report_folder

    def read_page(self) -> str:
        """Write the report, and return its page's text without tags."""
        page = (self.report() / "report.html").read_text(encoding="utf-8")
        return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())

    @property
    def other_seeds(self) -> list[dict[str, Path]]:
        return [run.evaluations() for run in self.plan.runs[1:]]


@dataclass
class Workshop:
    """Makes a project in the current folder and runs its steps by hand."""

    recipe: Mapping[str, Any]
    name: str
    figures: Mapping[str, Any]
    rows: Callable[[str], Sequence[Mapping[str, Any]]]
    samples: Sequence[Mapping[str, str]]
    source: Mapping[str, Any] | None

    def step(self, name: str, inputs: list[Path], outputs: list[Path], **facts: Any) -> None:
        """Record a step whose outputs were just written."""
        with record(
            name, inputs, outputs, ["relm", name, "--inputs", *map(str, inputs), "--output", str(outputs[0])]
        ) as details:
            details["summary"] = f"{name}: made {len(outputs)} files"
            details.update(facts)

    def text(self, path: Path, content: str, **facts: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        write_sidecar(path, **facts)
        return path

    def project(self) -> Plan:
        files = {name: remote(name, self.source) for name in ("a.xml", "b.xml")}
        dataset = {"title": "Two texts", "licence": "CC-BY-SA-3.0", "language": "en", "format": "mediawiki_xml"}
        vocabulary = {name: remote(name) for name in ("vocab.json", "merges.txt")}
        tokenizer = {"title": "A tokenizer", "licence": "MIT", "tokenizer": "gpt2_bpe", "files": vocabulary}
        documents = {
            f"recipes/{self.name.removeprefix('smoke/')}.yaml": self.recipe,
            "recipes/data/texts.yaml": {**dataset, "homepage": "https://example.org/", "files": files},
            "recipes/models/some_tokenizer.yaml": tokenizer,
        }
        for path, content in documents.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            unshared = json.loads(json.dumps(content))  # else PyYAML would write anchors, which recipes may not have
            Path(path).write_text(yaml.safe_dump(unshared, sort_keys=False), encoding="utf-8")
        return Project().plan(self.name)

    def data(self, plan: Plan) -> None:
        for shard in plan.shards:
            self.step("download", [], [self.text(plan.documents_job.download(shard), shard)])
            documents = [self.text(plan.kept_job.documents(shard, split), f'{{"id":"{split}"}}\n') for split in SPLITS]
            self.step("extract", [plan.documents_job.download(shard)], documents)
        parts = [self.text(path, path.name) for path in plan.tokenizer_files]
        for part in parts:
            self.step("download", [], [part])
        self.text(plan.tokenizer, "{}")
        self.step("import-tokenizer", parts, [plan.tokenizer])
        phase = plan.phases[0]
        for shard in plan.shards:
            examples = [self.text(plan.examples(phase, shard, split), f"{shard} {split}") for split in SPLITS]
            self.step("pregenerate", [*(plan.kept_job.documents(shard, split) for split in SPLITS), plan.tokenizer], examples)
        write_json(plan.manifest(phase), {"objective": "causal"})
        shards = [sidecar_of(plan.examples(phase, shard, split)) for split in SPLITS for shard in plan.shards]
        self.step("manifest", shards, [plan.manifest(phase)])

    def train(self, plan: Plan) -> None:
        """Train all phases of one seed, whose weights differ from those of the others."""
        before: list[Path] = []
        for phase in plan.phases:
            folder = plan.model_folder(phase)
            folder.mkdir(parents=True)
            with open(folder.parent / "train.jsonl", "w", encoding="utf-8") as log:
                log.writelines(json.dumps(row) + "\n" for row in self.rows(phase))
            write_json(folder.parent / "order.json", {"phase": phase})
            (folder.parent / "checkpoints.jsonl").write_text('{"step": 50, "sha256": {}, "made_on": {}}\n')
            shutil.copytree(folder.parent, folder.parent / "logs", ignore=shutil.ignore_patterns("model"))
            for part in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
                (folder / part).write_text("{}\n")
            weights = folder / "model.safetensors"
            save_file({"transformer.wte.weight": np.arange(12, dtype=np.float32).reshape(3, 4) + plan.number}, weights)
            parts = companions(path for path in folder.iterdir() if path != weights)
            write_sidecar(weights, fingerprint=plan.fingerprint, files=parts)
            self.step("pretrain", [plan.manifest(phase), plan.tokenizer, *before], [weights], device="cpu")
            before = [weights]

    def evaluate(self, plan: Plan) -> None:
        """Evaluate one seed; the loss of each is 0.25 higher than that of the one before."""
        model = plan.model_folder(plan.phases[-1]) / "model.safetensors"
        sha256 = json.loads(sidecar_of(model).read_text())["sha256"]
        results = {
            "held_out": {"protocol": {"context": 64, "stride": 32}, "figures": self.figures_of(plan)},
            "samples": {"protocol": {"seed": 0, "temperature": 0.8}, "samples": list(self.samples), "figures": {}},
        }
        for task, path in plan.evaluations().items():
            write_json(path, {"task": task, **results[task], "model_sha256": sha256})
            self.step(task.replace("_", "-"), [model, plan.manifest(plan.phases[-1])], [path])

    def figures_of(self, plan: Plan) -> dict[str, Any]:
        figures = dict(self.figures)
        if plan.number:
            figures["nats_per_token"] += 0.25 * plan.number
        return figures

    def verify(self, plan: Plan) -> FinishedRun:
        verdict, run = plan.verdict(), FinishedRun(plan, plan.verdict(), plan.evaluations())
        judged = run.judged()
        verify(plan.recipe, judged, verdict, verdict.parent.name, plan.reference_runs)
        inputs = [path for each in judged for path in (each.model, *each.evaluations.values())]
        self.step("verify", inputs, [verdict])
        return run


def falling_loss(steps: int = 50) -> list[dict[str, float]]:
    """Rows of a train.jsonl whose loss falls from about 7 towards 4."""
    return [{"step": step, "loss": 4 + 3 * 0.95**step, "learning_rate": 0.001 * step / steps} for step in range(1, steps + 1)]


def build_run(
    recipe: Mapping[str, Any] | None = None,
    name: str = "tiny",
    figures: Mapping[str, Any] = FIGURES,
    rows: Callable[[str], Sequence[Mapping[str, Any]]] = lambda phase: falling_loss(),
    samples: Sequence[Mapping[str, str]] = SAMPLES,
    source: Mapping[str, Any] | None = None,
) -> FinishedRun:
    """Make the project in the current folder and run it up to `verify`."""
    workshop = Workshop(recipe or recipe_content(), name, figures, rows, samples, source)
    plan = workshop.project()
    workshop.data(plan)
    for run in plan.runs:
        workshop.train(run)
        workshop.evaluate(run)
    return workshop.verify(plan)


@pytest.fixture
def in_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELM_WORK", raising=False)
    return tmp_path


@pytest.fixture
def finished_run(in_project: Path) -> Callable[..., FinishedRun]:
    """`build_run` in a separate folder."""
    return build_run


def made_run(factory: pytest.TempPathFactory, name: str, make: Callable[[], object]) -> Path:
    """Return a project that `make` fills from within, once in a session of all workers; nobody changes it."""

    def fill(folder: Path) -> None:
        with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
            patch.delenv("RELM_WORK", raising=False)
            make()

    return made_once(factory, f"run-{name}", fill)


def copy_run(made: Path, project: Path) -> FinishedRun:
    """Copy a project that was made once into the current folder, and return its run `tiny`."""
    shutil.copytree(made, project, dirs_exist_ok=True)
    plan = Project().plan("tiny")
    return FinishedRun(plan, plan.verdict(), plan.evaluations())


def publish_tiny() -> None:
    run = build_run()
    run.report()
    publish(published_files(run.plan), run.plan.results)


@pytest.fixture(scope="session")
def run_made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the finished run `tiny`, made once."""
    return made_run(tmp_path_factory, "tiny", build_run)


@pytest.fixture
def copied_run(run_made_once: Path, in_project: Path) -> FinishedRun:
    """`tiny` in a separate project, which is the current folder; far quicker than `finished_run`."""
    return copy_run(run_made_once, in_project)


@pytest.fixture
def published(tmp_path_factory: pytest.TempPathFactory, in_project: Path) -> Path:
    """results/tiny, published, in a separate project."""
    copy_run(made_run(tmp_path_factory, "published", publish_tiny), in_project)
    return Path("results/tiny")


@pytest.fixture
def run(copied_run: FinishedRun) -> FinishedRun:
    """The same, under a shorter name."""
    return copied_run


@pytest.fixture
def recipe() -> Callable[..., dict[str, Any]]:
    """`recipe_content`."""
    return recipe_content
