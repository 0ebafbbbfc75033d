"""Describe a dataset's examples for other programs, in Croissant 1.1 (ML Commons), JSON-LD beside the manifest.

The context is inline, not a URL, so that the file is read without a network. Its datePublished is that of the source data, as
its citation is: examples are built, not published, and the same examples give the same bytes.
"""

import os
import re
from pathlib import Path
from typing import Any

from relm.artifact import write_json
from relm.examples.columns import Column
from relm.examples.manifest import Manifest, Shard, read_manifest
from relm.examples.table import ExampleTable
from relm.recipes.datasets import Dataset
from relm.recipes.objectives import TABLE

CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
# Of this description; the examples themselves are identified by the hashes of their files.
VERSION = "1.0.0"
LICENCE_URL = "https://spdx.org/licenses/{}.html"
# A short identifier of the SPDX list: no spaces, a capital or digit first, such as CC-BY-SA-3.0 or GFDL.
IDENTIFIER = re.compile(r"[A-Z0-9][A-Za-z0-9.+-]*")
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
ENCODINGS = {".arrow": "application/vnd.apache.arrow.file", ".bin": "application/octet-stream"}
MEANINGS = {
    "input_ids": "Token ids; the tokenizer's padding fills short rows.",
    "length": "Tokens of the row that are not padding.",
    "second_start": "Where the second segment begins; the length of the row where there is none.",
    "next_sentence_label": "0: the second segment follows the first in the text; 1: it is random; -1: there is no pair.",
    "word_starts": "Whether the token is the first of a word.",
    "masked_positions": "Where tokens are hidden, ascending; places that are not used are 0.",
    "masked_labels": "The hidden tokens, in the order of their positions.",
    "masked_count": "How many tokens are hidden.",
    "source": "Token ids of the source text, with the end of text.",
    "target": "Token ids of the target text, with the end of text.",
}


def write_croissant(manifest: Path, dataset: Dataset, name: str, output: Path) -> None:
    """Write `croissant.json`: a description of the examples, their licence, files with hashes, and a table's columns.

    Args:
        manifest: the manifest of the examples.
        dataset: the dataset that they were built from.
        name: the dataset's name, as in `recipes/data/`.
        output: the file; paths in it are relative to its folder.

    Raises:
        RelmError: the manifest or the first table is absent or damaged.
    """
    facts = read_manifest(manifest)
    described = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "description": _description(facts, dataset),
        "version": VERSION,
        "citeAs": f"{dataset.title}. {dataset.homepage}" if dataset.homepage else dataset.title,
        **({"datePublished": dataset.published} if dataset.published else {}),
        "license": licence_url(dataset.licence),
        "inLanguage": dataset.language,
        **({"url": dataset.homepage} if dataset.homepage else {}),
        "distribution": [
            *(_file(manifest, shard, output) for split in facts.splits.values() for shard in split.shards),
            *(_file_set(manifest, split, facts, output) for split in facts.splits if facts.layout == TABLE),
        ],
    }
    if facts.layout == TABLE:
        described["recordSet"] = [_record_set(split, manifest, facts) for split in facts.splits]
    write_json(output, described)


def licence_url(licence: str) -> str:
    """Return the page of an SPDX identifier; other text unchanged.

    >>> licence_url("CC-BY-SA-3.0"), licence_url("public domain")
    ('https://spdx.org/licenses/CC-BY-SA-3.0.html', 'public domain')
    """
    return LICENCE_URL.format(licence) if IDENTIFIER.fullmatch(licence) else licence


def _description(facts: Manifest, dataset: Dataset) -> str:
    what = "; ".join(
        f"{name}: {split.tokens:,} tokens"
        + (f" in {split.examples:,} examples" if split.examples is not None else "")
        + f" of {split.documents:,} documents"
        for name, split in facts.splits.items()
    )
    return (
        f"{dataset.title}; as examples for the objective {facts.objective}. {what}. Token ids of a tokenizer of "
        f"{facts.tokenizer.vocabulary_size:,} tokens, sha256 {facts.tokenizer.sha256}."
    )


def _file(manifest: Path, shard: Shard, output: Path) -> dict[str, Any]:
    path = _relative_path(manifest, shard, output)
    return {
        "@type": "cr:FileObject",
        "@id": path,
        "name": Path(shard.file).name,
        "contentUrl": path,
        "contentSize": f"{shard.size} B",
        "encodingFormat": ENCODINGS[Path(shard.file).suffix],
        "sha256": shard.sha256,
    }


def _file_set(manifest: Path, split: str, facts: Manifest, output: Path) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": f"{split}-files",
        "name": f"{split}-files",
        "description": f"The tables of split {split}, in order.",
        "encodingFormat": ENCODINGS[".arrow"],
        "includes": [_relative_path(manifest, shard, output) for shard in facts.splits[split].shards],
    }


def _record_set(split: str, manifest: Path, facts: Manifest) -> dict[str, Any]:
    table = ExampleTable(manifest.parent / facts.splits[split].shards[0].file)
    return {
        "@type": "cr:RecordSet",
        "@id": split,
        "name": split,
        "description": f"The examples of split {split}, a row each.",
        "field": [_field(split, column) for column in table.columns.values()],
    }


def _field(split: str, column: Column) -> dict[str, Any]:
    shape = {} if column.width is None else {
        "isArray": True,
        "arrayShape": "-1" if column.width == "ragged" else str(column.width),
    }  # fmt: skip
    return {
        "@type": "cr:Field",
        "@id": f"{split}/{column.name}",
        "name": column.name,
        "description": MEANINGS.get(column.name, column.name),
        "dataType": "sc:Boolean" if column.kind == "bool" else "sc:Integer",
        **shape,
        "source": {"fileSet": {"@id": f"{split}-files"}, "extract": {"column": column.name}},
    }


def _relative_path(manifest: Path, shard: Shard, output: Path) -> str:
    return Path(os.path.relpath(manifest.parent / shard.file, output.parent)).as_posix()
