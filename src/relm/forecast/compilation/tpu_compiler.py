"""The TPU's compiler, without a TPU: the one module that calls private functions of jax and libtpu.

    python -m relm.forecast.compilation.tpu_compiler JOB.json      # in the TPU's environment

libtpu compiles for a slice by its name, on any x86 machine. Nothing runs. The calls are those of jax and jaxlib 0.7.1 and
libtpu 0.0.21, which envs/torch-tpu.txt pins; a test fails if another version has moved one of them.
"""

import importlib.metadata
import io
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from relm.devices.tpu_options import VARIABLE, set_options, training_options, training_variables
from relm.training.interruption import stop_with_parent

PACKAGES = ("jax", "jaxlib", "libtpu")
# Generations in which PyTorch/XLA has one device for both cores of a chip; the others have no such choice.
MEGACORE = ("v4", "v5p")
# A program too large for any device: the compiler's error states the capacity.
_TOO_LARGE = """
func.func public @main(%a: tensor<1048576x24576xf32>) -> tensor<1048576x24576xf32> {
  %b = stablehlo.add %a, %a : tensor<1048576x24576xf32>
  return %b : tensor<1048576x24576xf32>
}"""
_CAPACITY = re.compile(r"of ([\d.]+)([KMGT]) hbm")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CompilerMoved(Exception):
    """Raised if the installed versions lack a call of this module, or answer it differently."""


def versions() -> dict[str, str]:
    """Return the versions of the packages that the compiled program depends on."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def devices_of(layout: str) -> list[Any]:
    """Return the devices of a slice such as v3:2x2, which may be absent."""
    from jax.experimental import topologies

    generation, _, shape = layout.partition(":")
    options: dict[str, Any] = {"chip_config_name": "megacore"} if generation in MEGACORE else {}
    one = set(shape.split("x")) == {"1"}
    if one:
        options["chips_per_host_bounds"] = (1, 1, 1)
    devices = list(topologies.get_topology_desc(topology_name=layout, platform="tpu", **options).devices)
    return devices[:1] if one else devices  # a chip of v2 or v3 has two cores


def hlo_text(hlo: bytes) -> str:
    """Return a program as text."""
    from jaxlib import xla_client

    return str(xla_client.XlaComputation(hlo).as_hlo_text())


def mark_donated(hlo: bytes, donated: set[int]) -> bytes:
    """Return a program as MLIR bytecode that marks donated arguments, and as replicated all arguments without a sharding."""
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    text = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(hlo))
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        (main,) = (op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
        attributes = []
        for position, given in enumerate(main.arg_attrs):
            kept = {named.name: named.attr for named in given}
            kept.setdefault("mhlo.sharding", ir.StringAttr.get("{replicated}"))
            if position in donated:
                kept["jax.buffer_donor"] = ir.BoolAttr.get(True)
            attributes.append(ir.DictAttr.get(kept))
        main.arg_attrs = ir.ArrayAttr.get(attributes)
        return bytecode(module)


def bytecode(module: Any) -> bytes:
    """Return an MLIR module as bytes."""
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()


def too_large() -> bytes:
    """Return a program that fits on no device."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        return bytecode(ir.Module.parse(f"module @too_large {{ {_TOO_LARGE} }}"))


def compile_program(program: bytes, devices: list[Any]) -> Any:
    """Return the executable of an SPMD program over all devices, which cannot be executed."""
    import numpy as np
    from jax._src.lib import xla_client

    options, count = xla_client.CompileOptions(), len(devices)
    options.num_replicas, options.num_partitions = 1, count
    build = options.executable_build_options
    build.num_replicas, build.num_partitions, build.use_spmd_partitioning = 1, count, True
    build.allow_spmd_sharding_propagation_to_output = [True]  # as PyTorch/XLA compiles
    options.device_assignment = build.device_assignment = xla_client.DeviceAssignment.create(np.arange(count).reshape(1, count))
    return devices[0].client.compile(program, xla_client._xla.DeviceList(tuple(devices)), options)


def capacity(devices: list[Any]) -> int:
    """Return the bytes of a device's memory that the compiler can allocate, as it reports them."""
    try:
        compile_program(too_large(), devices)
    except Exception as error:
        if found := _CAPACITY.search(str(error)):
            return round(float(found[1]) * _UNITS[found[2]])
        raise CompilerMoved(f"the compiler rejected a program of 192 GiB with an unexpected message: {error}") from error
    raise CompilerMoved("the compiler accepted a program of 192 GiB")


def figures(executable: Any) -> dict[str, Any]:
    """Return the compiler's figures of an executable."""
    memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
    return {
        "memory": {
            "peak": memory.peak_memory_in_bytes,
            "arguments": memory.argument_size_in_bytes,
            "results": memory.output_size_in_bytes,
            "shared": memory.alias_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
        },
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
    }


def compile_job(job: dict[str, Any]) -> dict[str, Any]:
    """Compile a job's `hlo` (a file) for its `layout`; write the optimised program to `text`, and return the figures."""
    devices, hlo = devices_of(job["layout"]), Path(job["hlo"]).read_bytes()
    found: dict[str, Any] = {"devices": len(devices), "versions": versions(), "capacity": capacity(devices)}
    program = mark_donated(hlo, set(job["donated"]))
    Path(job["source_text"]).write_text(hlo_text(hlo), encoding="utf-8")
    started = time.perf_counter()
    try:
        executable = compile_program(program, devices)
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {**found, "seconds": time.perf_counter() - started, "refusal": str(error)}
    found["seconds"] = time.perf_counter() - started
    Path(job["text"]).write_text(executable.hlo_modules()[0].to_string(), encoding="utf-8")
    return {**found, **figures(executable)}


def prepare_libtpu(layout: str) -> None:
    """Set the environment variables for libtpu to those of training on a slice."""
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # else it asks the network which TPU this is
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # several may compile at once, also during training on a TPU
    os.environ[VARIABLE] = ""  # a result's key does not cover options of the environment
    os.environ.pop("TPU_MEGACORE", None)
    os.environ.update(training_variables(layout))
    set_options(os.environ, training_options(layout))


def main(job: Path) -> int:
    """Compile one job; write the answer to the file that it names."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    stop_with_parent()
    wanted = json.loads(job.read_text(encoding="utf-8"))
    prepare_libtpu(wanted["layout"])
    try:
        answer = compile_job(wanted)
    except (AttributeError, ImportError, TypeError) as error:
        raise CompilerMoved(f"{versions()} lack a call of this module: {error}; see envs/torch-tpu.txt") from error
    Path(wanted["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
