"""How much memory and disk a phase will need, asked before it begins."""

from pathlib import Path

import torch

from relm.limits import require_disk, require_memory
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.recipe import Phase, Run

# float32: weight, gradient, two moments; and the weight in the precision of the computation.
BYTES_PER_PARAMETER = 4 * 4 + 2
CHECKPOINT_BYTES_PER_PARAMETER = 3 * 4
MODEL_BYTES_PER_PARAMETER = 4


def require_resources(config: Gpt2Config, phase: Phase, run: Run, run_folder: Path) -> None:
    """Refuse a phase that does not fit into memory or onto the disk of its run folder.

    Raises:
        RelmError: it does not; says how much is missing.
    """
    with torch.device("meta"):
        parameters = Gpt2(config).parameter_count()
    if run.device == "cpu":
        sequences = run.micro_batch_size or phase.global_batch_size
        needed = parameters * BYTES_PER_PARAMETER + activation_bytes(config, sequences, phase.sequence_length)
        require_memory(needed, f"training {parameters:,} parameters, {sequences} sequences at once (run.micro_batch_size)")
    present = len(list((run_folder / "checkpoints").glob("step-*")))
    missing = max(run.keep_checkpoints + 1 - present, 1)
    needed = parameters * (missing * CHECKPOINT_BYTES_PER_PARAMETER + MODEL_BYTES_PER_PARAMETER)
    require_disk(run_folder, needed, f"{missing} checkpoints (run.keep_checkpoints) and a model of {parameters:,} parameters")


def activation_bytes(config: Gpt2Config, sequences: int, length: int) -> int:
    """About what the backward pass needs of the forward pass, in float32.

    A layer keeps some 18 vectors of the hidden size a token (Korthikanti et al. 2022, equation 2, doubled for float32), and
    with dropout four matrices of attention a head; the head keeps the logits, their log-softmax and its gradient.
    """
    vectors = config.layers * (18 * config.hidden_size + (4 * config.heads * length if config.dropout else 0))
    return 4 * sequences * length * (vectors + 3 * config.vocabulary_size)
