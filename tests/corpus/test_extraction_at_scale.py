"""A real dump of 100 MB: any number of workers, and a kill in the middle, give the same bytes."""

import bz2
import lzma
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relm.artifact import sha256_of

pytestmark = pytest.mark.full
DATASET = """
title: The first 100 MB of an English Wikipedia
licence: GFDL
language: en
format: mediawiki_xml
ends_mid_page: true
held_out_one_in: 10
files:
  enwik8.xml.bz2:
    sha256: '{sha256}'
    size: {size}
    sources: [{{url: "http://127.0.0.1:9/enwik8.xml.bz2"}}]
"""
SPLITS = ("train", "held_out")
KEPT = 300_000_000  # bytes of memory that a process may have


@pytest.fixture(scope="module")
def dump(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("enwik8")
    path = folder / "enwik8.xml.bz2"
    path.write_bytes(bz2.compress(lzma.decompress((shared_data / "dumps" / "enwik8.xz").read_bytes())))
    (folder / "enwik8.yaml").write_text(DATASET.format(sha256=sha256_of(path), size=path.stat().st_size))
    return path


def command(dump: Path, out: Path, workers: int) -> list[str]:
    """Return the command that extracts the dump, with its peak memory on the last line of its output."""
    code = (
        "import resource,subprocess,sys;done=subprocess.run(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss);sys.exit(done.returncode)"
    )
    extract = ["-m", "relm", "extract", "--dataset", str(dump.with_name("enwik8.yaml")), "--source", str(dump)]
    written = ["--train", str(out / "train.jsonl"), "--held-out", str(out / "held_out.jsonl")]
    return [sys.executable, "-c", code, sys.executable, *extract, *written, "--workers", str(workers)]


def extract(dump: Path, out: Path, workers: int) -> None:
    done = subprocess.run(command(dump, out, workers), capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) * 1024 < KEPT


def hashes(folder: Path) -> list[str]:
    return [sha256_of(folder / f"{split}.jsonl{suffix}") for split in SPLITS for suffix in ("", ".json")]


@pytest.fixture(scope="module")
def expected(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    out = tmp_path_factory.mktemp("expected")
    extract(dump, out, 1)
    return hashes(out)


@pytest.mark.parametrize("workers", [2, 3])
def test_the_same_bytes_by_any_workers(workers: int, dump: Path, expected: list[str], tmp_path: Path) -> None:
    extract(dump, tmp_path, workers)
    assert hashes(tmp_path) == expected


def test_killed_in_the_middle_it_leaves_nothing_and_runs_again_to_the_same_bytes(
    dump: Path, expected: list[str], tmp_path: Path
) -> None:
    process = subprocess.Popen(command(dump, tmp_path, 2), start_new_session=True, stdout=subprocess.DEVNULL)
    partial = tmp_path / ".train.jsonl.partial"
    while not (partial.exists() and partial.stat().st_size > 20_000_000):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not any((tmp_path / f"{split}.jsonl").exists() for split in SPLITS)
    extract(dump, tmp_path, 2)
    assert hashes(tmp_path) == expected


def test_a_page_of_20_mb_is_read(tmp_path: Path, shared_data: Path) -> None:
    with lzma.open(shared_data / "dumps" / "enwik8.xz") as file:
        text = file.read(40_000_000).decode(errors="ignore")
    long = "A word. " + "\n\n".join(re.findall("<text[^<>]*>([^<]*)</text>", text))[:20_000_000]
    pages = "".join(
        f"<page><title>T {n}</title><id>{n}</id><revision><text>Word {n}.</text></revision></page>\n" for n in range(50)
    )
    content = f"<mediawiki>{pages}<page><title>L</title><id>99</id><revision><text>{long}</text></revision></page></mediawiki>"
    dump = tmp_path / "enwik8.xml.bz2"
    dump.write_bytes(bz2.compress(content.encode()))
    (tmp_path / "enwik8.yaml").write_text(DATASET.format(sha256=sha256_of(dump), size=dump.stat().st_size))
    outs = [tmp_path / str(workers) for workers in (1, 2)]
    for workers, out in enumerate(outs, 1):
        subprocess.run(command(dump, out, workers), check=True)
    assert hashes(outs[0]) == hashes(outs[1])
    assert sum(path.stat().st_size for path in outs[0].glob("*.jsonl")) > 5_000_000
