"""Our `lambada_openai` and `wikitext` are those of EleutherAI's harness, which runs here on the same data and weights."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_texts import gpt2_tokenizer, unpacked
from tokenizer_forms import legacy_sentencepiece

from harness_tasks import ask_harness, harness_python, own_tasks, passages, small_model, small_tokenizer, wikitext
from relm.evaluation.execution import Execution
from relm.evaluation.lambada import evaluate_lambada, score_passages, tokenise_passages
from relm.evaluation.models import load_causal
from relm.evaluation.scoring import ScoredSequences, score
from relm.evaluation.text_perplexity import evaluate_text, prepare_text, split_pages
from relm.evaluation.windows import cut_documents
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.evaluation.protocol_options import Lambada, TextPerplexity

WIKITEXT = TextPerplexity(
    detokeniser="gpt2_wikitext", documents="level_1_headings", windows="rolling", first_token="scored", words="whitespace"
)
ONE_THREAD = Execution(threads=1, batch_tokens=1000)
SAME = 1e-4


@dataclass
class Compared:
    """A model, the data of its evaluation, and the harness's figures."""

    model: Path
    texts: list[str]
    document: str
    found: dict[str, Any]
    folder: Path

    @property
    def tokenizer(self) -> Path:
        return self.model / "tokenizer.json"


def compared(folder: Path, model: Path, texts: list[str], document: str) -> Compared:
    """Return both tasks, evaluated by the harness."""
    python = harness_python()
    tasks = own_tasks(folder / "tasks", texts, split_pages(document), python)
    found = ask_harness(model, ["own_lambada", "own_wikitext"], tasks, python)
    return Compared(model, texts, document, found, folder)


def require_same_lambada(case: Compared) -> tuple[int, int]:
    """Compare log-likelihood and correctness of each passage, and the figures; return counts of correct and of cut ones."""
    loaded = load_tokenizer(case.tokenizer)
    prepared = tokenise_passages(case.texts, loaded, case.folder)
    scores = score_passages(load_causal(case.model, loaded.vocabulary_size, ONE_THREAD), prepared, 1000)
    theirs = [sample["filtered_resps"][0] for sample in case.found["samples"]["own_lambada"]]
    assert (-scores.harness_nats).tolist() == pytest.approx([nats for nats, _ in theirs], rel=SAME, abs=SAME)
    assert scores.harness.tolist() == [correct for _, correct in theirs]
    file, output = case.folder / "passages.jsonl", case.folder / "lambada.json"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in case.texts), encoding="utf-8")
    evaluate_lambada(case.model, case.tokenizer, file, Lambada(), output=output, execution=ONE_THREAD)
    figures, theirs = json.loads(output.read_text())["figures"], case.found["results"]["own_lambada"]
    assert figures["lambada_openai_accuracy"] == pytest.approx(theirs["acc,none"], abs=SAME)
    assert figures["lambada_openai_perplexity"] == pytest.approx(theirs["perplexity,none"], rel=SAME)
    assert figures["truncated"] == case.found["truncated"]
    return int(scores.harness.sum()), figures["truncated"]


def require_same_wikitext(case: Compared) -> int:
    """Compare log-likelihood of each page, and perplexity by word, by byte and in bits; return the count of windows."""
    loaded = load_tokenizer(case.tokenizer)
    model = load_causal(case.model, loaded.vocabulary_size, ONE_THREAD)
    text = prepare_text(case.document, loaded, WIKITEXT, None)
    windows = cut_documents("rolling", text.sizes, model.positions, model.positions)
    sequences = ScoredSequences(text.array, windows.starts, windows.ends, windows.scored)
    first = np.searchsorted(windows.starts, np.cumsum(text.sizes) - text.sizes)
    sums = np.add.reduceat(score(model, sequences, 1000).nats, sequences.offsets[first])
    theirs = [sample["filtered_resps"][0] for sample in case.found["samples"]["own_wikitext"]]
    assert (-sums).tolist() == pytest.approx(theirs, rel=SAME / 10)
    file, output = case.folder / "wiki.txt", case.folder / "wikitext.json"
    file.write_text(case.document, encoding="utf-8", newline="")
    evaluate_text(case.model, case.tokenizer, file, WIKITEXT, output=output, execution=ONE_THREAD)
    figures, found = json.loads(output.read_text())["figures"], case.found["results"]["own_wikitext"]
    assert figures["bits_per_byte"] == pytest.approx(found["bits_per_byte,none"], abs=SAME)
    assert math.exp2(figures["bits_per_byte"]) == pytest.approx(found["byte_perplexity,none"], abs=SAME)
    assert math.log(figures["perplexity_per_word"]) == pytest.approx(math.log(found["word_perplexity,none"]), abs=SAME)
    assert figures["documents"] == len(theirs)
    return figures["windows"]


def test_figures_on_the_committed_sample_are_the_harness_s(tmp_path: Path) -> None:
    texts = passages()
    model = small_model(tmp_path / "model", small_tokenizer(tmp_path), texts[:12])
    case = compared(tmp_path, model, texts, wikitext())
    correct, cut = require_same_lambada(case)
    assert 0 < correct < len(texts)
    assert 0 < cut < len(texts)
    assert require_same_wikitext(case) > 2 * len(split_pages(case.document))


@pytest.mark.full
def test_figures_of_a_tokenizer_that_begins_each_text_with_a_prefix_are_the_harness_s(tmp_path: Path) -> None:
    legacy_sentencepiece(tmp_path / "tokenizer.json")
    texts = [*passages(), "Two  spaces  stand between  words ", "A line ends before the last.\n word"]
    case = compared(tmp_path, small_model(tmp_path / "model", tmp_path / "tokenizer.json", texts[:12]), texts, wikitext())
    assert require_same_lambada(case)[0] > 0
    figures = json.loads((tmp_path / "lambada.json").read_text())["figures"]
    assert figures["strict_accuracy"] > 0


@pytest.mark.full
def test_figures_on_the_published_tests_are_the_harness_s(tmp_path: Path, shared_data: Path) -> None:
    texts, document = published(shared_data, tmp_path, 40, 3, 3000)
    tokenizer = gpt2_tokenizer(shared_data, tmp_path)
    case = compared(tmp_path, small_model(tmp_path / "model", tokenizer, positions=64), texts, document)
    require_same_lambada(case)
    assert require_same_wikitext(case) > 30


@pytest.mark.quickstart
def test_figures_of_the_quickstart_s_own_model_are_the_harness_s(tmp_path: Path, checkout: Path, shared_data: Path) -> None:
    texts, document = published(shared_data, tmp_path, 100, 8, 20_000)
    case = compared(tmp_path, checkout / "results" / "quickstart", texts, document)
    assert require_same_lambada(case)[1] > 50
    assert require_same_wikitext(case) > 500


def published(shared_data: Path, folder: Path, count: int, articles: int, characters: int) -> tuple[list[str], str]:
    """Return the first passages of LAMBADA, and the beginnings of the first articles of WikiText-2."""
    names = ("lambada/lambada_test.jsonl", "wikitext-2-raw/wiki.test.raw")
    lines, document = (unpacked(shared_data, name, folder).read_bytes().decode() for name in names)
    texts = [json.loads(line)["text"] for line in lines.splitlines()[:count]]
    return texts, "\n".join(page[:characters] for page in split_pages(document)[:articles])
