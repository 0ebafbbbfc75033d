"""A run's start equals its original's, and a changed seed, order, rate or normalisation is reported by its name."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.llm_c import Geometry, order_of_epoch
from relm.examples.manifest import write_manifest
from relm.examples.storage import shard_writer
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.forecast.start_comparison import describe_start
from relm.recipes.datasets import Dataset
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.starts import load_start
from relm.training.architecture import configuration, initial_model

SHARDS, STEPS = (300, 450), 40
RECIPE: dict[str, Any] = {
    "title": "A test",
    "data": {"dataset": "tokens"},
    "tokenizer": {"from_model": "gpt2_tokenizer"},
    "model": {
        "architecture": "gpt2",
        "layers": 1,
        "heads": 2,
        "hidden_size": 8,
        "positions": 8,
        "dropout": 0.0,
        "initialisation": "llm_c",
    },
    "pretrain": {
        "main": {
            "objective": "causal",
            "sequence_length": 8,
            "as_published": {"builder": "llm_c", "seed": 42, "ranks": 2, "batch": 4},
            "global_batch_size": 8,
            "steps": STEPS,
            "optimizer": {"learning_rate": 6e-4, "gradient_clipping": 1.0},
            "schedule": {"name": "cosine", "warmup_steps": 10, "decay_ahead": -1},
        }
    },
    "seed": 42,
}
FILE = {"sha256": "0" * 64, "size": 3, "sources": [{"url": "https://example.org/a"}]}
DATASET = {
    "title": "Tokens",
    "licence": "CC0-1.0",
    "language": "en",
    "format": "llm_c_tokens",
    "held_out_files": ["val.bin"],
    "files": {"val.bin": FILE, "train.bin": FILE},
}


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    key, _, rest = path.partition(".")
    return {**document, key: changed(document[key], rest, value) if rest else value}


def plan_with(checkout: Path, work: Path, **changes: Any) -> Plan:
    recipe = RECIPE
    for path, value in changes.items():
        recipe = changed(recipe, path.replace("__", "."), value)
    tokenizer = Project(checkout).model("gpt2_tokenizer")
    return Plan("tiny", Recipe.model_validate(recipe), Dataset.model_validate(DATASET), tokenizer, None, work=work)


@pytest.fixture(scope="module")
def oracles(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the oracles of the small recipe, from figures that are computed apart from the code under test."""
    folder = tmp_path_factory.mktemp("starts")
    geometry = Geometry(SHARDS, ranks=2, batch=4, sequence_length=8)
    order = np.concatenate([order_of_epoch(geometry, epoch) for epoch in range(5)])[:STEPS]
    rates = [6e-4 * (u + 1) / 10 if u < 10 else 3e-4 * (1 + np.cos(np.pi * (u - 10) / 30)) for u in range(STEPS)]
    plan = plan_with(checkout, folder)
    model = initial_model(configuration(plan.recipe, tokenizer_of(plan)[0]), 42, None)
    matrices = {name: value.detach().numpy() for name, value in model.named_parameters() if value.dim() == 2}
    document = {
        "weights": {
            "source": "s",
            "sha256": {
                "avx2": {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in matrices.items()},
                "default": dict.fromkeys(matrices, "0" * 64),
            },
        },
        "order": {"source": "s", "shards": [[1, 300], [1, 450]], "sha256": hashlib.sha256(order.tobytes()).hexdigest()},
        "rates": {
            "source": "s",
            "decimals": 6,
            "sha256": hashlib.sha256("".join(f"{rate:.6f}\n" for rate in rates).encode()).hexdigest(),
            "milestones": {1: 0.00006, 25: round(float(rates[24]), 6)},
        },
        "options": {
            "source": "s",
            "values": {"pretrain.main.loss_normalisation": "global_tokens", "pretrain.main.optimizer.gradient_clipping": 1.0},
        },
        # Before the first update all 50,257 tokens are about as likely as each other.
        "first_loss": {"source": "s", "nats_per_token": 10.825, "tolerance": 0.01},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(document))
    return folder / "tiny.yaml"


def test_an_unchanged_recipe_is_equal_in_each_comparison(checkout: Path, oracles: Path, tmp_path: Path) -> None:
    text = describe_start(plan_with(checkout, tmp_path), oracles)
    verdicts = [line[23:36].strip() for line in text.splitlines()[1:]]
    assert verdicts == ["equal"] * 4 + ["not compared"]
    assert "first loss           not compared  needs the examples: `snakemake " in text


CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "seed": ({"seed": 43}, "initial weights", r"the first transformer\.wte\.weight; compare seed, model\.initialisation"),
    "draws": ({"model__initialisation": "normal"}, "initial weights", "the first transformer.h.0.attn.c_attn.weight"),
    "order": ({"pretrain__main__as_published__seed": 41}, "order of sequences", r"compare as_published \(seed, ranks, batch\)"),
    "ranks": (
        {"pretrain__main__as_published": {"builder": "llm_c", "seed": 42, "ranks": 4, "batch": 2}},
        "order of sequences",
        "compare as_published",
    ),
    "builder": ({"pretrain__main__as_published": None}, "order of sequences", r"expected llm_c or modded_nanogpt, found None"),
    "rate": ({"pretrain__main__optimizer__learning_rate": 5e-4}, "learning rates", r"at step 1: 0\.000050, not 6e-05"),
    "decay": ({"pretrain__main__schedule__decay_ahead": 0}, "learning rates", "at step 25"),
    "normalisation": (
        {"pretrain__main__loss_normalisation": "per_replica", "pretrain__main__loss_shares": 2},
        "options",
        r"pretrain\.main\.loss_normalisation is per_replica, the original has global_tokens",
    ),
    "clipping": ({"pretrain__main__optimizer__gradient_clipping": None}, "options", "gradient_clipping is None"),
}


@pytest.mark.parametrize(("changes", "name", "detail"), CHANGES.values(), ids=CHANGES)
def test_a_changed_recipe_differs_in_what_was_changed(
    checkout: Path, oracles: Path, tmp_path: Path, changes: dict[str, Any], name: str, detail: str
) -> None:
    with pytest.raises(RelmError, match=detail) as caught:
        describe_start(plan_with(checkout, tmp_path, **changes), oracles)
    first = str(caught.value).splitlines()[0]
    assert first == f"tiny: its start differs from the original's: {name}"
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("name", "oracle", "detail"),
    [
        ("options", {"source": "s", "values": {"model.drpout": None}}, "the recipe has no key drpout there; correct it"),
        ("order", {"source": "s", "shards": [[2, 64]], "sha256": "0" * 64}, "a shard has 64 tokens, and 65 are read at once"),
    ],
)
def test_wrong_oracles_are_never_equal(checkout: Path, tmp_path: Path, name: str, oracle: Any, detail: str) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({name: oracle}))
    with pytest.raises(RelmError, match=detail):
        describe_start(plan_with(checkout, tmp_path), tmp_path / "tiny.yaml")


@pytest.mark.parametrize("shards", [[[-1, 5]], [[1, 0]], [[10**9, 5]]])
def test_impossible_counts_of_shards_are_refused(tmp_path: Path, shards: list[list[int]]) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"order": {"source": "s", "shards": shards, "sha256": "0" * 64}}))
    with pytest.raises(RelmError, match=r"order\.shards\.0\.[01]: expected (less|greater) than"):
        load_start(tmp_path / "tiny.yaml")


def write_examples(plan: Plan, shards: tuple[int, ...] = SHARDS) -> None:
    folder = plan.examples_jobs["main"].folder
    folder.mkdir(parents=True)
    tokens = np.random.default_rng(0).integers(0, 50_257, sum(shards)).tolist()
    paths = []
    for number, length in enumerate(shards):
        path = folder / f"{number}.train.bin"
        with shard_writer(path, 50_257) as writer:
            writer.append(np.array(tokens[sum(shards[:number]) :][:length]), np.array([length]))
        counts = {"dtype": writer.dtype, "tokens": length, "documents": 1, "words": 2, "bytes": 3}
        write_sidecar(
            path, objective="causal", tokenizer_sha256="0" * 64, vocabulary_size=50_257, end_of_text_id=50_256, **counts
        )
        paths.append(path)
    write_manifest({"train": paths}, folder / "manifest.json")


def test_the_loss_of_the_first_batch_is_compared_where_the_examples_are(checkout: Path, oracles: Path, tmp_path: Path) -> None:
    plan = plan_with(checkout, tmp_path)
    write_examples(plan)
    text = describe_start(plan, oracles)
    assert "first loss           equal" in text
    other = yaml.safe_load(oracles.read_text())
    other["first_loss"]["nats_per_token"] = 11.0091
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    with pytest.raises(RelmError, match=r"first loss +differs +10\.8\d\d\d nats per token, but the original logs 11\.0091"):
        describe_start(plan, tmp_path / "other.yaml")


def test_examples_of_other_lengths_differ_from_the_originals(checkout: Path, oracles: Path, tmp_path: Path) -> None:
    plan = plan_with(checkout, tmp_path)
    write_examples(plan, (300, 451))
    with pytest.raises(RelmError, match=r"training shard 2 of .* has 451 tokens, the original's has 450"):
        describe_start(plan, oracles)


def test_a_recipe_without_oracles_says_what_can_be_checked(checkout: Path, tmp_path: Path) -> None:
    text = describe_start(plan_with(checkout, tmp_path), tmp_path / "absent.yaml")
    assert "the start cannot be compared" in text
    assert "relm estimate tiny" in text


@pytest.mark.full
def test_the_start_of_the_shipped_recipe_is_that_of_llm_c(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    text = describe_start(Project().plan("gpt2_124m_fineweb10b"), Path("recipes/starts/gpt2_124m_fineweb10b.yaml"))
    assert text.count("  equal  ") == 4
    assert "10,014,720 sequences of 19,560 steps" in text
