"""Log-likelihoods of choices, and figures, are those of EleutherAI's harness, which runs here on the same data and weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from choice_files import ROWS, TASKS, write_lines
from llama_form import llama_folder
from tokenizer_forms import legacy_sentencepiece

from harness_tasks import ask_harness, harness_python, passages, small_model, small_tokenizer, write_task
from relm.evaluation.beginning import added_tokens
from relm.evaluation.choices.choice_formats import read_questions
from relm.evaluation.choices.choice_tokens import ChoiceEncoder
from relm.evaluation.choices.multiple_choice import evaluate_multiple_choice, score_choices
from relm.evaluation.execution import Execution
from relm.evaluation.models import load_causal
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.evaluation.protocol_options import MultipleChoice

ONE_THREAD = Execution(threads=1, batch_tokens=300)
SAME = 1e-4
FIGURES = {"acc": "lm_eval_accuracy", "acc_norm": "lm_eval_accuracy_per_character"}


def ask(model: Path, folder: Path) -> dict[str, Any]:
    """Return the harness's answers on all formats."""
    python, tasks = harness_python(), folder / "tasks"
    for name, rows in ROWS.items():
        write_task(tasks, f"own_{name}", TASKS[name], rows, python)
    return ask_harness(model, [f"own_{name}" for name in ROWS], tasks, python)


def require_same(model: Path, folder: Path) -> int:
    """Compare each choice's log-likelihood and each figure with the harness's; return how many contexts were cut."""
    theirs, loaded, cut = ask(model, folder), load_tokenizer(model / "tokenizer.json"), 0
    encoder = ChoiceEncoder(loaded, added_tokens(loaded))
    for name, rows in ROWS.items():
        file = write_lines(folder / f"{name}.jsonl", rows)
        questions, _ = read_questions(file, None, name, None)
        encoded = {"lm_eval": encoder.encode("lm_eval", questions)}
        found = score_choices(load_causal(model, loaded.vocabulary_size, ONE_THREAD), questions, encoded, 300)["lm_eval"]
        samples = theirs["samples"][f"own_{name}"]
        expected = [nats for sample in samples for nats, _ in sample["filtered_resps"]]
        assert found.log_likelihoods.tolist() == pytest.approx(expected, rel=0, abs=SAME), name
        cut += int(found.truncated.sum())
        evaluate_multiple_choice(
            model,
            model / "tokenizer.json",
            file,
            MultipleChoice(format=name),
            output=folder / "e.json",
            task=name,
            execution=ONE_THREAD,
        )
        figures = json.loads((folder / "e.json").read_text())["figures"]
        for key, own in FIGURES.items():
            if f"{key},none" in theirs["results"][f"own_{name}"] and own in figures:
                assert figures[own] == pytest.approx(theirs["results"][f"own_{name}"][f"{key},none"], abs=SAME)
                assert figures[f"{own}_stderr"] == pytest.approx(
                    theirs["results"][f"own_{name}"][f"{key}_stderr,none"], abs=SAME
                )
    assert cut == theirs["truncated"]
    return cut


@pytest.mark.full
def test_choices_have_the_harness_s_log_likelihoods(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model", small_tokenizer(tmp_path), passages()[:3], positions=60)
    assert require_same(model, tmp_path) > 0


@pytest.mark.full
@pytest.mark.parametrize("adds_bos", [True, False])
def test_choices_have_the_harness_s_log_likelihoods_with_a_llama(adds_bos: bool, tmp_path: Path) -> None:
    model = llama_folder(tmp_path / "model", adds_bos)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 60}))
    require_same(model, tmp_path)


@pytest.mark.full
def test_choices_have_the_harness_s_log_likelihoods_with_a_prefix_before_every_text(tmp_path: Path) -> None:
    legacy_sentencepiece(tmp_path / "tokenizer.json")
    require_same(small_model(tmp_path / "model", tmp_path / "tokenizer.json", positions=100), tmp_path)
