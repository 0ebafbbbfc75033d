"""Write openwebtext.json: what the original programs make of `openwebtext_input`, as hashes and counts.

    git clone https://github.com/NVIDIA/Megatron-LM && git -C Megatron-LM checkout 0ed2f6ac943560ab0a8a58b6628a669af8c250db
    git clone https://github.com/graphcore/examples && git -C examples checkout v3.4.1
    PYTHONPATH=tests:tests/corpus python tests/examples/as_published/write_openwebtext.py examples Megatron-LM

filter_ngrams.py imports nltk and does not use it; it is given an empty module of that name.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from openwebtext_input import make_archive, make_passages, make_texts

EXTRACT = Path("nlp") / "gpt2" / "pytorch" / "data" / "extract_and_merge.py"
FILTER = Path("tools") / "openwebtext" / "filter_ngrams.py"
OUTPUT = Path(__file__).with_name("openwebtext.json")


def hash_lines(lines: Iterable[object]) -> str:
    """Return the sha256 of values as lines of JSON."""
    return hashlib.sha256("".join(json.dumps(line) + "\n" for line in lines).encode()).hexdigest()


def read_lines(path: Path) -> list[dict[str, str]]:
    """Return the objects of a file with one on each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=False) if line]


def run_extraction(program: Path, folder: Path) -> dict[str, object]:
    """Return what Graphcore's program makes of the archive, whose inner archives it reads from a folder."""
    (folder / "owt.tar").write_bytes(make_archive())
    subprocess.run(["tar", "-xf", "owt.tar"], cwd=folder, check=True)
    subprocess.run([sys.executable, program, "./openwebtext", "./extracted"], cwd=folder, check=True, capture_output=True)
    content = (folder / "openwebtext_raw.json").read_text(encoding="utf-8")
    found = sorted([page["url"], page["text"]] for page in map(json.loads, content.split("\n")[:-1]))
    return {"documents": len(found), "sha256": hash_lines(found)}


def run_filter(program: Path, folder: Path) -> dict[str, object]:
    """Return what Megatron-LM's program leaves of the texts, and the counts that it prints."""
    (folder / "nltk.py").write_text("")
    for name, texts in (("test.jsonl", make_passages()), ("texts.jsonl", make_texts())):
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    options = "--tasks lambada --lambada-path test.jsonl --dedup-dataset texts.jsonl text --output out.jsonl --num-threads 2"
    environment = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    command = [sys.executable, str(program), *options.split()]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    counts = re.search(r"Total docs (\d+) splitted (\d+) ignored (\d+) splits > theshold (\d+) trimmed (\d+)", done.stdout)
    assert counts is not None
    names = ("documents", "in_several_pieces", "without_a_piece", "of_too_many_pieces", "in_one_piece")
    content = (folder / "out.jsonl").read_text(encoding="utf-8")
    texts = [json.loads(line)["text"] for line in content.split("\n")[:-1]]
    rare = len(re.findall(r"^ \[threshold\]", done.stdout, re.MULTILINE))
    counted = dict(zip(names, map(int, counts.groups()), strict=True))
    return {**counted, "rare_sequences": rare, "pieces": len(texts), "sha256": hash_lines(texts)}


def main() -> None:
    """Run both programs."""
    graphcore, megatron = (Path(argument).resolve() for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        found = {
            "extract_and_merge": run_extraction(graphcore / EXTRACT, Path(one)),
            "filter_ngrams": run_filter(megatron / FILTER, Path(two)),
        }
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
