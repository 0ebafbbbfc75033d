"""Token streams small enough to write down in a test."""

from pathlib import Path

import numpy as np

from relm.artifact import write_sidecar
from relm.examples.manifest import write_manifest
from relm.examples.storage import shard_writer


def write_stream(folder: Path, splits: dict[str, dict[str, list[int]]], vocabulary_size: int = 300, **facts: object) -> Path:
    """Write a manifest of shards (split -> name -> tokens), each one document."""
    agreed = {"objective": "causal", "tokenizer_sha256": "0" * 64, "end_of_text_id": 0, **facts}
    paths: dict[str, list[Path]] = {}
    for split, files in splits.items():
        for name, tokens in files.items():
            path = folder / f"{name}.{split}.bin"
            with shard_writer(path, vocabulary_size) as writer:
                writer.append(np.array(tokens, dtype=np.int32), np.array([len(tokens)], dtype=np.int32))
            counts = {"dtype": writer.dtype, "tokens": writer.tokens, "documents": 1, "words": 2, "bytes": 3}
            write_sidecar(path, vocabulary_size=vocabulary_size, **agreed, **counts)
            paths.setdefault(split, []).append(path)
    write_manifest(paths, folder / "manifest.json")
    return folder / "manifest.json"
