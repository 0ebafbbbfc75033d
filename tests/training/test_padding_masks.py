"""Batches of full sequences have no mask of padding, so that attention may be FlashAttention: the same losses and weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from relm.devices.contract import open_device
from relm.examples.builders import pregenerate
from relm.examples.manifest import write_manifest
from relm.examples.tokenization.tokenizer_files import train_tokenizer
from relm.recipes.section import merge
from relm.training.phase_run import open_reader
from tiny_runs import TinyRun, recipe_of, write_documents

# Blocks of exactly the sequence length, as run_mlm.py of transformers cuts them.
FULL: dict[str, Any] = {
    "model": {"attention_dropout": 0.0},
    "pretrain": {
        "main": {
            "steps": 3,
            "schedule": {"warmup_steps": 1},
            "masked": {"packing": "full_sentences", "selection": "bernoulli"},
            "as_published": {"builder": "run_mlm"},
            "precision": "float32",
        }
    },
    "run": {"validation_interval": 3, "validation_batches": 1},
}
ALWAYS = {"run": {"padding_mask": "always"}}


@pytest.fixture(scope="module")
def full_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with manifest, shards and tokenizer of sequences without padding."""
    folder = tmp_path_factory.mktemp("full")
    tokenizer, phase = folder / "tokenizer.json", recipe_of("masked", FULL).pretrain["main"]
    shards: dict[str, list[Path]] = {}
    for seed, split in enumerate(("train", "held_out")):
        documents = folder / f"{split}.jsonl"
        write_documents(documents, seed)
        if split == "train":
            train_tokenizer("wordpiece", [documents], 80, 10**6, tokenizer)
        shards[split] = [folder / f"shard.{split}{phase.suffix}"]
        pregenerate(documents, tokenizer, shards[split][0], phase, "ro", workers=1)
    write_manifest(shards, folder / "manifest.json")
    return folder


class Attentions(TorchFunctionMode):
    """The masks that attention is called with, and the kernels that torch chooses for these calls."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[torch.Tensor | None] = []
        self.kernels: list[SDPBackend] = []

    def __torch_function__(self, function, types, arguments=(), named=None):
        if function is torch.nn.functional.scaled_dot_product_attention:
            self.masks.append(named["attn_mask"])
            chosen = torch._fused_sdp_choice(*arguments, named["attn_mask"], named["dropout_p"], named["is_causal"])
            self.kernels.append(SDPBackend(chosen))
        return function(*arguments, **(named or {}))


def attentions(run: TinyRun) -> Attentions:
    with Attentions() as found:
        run.train()
    return found


def test_full_sequences_train_without_a_mask_by_flash_attention_with_the_same_bits(full_examples: Path, tmp_path: Path) -> None:
    runs = {
        name: TinyRun(tmp_path / name, full_examples, merge(FULL, changes), objective="masked")
        for name, changes in {"where padded": {}, "always": ALWAYS}.items()
    }
    found = {name: attentions(run) for name, run in runs.items()}
    assert set(found["where padded"].masks) == {None}
    assert set(found["where padded"].kernels) == {SDPBackend.FLASH_ATTENTION}
    assert all(mask is not None and mask.all() for mask in found["always"].masks)
    assert len(found["always"].masks) == len(found["where padded"].masks) > 0
    # On a CPU a mask that hides nothing changes no bit.
    assert runs["where padded"].sha256() == runs["always"].sha256()
    assert runs["where padded"].lines() == runs["always"].lines()
    assert runs["where padded"].listed() == runs["always"].listed()


@pytest.mark.parametrize(
    ("padding_mask", "device", "masks"),
    [("where_padded", "cpu", False), ("always", "cpu", True), ("where_padded", "ipu", True)],
)
def test_the_key_and_the_device_decide_on_the_mask(full_examples: Path, padding_mask: str, device: str, masks: bool) -> None:
    recipe = recipe_of("masked", merge(FULL, {"run": {"padding_mask": padding_mask}}))
    opened = open_device(recipe.run)
    on = recipe.model_copy(update={"run": recipe.run.model_copy(update={"device": device})})
    reader = open_reader(on, "main", full_examples / "manifest.json", "train", opened)
    assert ("attention_mask" in reader.batch(1)) == masks


def test_sequences_with_padding_keep_their_mask(examples_of: Callable[[str], Path]) -> None:
    recipe = recipe_of("masked")
    reader = open_reader(recipe, "main", examples_of("masked") / "manifest.json", "train", open_device(recipe.run))
    assert not all(reader.batch(step)["attention_mask"].all() for step in (1, 2, 3, 4))
