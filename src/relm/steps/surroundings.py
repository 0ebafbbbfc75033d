"""Commands that describe recipes and machines, and make no product of the graph."""

import logging

from relm.errors import RelmError
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.steps.contract import ANY_RECIPE, FINGERPRINT, RECIPE, Arguments, Job, Step, argument, path, plan_of, require_checkout

log = logging.getLogger(__name__)


def list_job(a: Arguments) -> Job:
    from relm.reporting import run_list

    require_checkout()
    if a.wanted is None:
        return Job(lambda: run_list.describe_runs(Project()))
    if a.wanted.startswith("@") or a.wanted in Project().machine_names():
        return Job(lambda: run_list.describe_machine_runs(Project(), a.wanted.removeprefix("@")))
    if "@" in a.wanted:
        name, _, machine = a.wanted.partition("@")
        raise RelmError(f"{a.wanted}: give {name} to see that run on every machine, or @{machine} to see every run on one")
    return Job(lambda: run_list.describe_run_on_machines(Project(), a.wanted))


def status_job(a: Arguments) -> Job:
    from relm.reporting.runs_table import describe_stored_runs
    from relm.reporting.status import describe_progress

    if a.recipe is None:
        if not work_folder().is_dir():
            require_checkout()
        return Job(lambda: describe_stored_runs(Project(), None, only_running=True))
    return Job(lambda: describe_progress(plan_of(a)))


def estimate_job(a: Arguments) -> Job:
    from relm.forecast.estimate import describe_estimate

    plan = plan_of(a)
    return Job(lambda: describe_estimate(plan, a.price_per_hour, Project().machines()))


def compile_job(a: Arguments) -> Job:
    from relm.forecast.compilation.compiling import compile_run, sizes_to_compile
    from relm.forecast.compilation.program_table import advice, describe_compilation
    from relm.forecast.compilation.shipped_programs import current_compilation
    from relm.training.machine.compile_record import write_compilation
    from relm.training.machine.compiled_table import read_shipped

    plan = plan_of(a)

    def run() -> str:
        sizes = sizes_to_compile(plan)
        known = None if a.anew else current_compilation(read_shipped(), plan, sizes)
        if known is not None:
            log.info("these are the figures of docs/compiled.json, compiled for this recipe before; --anew compiles it here")
        compilation = known or compile_run(plan, sizes)
        if a.output is not None:
            write_compilation(a.output, compilation)
        if not compilation.fits:
            print(describe_compilation(compilation))
            raise RelmError(advice(compilation))
        return describe_compilation(compilation)

    return Job(run)


def doctor_job(a: Arguments) -> Job:
    from relm.forecast.doctor import describe_machine

    return Job(describe_machine)


def schema_job(a: Arguments) -> Job:
    from relm.reporting.json_schema import write_schemas

    return Job(lambda: write_schemas(a.output))


def completion_job(a: Arguments) -> Job:
    from relm.steps import list_steps
    from relm.steps.completion import write_completion

    return Job(lambda: write_completion(a.shell, list_steps()))


STEPS: dict[str, Step] = {
    "list": Step(
        "list the runs by paper with device, size and hours, done or not",
        [
            argument(
                "wanted",
                nargs="?",
                metavar="NAME|@MACHINE",
                help="a run, to show it on each machine, or one machine, with each run",
            ),
        ],
        list_job,
        records=False,
        group="overview",
    ),
    "status": Step(
        "show the finished, running and remaining steps of a recipe, or what runs now",
        [ANY_RECIPE],
        status_job,
        records=False,
        group="overview",
        epilog="Without a name: the runs that a step works on now, with its process; of a trainer, step, loss, rate and time "
        "left. Only processes of this machine are seen.",
    ),
    "estimate": Step(
        "estimate a recipe's operations, memory, disk, time and cost, before any data are downloaded",
        [
            RECIPE,
            argument("--price-per-hour", type=float, metavar="X", help="of one device, of a TPU one chip, in any currency"),
        ],
        estimate_job,
        records=False,
        epilog="All of it is arithmetic. `relm rehearse` measures memory and time here; for a TPU ask `relm compile`.",
        group="forecast",
    ),
    "compile": Step(
        "compile a recipe's full-size steps with the TPU's own compiler, without a TPU: do they fit, and what do they take",
        [
            RECIPE,
            FINGERPRINT,
            argument("--anew", action="store_true", help="compile here although docs/compiled.json has the recipe's figures"),
            path("--output", "also write compile.json", required=False),
        ],
        compile_job,
        records=False,
        epilog="The slice is that of the machine, such as NAME@v5p-8. The figures of shipped recipes are in docs/compiled.json "
        "and are printed at once. Anything else is compiled: a minute a program and more, up to 14 GB of memory, on an x86 "
        "processor, with `make .venv-tpu/made-from` (8.9 GB); what was compiled is kept in work/compiled. Exits with 1 where a "
        "program does not fit, with the compiler's figure.",
        group="forecast",
    ),
    "doctor": Step("show what this machine can run, and the reasons why not", [], doctor_job, records=False, group="overview"),
    "completion": Step(
        "print the script that completes `relm` in a shell",
        [argument("shell", choices=("bash", "zsh", "fish"), help="the shell")],
        completion_job,
        records=False,
        epilog='`eval "$(relm completion bash)"` in ~/.bashrc, zsh alike; `relm completion fish | source` in config.fish.',
        group="project",
    ),
    "schema": Step(
        "write the JSON Schemas of recipes, datasets and models, for editors",
        [path("--output", "folder, such as envs")],
        schema_job,
        records=False,
        group="project",
    ),
}
