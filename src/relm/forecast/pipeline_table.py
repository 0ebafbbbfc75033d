"""The table of `relm estimate` on a pipeline: the memory of each IPU and off chip, the bubble. Imports no torch."""

from collections.abc import Iterator, Sequence

from relm.forecast.pipeline_memory import IpuMemory, bubble_share
from relm.formatting import format_bytes, format_row, format_table
from relm.recipes.machine.pipeline import Pipeline

COLUMNS = ("parameters", "weights", "gradients", "optimizer", "activations", "logits", "total", "off chip")
NOT_COUNTED = "not counted: the program's code, buffers of exchanges and temporary values of products"
COMPILER = "only Graphcore's compiler decides: relm rehearse NAME --compile-only"


def judge_pipeline(ipus: Sequence[IpuMemory], memory: int | None) -> tuple[bool | None, str, int]:
    """Return whether a pipeline fits into IPUs of `memory` bytes each (None: not known), why, and the largest need in bytes."""
    most = max(range(len(ipus)), key=lambda ipu: ipus[ipu].total)
    needed = ipus[most].total
    if memory is None:
        return None, f"IPU {most} needs {format_bytes(needed)} by arithmetic; its memory is unknown", needed
    sizes = f"{format_bytes(needed)} of {format_bytes(memory)}"
    if needed > memory:
        return False, f"exceeds IPU {most} by {format_bytes(needed - memory)}: {sizes} by arithmetic", needed
    return True, f"fits by arithmetic: IPU {most} needs most, {sizes}", needed


def pipeline_lines(pipeline: Pipeline, ipus: Sequence[IpuMemory], memory: int | None) -> Iterator[str]:
    """Yield the sizes of a phase's pipeline, its bubble, the verdict on the memory of its IPUs, and a row for each IPU."""
    stages = _format_count(pipeline.stages, "forward stage")
    instances = f" in {pipeline.instances:,} processes" if pipeline.instances > 1 else ""
    replicas = f"{_format_count(pipeline.replicas, 'replica')} of {_format_count(pipeline.ipus_per_replica, 'IPU')}"
    yield format_row("pipeline", f"{replicas}{instances}, {stages}")
    batches = _format_count(pipeline.gradient_accumulation, "micro-batch", "micro-batches")
    yield format_row(
        "update",
        f"{batches} (at least {2 * pipeline.stages - 1:,}) of {_format_count(pipeline.micro_batch_size, 'sequence')} on each "
        f"replica; {_format_count(pipeline.device_iterations, 'update')} a call of the device",
    )
    yield format_row("off chip", _describe_off_chip(pipeline, ipus))
    idle = pipeline.stages - 1
    yield format_row(
        "bubble",
        f"{100 * bubble_share(pipeline):.2g} % of an update, while the pipeline fills and empties: (S - 1) / (GA + S - 1) = "
        f"{idle:,} / {pipeline.gradient_accumulation + idle:,}",
    )
    yield format_row("precision", f"weights {pipeline.precision}, gradients {pipeline.accumulation_precision}")
    yield format_row("memory", f"{judge_pipeline(ipus, memory)[1]}; {NOT_COUNTED}")
    yield format_row("", COMPILER)
    rows = [[str(number), *_format_sizes(ipu), ", ".join(name_segments(ipu.segments))] for number, ipu in enumerate(ipus)]
    yield from format_table([["IPU", *COLUMNS, "segments"], *rows], ">" * (1 + len(COLUMNS)) + "<", indent="  ")


def _describe_off_chip(pipeline: Pipeline, ipus: Sequence[IpuMemory]) -> str:
    each = sum(ipu.off_chip for ipu in ipus)
    if not each:
        return "nothing: the optimizer's state is in the IPUs' memory"
    share = "a share for each replica" if pipeline.replicated_tensor_sharding else "all of it for each replica"
    where = f"{share}, in the host's DRAM" if pipeline.replicas > 1 else "in the host's DRAM"
    return f"{format_bytes(pipeline.replicas * each)} of the optimizer's state, {where}"


def name_segments(segments: Sequence[str]) -> list[str]:
    """Return segments in words, consecutive layers together.

    >>> name_segments(["token_embedding", "layers.0", "layers.1", "layers.2", "head"])
    ['token embedding', 'layers 0-2', 'head']
    """
    layers = [int(name.partition(".")[2]) for name in segments if name.startswith("layers.")]
    span = f"layers {layers[0]}-{layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}" if layers else ""
    named = [span if name.startswith("layers.") else name.replace("_", " ") for name in segments]
    return list(dict.fromkeys(named))


def _format_sizes(ipu: IpuMemory) -> list[str]:
    sizes = (ipu.weights, ipu.accumulators, ipu.optimizer, ipu.activations, ipu.logits, ipu.total, ipu.off_chip)
    return [f"{ipu.parameters:,}", *(format_bytes(size) if size else "-" for size in sizes)]


def _format_count(count: int, one: str, several: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
