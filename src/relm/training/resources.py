"""How much memory and disk a phase will need, asked before it begins."""

from pathlib import Path

import torch

from relm.examples.masking import capacity
from relm.limits import require_disk, require_memory
from relm.models.bert_configuration import BertConfig
from relm.recipe import Phase, Run
from relm.training.architecture import Config, unset_model

# float32: weight, gradient, two moments; and the weight in the precision of the computation.
BYTES_PER_PARAMETER = 4 * 4 + 2
CHECKPOINT_BYTES_PER_PARAMETER = 3 * 4
MODEL_BYTES_PER_PARAMETER = 4


def require_resources(config: Config, phase: Phase, run: Run, run_folder: Path) -> None:
    """Refuse a phase that does not fit into memory or onto the disk of its run folder.

    Raises:
        RelmError: it does not; says how much is missing.
    """
    with torch.device("meta"):
        parameters = unset_model(config).parameter_count()
    if run.device == "cpu":
        sequences = run.micro_batch_size or phase.share_size
        needed = parameters * BYTES_PER_PARAMETER + activation_bytes(config, phase, sequences)
        require_memory(needed, f"training {parameters:,} parameters, {sequences} sequences at once (run.micro_batch_size)")
    present = len(list((run_folder / "checkpoints").glob("step-*")))
    missing = max(run.keep_checkpoints + 1 - present, 1)
    needed = parameters * (missing * CHECKPOINT_BYTES_PER_PARAMETER + MODEL_BYTES_PER_PARAMETER)
    require_disk(run_folder, needed, f"{missing} checkpoints (run.keep_checkpoints) and a model of {parameters:,} parameters")


def activation_bytes(config: Config, phase: Phase, sequences: int) -> int:
    """About what the backward pass needs of the forward pass, in float32.

    A layer keeps some 18 vectors of the hidden size a token (Korthikanti et al. 2022, equation 2, doubled for float32), and
    with dropout four matrices of attention a head; the head keeps the logits of what is predicted, their log-softmax and its
    gradient.
    """
    length = phase.sequence_length
    dropout = config.attention_dropout if isinstance(config, BertConfig) else config.dropout
    vectors = config.layers * (18 * config.hidden_size + (4 * config.heads * length if dropout else 0))
    predicted = capacity(phase.masked, length) if phase.objective == "masked" else length
    return 4 * sequences * (length * vectors + 3 * predicted * config.vocabulary_size)
