"""A WordPiece tokenizer of 24 tokens, and shards of examples made with it, small enough to check by hand."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_rows import facts_of

from relm.artifact import write_sidecar
from relm.examples.as_published.instances import table_columns
from relm.examples.manifest import write_manifest
from relm.examples.storage import shard_writer
from relm.examples.table import table_writer
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from small_tokenizers import save_wordpieces

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>"]
WORDS = ["the", "cat", "sat", "on", "a", "mat", "##s", "dog", "ran", "far", ".", "é", "off", "it", "was", "not", "##ing", "he"]

MakeTable = Callable[..., Path]
MakeStream = Callable[..., Path]


@pytest.fixture
def wordpiece(tmp_path: Path) -> Path:
    """`tokenizer.json`; `[PAD]` is 0, `[MASK]` is 4, `the` is 6."""
    return save_wordpieces(tmp_path / "tokenizer.json", SPECIAL, WORDS)


@pytest.fixture
def loaded(wordpiece: Path) -> LoadedTokenizer:
    """The same, loaded."""
    return load_tokenizer(wordpiece)


@pytest.fixture
def make_table(tmp_path: Path, loaded: LoadedTokenizer) -> MakeTable:
    """Writes rows with static masks as shards of a manifest, whose path it returns."""

    def make(*shards: list[dict[str, Any]], settings: dict[str, Any] | None = None) -> Path:
        width, capacity = (len(shards[0][0][name]) for name in ("input_ids", "masked_positions"))
        paths = []
        for number, rows in enumerate(shards):
            path = tmp_path / "examples" / f"{number}.train.arrow"
            more = {"objective": "masked", "layout": "table", "settings": {"sequence_length": width, **(settings or {})}}
            facts = facts_of(loaded, [row["length"] for row in rows], **more)
            with table_writer(path, table_columns(width, capacity, loaded.vocabulary_size), facts) as writer:
                writer.append({name: np.array([row[name] for row in rows]) for name in rows[0]})
            write_sidecar(path, **facts, examples=len(rows))
            paths.append(path)
        write_manifest({"train": paths}, tmp_path / "examples" / "manifest.json")
        return tmp_path / "examples" / "manifest.json"

    return make


@pytest.fixture
def make_stream(tmp_path: Path, loaded: LoadedTokenizer) -> MakeStream:
    """Writes documents of token ids as shards of a manifest, whose path it returns."""

    def make(*shards: list[list[int]]) -> Path:
        paths = []
        for number, documents in enumerate(shards):
            path = tmp_path / "examples" / f"{number}.train.bin"
            sizes = [len(document) for document in documents]
            with shard_writer(path, loaded.vocabulary_size) as writer:
                writer.append(np.array(list(chain.from_iterable(documents)), dtype=np.int32), np.array(sizes, dtype=np.int32))
            write_sidecar(path, **facts_of(loaded, sizes, objective="causal", layout="tokens", settings={}))
            paths.append(path)
        write_manifest({"train": paths}, tmp_path / "examples" / "manifest.json")
        return tmp_path / "examples" / "manifest.json"

    return make
