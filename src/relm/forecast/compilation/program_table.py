"""The text that `relm compile` prints."""

from collections.abc import Iterator

from relm.forecast.compilation.compile_record import Compilation, Compiled, CompiledProgram
from relm.formatting import GIB, format_row


def describe_compilation(compilation: Compilation) -> str:
    """Return a block of lines for each of a recipe's programs."""
    kind = "core" if compilation.devices != compilation.chips else "chip"
    versions = ", ".join(f"{name} {version}" for name, version in compilation.programs[0].compiled.versions.items())
    lines = [
        f"{compilation.recipe} for {compilation.topology} ({compilation.layout}, {compilation.devices} devices), figures of "
        f"one {kind} and one step",
        f"  vocabulary   {compilation.vocabulary}",
        f"  compiler     {versions}; nothing was run",
    ]
    for program in compilation.programs:
        lines += ["", *_program_lines(program)]
    return "\n".join(lines)


def advice(compilation: Compilation) -> str:
    """Return advice for programs that do not fit, with the compiler's figures; empty where all fit."""
    refused = [(each, each.compiled.refusal) for each in compilation.programs if each.compiled.refusal is not None]
    if not refused:
        return ""
    figures = "; ".join(f"phase {each.phase}, {each.name}: {refusal.figures}" for each, refusal in refused)
    return (
        f"recipe {compilation.recipe} does not fit on {compilation.topology}: {figures}; make run.micro_batch_size smaller "
        "(gradients are then accumulated), set run.activation_checkpointing: true, or the phase's precision to bfloat16"
    )


def _program_lines(each: CompiledProgram) -> Iterator[str]:
    made = each.compiled
    yield f"phase {each.phase}, {each.name}: {'fits' if made.fits else 'DOES NOT FIT'}; program {made.program[:12]}"
    yield from _memory_lines(made)
    if made.flops is not None and made.bytes_accessed is not None:
        yield format_row("work", f"{made.flops:.4g} FLOPs, {made.bytes_accessed:.4g} bytes read and written")
    sent = ", ".join(f"{count} {kind}" for kind, count in made.operations.items()) or "none"
    if made.fits:
        beyond = max(made.beyond_gradients.values(), default=0)
        other = f"; the largest that is no gradient has {beyond:,}" if beyond else ""
        yield format_row("collectives", f"{sent}; {made.elements:,} elements{other}")
    yield format_row("compiled in", f"{made.seconds:.0f} s")
    for name, lines in made.findings.model_dump().items():
        for line in lines:
            yield format_row(name.replace("_", " "), line)


def _memory_lines(made: Compiled) -> Iterator[str]:
    if made.memory is not None:
        memory = made.memory
        yield format_row(
            "HBM", f"{memory.peak / GIB:.2f} GiB at most, of {memory.capacity / GIB:.2f}: {memory.peak / memory.capacity:.0%}"
        )
        parts = {
            "arguments": memory.arguments,
            "results": memory.results,
            "of which in the arguments' memory": memory.shared,
            "temporaries": memory.temporaries,
            "code": memory.code,
        }
        yield format_row("", ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items()))
    if made.refusal is not None:
        yield format_row("HBM", made.refusal.words)
        for allocation in made.refusal.largest:
            yield format_row("", f"{allocation.bytes / GIB:.2f} GiB {allocation.shape} {allocation.operation}")
