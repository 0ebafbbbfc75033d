"""Make the golden of run_mlm.py of transformers 4.2.2: the script itself and its Trainer, on the CPU, for 100 updates.

Run it by Python 3.8 with torch 1.7.1, transformers 4.2.2, datasets 1.2.1, dill 0.3.3, pyarrow 3.0.0, numpy 1.23.5 and
safetensors, after relm's batches were written by relm's own Python:

    python tests/oracles/write_batches.py run_mlm batches.npz
    OMP_NUM_THREADS=1 python tests/oracles/make_run_mlm.py FOLDER batches.npz

FOLDER is a clone of github.com/huggingface/transformers at v4.2.2.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import torch
from golden_files import STEPS, Golden, draw_weights, hash_batch, hash_weights, read_commit_of, read_versions, write_golden
from made_text import make_articles, wordpieces

ARTICLES, TEXT_SEED, LENGTH, BATCH_SIZE, EXAMPLES = 120, 0, 64, 8, 200
LEARNING_RATE = 1e-3
PATCHED = [
    "The collator's masks are relm's, after a check that it was given the same tokens.",
    "The order of the sequences is relm's.",
    "load_dataset returns the rows of the text, as the script of the dataset wikitext does.",
]


class Recorded:
    """The figures that the Trainer saw, and relm's draws."""

    def __init__(self, batches: Dict[str, np.ndarray]) -> None:
        self.given = batches
        self.collated = 0
        self.epoch = 0
        self.batches: List[List[np.ndarray]] = []
        self.losses: List[float] = []
        self.norms: List[float] = []
        self.rates: List[float] = []

    def masked(self, inputs: torch.Tensor) -> List[torch.Tensor]:
        """Return relm's masked inputs and labels of the next step.

        Raises:
            AssertionError: its tokens are not those of `inputs`.
        """
        ids, positions, labels = (
            self.given[name][self.collated] for name in ("input_ids", "masked_positions", "masked_labels")
        )
        self.collated += 1
        wanted = np.full_like(ids, -100)
        rows, used = np.arange(len(ids))[:, None], labels != -100
        wanted[np.broadcast_to(rows, labels.shape)[used], positions[used]] = labels[used]
        assert np.array_equal(np.where(wanted == -100, ids, wanted), inputs.numpy()), f"other tokens in step {self.collated}"
        return [torch.from_numpy(ids), torch.from_numpy(wanted)]

    def note(self, inputs: Dict[str, torch.Tensor], loss: torch.Tensor) -> None:
        """Add a batch and its loss."""
        labels = inputs["labels"].numpy()
        positions = np.zeros_like(self.given["masked_positions"][0])
        wanted = np.full_like(positions, -100)
        for row, of_row in enumerate(labels):
            places = np.flatnonzero(of_row != -100)
            positions[row, : len(places)], wanted[row, : len(places)] = places, of_row[places]
        self.batches.append([inputs["input_ids"].numpy(), positions, wanted])
        self.losses.append(loss.item())


class GivenOrder:
    """The stand-in for the sampler: relm's order, epoch by epoch."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def __len__(self) -> int:
        return EXAMPLES

    def __iter__(self) -> Iterator[int]:
        first = self._recorded.epoch * EXAMPLES
        self._recorded.epoch += 1
        return iter(self._recorded.given["numbers"].reshape(-1)[first : first + EXAMPLES].tolist())


def patch(run_mlm: Any, recorded: Recorded) -> None:
    """Replace the draws of run_mlm.py, and record its training."""
    from datasets import Dataset, DatasetDict
    from transformers import DataCollatorForLanguageModeling, Trainer
    from transformers.optimization import AdamW

    lines = [line for article in make_articles(ARTICLES, TEXT_SEED) for line in article]
    rows = [f"{line}\n" if line.strip() else "" for line in lines]
    run_mlm.load_dataset = lambda *_, **__: DatasetDict(
        train=Dataset.from_dict({"text": rows}), validation=Dataset.from_dict({"text": rows[:50]})
    )
    DataCollatorForLanguageModeling.mask_tokens = lambda _self, inputs, special_tokens_mask: recorded.masked(inputs)
    Trainer._get_train_sampler = lambda _self: GivenOrder(recorded)
    compute_loss, clip, step = Trainer.compute_loss, torch.nn.utils.clip_grad_norm_, AdamW.step

    def noted_loss(trainer: Any, model: Any, inputs: Any) -> Any:
        loss = compute_loss(trainer, model, inputs)
        recorded.note(inputs, loss)
        return loss

    def noted_clip(parameters: Any, largest: float) -> Any:
        weights = list(parameters)
        recorded.norms.append(torch.cat([weight.grad.flatten().double() for weight in weights]).norm().item())
        return clip(weights, largest)

    def noted_step(optimizer: Any, *arguments: Any) -> Any:
        recorded.rates.append(optimizer.param_groups[0]["lr"])
        return step(optimizer, *arguments)

    Trainer.compute_loss, torch.nn.utils.clip_grad_norm_, AdamW.step = noted_loss, noted_clip, noted_step


def write_twin(folder: Path) -> Dict[str, np.ndarray]:
    """Write a BERT at twin size with its tokenizer, and return its weights."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder.mkdir()
    (folder / "words.txt").write_text("\n".join(wordpieces()) + "\n", encoding="utf-8")
    BertTokenizerFast(str(folder / "words.txt"), model_max_length=LENGTH).save_pretrained(str(folder))
    config = BertConfig(
        len(wordpieces()), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=LENGTH,
    )  # fmt: skip
    twin = BertForMaskedLM(config)
    drawn = draw_weights({name: tuple(weight.shape) for name, weight in twin.named_parameters()})
    for name, weight in twin.named_parameters():
        weight.data.copy_(torch.from_numpy(drawn[name]))
    twin.save_pretrained(str(folder))
    return drawn


def main() -> None:
    """Run the original, and write its golden."""
    original = Path(sys.argv[1])
    commit = read_commit_of(original)
    recorded = Recorded(dict(np.load(sys.argv[2])))
    sys.path.insert(0, str(original / "examples" / "language-modeling"))
    torch.set_num_threads(1)
    import run_mlm
    from transformers import Trainer

    patch(run_mlm, recorded)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        initial = write_twin(folder / "bert")
        models: List[Any] = []
        train = Trainer.train
        Trainer.train = lambda trainer, **options: (models.append(trainer.model), train(trainer, **options))[1]
        sys.argv = [
            "run_mlm.py", "--dataset_name", "wikitext", "--max_seq_length", str(LENGTH), "--pad_to_max_length",
            "--cache_dir", str(folder / "cache"), "--do_train", "--output_dir", str(folder / "language-modeling"),
            "--model_name_or_path", str(folder / "bert"), "--num_train_epochs", str(STEPS * BATCH_SIZE // EXAMPLES),
            "--per_device_train_batch_size", str(BATCH_SIZE), "--save_steps", "500000",
            "--learning_rate", str(LEARNING_RATE),
        ]  # fmt: skip
        run_mlm.main()
    final = {name: weight.detach().numpy() for name, weight in models[0].named_parameters()}
    golden = Golden(
        original="huggingface/transformers 4.2.2, examples/language-modeling/run_mlm.py",
        commit=commit,
        command="python tests/oracles/make_run_mlm.py FOLDER batches.npz",
        patched=PATCHED,
        versions=read_versions("torch", "transformers", "datasets", "tokenizers", "numpy"),
        initial_sha256=hash_weights({name: initial[name] for name in final}),
        batches_sha256=[hash_batch(batch) for batch in recorded.batches],
        losses=recorded.losses,
        gradient_norms=recorded.norms,
        learning_rates=recorded.rates,
        final=final,
    )
    write_golden("run_mlm", golden)


if __name__ == "__main__":
    main()
