"""Options and optimizers of the original runs, written down from the scripts by hand.

GPT-2: graphcore/examples v3.4.1, nlp/gpt2/pytorch. The options are those of `get_options` in ipu_options.py with the arguments
of run/pretraining_*.sh and the defaults of arguments.py; the optimizer is that of `get_optimizer` in tools.py.
OverlapMemoryOptimized and JustInTime are 3 and 1 in PopART.

BERT: v3.0.0, nlp/bert/tensorflow1, which is not for PopTorch. Its configurations, configs/pretrain_*.json, are given as the
options of PopTorch with the same meaning; min_remote_tensor_size is 50,000 bytes there, 12,500 values of float32, and 128 bytes
where a configuration does not give it.
"""

from __future__ import annotations

from typing import Any

MEAN = "ReductionType.Mean"
PIPELINED = "PipelinedExecution(AutoStage.AutoIncrement)"

# The options of ipu_options.py that no argument of the five scripts changes.
GPT2_POPART: dict[str, Any] = {
    "_Popart.set": {
        "disableGradAccumulationTensorStreams": True,
        "outlineThreshold": 10.0,
        "accumulateOuterFragmentSettings.schedule": 3,
        "accumulateOuterFragmentSettings.excludedVirtualGraphs": ["0"],
        "subgraphCopyingStrategy": 1,
        "decomposeGradSum": True,
        "scheduleNonWeightUpdateGradientConsumersEarly": True,
        "saveInitializersToFile": "weights.bin",
    },
    "_Popart.setPatterns": {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True},
}


def options(
    replicas: int | None, calls: int, accumulation: int, location: dict[str, Any], memory: list[float], seed: int = 1234
) -> dict[str, Any]:
    """Return the options that every run sets, in the originals' order; `memory` is each IPU's share."""
    return {
        **({} if replicas is None else {"replicationFactor": replicas}),
        "autoRoundNumIPUs": True,
        "deviceIterations": calls,
        "Training.gradientAccumulation": accumulation,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {"useOnChipStorage": False, **location},
        "randomSeed": seed,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {f"IPU{number}": share for number, share in enumerate(memory)},
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
    }


def gpt2(replicas: int | None, accumulation: int, memory: list[float], sharded: bool = True) -> dict[str, Any]:
    location = {"useReplicatedTensorSharding": sharded}
    return {**options(replicas, 8, accumulation, location, memory), **GPT2_POPART}


def bert(replicas: int, accumulation: int, memory: list[float], seed: int = 1234, smallest: int = 12500) -> dict[str, Any]:
    location = {
        "useReplicatedTensorSharding": replicas > 1,
        "minElementsForOffChip": smallest, "minElementsForReplicatedTensorSharding": smallest,
    }  # fmt: skip
    return options(replicas, 1, accumulation, location, memory, seed)


LARGE = [0.15, 0.12, *[0.15] * 6]
OPTIONS: dict[str, dict[str, Any]] = {
    # run/pretraining_small.sh, _medium.sh, _large_512.sh, _large.sh
    "gpt2_small": gpt2(4, 2048, [0.15] * 4),
    "gpt2_medium": gpt2(2, 4096, [0.30, *[0.15] * 7]),
    "gpt2_large_512": gpt2(2, 4096, LARGE),
    "gpt2_large_1024": gpt2(
        1, 8192, [0.2, 0.15, 0.2, 0.2, 0.2, 0.15, 0.15, 0.2, 0.2, 0.15, 0.2, 0.2, 0.2, 0.15, 0.15, 0.2], sharded=False
    ),
    # run/pretraining_large_poprun.sh; popdist.poptorch.Options(ipus_per_replica=8) has the number of replicas
    "gpt2_large_poprun": gpt2(None, 1024, LARGE),
    # configs/pretrain_tiny_128_lamb.json; variable_offloading is true and replicated_tensor_sharding false by default
    "bert_tiny": bert(1, 12, [0.6], smallest=32),
    # configs/pretrain_base_128_phase1.json; the two phases have the same options
    "bert_base": bert(4, 510, [0.28] * 4),
    # configs/pretrain_large_128_phase1.json, whose seed is 1994, and pretrain_large_384_phase2.json
    "bert_large_phase_1": bert(4, 2050, [0.15, 0.25, 0.25, 0.25], seed=1994),
    "bert_large_phase_2": bert(4, 2050, [0.15, 0.40, 0.40, 0.40]),
    # configs/pretrain_large_128_phase1_POD64.json, pretrain_large_384_phase2_POD64.json
    "bert_large_pod64_phase_1": bert(16, 520, [0.15, 0.23, 0.25, 0.25]),
    "bert_large_pod64_phase_2": bert(16, 520, [0.15, 0.40, 0.40, 0.40]),
}

# get_optimizer("AdamW", weight_decay=0.0, learning_rate=0.00015, loss_scaling=50000.0), the same of all five scripts, which
# leave betas out.
GPT2_OPTIMIZER: dict[str, Any] = {
    "name": "AdamW",
    "arguments": {
        "lr": 0.00015,
        "weight_decay": 0.01,
        "eps": 1e-6,
        "bias_correction": False,
        "loss_scaling": 50000.0,
        "accum_type": "float16",
        "first_order_momentum_accum_type": "float16",
        "second_order_momentum_accum_type": "float32",
    },
    "groups": [{"weight_decay": 0.0}, {"weight_decay": 0.0}],
}


def lamb(learning_rate: float, loss_scaling: float) -> dict[str, Any]:
    """Return BERT's optimizer: LAMB of ipu_optimizer.py without debiasing, with the groups of run_pretraining.py.

    Parameters named bias or beta have no weight decay, and those or gamma no trust ratio.
    """
    return {
        "name": "LAMB",
        "arguments": {
            "lr": learning_rate,
            "weight_decay": 0.01,
            "eps": 1e-6,
            "bias_correction": False,
            "loss_scaling": loss_scaling,
            "accum_type": "float16",
            "first_order_momentum_accum_type": "float32",
            "second_order_momentum_accum_type": "float32",
        },
        "groups": [
            {"weight_decay": 0.01},
            {"weight_decay": 0.01, "max_weight_norm": 0.0},
            {"weight_decay": 0.0, "max_weight_norm": 0.0},
        ],
    }


OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{name: GPT2_OPTIMIZER for name in OPTIONS if name.startswith("gpt2")},
    "bert_tiny": lamb(0.001, 1.0),
    "bert_base_phase_1": lamb(0.006, 512.0),
    "bert_base_phase_2": lamb(0.002828, 512.0),
    "bert_large_phase_1": lamb(0.006, 32768.0),
    "bert_large_phase_2": lamb(0.002828, 128.0),
    "bert_large_pod64_phase_1": lamb(0.006, 32768.0),
    "bert_large_pod64_phase_2": lamb(0.002828, 64.0),
}
