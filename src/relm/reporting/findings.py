"""The content of a report, gathered from a run's files: the verdict, the figures, the samples, the steps, the sources."""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from relm.artifact import read_sidecar, sidecar_of
from relm.containers.shell_line import docker_line
from relm.formatting import GIB
from relm.json_shapes import COUNT, read_shaped, require_shape
from relm.provenance.container import format_container
from relm.provenance.deleted_sources import find_deleted
from relm.provenance.origin import Origin, describe_origin
from relm.provenance.step_record import Record, collect, require_as_made, require_phases_as_made
from relm.recipes.devices import HOST
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.redaction import mask_value
from relm.recipes.resolved import resolve
from relm.recipes.run_folder import DEVICE_SHAPE
from relm.reporting.device import DeviceSummary, summarise_device
from relm.reporting.figures import Figure, Task, measured_task
from relm.reporting.headline import describe_gain, describe_measured
from relm.reporting.result_files import read_evaluation, read_verdict
from relm.reporting.seeds import SeedTable, compare_seeds
from relm.reporting.usage import describe_context, list_usage_lines
from relm.reporting.verify import NOTHING_PUBLISHED
from relm.training.attested_hashes import read_lines
from relm.training.machine.history import machines_of

# The headline of each verdict, and the tone in which it is shown.
HEADLINES = {
    "consistent": ("Consistent with the published figures", "good"),
    "not consistent": ("Not consistent with the published figures", "bad"),
    "undecided": ("Undecided", "open"),
    "difference shown, no noise known": ("Difference shown, no noise known", "open"),
    "not comparable": ("Not comparable with the published figures", "plain"),
    NOTHING_PUBLISHED: ("No published figure to compare with", "plain"),
}


def headline_of(verdict: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the headline of the verdict on all rows, and its tone."""
    headline, tone = HEADLINES[verdict]
    counted = [row for row in rows if row.get("counts", True)]
    by_program = bool(counted) and all("reference" in row for row in counted)
    return headline.replace("the published figures", "the original's program") if by_program else headline, tone


@dataclass(frozen=True)
class Findings:
    """A finished run, as its report needs it."""

    plan: Plan
    verdict: Mapping[str, Any]
    """The content of verify.json."""
    evaluations: Mapping[str, Mapping[str, Any]]
    """Task -> the content of eval/TASK.json."""
    before: Mapping[str, Mapping[str, Any]]
    """The evaluations of the starting weights, if the recipe names some."""
    logs: Mapping[str, Path]
    """Phase -> its train.jsonl."""
    devices: Mapping[str, DeviceSummary]
    """Phase -> the counters of its device, if that compiles."""
    model: Mapping[str, Any]
    """The weights' sidecar."""
    records: Sequence[Record]
    """The records of all steps in order of the data flow, each with its `docker run` line."""
    seeds: SeedTable | None
    date: str
    """When the last step ended, UTC. The time of writing would change the bytes of a report that is written again."""

    @property
    def is_smoke(self) -> bool:
        """True if the run is a smoke twin, whose figures mean nothing."""
        return self.plan.name.startswith("smoke/")

    @property
    def headline(self) -> str:
        """The verdict; without a published figure, what the model reached."""
        if self.is_smoke:
            return "Smoke twin: its figures mean nothing"
        reached = describe_gain(self.evaluations) if self.verdict["verdict"] == NOTHING_PUBLISHED else ""
        return f"{reached[:1].upper()}{reached[1:]}" or headline_of(self.verdict["verdict"], self.verdict["rows"])[0]

    @property
    def tone(self) -> str:
        """good, bad, open or plain."""
        return "plain" if self.is_smoke else headline_of(self.verdict["verdict"], self.verdict["rows"])[1]

    @property
    def summary(self) -> str:
        """The sentences below the headline."""
        if self.is_smoke:
            return (
                f"This is the small twin of {self.plan.name.removeprefix('smoke/')}: its steps, objective and optimizer, but "
                "a tiny model and little training. It shows that everything runs; its figures cannot be compared."
            )
        if self.verdict["verdict"] != NOTHING_PUBLISHED:
            return str(self.verdict["sentence"])
        otherwise = "The measured figures are listed below." if self.figures else "Nothing was measured."
        return f"{describe_measured(self.evaluations) or otherwise} The recipe names no published figure to compare with."

    @cached_property
    def tasks(self) -> list[Task]:
        """The evaluated tasks with their figures, in the recipe's order."""
        return [measured_task(name, each, self.before.get(name)) for name, each in self.evaluations.items()]

    @property
    def figures(self) -> list[Figure]:
        """All measured figures."""
        return [figure for task in self.tasks for figure in task.figures]

    @property
    def samples(self) -> list[Mapping[str, str]]:
        """Texts that the model wrote: the prompt, and its continuation or, after an arrow, another output."""
        return [
            {"prompt": prompt, "text": text.removeprefix(prompt) if text.startswith(prompt) else f" → {text}"}
            for evaluation in self.evaluations.values()
            for prompt, text in ((sample["prompt"], sample["text"]) for sample in evaluation.get("samples", []))
        ]

    @property
    def steps(self) -> dict[str, list[Record]]:
        """Records by step, in order of the data flow; the empty name collects files whose record is missing."""
        grouped: dict[str, list[Record]] = {}
        for record in self.records:
            grouped.setdefault(record["step"] or "", []).append(record)
        return grouped

    @cached_property
    def deleted(self) -> Mapping[str, str]:
        """Path -> sha256 of the downloads and documents that were deleted after use."""
        return find_deleted(self.records)

    @property
    def software(self) -> dict[str, list[str]]:
        """Versions that steps ran with, by package."""
        versions: dict[str, set[str]] = {}
        for record in self.records:
            for package, version in record.get("software", {}).items():
                versions.setdefault(package, set()).add(version)
        return {package: sorted(found) for package, found in versions.items()}

    @property
    def machines(self) -> list[str]:
        """The machines and devices that steps ran on."""
        recorded = [record for record in self.records if record["step"]]
        devices = [record["device"] for record in recorded if record["device"] != "cpu"]
        return list(
            dict.fromkeys([*(_machine(record["host"]) for record in recorded), *devices, *self._list_machines_of_steps()])
        )

    @property
    def trained_by(self) -> list[str]:
        """The processors or devices that trained the model, as the steps recorded them."""
        steps = [record for record in self.records if record["step"] == "pretrain"]
        names = (_processor(record["host"]) if record["device"] == HOST else record["device"] for record in steps)
        return list(dict.fromkeys(names))

    @property
    def trained_on(self) -> set[str | None]:
        """The named machines that trained the model, one after another."""
        return {machine for _, machine, _ in self._list_stretches()}

    def _list_stretches(self) -> list[tuple[str, str | None, int]]:
        """Return phase, machine and the step before it of each stretch of training."""
        phases = {
            phase: machines_of(read_lines(log))
            for phase, log in zip(self.plan.phases, self.plan.logs, strict=True)
            if log.is_file()
        }
        return [(phase, stretch["machine"], stretch["after_step"]) for phase, found in phases.items() for stretch in found]

    def _list_machines_of_steps(self) -> list[str]:
        """Return which named machine trained which steps, if there were several."""
        if len(self.trained_on) < 2:
            return []
        return [
            f"phase {phase} on {machine or 'a machine without a name'} from step {after + 1:,} on"
            for phase, machine, after in self._list_stretches()
        ]

    @property
    def commits(self) -> list[str]:
        """The commits that steps ran with, marked if the checkout had changes; or why none is known."""
        commits = []
        for code in (record["code"] for record in self.records if record["step"]):
            changed = " with local changes" if code.get("changed") else ""
            commits.append(
                f"{code['commit']}{changed}" if code["commit"] else f"unknown ({code.get('reason', 'not recorded')})"
            )
        return [commit for commit, _ in Counter(commits).most_common()]

    @property
    def containers(self) -> dict[str, int]:
        """The count of steps in each image and outside containers; older records do not say."""
        recorded = [record for record in self.records if record["step"]]
        return Counter(
            format_container(record["container"]) if "container" in record else "not recorded" for record in recorded
        )

    @property
    def installed(self) -> dict[str, list[str]]:
        """Lists of packages by sha256, one for each environment that steps ran in."""
        return {packages["sha256"]: packages["installed"] for record in self.records if (packages := record.get("packages"))}

    @property
    def caveats(self) -> list[str]:
        """The caveats on the images of the `docker run` lines, each once."""
        found = (record["docker"]["caveat"] for record in self.records if record["step"])
        return list(dict.fromkeys(caveat for caveat in found if caveat))

    @cached_property
    def origins(self) -> list[Origin]:
        """The origins of training data, tokenizer, starting weights and tests that the run did not make itself."""
        recipe = self.plan.recipe
        origins = [describe_origin("training data", recipe.data.dataset, self.plan.dataset)]
        if self.plan.tokenizer_model is not None:
            origins.append(describe_origin("tokenizer", str(recipe.tokenizer.from_model), self.plan.tokenizer_model))
        if self.plan.init_model is not None:
            origins.append(describe_origin("starting weights", str(recipe.init_from), self.plan.init_model))
        return [*origins, *(describe_origin("evaluation", name, test) for name, test in self.plan.tests.items())]

    @property
    def usage(self) -> list[str]:
        """Three lines of Python that use the model from the checkout."""
        prompt = next((sample["prompt"] for sample in self.samples if sample["prompt"].strip()), "A")
        return list_usage_lines(self.plan, prompt, str(self.plan.results))

    @property
    def context(self) -> str:
        """A sentence on the longest text that the model takes."""
        return describe_context(self.plan)

    @property
    def tokenizer(self) -> str:
        """A phrase on the tokenizer."""
        choice, model = self.plan.recipe.tokenizer, self.plan.tokenizer_model
        if model is not None:
            return model.title
        size = f" of {choice.vocabulary_size:,} tokens" if choice.vocabulary_size else ""
        return f"{str(choice.train).replace('_', ' ')}{size}, trained on the training documents"

    @property
    def tokens(self) -> int:
        """The count of training tokens over all phases."""
        phases = self.plan.recipe.pretrain.values()
        return sum(phase.steps * phase.global_batch_size * phase.sequence_length for phase in phases)

    @property
    def seed_phrase(self) -> str:
        """A phrase on the seed, or the seeds."""
        seed = f"seed {self.plan.recipe.seed}"
        return seed if self.seeds is None else f"{seed}; {len(self.seeds.seeds)} runs with a seed each"

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The recipe with everything that it extends or names, and all defaults."""
        return resolve(self.plan)


def gather(
    plan: Plan,
    verify: Path,
    evaluations: Mapping[str, Path],
    before: Mapping[str, Path] | None = None,
    other_seeds: Sequence[Mapping[str, Path]] = (),
) -> Findings:
    """Read the files of a finished run."""
    model = plan.model_folder(plan.phases[-1]) / "model.safetensors"
    before = before or {}
    project = Project()
    figures = [path for files in (evaluations, before, *other_seeds) for path in files.values()]
    for path in (verify, *figures):
        require_as_made(path)
    for run in plan.runs:
        require_phases_as_made(run)
    records = [add_docker_line(record, project) for record in collect([verify, *figures, model])]
    sidecar = read_sidecar(model)
    require_shape(sidecar, {"parameters?": COUNT}, str(sidecar_of(model)))
    written = datetime.datetime.fromtimestamp(verify.stat().st_mtime, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Findings(
        plan=plan,
        verdict=read_verdict(verify),
        evaluations=_in_order(plan, evaluations),
        before=_in_order(plan, before),
        logs=dict(zip(plan.phases, plan.logs, strict=True)),
        devices={
            phase: summarise_device(read_shaped(path, DEVICE_SHAPE)["processes"])
            for phase, path in plan.device_figures().items()
        },
        model=sidecar,
        records=records,
        seeds=compare_seeds(plan, [_in_order(plan, files) for files in (evaluations, *other_seeds)]),
        date=max((str(record["ended"]) for record in records if record["step"]), default=written),
    )


def add_docker_line(record: Record, project: Project) -> Record:
    """Return a step's record with `docker`: the `docker run` line, its image, and its caveat."""
    if not record["step"]:
        return record
    image = (record.get("container") or {}).get("image")
    found = docker_line(record["argv"], project, ran_in=image)
    return record | {"docker": {"line": found.line, "image": found.image, "caveat": mask_value(found.caveat)}}


def _in_order(plan: Plan, files: Mapping[str, Path]) -> dict[str, Mapping[str, Any]]:
    """Return the evaluations by task, in the recipe's order."""
    return {task: read_evaluation(files[task]) for task in plan.evaluations() if task in files}


def _processor(host: Mapping[str, Any]) -> str:
    return f"{host['processor']}, {host['cores_usable']} cores"


def _machine(host: Mapping[str, Any]) -> str:
    return f"{_processor(host)}, {host['memory_bytes'] / GIB:.0f} GiB of memory"
