"""Commands that describe recipes and machines, and make no product of the graph."""

from relm.errors import RelmError
from relm.recipes.project import Project
from relm.steps.contract import FINGERPRINT, RECIPE, Arguments, Job, Step, argument, path, plan_of


def list_job(a: Arguments) -> Job:
    from relm.reporting import run_list

    if a.machine is None:
        return Job(lambda: run_list.describe_runs(Project()))
    if not a.machine.startswith("@"):
        raise RelmError(f"{a.machine}: expected a machine as in NAME@MACHINE, such as @rtx4090")
    return Job(lambda: run_list.describe_machine_runs(Project(), a.machine.removeprefix("@")))


def status_job(a: Arguments) -> Job:
    from relm.reporting.status import describe_progress

    return Job(lambda: describe_progress(plan_of(a)))


def estimate_job(a: Arguments) -> Job:
    from relm.forecast.estimate import describe_estimate

    plan = plan_of(a)
    return Job(
        lambda: describe_estimate(
            plan, a.phase, a.price_per_hour, trial=a.trial, compiled=a.compiled, machines=Project().machines()
        )
    )


def compile_job(a: Arguments) -> Job:
    from relm.forecast.compilation.compile_record import write_compilation
    from relm.forecast.compilation.compiling import compile_run
    from relm.forecast.compilation.program_table import advice, describe_compilation
    from relm.forecast.machine_micro_batch import sizes_to_compile

    plan = plan_of(a)

    def run() -> str:
        compilation = compile_run(plan, a.phase, sizes_to_compile(plan))
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


def command_job(a: Arguments) -> Job:
    from relm.steps.step_commands import describe_command

    return Job(lambda: describe_command(Project(), a.recipe, a.wanted, a.which, a.only, a.trust_image))


def schema_job(a: Arguments) -> Job:
    from relm.reporting.json_schema import write_schemas

    return Job(lambda: write_schemas(a.output))


STEPS: dict[str, Step] = {
    "list": Step(
        "list the runs with the machines that they fit, hours and price there by estimate",
        [argument("machine", nargs="?", metavar="@MACHINE", help="show the figures of each run on this machine alone")],
        list_job,
        records=False,
    ),
    "status": Step("show the finished, running and remaining steps of a recipe", [RECIPE], status_job, records=False),
    "estimate": Step(
        "estimate a recipe's operations, memory, disk, time and cost, before any data are downloaded",
        [
            RECIPE,
            argument("--phase", metavar="PHASE", help="one phase; default: all of them"),
            argument("--price-per-hour", type=float, metavar="X", help="of one device, of a TPU one chip, in any currency"),
            argument("--trial", action="store_true", help="take a step of each phase here: measure its memory and time"),
            path("--compiled", "compile.json of `relm compile`; default: the recipe's in the work folder", required=False),
        ],
        estimate_job,
        records=False,
        epilog="With --trial a process of its own takes some steps of each phase on this CPU or GPU, at full size but of "
        "at most two micro-batches, and measures them. For a TPU ask `relm compile`.",
    ),
    "command": Step(
        "print the command of a step, plain and as `docker run`, from the published result or the recipe's plan",
        [
            RECIPE,
            argument("wanted", nargs="?", metavar="STEP", help="left out, the steps are listed"),
            argument("which", nargs="?", metavar="WHICH", help="of several jobs: its number, or a part of what it makes"),
            argument("--only", choices=("plain", "docker"), help="print this line and nothing else"),
            argument("--trust-image", action="store_true", help="name the recorded image though the lock does not have it"),
        ],
        command_job,
        records=False,
        epilog="The lines are for a shell in the checkout. A published result is asked first, the plan only without one. "
        "Of a result only steps of the graph are printed, on files in work/ and recipes/, in images of containers/lock.yaml.",
    ),
    "compile": Step(
        "compile a recipe's full-size steps with the TPU's own compiler, without a TPU: do they fit, and what do they take",
        [
            RECIPE,
            FINGERPRINT,
            argument("--phase", metavar="PHASE", help="one phase; default: all of them"),
            path("--output", "also write compile.json", required=False),
        ],
        compile_job,
        records=False,
        epilog="The slice is that of the machine, such as NAME@v5p-8. Takes a minute a program and more, and up to 14 GB of "
        "memory; needs `make .venv-tpu/made-from`, and an x86 processor. Exits with 1 where a program does not fit, with the "
        "compiler's figure. What was compiled is kept in "
        "work/compiled.",
    ),
    "doctor": Step("show what this machine can run, and the reasons why not", [], doctor_job, records=False),
    "schema": Step(
        "write the JSON Schemas of recipes, datasets and models, for editors",
        [path("--output", "folder, such as envs")],
        schema_job,
        records=False,
    ),
}
