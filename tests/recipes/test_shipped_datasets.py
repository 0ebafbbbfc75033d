"""Every shipped dataset and model loads and is pinned, and the real data next to the checkout is what it says."""

import lzma
from pathlib import Path

import pytest

from relm.artifact import checked_sidecar
from relm.corpus.download.fetch import download
from relm.corpus.extract import extract
from relm.recipes.datasets import load_dataset
from relm.recipes.jobs import SPLITS
from relm.recipes.project import Project
from relm.recipes.published_models import load_model

CHECKOUT = Path(__file__).resolve().parents[2]
DATASETS = sorted((CHECKOUT / "recipes" / "data").glob("*.yaml"))
MODELS = sorted((CHECKOUT / "recipes" / "models").glob("*.yaml"))


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


@pytest.mark.parametrize("path", DATASETS, ids=names(DATASETS))
def test_a_dataset_loads_and_its_smoke_twin_has_the_same_format_or_spares_a_large_download(path: Path) -> None:
    dataset = load_dataset(path)
    if dataset.smoke is not None:
        twin = load_dataset(Project(CHECKOUT).path_of("data", dataset.smoke))
        is_large = dataset.hub is not None or dataset.is_tokenized or dataset.format == "json_arrays"
        assert twin.format == dataset.format or is_large
        assert twin.hub is None
        assert twin.language == dataset.language
        assert sum(file.size for file in twin.files.values()) < 10_000_000


@pytest.mark.parametrize("path", DATASETS + MODELS, ids=names(DATASETS + MODELS))
def test_what_is_fetched_in_an_archive_is_pinned_too(path: Path) -> None:
    files = (load_dataset(path) if path in DATASETS else load_model(path)).files
    assert files or path in DATASETS
    for name, remote in files.items():
        for source in remote.sources:
            assert source.member is None or source.sha256 is not None, name
            assert source.huggingface is None or len(source.revision or "") == 40 or not remote.is_pinned, name


@pytest.mark.parametrize(
    ("path", "file"),
    [
        (CHECKOUT / "recipes" / "data" / "enwik8.yaml", "enwik8"),
        (CHECKOUT / "recipes" / "data" / "enwiki_206_pages.yaml", "enwiki-206-pages.xml.bz2"),
        (CHECKOUT / "recipes" / "data" / "wikitext_2_raw.yaml", "wiki.train.raw"),
        (CHECKOUT / "recipes" / "data" / "wikitext_2_raw.yaml", "wiki.valid.raw"),
        (CHECKOUT / "recipes" / "data" / "wikitext_2_raw_valid.yaml", "wiki.valid.raw"),
        (CHECKOUT / "recipes" / "data" / "wikitext_103_raw.yaml", "wiki.valid.raw"),
        (CHECKOUT / "recipes" / "data" / "tinyshakespeare.yaml", "tinyshakespeare.txt"),
        (CHECKOUT / "recipes" / "data" / "tinyshakespeare_text.yaml", "tinyshakespeare.txt"),
        (CHECKOUT / "recipes" / "data" / "ro_sts.yaml", "ro-sts-train.ro.txt"),
        (CHECKOUT / "recipes" / "models" / "gpt2_tokenizer.yaml", "vocab.json"),
        (CHECKOUT / "recipes" / "models" / "gpt2_tokenizer.yaml", "merges.txt"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.stem,
)
def test_a_mirror_of_real_data_provides_it_by_content(
    path: Path, file: str, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELM_MIRROR", str(shared_data))
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # whatever is not in the mirror fails at once
    remote = (load_dataset(path) if path in DATASETS else load_model(path)).files[file]
    assert f"{remote.size:,} bytes from {shared_data}" in download(file, remote, tmp_path / file)
    assert checked_sidecar(tmp_path / file)["sha256"] == remote.sha256


@pytest.mark.parametrize(
    ("name", "documents"),
    [("wikitext_2_raw", [600, 60]), ("wikitext_2_raw_valid", [60]), ("tinyshakespeare", [7222]), ("ro_sts", [11498])],
)
def test_real_data_becomes_the_known_number_of_documents(
    name: str, documents: list[int], shared_data: Path, tmp_path: Path
) -> None:
    dataset = load_dataset(Project(CHECKOUT).path_of("data", name))
    held_out, found = 0, []
    for file in dataset.files:
        (source,) = shared_data.rglob(f"{file}.xz")
        outputs = {split: tmp_path / f"{file}.{split}.jsonl" for split in SPLITS}
        (tmp_path / file).write_bytes(lzma.decompress(source.read_bytes()))
        extract(dataset, tmp_path / file, outputs, None, 1)
        counts = [checked_sidecar(path)["documents"] for path in outputs.values()]
        found.append(sum(counts))
        held_out += counts[1]
    assert found == documents
    assert 0 < held_out < sum(documents) / 5
