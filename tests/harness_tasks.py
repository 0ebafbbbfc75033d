"""Tasks of the harness over our data, and small models whose folders resemble published ones."""

import ast
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from relm.evaluation.harness.harness_run import default_python, run_harness
from relm.examples.tokenization.tokenizer_files import load_tokenizer, train_tokenizer
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.training.export import write_model

PROSE = Path(__file__).parent / "data" / "prose-sample.txt"


def harness_python() -> Path:
    """Return the interpreter of the harness's environment, or skip the test if there is none."""
    if not default_python().exists():
        pytest.skip("the harness's environment does not exist: make harness")
    return default_python()


def passages() -> list[str]:
    """Return the sample's sentences."""
    return [line for line in PROSE.read_text(encoding="utf-8").splitlines() if len(line.split()) > 2]


def wikitext() -> str:
    """Return the sample in WikiText's form: headings, and spaces around punctuation."""
    articles = PROSE.read_text(encoding="utf-8").split("\n\n")
    spaced = [re.sub(r"([.,;:!?()\"'])", r" \1 ", article) for article in articles]
    return "".join(
        f" \n = Article {number} = \n \n {article} \n \n = = 12 @,@ 000 words = = \n \n A well @-@ known one . \n"
        for number, article in enumerate(spaced)
    )


def small_model(folder: Path, tokenizer: Path, lines: Sequence[str] = (), positions: int = 48) -> Path:
    """Write a small GPT-2 as training does, trained briefly on some lines, so that it predicts some of their words."""
    loaded = load_tokenizer(tokenizer)
    config = Gpt2Config(
        layers=2, heads=2, hidden_size=32, positions=positions, vocabulary_size=loaded.vocabulary_size, initializer_range=0.1
    )
    model = Gpt2(config)
    model.initialise(torch.Generator().manual_seed(1))
    rows = [loaded.tokenizer.encode(line).ids[-positions - 1 :] for line in lines]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.eval()  # no dropout: the same weights each time
    for _ in range(15):
        for row in rows:
            ids = torch.tensor([row])
            loss = torch.nn.functional.cross_entropy(model.logits(ids[:, :-1])[0], ids[0, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    write_model(model, folder, tokenizer, asdict(loaded.special), {})
    return folder


def small_tokenizer(folder: Path) -> Path:
    """Train a byte-level BPE on the sample; return its path."""
    documents = folder / "documents.jsonl"
    document = {"id": "1", "title": "", "text": PROSE.read_text(encoding="utf-8")}
    documents.write_text(json.dumps(document) + "\n", encoding="utf-8")
    train_tokenizer("byte_level_bpe", [documents], 400, 100_000, folder / "tokenizer.json")
    return folder / "tokenizer.json"


def write_task(folder: Path, name: str, like: str, rows: Sequence[Mapping[str, Any]], python: Path) -> None:
    """Write a task that includes the file of one of the harness's own, on rows of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    included = next(python.parent.parent.glob("lib/python*/site-packages/lm_eval/tasks")) / like
    settings = [f"include: {included}", f"task: {name}", "dataset_path: json", "dataset_name: null"]
    splits = ["training_split: null", "validation_split: null", "test_split: test"]
    data = f"dataset_kwargs: {{data_files: {{test: {name}.jsonl}}}}"
    (folder / f"{name}.yaml").write_text("\n".join([*settings, *splits, data]) + "\n", encoding="utf-8")


def own_tasks(folder: Path, texts: Sequence[str], pages: Sequence[str], python: Path) -> Path:
    """Write `own_lambada` and `own_wikitext`: the harness's `lambada_openai` and `wikitext` on passages and pages of ours."""
    write_task(folder, "own_lambada", "lambada/lambada_openai.yaml", [{"text": text} for text in texts], python)
    write_task(folder, "own_wikitext", "wikitext/wikitext.yaml", [{"page": page} for page in pages], python)
    return folder


def ask_harness(model: Path, tasks: Sequence[str], task_folder: Path, python: Path) -> dict[str, Any]:
    """Return the harness's results, with the log of each example."""
    request = {
        "tasks": list(tasks),
        "model_args": {"pretrained": str(model)},
        "device": "cpu",
        "batch_size": 16,
        "log_samples": True,
    }
    with tempfile.TemporaryDirectory() as made:
        found = run_harness(request, Path(made), 1, task_folder, python)
        samples = {
            name: next(Path(made).rglob(f"samples_{name}_*.jsonl")).read_text().splitlines() for name in found["configs"]
        }
    return {**found, "samples": {name: [read_sample(line) for line in lines] for name, lines in samples.items()}}


def read_sample(line: str) -> dict[str, Any]:
    """Return a line of the harness's log, in which numbers of answers are texts."""
    sample = json.loads(line)
    sample["filtered_resps"] = ast.literal_eval(str(sample["filtered_resps"]).replace("'", ""))
    return sample
