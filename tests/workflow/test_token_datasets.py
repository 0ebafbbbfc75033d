"""A dataset of tokens is downloaded, recorded, imported and trained on without extraction or tokenisation."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from relm.recipes.project import Project
from small_project import Commands
from small_tokenizers import save_words

DATASET = """
title: Three shards of ten words
licence: CC0-1.0
language: en
format: llm_c_tokens
held_out_files: [val.bin]
held_out_tokens: 33
files:
"""
FILE = """
  {name}:
    sha256: first_download
    at_most: 5000
    sources: [{{url: "http://127.0.0.1:9/{name}"}}]
"""
RECIPE = """
title: As small as can be
data: {dataset: words}
tokenizer: {from_model: words}
model: {architecture: gpt2, layers: 1, heads: 2, hidden_size: 32, positions: 8, dropout: 0.0, initialisation: llm_c_bfloat16}
pretrain:
  main:
    objective: causal
    sequence_length: 8
    as_published: {builder: llm_c, seed: 42, ranks: 2, batch: 2}
    global_batch_size: 4
    steps: 12
    optimizer: {learning_rate: 1e-3, gradient_clipping: 1.0}
    schedule: {name: cosine, warmup_steps: 5, decay_ahead: -1}
evaluate: [held_out]
run: {threads: 1, checkpoint_interval: 10, log_interval: 1}
"""
MODEL = "title: Ten words\nlicence: CC0-1.0\ntokenizer: tokenizers_json\nfolder: words\n"
LENGTHS = {"val.bin": 100, "train_1.bin": 150, "train_2.bin": 210}


@pytest.fixture
def tokens(project: Commands) -> Commands:
    """Give the project a dataset of three shards in its mirror, and a recipe that reads them."""
    recipes = project.folder / "recipes"
    dataset = DATASET.lstrip() + "".join(FILE.lstrip("\n").format(name=name) for name in LENGTHS)
    (recipes / "data" / "words.yaml").write_text(dataset)
    (recipes / "models" / "words.yaml").write_text(MODEL)
    (recipes / "words.yaml").write_text(RECIPE)
    (project.folder / "words").mkdir()
    texts = ["<|endoftext|>", *(f"w{number}" for number in range(9))]
    save_words(project.folder / "words" / "tokenizer.json", texts, ["<|endoftext|>"], "w0")
    for number, (name, length) in enumerate(LENGTHS.items()):
        write_shard(project.folder / "mirror" / name, number, length)
    return project


def write_shard(path: Path, seed: int, length: int) -> None:
    values = np.random.default_rng(seed).integers(0, 10, length)
    path.write_bytes(struct.pack("<256i", 20240520, 1, length, *[0] * 253) + values.astype("<u2").tobytes())


def test_the_graph_has_a_download_and_an_import_for_each_file_and_no_extraction(tokens: Commands) -> None:
    jobs = tokens.jobs("results/words")
    assert (jobs["download_data"], jobs["import_tokens"], jobs["manifest"], jobs["pretrain"]) == (3, 3, 1, 1)
    assert not {"extract", "pregenerate", "train_tokenizer"} & jobs.keys()


@pytest.mark.full
def test_tokens_are_trained_on_and_a_changed_file_is_refused(tokens: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tokens.folder)
    plan = Project().plan("words")
    model = str(plan.model_folder("main") / "model.safetensors")
    done = tokens.snakemake(model)
    assert done.returncode == 0, done.stdout
    manifest = json.loads(plan.manifest("main").read_text())
    assert [shard["tokens"] for shard in manifest["splits"]["train"]["shards"]] == [150, 210]
    assert [shard["tokens"] for shard in manifest["splits"]["held_out"]["shards"]] == [33]
    assert tokens.jobs(model) == {}
    download = plan.documents_job.download("train_2.bin")
    record = json.loads(download.with_name("train_2.bin.first_download.json").read_text())
    assert record["source"].endswith("mirror/train_2.bin")
    for path in (download, download.with_name("train_2.bin.json")):
        path.unlink()
    write_shard(tokens.folder / "mirror" / "train_2.bin", seed=9, length=210)
    refused = tokens.snakemake(str(download))
    assert refused.returncode != 0
    assert "This is the sha256 of the first download" in refused.stdout
    assert record["sha256"] in refused.stdout


@pytest.mark.full
def test_what_needs_documents_is_refused_by_its_key(tokens: Commands) -> None:
    path = tokens.folder / "recipes" / "words.yaml"
    path.write_text(RECIPE.replace("{dataset: words}", "{dataset: words, documents: 3}"))
    refused = tokens.snakemake("results/words", "-n").stdout
    assert "words.yaml: data.documents: needs documents, and words has tokens (llm_c_tokens)" in refused
