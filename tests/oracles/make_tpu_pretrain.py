"""Make the golden of allenai/tpu_pretrain: its own data script and its own pretrain.py, on the CPU, for 100 updates.

Run it by Python 3.8 with torch 1.7.1, pytorch-transformers 1.2.0, numpy 1.23.5, natsort and safetensors:

    OMP_NUM_THREADS=1 python tests/oracles/make_tpu_pretrain.py FOLDER

FOLDER is a clone of github.com/allenai/tpu_pretrain at 10e8f26.
"""

import hashlib
import json
import random
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import torch
from golden_files import STEPS, Golden, draw_weights, hash_batch, hash_weights, read_commit_of, read_versions, write_golden
from made_text import make_documents

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from relm.examples.order import example_indices

EPOCHS, MICRO_BATCH, ACCUMULATION, LENGTH, PREDICTIONS = 4, 4, 2, 64, 12
EXAMPLES = STEPS * MICRO_BATCH * ACCUMULATION // EPOCHS
DOCUMENTS, TEXT_SEED, DATA_SEED = 142, 8, 42
LEARNING_RATE = 1e-3
# relm.training.phase_run.derived_seed(42, "order", "main")
ORDER_SEED = int.from_bytes(hashlib.sha256(b"42/order/main").digest()[:8], "little") >> 1
IGNORED = -100
PATCHED = [
    "torch_xla's device is the CPU; its DataParallel calls the training loop once, and its optimizer_step is optimizer.step().",
    "The order of the examples is relm's; the original draws it from torch's generator.",
    "The data script's tokenizer is that of the twin, of 262 tokens, and dropout is 0.",
]


class Recorded:
    """The figures that the original's loop saw."""

    def __init__(self) -> None:
        self.batches: List[Tuple[np.ndarray, ...]] = []
        self.losses: List[float] = []
        self.norms: List[float] = []
        self.rates: List[float] = []
        self.model: Any = None


RECORDED = Recorded()


class Context(SimpleNamespace):
    """The context of a core in torch_xla's DataParallel, which keeps objects from one epoch to the next."""

    def getattr_or(self, name: str, value: Any) -> Any:
        if not hasattr(self, name):
            setattr(self, name, value)
        return getattr(self, name)


class DataParallel:
    """The stand-in for torch_xla's class of this name, with one core."""

    def __init__(self, model: torch.nn.Module, device_ids: List[str]) -> None:
        self._models, self._device, self._context = [model], device_ids[0], Context()
        RECORDED.model = model
        model.register_forward_hook(lambda _module, _inputs, outputs: RECORDED.losses.append(outputs[0].item()))

    def __call__(self, loop: Any, loader: Any) -> List[float]:
        return [loop(self._models[0], self._batches(loader), self._device, self._context)]

    def _batches(self, loader: Any) -> Iterator[Tuple[int, Any]]:
        for step, batch in enumerate(loader):
            RECORDED.batches.append(tuple(array.numpy() for array in batch))
            yield step, batch


class GivenOrder:
    """The stand-in for the sampler of an epoch: relm's order."""

    epoch = 0

    def __init__(self, dataset: Any) -> None:
        self.num_samples = len(dataset)
        assert self.num_samples == EXAMPLES, self.num_samples
        positions = np.arange(EXAMPLES) + GivenOrder.epoch * EXAMPLES
        self._rows = example_indices(ORDER_SEED, positions, EXAMPLES).tolist()
        GivenOrder.epoch += 1

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)


def optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step of the optimizer, as torch_xla's function of this name does with one core."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
    RECORDED.norms.append(torch.cat([weight.grad.flatten().double() for weight in weights]).norm().item())
    RECORDED.rates.append(optimizer.param_groups[0]["lr"])
    optimizer.step()


def stand_in_for_torch_xla() -> None:
    """Put modules in place of torch_xla's."""
    members: Dict[str, Dict[str, Any]] = {
        "torch_xla": {},
        "torch_xla_py": {},
        "torch_xla_py.xla_model": {
            "get_xla_supported_devices": lambda: ["cpu"],
            "optimizer_step": optimizer_step,
            "RateTracker": lambda: SimpleNamespace(add=lambda count: None),
        },
        "torch_xla_py.data_parallel": {"DataParallel": DataParallel},
    }
    for name, given in members.items():
        module = sys.modules[name] = ModuleType(name)
        module.__dict__.update(given)
    for name in ("xla_model", "data_parallel"):
        setattr(sys.modules["torch_xla_py"], name, sys.modules[f"torch_xla_py.{name}"])
    torch.utils.data.RandomSampler = GivenOrder


def write_twin(folder: Path) -> Dict[str, np.ndarray]:
    """Write a RoBERTa at twin size with its tokenizer, of single bytes, and return its weights."""
    from pytorch_transformers.modeling_roberta import RobertaConfig, RobertaForMaskedLM
    from pytorch_transformers.tokenization_gpt2 import bytes_to_unicode

    folder.mkdir()
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(bytes_to_unicode()[byte] for byte in range(256)), "##", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n# #\n")
    config = RobertaConfig(
        len(tokens), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=LENGTH + 2, type_vocab_size=1,
        layer_norm_eps=1e-5,
    )  # fmt: skip
    twin = RobertaForMaskedLM(config)
    drawn = draw_weights({name: tuple(weight.shape) for name, weight in twin.named_parameters()})
    for name, weight in twin.named_parameters():
        weight.data.copy_(torch.from_numpy(drawn[name]))
    twin.save_pretrained(str(folder))
    return drawn


def run(module: Any, *arguments: Any) -> None:
    """Run a program of the original with these arguments."""
    sys.argv = [module.__name__, *map(str, arguments)]
    module.main()


def write_data(folder: Path, twin: Path) -> Path:
    """Run the original's data script on the text, and return its folder."""
    import pregenerate_training_data
    from pytorch_transformers.tokenization_auto import AutoTokenizer

    documents = make_documents(DOCUMENTS, TEXT_SEED)
    (folder / "corpus.txt").write_text("\n\n".join("\n".join(sentences) for sentences in documents), encoding="utf-8")
    load = AutoTokenizer.from_pretrained
    pregenerate_training_data.AutoTokenizer = SimpleNamespace(from_pretrained=lambda name: load(str(twin)))
    random.seed(DATA_SEED)
    run(
        pregenerate_training_data,
        "--train_corpus", folder / "corpus.txt", "--output_dir", folder / "data", "--bert_model", "roberta-base",
        "--do_whole_word_mask", "--epochs_to_generate", 1, "--max_seq_len", LENGTH, "--short_seq_prob", 0,
        "--max_predictions_per_seq", PREDICTIONS,
    )  # fmt: skip
    return folder / "data"


def as_relm_reads(batch: Tuple[np.ndarray, ...]) -> List[np.ndarray]:
    """Return a batch as relm gives it, with the positions of the masked tokens."""
    input_ids, mask, _, labels, _ = batch
    positions = np.zeros((len(labels), PREDICTIONS), np.int64)
    wanted = np.full_like(positions, IGNORED)
    for row, of_row in enumerate(labels):
        places = np.flatnonzero(of_row >= 0)
        positions[row, : len(places)], wanted[row, : len(places)] = places, of_row[places]
    return [input_ids, mask, positions, wanted]


def main() -> None:
    """Run the original, and write its golden."""
    original = Path(sys.argv[1])
    commit = read_commit_of(original)
    sys.path[:0] = [str(original), str(original / "pytorch_transformers_lm_finetuning")]
    torch.set_num_threads(1)
    stand_in_for_torch_xla()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        initial = write_twin(folder / "roberta")
        data = write_data(folder, folder / "roberta")
        import pretrain

        run(
            pretrain,
            "--pregenerated_data", data, "--output_dir", folder / "roberta_trained", "--bert_model", folder / "roberta",
            "--epochs", EPOCHS, "--train_batch_size", MICRO_BATCH, "--gradient_accumulation_steps", ACCUMULATION,
            "--learning_rate", LEARNING_RATE,
        )  # fmt: skip
    micro_batches = [as_relm_reads(batch) for batch in RECORDED.batches]
    steps = [micro_batches[first : first + ACCUMULATION] for first in range(0, len(micro_batches), ACCUMULATION)]
    losses = np.array(RECORDED.losses).reshape(-1, ACCUMULATION).mean(1)
    learnt = {name: weight.detach().numpy() for name, weight in RECORDED.model.named_parameters() if weight.grad is not None}
    golden = Golden(
        original="allenai/tpu_pretrain, pretrain.py",
        commit=commit,
        command="python tests/oracles/make_tpu_pretrain.py FOLDER",
        patched=PATCHED,
        versions=read_versions("torch", "pytorch-transformers", "numpy"),
        initial_sha256=hash_weights({name: initial[name] for name in learnt}),
        batches_sha256=[hash_batch([np.concatenate(arrays) for arrays in zip(*step)]) for step in steps],
        losses=losses.tolist(),
        gradient_norms=RECORDED.norms,
        learning_rates=RECORDED.rates,
        final=learnt,
    )
    write_golden("tpu_pretrain", golden)


if __name__ == "__main__":
    main()
