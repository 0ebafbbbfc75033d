"""The text that `relm compile` prints."""

from collections.abc import Iterator

from relm.forecast.compilation.consequences import ProgramWork, device, format_memory, format_work, versions
from relm.formatting import GIB, format_row
from relm.training.machine.compile_record import Compilation, CompiledProgram


def describe_compilation(compilation: Compilation) -> str:
    """Return a block of lines for each of a recipe's programs."""
    lines = [
        f"{compilation.recipe} for {compilation.topology} ({compilation.layout}, {compilation.devices} devices), figures for "
        f"one {device(compilation)} and one step",
        f"  vocabulary   {compilation.vocabulary}",
        f"  compiler     {versions(compilation)}; nothing was run",
    ]
    for program in compilation.programs:
        lines += ["", *_program_lines(program)]
    return "\n".join(lines)


def advice(compilation: Compilation) -> str:
    """Return advice for programs that do not fit, with the compiler's figures; empty if all fit."""
    rejected = [(each, each.compiled.refusal) for each in compilation.programs if each.compiled.refusal is not None]
    if not rejected:
        return ""
    figures = "; ".join(f"phase {each.phase}, {each.name}: {refusal.figures}" for each, refusal in rejected)
    return (
        f"recipe {compilation.recipe} does not fit on {compilation.topology}: {figures}; make run.micro_batch_size smaller "
        "(gradients are then accumulated), set run.activation_checkpointing: true, or the phase's precision to bfloat16"
    )


def _program_lines(each: CompiledProgram) -> Iterator[str]:
    made = each.compiled
    yield f"phase {each.phase}, {each.name}; program {made.program[:12]}"
    yield format_row("memory", format_memory(made))
    if made.refusal is not None:
        for allocation in made.refusal.largest:
            yield format_row("", f"{allocation.bytes / GIB:.2f} GiB {allocation.shape} {allocation.operation}")
    if made.flops is not None and made.bytes_accessed is not None:
        yield format_row("work", format_work(ProgramWork(made.flops, made.bytes_accessed)))
    sent = ", ".join(f"{count} {kind}" for kind, count in made.operations.items()) or "none"
    if made.fits:
        beyond = max(made.beyond_gradients.values(), default=0)
        other = f"; the largest besides gradients has {beyond:,}" if beyond else ""
        yield format_row("collectives", f"{sent}; {made.elements:,} elements{other}")
    yield format_row("compiled in", f"{made.seconds:.0f} s")
    for name, lines in made.findings.model_dump().items():
        for line in lines:
            yield format_row(name.replace("_", " "), line)
