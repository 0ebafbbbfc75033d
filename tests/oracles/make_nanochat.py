"""Make the golden of nanochat's best-fit rows: `python tests/oracles/make_nanochat.py FOLDER DATA`.

FOLDER is a clone of github.com/karpathy/nanochat, of which nanochat/dataloader.py runs unchanged; its functions for processes
and for the list of files are replaced from outside, because they download. DATA is the folder of shared data, which has GPT-2's
tokenizer and WikiText-2. The golden has a hash of all rows of the first pass over the documents, made on one process. It needs
torch, pyarrow and tokenizers.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from made_text import make_token_documents, wikitext_lines
from tokenizers import ByteLevelBPETokenizer

GOLDEN = Path(__file__).resolve().parent / "goldens" / "nanochat.json"
BOS, VOCABULARY = 0, 1000
# Name -> documents, sequence length. A made-up text is its tokens in decimal digits.
MADE = {"made, 64": (4000, 64), "made, 255": (6000, 255)}
WIKITEXT_LENGTHS = (256, 1024)
ROW_GROUP = 1024  # a multiple of the 128 documents that the loader adds at once


def load_loader(folder: Path, parquet: Path) -> Any:
    """Import the loader, which will read this file of documents only."""
    common, dataset = types.ModuleType("nanochat.common"), types.ModuleType("nanochat.dataset")
    common.get_dist_info = lambda: (False, 0, 0, 1)  # type: ignore[attr-defined]
    # The last file is that of the other split.
    dataset.list_parquet_files = lambda warn_on_legacy=False: [str(parquet), str(parquet)]  # type: ignore[attr-defined]
    sys.modules.update({"nanochat": types.ModuleType("nanochat"), "nanochat.common": common, "nanochat.dataset": dataset})
    spec = importlib.util.spec_from_file_location("nanochat.dataloader", folder / "nanochat" / "dataloader.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


class Tokenizer:
    """The two methods that the loader calls."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], bos: int) -> None:
        self._encode, self._bos = encode, bos

    def get_bos_token_id(self) -> int:
        return self._bos

    def encode(self, texts: list[str], prepend: int, num_threads: int) -> list[list[int]]:
        return [[prepend, *tokens] for tokens in self._encode(texts)]


def rows_of(folder: Path, texts: list[str], tokenizer: Tokenizer, length: int) -> Iterator[np.ndarray]:
    """Yield the loader's rows, each with its last label, until it begins with the documents again."""
    with tempfile.TemporaryDirectory() as temporary:
        parquet = Path(temporary) / "documents.parquet"
        pyarrow.parquet.write_table(pa.table({"text": texts}), parquet, row_group_size=ROW_GROUP)
        loader = load_loader(folder, parquet)
        batches = loader.tokenizing_distributed_data_loader_with_state_bos_bestfit(
            tokenizer, B=1, T=length, split="train", device="cpu"
        )
        for inputs, targets, state in batches:
            if state["epoch"] > 1:
                return
            yield np.concatenate([inputs[0].numpy(), targets[0, -1:].numpy()]).astype("<i4")


def describe(rows: Iterator[np.ndarray]) -> dict[str, Any]:
    """Return the count of rows and a hash of them."""
    digest, count = hashlib.sha256(), 0
    for row in rows:
        digest.update(row.tobytes())
        count += 1
    return {"rows": count, "sha256": digest.hexdigest()}


def main(folder: Path, data: Path) -> None:
    """Write the golden."""
    cases = {}
    digits = Tokenizer(lambda texts: [list(map(int, text.split())) for text in texts], BOS)
    for name, (count, length) in MADE.items():
        texts = [" ".join(map(str, tokens)) for tokens in make_token_documents(count, VOCABULARY, seed=length)]
        cases[name] = describe(rows_of(folder, texts, digits, length))
    gpt2 = data / "tokenizers" / "gpt2"
    library = ByteLevelBPETokenizer(str(gpt2 / "encoder.json"), str(gpt2 / "vocab.bpe"))
    real = Tokenizer(lambda texts: [found.ids for found in library.encode_batch(texts)], library.token_to_id("<|endoftext|>"))
    lines = wikitext_lines(data)
    for length in WIKITEXT_LENGTHS:
        cases[f"wikitext-2, {length}"] = describe(rows_of(folder, lines, real, length))
    commit = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    golden = {
        "original": "karpathy/nanochat, nanochat/dataloader.py",
        "commit": commit.stdout.strip(),
        "command": "python tests/oracles/make_nanochat.py FOLDER DATA",
        "cases": cases,
    }
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
