"""Steps from figures to the published folder, and commands on published folders."""

from collections.abc import Sequence
from pathlib import Path

from relm.errors import RelmError
from relm.recipes.controls import list_compared, plan_controlled
from relm.recipes.identity import KEY
from relm.recipes.plan import REFERENCE as AUTHORS
from relm.recipes.plan import TRAINED
from relm.recipes.project import Project
from relm.steps.contract import FINGERPRINT, RECIPE, Arguments, Job, argument, command, path, paths, plan_of, step

EVALUATIONS = paths("--evaluations", "eval/TASK.json files, seed by seed", nargs="*", required=False, default=[])
REFERENCE = argument(
    "--reference", action="store_true", help="use the weights that the authors released (expect_reference in the recipe)"
)


def _group_by_task(files: Sequence[Path]) -> dict[str, Path]:
    return {file.stem: file for file in files if not file.name.endswith(".record.json")}


def _group_by_run(files: Sequence[Path], runs: int) -> list[dict[str, Path]]:
    """Return the figures of each run by task; those of one run are in one folder, or in folders of keys in one."""
    folders: dict[Path, list[Path]] = {}
    for file in files:
        folder = file.parent
        folders.setdefault(folder.parent if KEY.fullmatch(folder.name) else folder, []).append(file)
    if files and len(folders) != runs:
        raise RelmError(
            f"--evaluations: in {len(folders)} folders ({', '.join(map(str, folders))}), expected one for each of the recipe's "
            f"{runs} seeds; `relm verify NAME --print` prints the whole command"
        )
    return [_group_by_task(each) for each in folders.values()] or [{} for _ in range(runs)]


@step(
    "compare the figures with the published ones and write a verdict",
    RECIPE,
    FINGERPRINT,
    REFERENCE,
    paths("--model", "MODEL/model.safetensors, one of each seed"),
    EVALUATIONS,
    path("--output", "verify.json"),
)
def verify(a: Arguments) -> Job:
    from relm.reporting.verify import JudgedRun, verify

    plan = plan_of(a)
    runs = [plan] if a.reference else list(plan.runs)
    if len(a.model) != len(runs):
        raise RelmError(
            f"--model: {len(a.model)} given, expected one for each of the recipe's {len(runs)} seeds; "
            "`relm verify NAME --print` prints the whole command"
        )
    judged = [
        JudgedRun(run.recipe.seed, None if a.reference else run.fingerprint, model, evaluations)
        for run, model, evaluations in zip(runs, a.model, _group_by_run(a.evaluations, len(runs)), strict=True)
    ]
    expected = plan.evaluated_sha256(AUTHORS).get("model.safetensors") if a.reference and plan.reference_model else None

    return Job(
        lambda: verify(
            plan.recipe, judged, a.output, plan.verdict(AUTHORS if a.reference else TRAINED).parent.name, plan.reference_runs
        ),
        inputs=[*a.model, *a.evaluations],
        outputs=[a.output],
        expected_sha256={a.model[0]: expected} if expected else {},
    )


@step(
    "write the report page, the model card and the provenance",
    RECIPE,
    FINGERPRINT,
    path("--verify", "verify.json"),
    EVALUATIONS,
    paths("--before", "the same for the starting weights", nargs="*", required=False, default=[]),
    path("--output", "report.html; the other files go next to it"),
)
def report(a: Arguments) -> Job:
    from relm.recipes.run_folder import REPORT_FILES
    from relm.reporting.report import write_report

    plan = plan_of(a)
    others_of_report = [a.output.with_name(name) for name in REPORT_FILES if name != a.output.name]
    evaluations, *others = _group_by_run(a.evaluations, len(plan.runs))
    return Job(
        lambda: write_report(plan, a.verify, evaluations, a.output.parent, _group_by_task(a.before), others),
        inputs=[a.verify, *a.evaluations, *a.before],
        outputs=[a.output, *others_of_report],
    )


@command(
    "copy the finished files into results/NAME, complete or not at all",
    RECIPE,
    FINGERPRINT,
    REFERENCE,
    path("--output", "default: results/NAME", required=False),
)
def publish(a: Arguments) -> str:
    from relm.reporting.publish import publish_run
    from relm.reporting.reference import publish_reference

    plan = plan_of(a)
    folder = a.output or (plan.reference_results if a.reference else plan.results)
    return publish_reference(plan, folder) if a.reference else publish_run(plan, folder)


@command(
    "write the page of a paper: its figures, ours, and what is missing",
    argument("key", metavar="KEY", help="the paper's key in its recipes, as in `snakemake paper_KEY`"),
    path("--output", "default: results/papers/KEY", required=False),
)
def paper(a: Arguments) -> str:
    from relm.recipes.run_folder import PAPERS
    from relm.reporting.paper import write_paper

    return write_paper(Project(), a.key, a.output or PAPERS / a.key)


@command(
    "compare every file of a published result with its recorded hash; name those that differ, and the steps that made them",
    argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="results/NAME, a copy of it on any machine, or a run's own folder work/runs/NAME/FINGERPRINT",
    ),
    epilog="Reads every byte. `relm status` and Snakemake's plan read only files whose size, times or inode have changed "
    "since they were published or last read here. Exits with 1 where a file is damaged or missing; files that relm did not "
    "publish are named. Without relm, `sha256sum --check SHA256SUMS` in the folder compares the same files.",
)
def check(a: Arguments) -> str:
    from relm.reporting.check import check_folders

    return check_folders(a.folders)


@step(
    "compare recipes with their controls, seed by seed, and write a table",
    argument("paper", metavar="KEY", help="key of the paper, as in `paper: {key: KEY}` of its recipes"),
    path("--output", "differences.md"),
    in_recipes=False,
)
def differences(a: Arguments) -> Job:
    from relm.reporting.differences import write_differences

    project = Project()
    pairs = plan_controlled(project, a.paper)
    read = [path for run in list_compared(project, a.paper) for path in run.evaluations().values()]
    return Job(lambda: write_differences(a.paper, pairs, a.output), inputs=read, outputs=[a.output])
