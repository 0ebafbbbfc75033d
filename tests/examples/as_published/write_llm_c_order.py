"""Write `llm_c_order.json`: hashes of the order in which llm.c's own C loader reads its shards.

    python tests/examples/as_published/write_llm_c_order.py LLM_C_REPOSITORY [--commit COMMIT]

LLM_C_REPOSITORY is a clone of github.com/karpathy/llm.c. Its headers are compiled with gcc in a temporary folder; the shards
there are sparse files with a header, because the loader's order depends only on their lengths.
"""

import argparse
import hashlib
import json
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

COMMIT = "f1e2ace651495b74ae22d45d1723443fd00ecd3a"
GOLDENS = Path(__file__).with_name("llm_c_order.json")
HEADERS = ("dataloader.h", "rand.h", "utils.h")
FINEWEB = [100_000_000] * 102 + [55_324_043]
CASES: list[dict[str, Any]] = [
    {"shards": [1000], "ranks": 1, "batch": 2, "sequence_length": 8, "steps": 150},
    {"shards": [17, 500, 33, 1025, 16 * 7 + 1], "ranks": 1, "batch": 2, "sequence_length": 8, "steps": 400},
    {"shards": [900, 321, 65, 64 * 3 + 2, 5000], "ranks": 2, "batch": 4, "sequence_length": 8, "steps": 500},
    {"shards": [70000, 4097, 12289, 30000], "ranks": 8, "batch": 4, "sequence_length": 128, "steps": 100},
    {"shards": [60000] * 12, "ranks": 8, "batch": 64, "sequence_length": 16, "steps": 250},
    {"shards": FINEWEB, "ranks": 8, "batch": 64, "sequence_length": 1024, "steps": 19560},
]
PROGRAM = """
#include "dataloader.h"
int main(int argc, char **argv) {
    int ranks = atoi(argv[2]), batch = atoi(argv[3]), length = atoi(argv[4]), steps = atoi(argv[5]);
    DataLoader *loaders = calloc(ranks, sizeof(DataLoader));
    for (int rank = 0; rank < ranks; rank++) dataloader_init(&loaders[rank], argv[1], batch, length, rank, ranks, 1);
    for (int step = 0; step < steps; step++) {
        for (int rank = 0; rank < ranks; rank++) {
            DataLoader *read = &loaders[rank];
            dataloader_next_batch(read);
            /* after the batch, the file stands at its last token */
            int64_t last = ftell(read->tokens_file) - (int64_t)read->header_bytes;
            int64_t found[2] = {read->shard_indices[read->current_shard_idx], last / 2 - (int64_t)batch * length - 1};
            fwrite(found, sizeof(int64_t), 2, stdout);
        }
    }
    return 0;
}
"""


def compile_loader(repository: Path, commit: str, folder: Path) -> Path:
    """Compile a program that prints the shard and the first token of each batch of each rank, as two int64."""
    for name in HEADERS:
        text = subprocess.run(
            ["git", "-C", repository, "show", f"{commit}:llmc/{name}"], check=True, capture_output=True
        ).stdout
        (folder / name).write_bytes(text)
    (folder / "order.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-O2", "-w", "-o", folder / "order", folder / "order.c", "-lm"], check=True)
    return folder / "order"


def run_case(program: Path, case: dict[str, Any], folder: Path) -> str:
    """Return the sha256 of what the program prints for shards of these lengths."""
    folder.mkdir()
    for number, tokens in enumerate(case["shards"]):
        with open(folder / f"train_{number:06d}.bin", "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, tokens, *[0] * 253))
            file.truncate(1024 + 2 * tokens)
    sizes = [str(case[key]) for key in ("ranks", "batch", "sequence_length", "steps")]
    printed = subprocess.run([program, f"{folder}/train_*.bin", *sizes], check=True, capture_output=True).stdout
    assert len(printed) == case["steps"] * case["ranks"] * 16
    return hashlib.sha256(printed).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--commit", default=COMMIT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = compile_loader(arguments.repository.resolve(), arguments.commit, Path(folder))
        cases = [{**case, "sha256": run_case(program, case, Path(folder, str(n)))} for n, case in enumerate(CASES)]
    document = {
        "source": "github.com/karpathy/llm.c: llmc/dataloader.h, llmc/rand.h",
        "commit": arguments.commit,
        "command": "python tests/examples/as_published/write_llm_c_order.py LLM_C_REPOSITORY",
        "cases": cases,
    }
    GOLDENS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
