"""Commands before a run is paid for."""

import logging
import os
from pathlib import Path

from relm.errors import RelmError
from relm.recipes.devices import DEVICES
from relm.recipes.project import Project
from relm.recipes.run_name import RunName
from relm.steps.contract import (
    FINGERPRINT,
    RECIPE,
    Arguments,
    argument,
    command,
    path,
    plan_of,
    positive,
    recipe_name,
    require_checkout,
)

log = logging.getLogger(__name__)


def _list_devices() -> list[str]:
    return [declaration.name for declaration in DEVICES]


@command(
    "take a few training steps of a recipe at full size and report speed and memory; no files are kept",
    RECIPE,
    argument("--phase", metavar="PHASE", help="which phase; default: the first"),
    argument("--steps", type=positive, metavar="N", help="how many, those of the warm-up included; default: 10"),
    argument(
        "--compile-only",
        action="store_true",
        help="stop after a step of at most two micro-batches, which compiles everything",
    ),
    path("--profile", "also trace a few more steps: a trace.json for chrome://tracing", required=False),
    epilog="Needs no download and no disk: generated examples have the shapes of real ones.",
)
def rehearse(a: Arguments) -> str:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler writes to stderr when it begins and ends
    from relm.forecast.expected_tokenizer import tokenizer_of
    from relm.forecast.prepared_run import STEPS, Rehearsal
    from relm.forecast.rehearsal import rehearse, require_options
    from relm.steps.training import describe_machine, find_phase
    from relm.training.machine.fitting_micro_batch import fill_in_micro_batch

    plan = plan_of(a)
    phase = find_phase(plan, a.phase or plan.phases[0])
    require_options(a.steps, a.compile_only, a.profile)
    tokenizer, known_from = tokenizer_of(plan)
    fitted, choice = fill_in_micro_batch(plan, phase, tokenizer)
    wanted = Rehearsal(fitted.recipe, phase, tokenizer, a.steps or STEPS, compile_only=a.compile_only, trace=a.profile)
    lines = [f"rehearsal of {plan.name}", f"tokenizer: {known_from}", *describe_machine(plan, choice)]
    return "\n".join([*lines, rehearse(wanted)])


@command(
    "estimate a recipe's operations, memory, disk, time and cost, before any data are downloaded",
    RECIPE,
    argument("--price-per-hour", type=float, metavar="X", help="of one device, of a TPU one chip, in any currency"),
    epilog="All of it is arithmetic. `relm rehearse` measures memory and time here; for a TPU ask `relm compile`.",
)
def estimate(a: Arguments) -> str:
    from relm.forecast.estimate import describe_estimate

    return describe_estimate(plan_of(a), a.price_per_hour, Project().machines())


@command(
    "compile a recipe's full-size steps with the TPU's own compiler, without a TPU: do they fit, and what do they take",
    RECIPE,
    FINGERPRINT,
    argument("--anew", action="store_true", help="compile here although docs/compiled.json has the recipe's figures"),
    path("--output", "also write compile.json", required=False),
    epilog="The slice is that of the machine, such as NAME@v5p-8. The figures of shipped recipes are in docs/compiled.json "
    "and are printed at once. Anything else is compiled: a minute a program and more, up to 14 GB of memory, on an x86 "
    "processor, with `make .venv-tpu/made-from` (8.9 GB); what was compiled is kept in work/compiled. Exits with 1 where a "
    "program does not fit, with the compiler's figure.",
)
def compile_(a: Arguments) -> str:
    from relm.forecast.compilation.compiling import compile_run, sizes_to_compile
    from relm.forecast.compilation.program_table import advice, describe_compilation
    from relm.forecast.compilation.shipped_programs import current_compilation
    from relm.training.machine.compile_record import read_shipped, write_compilation

    plan = plan_of(a)
    sizes = sizes_to_compile(plan)
    known = None if a.anew else current_compilation(read_shipped(), plan, sizes)
    if known is not None:
        log.info("figures of docs/compiled.json, compiled for this recipe before; --anew compiles it here")
    compilation = known or compile_run(plan, sizes)
    if a.output is not None:
        write_compilation(a.output, compilation)
    if not compilation.fits:
        print(describe_compilation(compilation))
        raise RelmError(advice(compilation))
    return describe_compilation(compilation)


@command(
    "compare a recipe's initial weights, order of sequences and learning rates with the original's, before it is paid for",
    RECIPE,
    FINGERPRINT,
    epilog="The original's figures are in recipes/starts/NAME.yaml; no data are needed. Where the examples are there, the "
    "loss of the first batch is compared as well. Exits with 1 where something differs, with its name.",
)
def verify_start(a: Arguments) -> str:
    from relm.forecast.start_comparison import describe_start

    plan = plan_of(a)
    name = RunName.parse(plan.name)._replace(machine=None)  # smoke/NAME has no original, so no file
    return describe_start(plan, Path("recipes", "starts", f"{name}.yaml"))


@command(
    "compare this machine's TPU, IPU or GPU with the CPU: losses, kills, repetitions, an evaluation, and its speed and memory",
    argument("names", type=recipe_name, nargs="*", metavar="NAME", help="recipes, or NAME@MACHINE; default: all of the device"),
    argument("--device", choices=_list_devices, help="default: the first accelerator of this machine"),
    argument("--full", action="store_true", help="an hour for each check, and full-size steps on devices that compile them"),
    path("--output", "default: accept.json; the entry has the same name with .yaml", required=False),
    epilog="Takes at most 20 minutes without --full, downloads nothing, and trains on generated text. A check that fails "
    "stops no other; the exit status is then 1. Ctrl-C or TERM ends it and writes nothing; an earlier accept.json stays. The "
    "next call starts from the beginning. With PJRT_DEVICE=CPU, XLA's CPU client stands in for a TPU, and "
    "ipu_simulator for an IPU.",
)
def accept(a: Arguments) -> str:
    from relm.forecast.acceptance.acceptance import accept

    require_checkout()
    return accept(Project(), a.device, a.names, full=a.full, output=a.output or Path("accept.json"))
