"""The recipe `shakespeare_char` is nanoGPT's run on a CPU: its data byte for byte, its model, its learning rate at each update.

The command that it repeats, of karpathy/nanoGPT at 3adf61e1 (README.md, "I only have a macbook"):

    python train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1
      --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0
"""

import lzma
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from relm.artifact import read_json, sha256_of
from relm.corpus.documents import read_documents
from relm.corpus.extract import extract
from relm.examples.causal import CausalExamples
from relm.examples.manifest import TokenizerFacts, write_manifest
from relm.examples.pregenerate import pregenerate_stream
from relm.examples.tokenization.tokenizer_files import train_tokenizer
from relm.recipes.jobs import SPLITS
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.training.architecture import configuration, initial_model
from relm.training.optimizers import build_optimizer
from relm.training.schedules import learning_rate_scale
from small_project import CHECKOUT

# What nanoGPT's data/shakespeare_char/prepare.py writes: train.bin, val.bin.
PREPARED = {
    "train": (1_003_854, "6ec305602a99ac2802745a134e1f5e33e2231b4855525b00b9aebb730ac2626f"),
    "held_out": (111_540, "d37d30cc0c8327c270d493299c3dca54135f6d5f1c9ef60cda78076e311204b1"),
}
# What its train.py prints of the model: number of parameters (without positions), decayed ones, the others.
PARAMETERS, DECAYED, OTHERS = "0.80M", 802_944, 1_152


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Project(CHECKOUT).plan("shakespeare_char")


@pytest.fixture(scope="module")
def manifest(plan: Plan, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, by the steps of the graph."""
    folder = tmp_path_factory.mktemp("shakespeare")
    source = folder / "tinyshakespeare.txt"
    source.write_bytes(lzma.decompress((shared_data / "text" / "tinyshakespeare.txt.xz").read_bytes()))
    documents = {split: folder / f"{split}.jsonl" for split in SPLITS}
    extract(plan.dataset, source, documents, None, 1)
    choice, phase = plan.recipe.tokenizer, plan.recipe.pretrain["main"]
    tokenizer = folder / "tokenizer.json"
    train_tokenizer(
        str(choice.train),
        [documents["train"]],
        None,
        choice.training_bytes,
        tokenizer,
        special_tokens=choice.special_tokens,
    )
    shards = {split: [folder / f"text.{split}.bin"] for split in SPLITS}
    for split in SPLITS:
        pregenerate_stream(documents[split], tokenizer, shards[split][0], phase, "en", 1)
    write_manifest(shards, folder / "manifest.json")
    return folder / "manifest.json"


def test_the_text_is_cut_at_nine_tenths_of_its_characters(manifest: Path) -> None:
    texts = [next(iter(read_documents(manifest.parent / f"{split}.jsonl"))).text for split in SPLITS]
    text = (manifest.parent / "tinyshakespeare.txt").read_text()
    assert texts == [text[: int(len(text) * 0.9)], text[int(len(text) * 0.9) :]]


@pytest.mark.parametrize("split", SPLITS)
def test_the_tokens_are_those_that_nanogpt_prepares(split: str, manifest: Path) -> None:
    shard = manifest.parent / f"text.{split}.bin"
    tokens = np.fromfile(shard, "<u2")
    assert (len(tokens), sha256_of(shard)) == PREPARED[split]
    assert tokens.max() < 65


def test_a_window_begins_wherever_nanogpts_may(plan: Plan, manifest: Path) -> None:
    phase = plan.recipe.pretrain["main"]
    examples = CausalExamples(manifest, "train", phase.sequence_length, phase.causal)
    assert len(examples) == 1_003_854 - 64
    assert examples.is_drawn
    ends = examples.windows(np.array([0, len(examples) - 1]))
    tokens = np.fromfile(manifest.parent / "text.train.bin", "<u2")
    assert ends.tolist() == [tokens[:65].tolist(), tokens[-65:].tolist()]


def get_lr(update: int) -> float:
    """nanoGPT's, with `lr_decay_iters` 2,000: learning rate 1e-3, 100 updates of warm-up, floor 1e-4; updates count from 0."""
    if update < 100:
        return 1e-3 * (update + 1) / 101
    return 1e-4 + 0.5 * (1.0 + math.cos(math.pi * (update - 100) / 1900)) * 9e-4


def test_the_learning_rate_is_nanogpts_at_every_update(plan: Plan) -> None:
    phase = plan.recipe.pretrain["main"]
    peak = phase.optimizer.learning_rate
    found = [peak * learning_rate_scale(phase.schedule, step, phase.steps) for step in range(1, 2001)]
    assert found == pytest.approx([get_lr(update) for update in range(2000)], rel=1e-12)
    # The first, the last of the warm-up, the peak, half way, and the last before nanoGPT's evaluation at 2,000.
    literal = {1: 9.900990099e-06, 100: 9.900990099e-04, 101: 1e-3, 1051: 5.5e-4, 2000: 1.0000061514e-04}
    assert {step: found[step - 1] for step in literal} == pytest.approx(literal, rel=1e-9)


def test_the_model_has_nanogpts_parameters_and_initial_weights(plan: Plan) -> None:
    config = configuration(plan.recipe, TokenizerFacts("0" * 64, 65, None))
    model = initial_model(config, seed=3, init_from=None)
    weights = dict(model.named_parameters())
    assert not [name for name in weights if name.endswith("bias")]
    positions = weights["transformer.wpe.weight"].numel()
    assert f"{(model.parameter_count() - positions) / 1e6:.2f}M" == PARAMETERS
    for name, weight in weights.items():
        if weight.dim() == 1:
            assert torch.equal(weight, torch.ones_like(weight)), name
            continue
        spread = 0.02 / math.sqrt(8) if name.endswith("c_proj.weight") else 0.02
        # The standard deviation of n normal numbers is off by one part in sqrt(2 n); five times that is allowed.
        assert weight.std().item() == pytest.approx(spread, rel=5 / math.sqrt(2 * weight.numel())), name


def test_the_optimizer_decays_only_matrices_and_embeddings(plan: Plan) -> None:
    model = initial_model(configuration(plan.recipe, TokenizerFacts("0" * 64, 65, None)), seed=3, init_from=None)
    optimizer = build_optimizer(model, plan.recipe.pretrain["main"].optimizer)
    numbers = {group["weight_decay"]: sum(weight.numel() for weight in group["params"]) for group in optimizer.param_groups}
    assert numbers == {0.1: DECAYED, 0.0: OTHERS}
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.99)}
    assert {group["eps"] for group in optimizer.param_groups} == {1e-8}


def test_the_gpu_run_differs_in_what_nanogpts_configuration_says(plan: Plan) -> None:
    gpu = Project(CHECKOUT).plan("shakespeare_char_gpu").recipe
    phase = gpu.pretrain["main"]
    sizes = gpu.model.layers, gpu.model.heads, gpu.model.hidden_size, gpu.model.longest_sequence, gpu.model.dropout
    assert sizes == (6, 6, 384, 256, 0.2)
    assert (phase.sequence_length, phase.global_batch_size, phase.steps) == (256, 64, 5000)
    rates = [1e-3 * learning_rate_scale(phase.schedule, step, 5000) for step in (1, 101, 2551, 5000)]
    assert rates == pytest.approx([1e-3 / 101, 1e-3, 5.5e-4, 1e-4 + 4.5e-4 * (1 + math.cos(math.pi * 4899 / 4900))])
    assert (phase.optimizer, gpu.run.device, gpu.random_windows.batches) == (
        plan.recipe.pretrain["main"].optimizer,
        "cuda",
        200,
    )


@pytest.mark.full
@pytest.mark.timeout(3700)
def test_the_run_itself_gives_about_the_published_loss(shared_data: Path, tmp_path: Path) -> None:
    """Minutes on two cores; 1.88 is the loss that nanoGPT's README reports."""
    for name in ("Snakefile", "src", "profiles", "containers", "recipes"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    environment = {
        **os.environ,
        "RELM_MIRROR": str(shared_data),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("RELM_WORK", None)
    subprocess.run(["snakemake", "results/shakespeare_char"], cwd=tmp_path, env=environment, check=True, timeout=3600)
    results = tmp_path / "results" / "shakespeare_char"
    estimate, whole = (read_json(results / "eval" / f"{task}.json")["figures"] for task in ("random_windows", "held_out"))
    assert estimate["loss"] == pytest.approx(1.88, abs=0.1)
    assert whole["nats_per_token"] == pytest.approx(estimate["loss"], abs=5 * estimate["loss_standard_error"])
    assert whole["tokens_scored"] == 111_539
    assert read_json(results / "verify.json")["rows"][0]["published"] == 1.88
