"""Examples are read as they were pregenerated, and a wrong fast encoder is replaced by the library."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.examples.builders import open_examples, pregenerate
from relm.examples.manifest import write_manifest
from relm.examples.tokenization import encoder as module
from relm.recipes.objectives import Objective


class Wrong:
    """A fast encoder whose ids are all wrong."""

    def encoded(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([1], dtype=np.int32) for _ in texts]

    def word_starts(self, texts: Sequence[str], rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.ones(len(rows), dtype=np.bool_)


@pytest.mark.parametrize("phase", [{"objective": "causal"}, {"objective": "seq2seq"}])
def test_the_library_replaces_a_wrong_fast_encoder(
    tmp_path: Path, tokenizer, prose, write_documents, monkeypatch, phase: dict
) -> None:
    documents = write_documents("a.jsonl", prose[:30])
    objective = Objective.model_validate({"sequence_length": 16, **phase})
    right, found = (tmp_path / f"{name}{objective.suffix}" for name in ("right", "found"))
    pregenerate(documents, tokenizer, right, objective, "en", 1)
    monkeypatch.setitem(module.FAST_ENCODERS, "byte_level_bpe", lambda *_: Wrong())
    message = pregenerate(documents, tokenizer.rename(tmp_path / "tokenizer.json"), found, objective, "en", 1)
    assert "encoded by the tokenizers library" in message
    assert sha256_of(found) == sha256_of(right)


def test_examples_made_with_other_settings_are_not_read(tmp_path: Path, tokenizer, prose, write_documents) -> None:
    documents = write_documents("a.jsonl", prose[:30])
    made = Objective.model_validate({"objective": "seq2seq", "sequence_length": 16})
    pregenerate(documents, tokenizer, tmp_path / "a.train.arrow", made, "en", 1)
    write_manifest({"train": [tmp_path / "a.train.arrow"]}, tmp_path / "manifest.json")
    assert len(open_examples(tmp_path / "manifest.json", "train", made, 0))
    other = Objective.model_validate({"objective": "seq2seq", "sequence_length": 16, "seq2seq": {"texts": "documents"}})
    with pytest.raises(RelmError, match=r"manifest\.json: expected examples with .*, found"):
        open_examples(tmp_path / "manifest.json", "train", other, 0)
    masked = Objective.model_validate({"objective": "masked", "sequence_length": 16})
    with pytest.raises(RelmError, match="expected masked examples, found seq2seq"):
        open_examples(tmp_path / "manifest.json", "train", masked, 0)
