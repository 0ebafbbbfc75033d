"""The table of `relm estimate` on a pipeline: the memory of each IPU, what lies off chip, the bubble. Imports no torch."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relm.forecast.pipeline_memory import IpuMemory, bubble_share
from relm.formatting import format_bytes, format_row, format_table
from relm.recipes.machine.pipeline import Pipeline

COLUMNS = ("parameters", "weights", "gradients", "optimizer", "activations", "logits", "total", "off chip")
NOT_COUNTED = "not counted: the program's code, buffers of exchanges and temporary values of products"
COMPILER = "only Graphcore's compiler decides: relm rehearse NAME --compile-only"


class PipelineVerdict(NamedTuple):
    """The verdict on the memory of a pipeline's IPUs, by arithmetic."""

    fits: bool | None
    """None: the memory of an IPU is not known."""
    reason: str
    """A phrase with the figures."""
    needed: int
    """Bytes of the IPU that needs most."""


def judge_pipeline(ipus: Sequence[IpuMemory], memory: int | None) -> PipelineVerdict:
    """Return the verdict on a pipeline.

    Args:
        ipus: the memory that each IPU needs.
        memory: the bytes of one IPU; None: not known.
    """
    most = max(range(len(ipus)), key=lambda ipu: ipus[ipu].total)
    needed = ipus[most].total
    if memory is None:
        return PipelineVerdict(None, f"IPU {most} needs {format_bytes(needed)} by arithmetic; its memory is not known", needed)
    excess = needed - memory
    if excess > 0:
        reason = f"exceeds IPU {most} by {format_bytes(excess)}: {format_bytes(needed)} of {format_bytes(memory)} by arithmetic"
        return PipelineVerdict(False, reason, needed)
    reason = f"fits by arithmetic: IPU {most} needs most, {format_bytes(needed)} of {format_bytes(memory)}"
    return PipelineVerdict(True, reason, needed)


def pipeline_lines(pipeline: Pipeline, ipus: Sequence[IpuMemory], memory: int | None) -> Iterator[str]:
    """Yield the rows on a pipeline: its sizes, a table with a row for each IPU, what is off chip, the bubble, the verdict.

    Args:
        pipeline: the pipeline of a phase.
        ipus: the memory that each of its IPUs needs.
        memory: the bytes of one IPU; None: not known.
    """
    yield from (format_row(name, text) for name, text in describe_facts(pipeline, ipus, memory).items())
    yield format_row("", COMPILER)
    rows = [[str(number), *format_sizes(ipu), ", ".join(name_segments(ipu.segments))] for number, ipu in enumerate(ipus)]
    yield from format_table([["IPU", *COLUMNS, "segments"], *rows], ">" * (1 + len(COLUMNS)) + "<", indent="  ")


def describe_facts(pipeline: Pipeline, ipus: Sequence[IpuMemory], memory: int | None) -> dict[str, str]:
    """Return name -> phrase: the sizes of a pipeline, its bubble, and the verdict on the memory of its IPUs."""
    return {
        "pipeline": describe_pipeline(pipeline),
        "update": describe_update(pipeline),
        "off chip": describe_off_chip(pipeline, ipus),
        "bubble": describe_bubble(pipeline),
        "precision": f"weights {pipeline.precision}, gradients {pipeline.accumulation_precision}",
        "memory": f"{judge_pipeline(ipus, memory).reason}; {NOT_COUNTED}",
    }


def describe_pipeline(pipeline: Pipeline) -> str:
    """Return the number of replicas, IPUs and forward stages."""
    each = _format_count(pipeline.ipus_per_replica, "IPU")
    instances = f" in {pipeline.instances:,} processes" if pipeline.instances > 1 else ""
    return (
        f"{_format_count(pipeline.replicas, 'replica')} of {each}{instances}, {_format_count(pipeline.stages, 'forward stage')}"
    )


def describe_update(pipeline: Pipeline) -> str:
    """Return the micro-batches of an update, and the updates of a call."""
    batches = _format_count(pipeline.gradient_accumulation, "micro-batch", "micro-batches")
    return (
        f"{batches} (at least {2 * pipeline.stages - 1:,}) of {_format_count(pipeline.micro_batch_size, 'sequence')} on each "
        f"replica; {_format_count(pipeline.device_iterations, 'update')} a call of the device"
    )


def describe_off_chip(pipeline: Pipeline, ipus: Sequence[IpuMemory]) -> str:
    """Return the optimizer's state that is in the host's DRAM."""
    each = sum(ipu.off_chip for ipu in ipus)
    if not each:
        return "nothing: the optimizer's state is in the IPUs' memory"
    share = "a share for each replica" if pipeline.replicated_tensor_sharding else "all of it for each replica"
    if pipeline.replicas == 1:
        return f"{format_bytes(each)} of the optimizer's state, in the host's DRAM"
    return f"{format_bytes(pipeline.replicas * each)} of the optimizer's state, {share}, in the host's DRAM"


def describe_bubble(pipeline: Pipeline) -> str:
    """Return the share of an update in which a stage waits, with the arithmetic."""
    idle, batches = pipeline.stages - 1, pipeline.gradient_accumulation
    return (
        f"{format_share(bubble_share(pipeline))} of an update, while the pipeline fills and empties: (S - 1) / (GA + S - 1) = "
        f"{idle:,} / {batches + idle:,}"
    )


def format_share(share: float) -> str:
    """Return a share in percent, with two digits.

    >>> format_share(0.00194932), format_share(0.25), format_share(0)
    ('0.19 %', '25 %', '0 %')
    """
    return f"{100 * share:.2g} %"


def name_segments(segments: Sequence[str]) -> list[str]:
    """Return segments as people read them, consecutive layers together.

    >>> name_segments(["token_embedding", "layers.0", "layers.1", "layers.2", "head"])
    ['token embedding', 'layers 0-2', 'head']
    """
    layers = [int(name.partition(".")[2]) for name in segments if name.startswith("layers.")]
    span = f"layers {layers[0]}-{layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}" if layers else ""
    named = [span if name.startswith("layers.") else name.replace("_", " ") for name in segments]
    return list(dict.fromkeys(named))


def format_sizes(ipu: IpuMemory) -> list[str]:
    """Return an IPU's sizes as `COLUMNS` name them."""
    sizes = (ipu.weights, ipu.accumulators, ipu.optimizer, ipu.activations, ipu.logits, ipu.total, ipu.off_chip)
    return [f"{ipu.parameters:,}", *(format_bytes(size) if size else "-" for size in sizes)]


def _format_count(count: int, one: str, several: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
