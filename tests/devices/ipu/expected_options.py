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

OPTIONS: dict[str, dict[str, Any]] = {
    # run/pretraining_small.sh
    "gpt2_small": {
        "replicationFactor": 4,
        "autoRoundNumIPUs": True,
        "deviceIterations": 8,
        "Training.gradientAccumulation": 2048,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {"useOnChipStorage": False, "useReplicatedTensorSharding": True},
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {"IPU0": 0.15, "IPU1": 0.15, "IPU2": 0.15, "IPU3": 0.15},
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
        **GPT2_POPART,
    },
    # run/pretraining_medium.sh
    "gpt2_medium": {
        "replicationFactor": 2,
        "autoRoundNumIPUs": True,
        "deviceIterations": 8,
        "Training.gradientAccumulation": 4096,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {"useOnChipStorage": False, "useReplicatedTensorSharding": True},
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {
            "IPU0": 0.30, "IPU1": 0.15, "IPU2": 0.15, "IPU3": 0.15, "IPU4": 0.15, "IPU5": 0.15, "IPU6": 0.15, "IPU7": 0.15,
        },
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
        **GPT2_POPART,
    },
    # run/pretraining_large_512.sh
    "gpt2_large_512": {
        "replicationFactor": 2,
        "autoRoundNumIPUs": True,
        "deviceIterations": 8,
        "Training.gradientAccumulation": 4096,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {"useOnChipStorage": False, "useReplicatedTensorSharding": True},
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {
            "IPU0": 0.15, "IPU1": 0.12, "IPU2": 0.15, "IPU3": 0.15, "IPU4": 0.15, "IPU5": 0.15, "IPU6": 0.15, "IPU7": 0.15,
        },
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
        **GPT2_POPART,
    },
    # run/pretraining_large.sh
    "gpt2_large_1024": {
        "replicationFactor": 1,
        "autoRoundNumIPUs": True,
        "deviceIterations": 8,
        "Training.gradientAccumulation": 8192,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {"useOnChipStorage": False, "useReplicatedTensorSharding": False},
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {
            "IPU0": 0.2, "IPU1": 0.15, "IPU2": 0.2, "IPU3": 0.2, "IPU4": 0.2, "IPU5": 0.15, "IPU6": 0.15, "IPU7": 0.2,
            "IPU8": 0.2, "IPU9": 0.15, "IPU10": 0.2, "IPU11": 0.2, "IPU12": 0.2, "IPU13": 0.15, "IPU14": 0.15, "IPU15": 0.2,
        },
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
        **GPT2_POPART,
    },
    # run/pretraining_large_poprun.sh; popdist.poptorch.Options(ipus_per_replica=8) has the number of replicas
    "gpt2_large_poprun": {
        "autoRoundNumIPUs": True,
        "deviceIterations": 8,
        "Training.gradientAccumulation": 1024,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {"useOnChipStorage": False, "useReplicatedTensorSharding": True},
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {
            "IPU0": 0.15, "IPU1": 0.12, "IPU2": 0.15, "IPU3": 0.15, "IPU4": 0.15, "IPU5": 0.15, "IPU6": 0.15, "IPU7": 0.15,
        },
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
        **GPT2_POPART,
    },
    # configs/pretrain_tiny_128_lamb.json; variable_offloading is true and replicated_tensor_sharding false by default
    "bert_tiny": {
        "replicationFactor": 1,
        "autoRoundNumIPUs": True,
        "deviceIterations": 1,
        "Training.gradientAccumulation": 12,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {
            "useOnChipStorage": False, "useReplicatedTensorSharding": False,
            "minElementsForOffChip": 32, "minElementsForReplicatedTensorSharding": 32,
        },
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {"IPU0": 0.6},
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
    },
    # configs/pretrain_base_128_phase1.json; the two phases have the same options
    "bert_base": {
        "replicationFactor": 4,
        "autoRoundNumIPUs": True,
        "deviceIterations": 1,
        "Training.gradientAccumulation": 510,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {
            "useOnChipStorage": False, "useReplicatedTensorSharding": True,
            "minElementsForOffChip": 12500, "minElementsForReplicatedTensorSharding": 12500,
        },
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {"IPU0": 0.28, "IPU1": 0.28, "IPU2": 0.28, "IPU3": 0.28},
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
    },
    # configs/pretrain_large_128_phase1.json; its seed is 1994, and that of its second phase 1234
    "bert_large_phase_1": {
        "replicationFactor": 4,
        "autoRoundNumIPUs": True,
        "deviceIterations": 1,
        "Training.gradientAccumulation": 2050,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {
            "useOnChipStorage": False, "useReplicatedTensorSharding": True,
            "minElementsForOffChip": 12500, "minElementsForReplicatedTensorSharding": 12500,
        },
        "randomSeed": 1994,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {"IPU0": 0.15, "IPU1": 0.25, "IPU2": 0.25, "IPU3": 0.25},
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
    },
    # configs/pretrain_large_384_phase2.json
    "bert_large_phase_2": {
        "replicationFactor": 4,
        "autoRoundNumIPUs": True,
        "deviceIterations": 1,
        "Training.gradientAccumulation": 2050,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {
            "useOnChipStorage": False, "useReplicatedTensorSharding": True,
            "minElementsForOffChip": 12500, "minElementsForReplicatedTensorSharding": 12500,
        },
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {"IPU0": 0.15, "IPU1": 0.40, "IPU2": 0.40, "IPU3": 0.40},
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
    },
    # configs/pretrain_large_128_phase1_POD64.json
    "bert_large_pod64_phase_1": {
        "replicationFactor": 16,
        "autoRoundNumIPUs": True,
        "deviceIterations": 1,
        "Training.gradientAccumulation": 520,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {
            "useOnChipStorage": False, "useReplicatedTensorSharding": True,
            "minElementsForOffChip": 12500, "minElementsForReplicatedTensorSharding": 12500,
        },
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {"IPU0": 0.15, "IPU1": 0.23, "IPU2": 0.25, "IPU3": 0.25},
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
    },
    # configs/pretrain_large_384_phase2_POD64.json
    "bert_large_pod64_phase_2": {
        "replicationFactor": 16,
        "autoRoundNumIPUs": True,
        "deviceIterations": 1,
        "Training.gradientAccumulation": 520,
        "Training.accumulationAndReplicationReductionType": MEAN,
        "outputMode": "OutputMode.Sum",
        "TensorLocations.setOptimizerLocation": {
            "useOnChipStorage": False, "useReplicatedTensorSharding": True,
            "minElementsForOffChip": 12500, "minElementsForReplicatedTensorSharding": 12500,
        },
        "randomSeed": 1234,
        "setExecutionStrategy": PIPELINED,
        "setAvailableMemoryProportion": {"IPU0": 0.15, "IPU1": 0.40, "IPU2": 0.40, "IPU3": 0.40},
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": "float16",
    },
}  # fmt: skip

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
    "gpt2_small": GPT2_OPTIMIZER,
    "gpt2_medium": GPT2_OPTIMIZER,
    "gpt2_large_512": GPT2_OPTIMIZER,
    "gpt2_large_1024": GPT2_OPTIMIZER,
    "gpt2_large_poprun": GPT2_OPTIMIZER,
    "bert_tiny": lamb(0.001, 1.0),
    "bert_base_phase_1": lamb(0.006, 512.0),
    "bert_base_phase_2": lamb(0.002828, 512.0),
    "bert_large_phase_1": lamb(0.006, 32768.0),
    "bert_large_phase_2": lamb(0.002828, 128.0),
    "bert_large_pod64_phase_1": lamb(0.006, 32768.0),
    "bert_large_pod64_phase_2": lamb(0.002828, 64.0),
}
