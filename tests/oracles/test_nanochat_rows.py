"""Rows of whole documents are those of nanochat's own loader, whose golden `make_nanochat.py` makes."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from golden_files import GOLDENS
from made_text import make_token_documents, wikitext_lines
from make_nanochat import BOS, MADE, VOCABULARY, WIKITEXT_LENGTHS

from relm.examples.best_fit import BestFitPacker
from relm.examples.document_rows import pregenerate_document_rows
from relm.examples.table import ExampleTable
from relm.examples.tokenization.tokenizer_files import import_tokenizer
from relm.recipes.objectives import Objective
from small_documents import write_texts

CASES = json.loads((GOLDENS / "nanochat.json").read_text(encoding="utf-8"))["cases"]


def require_first_rows(rows: np.ndarray, case: str) -> None:
    """Compare with the rows that nanochat makes before it begins with the documents again, and so has other ones to choose."""
    count = CASES[case]["rows"]
    assert len(rows) > count
    assert hashlib.sha256(rows[:count].astype("<i4").tobytes()).hexdigest() == CASES[case]["sha256"]


@pytest.mark.parametrize("case", MADE)
def test_made_up_documents_are_packed_as_nanochat_packs_them(case: str) -> None:
    count, length = MADE[case]
    documents = [np.array(tokens, dtype=np.uint16) for tokens in make_token_documents(count, VOCABULARY, seed=length)]
    require_first_rows(np.concatenate(list(BestFitPacker(length + 1, BOS).rows(iter(documents)))), case)


@pytest.fixture(scope="module")
def tokenizer(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"}
    path = tmp_path_factory.mktemp("gpt2") / "tokenizer.json"
    import_tokenizer("gpt2_bpe", {name: shared_data / "tokenizers" / "gpt2" / file for name, file in files.items()}, path)
    return path


@pytest.mark.parametrize("length", WIKITEXT_LENGTHS)
def test_a_table_of_wikitext_has_the_rows_of_nanochat(shared_data: Path, tokenizer: Path, tmp_path: Path, length: int) -> None:
    documents = write_texts(tmp_path / "a.jsonl", wikitext_lines(shared_data))
    options = {"causal": {"packing": "best_fit", "end_of_text": "before"}}
    objective = Objective.model_validate({"objective": "causal", "sequence_length": length, **options})
    pregenerate_document_rows(documents, tokenizer, tmp_path / "a.arrow", objective, "en", 1)
    table = ExampleTable(tmp_path / "a.arrow")
    require_first_rows(table.rows("tokens", np.arange(len(table))), f"wikitext-2, {length}")
