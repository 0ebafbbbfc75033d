"""PopTorch's options and optimizer for a pipeline, as tables of plain values that tests compare with the original scripts.

Sources: graphcore/examples v3.4.1, nlp/gpt2/pytorch (`ipu_options.py`, and `get_optimizer` in `tools.py`), and v3.0.0,
nlp/bert/tensorflow1, whose options appear as their counterparts in PopTorch. Does not import poptorch. Runs on
Python 3.8.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping, NamedTuple, Sequence

import torch

from relm.devices.ipu.update_rules import is_adapted, is_decayed

Table = Dict[str, Any]
"""Method of `poptorch.Options`, such as "Training.gradientAccumulation" -> its argument. Members of PopTorch's enumerations,
its execution strategies and torch's types are names. Applied in order."""

# Members of PopART's enumerations, which PopTorch takes as numbers.
OVERLAP_MEMORY_OPTIMISED = 3  # popart.AccumulateOuterFragmentSchedule
JUST_IN_TIME = 1  # popart.SubgraphCopyingStrategy

_BYTES_OF_MOMENT = 4  # float32


class Surroundings(NamedTuple):
    """Facts besides the recipe that a run's options depend on."""

    seed: int
    """Seed of dropout and stochastic rounding."""
    executable_cache: str = ""
    """Folder for compiled executables; empty: they are not kept."""
    offline: bool = False
    """Compile for an absent IPU, and run nothing."""
    popdist: bool = False
    """PopRun started this process, and sets its replicas."""
    initial_weights: str = "weights.bin"
    """File for the weights, which the compiler would otherwise keep in memory; only with GPT-2's options."""


def options_table(architecture: str, pipeline: Mapping[str, Any], around: Surroundings) -> Table:
    """Return the options of one instance for a `pipeline`'s fields, in the order in which the original sets them."""
    # Options of popdist reject the number of replicas, which PopRun knows.
    table: Table = {} if around.popdist else {"replicationFactor": pipeline["replicas"]}
    table["autoRoundNumIPUs"] = True
    table["deviceIterations"] = pipeline["device_iterations"]
    table["Training.gradientAccumulation"] = pipeline["gradient_accumulation"]
    table["Training.accumulationAndReplicationReductionType"] = "ReductionType.Mean"
    if pipeline["loss_scaling"]["name"] == "automatic":
        table["Training.setAutomaticLossScaling"] = True
    table["outputMode"] = "OutputMode.Sum"
    table["TensorLocations.setOptimizerLocation"] = _optimizer_location(pipeline)
    table["randomSeed"] = around.seed
    table["setExecutionStrategy"] = "PipelinedExecution(AutoStage.AutoIncrement)"
    if around.offline:
        table["useOfflineIpuTarget"] = None
    table.update(memory_and_cache(pipeline["available_memory_proportion"], around.executable_cache))
    table["Precision.enableStochasticRounding"] = pipeline["stochastic_rounding"]
    if pipeline["half_partials"]:
        table["Precision.setPartialsType"] = "float16"
    return {**table, **_popart_options(architecture, around)}


def memory_and_cache(shares: Sequence[float] | None, executable_cache: str) -> Table:
    """Return the options that training and inference share; `shares` of each IPU's memory for temporary values of products."""
    table: Table = {}
    if shares is not None:
        table["setAvailableMemoryProportion"] = {f"IPU{ipu}": share for ipu, share in enumerate(shares)}
    if executable_cache:
        table["enableExecutableCaching"] = executable_cache
    return table


def _optimizer_location(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the calls of `poptorch.TensorLocationSettings`."""
    location: dict[str, Any] = {
        "useOnChipStorage": not pipeline["optimizer_state_off_chip"],
        "useReplicatedTensorSharding": pipeline["replicated_tensor_sharding"],
    }
    smallest = pipeline["smallest_remote_tensor"]
    if smallest is not None:
        location["minElementsForOffChip"] = smallest // _BYTES_OF_MOMENT
        location["minElementsForReplicatedTensorSharding"] = smallest // _BYTES_OF_MOMENT
    return location


def _popart_options(architecture: str, around: Surroundings) -> Table:
    """Return the compiler's options of Graphcore's GPT-2; its BERT is for TensorFlow 1, which lacks them."""
    if architecture != "gpt2":
        return {}
    return {
        "_Popart.set": {
            "disableGradAccumulationTensorStreams": True,
            "outlineThreshold": 10.0,
            "accumulateOuterFragmentSettings.schedule": OVERLAP_MEMORY_OPTIMISED,
            "accumulateOuterFragmentSettings.excludedVirtualGraphs": ["0"],
            "subgraphCopyingStrategy": JUST_IN_TIME,
            "decomposeGradSum": True,
            "scheduleNonWeightUpdateGradientConsumersEarly": True,
            "saveInitializersToFile": around.initial_weights,
        },
        "_Popart.setPatterns": {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True},
    }


def apply_options(poptorch: Any, options: Any, table: Table) -> Any:
    """Make the calls of a table on `options`, an instance of `poptorch.Options`, and return it."""
    for method, value in table.items():
        owner, _, name = method.rpartition(".")
        call = getattr(getattr(options, owner) if owner else options, name)
        if method == "_Popart.set":
            for key, each in value.items():
                call(key, each)
        elif value is None:
            call()
        else:
            call(_argument(poptorch, method, value))
    return options


def _argument(poptorch: Any, method: str, value: Any) -> Any:
    if method == "TensorLocations.setOptimizerLocation":
        location = poptorch.TensorLocationSettings()
        for name, each in value.items():
            getattr(location, name)(each)
        return location
    if method == "Precision.setPartialsType":
        return getattr(torch, value)
    return _member(poptorch, value) if isinstance(value, str) else value


def _member(poptorch: Any, name: str) -> Any:
    """Return the object that "OutputMode.Sum" or "PipelinedExecution(AutoStage.AutoIncrement)" names, else the name."""
    found = re.fullmatch(r"(\w+)\((\w+\.\w+)\)", name)
    if found:
        return getattr(poptorch, found.group(1))(_member(poptorch, found.group(2)))
    owner, _, member = name.partition(".")
    return getattr(getattr(poptorch, owner), member) if hasattr(poptorch, owner) else name


class OptimizerTable(NamedTuple):
    """An optimizer of PopTorch."""

    name: str
    """AdamW, Adam or LAMB."""
    arguments: dict[str, Any]
    """Its arguments: only those that the original sets, because each becomes a variable of the compiled program, and any other
    a constant."""
    groups: list[dict[str, Any]]
    """Parameter groups: `params`, the names of the parameters, and the group's own arguments."""


def optimizer_table(
    optimizer: Mapping[str, Any], pipeline: Mapping[str, Any], shapes: Sequence[tuple[str, tuple[int, ...]]], loss_scale: float
) -> OptimizerTable:
    """Return the optimizer of a recipe, from the fields of its sections `optimizer` and `pipeline`.

    `shapes` are names and shapes of the parameters, in the model's order; `loss_scale` is the factor of the loss in the first
    update.
    """
    arguments: dict[str, Any] = {"lr": optimizer["learning_rate"], "eps": optimizer["epsilon"]}
    if tuple(optimizer["betas"]) != (0.9, 0.999):
        arguments["betas"] = tuple(optimizer["betas"])
    arguments["loss_scaling"] = float(loss_scale)
    arguments["accum_type"] = pipeline["accumulation_precision"]
    arguments["first_order_momentum_accum_type"] = pipeline["first_moment_precision"]
    arguments["second_order_momentum_accum_type"] = "float32"
    if optimizer["name"] == "lamb":
        arguments["weight_decay"] = optimizer["weight_decay"]
        arguments["bias_correction"] = optimizer["bias_correction"]
        if optimizer["lamb"]["weight_norm_clip"] is not None:
            arguments["max_weight_norm"] = optimizer["lamb"]["weight_norm_clip"]
        return OptimizerTable("LAMB", arguments, lamb_groups(optimizer, shapes))
    # As in the original's call; each group has another weight decay.
    arguments["weight_decay"] = 0.01
    if optimizer["name"] == "adamw":
        # As the original requests. PopTorch's compiler has lacked this form of AdamW since 2.4, and corrects the bias anyway
        # (popart_compiler/source/CompilerImpl.cpp), as the recipe's bias_correction: true says. With false,
        # `scalars_of_update` undoes the correction.
        arguments["bias_correction"] = False
    if optimizer["gradient_clipping"] is not None:
        arguments["max_grad_norm"] = optimizer["gradient_clipping"]
    name = {"adamw": "AdamW", "adam": "Adam"}[optimizer["name"]]
    return OptimizerTable(name, arguments, adam_groups(optimizer, shapes))


class UpdateScalars(NamedTuple):
    """The values that PopTorch's AdamW takes for all parameters in one update."""

    learning_rate: float
    weight_decay: float
    """That of the decayed parameters."""
    epsilon: float


def scalars_of_update(optimizer: Mapping[str, Any], learning_rate: float, update: int) -> UpdateScalars | None:
    """Return the scalars that make a bias-correcting AdamW step without correction; None: the recipe corrects.

    A corrected step is rate * ((m / c1) / (sqrt(v / c2) + epsilon) + decay * w), where c is 1 - beta ** update, and updates
    count from 1. Multiplying the rate by c1 / sqrt(c2), dividing the decay by the same and epsilon by sqrt(c2) cancels c1 and
    c2.
    """
    if optimizer["name"] != "adamw" or optimizer["bias_correction"]:
        return None
    first, second = (1.0 - beta**update for beta in optimizer["betas"])
    ratio, root = first / second**0.5, second**0.5
    return UpdateScalars(learning_rate * ratio, optimizer["weight_decay"] / ratio, optimizer["epsilon"] / root)


def adam_groups(optimizer: Mapping[str, Any], shapes: Sequence[tuple[str, tuple[int, ...]]]) -> list[dict[str, Any]]:
    """Return the decayed parameters, then the others, as two groups even without weight decay."""
    decayed = [name for name, shape in shapes if is_decayed(optimizer["decayed"], name, len(shape))]
    others = [name for name, shape in shapes if not is_decayed(optimizer["decayed"], name, len(shape))]
    return [{"params": decayed, "weight_decay": optimizer["weight_decay"]}, {"params": others, "weight_decay": 0.0}]


def lamb_groups(optimizer: Mapping[str, Any], shapes: Sequence[tuple[str, tuple[int, ...]]]) -> list[dict[str, Any]]:
    """Return the parameters in up to four groups: with and without weight decay, with and without a trust ratio.

    PopART's LAMB takes the ratio 1 if `max_weight_norm` is 0.
    """
    together: dict[tuple[bool, bool], list[str]] = {}
    for name, shape in shapes:
        key = is_decayed(optimizer["decayed"], name, len(shape)), is_adapted(optimizer, len(shape))
        together.setdefault(key, []).append(name)
    groups: list[dict[str, Any]] = []
    for decayed, adapted in sorted(together, reverse=True):
        group = {"params": together[decayed, adapted], "weight_decay": optimizer["weight_decay"] if decayed else 0.0}
        groups.append(group if adapted else {**group, "max_weight_norm": 0.0})
    return groups


def build_optimizer(poptorch: Any, table: OptimizerTable, parameters: Mapping[str, Any]) -> Any:
    """Return the optimizer of a table for parameters by name."""
    groups = [{**group, "params": [parameters[name] for name in group["params"]]} for group in table.groups]
    arguments = {key: getattr(torch, value) if key.endswith("accum_type") else value for key, value in table.arguments.items()}
    return getattr(poptorch.optim, table.name)(groups, **arguments)
