"""`ro-crate-metadata.json`: the content of `results/NAME` and its origin, as RO-Crate 1.1 (https://w3id.org/ro/crate/1.1).

It follows the profile Process Run Crate 0.5: each step is an action with a tool. The workflow is implicit, because the folder
does not contain the Snakefile.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from relm.containers.shell_line import plain_line
from relm.provenance.citation import Author, Citation
from relm.provenance.origin import Origin
from relm.provenance.step_record import Record, describe_file
from relm.recipes.run_folder import METADATA

FORMATS = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".html": "text/html",
    ".md": "text/markdown",
    ".safetensors": "application/octet-stream",
}
SPECIFICATION = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_SPDX = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.+-]*$")

Entity = dict[str, Any]


@dataclass(frozen=True)
class PublishedRun:
    """The facts of a finished run that its crate states."""

    title: str
    identifier: str
    description: str
    date: str
    origins: Sequence[Origin]
    """The first one's licence is also the folder's."""
    records: Sequence[Record]
    """The records of its steps, in order."""
    citation: Citation
    """Its first author is named as publisher, and as agent of the steps."""


def build_crate(run: PublishedRun, files: Mapping[str, Path]) -> Entity:
    """Return the JSON-LD document of a folder with these files (name in the folder -> present path)."""
    facts = {name: describe_file(path) for name, path in files.items()}
    names = {fact["path"]: quote(name) for name, fact in facts.items()}
    agent = identify_author(run.citation.authors[0], 1)
    actions = [_action(number, record, names, agent) for number, record in enumerate(run.records, 1)]
    entities: list[Entity] = [
        {"@id": METADATA, "@type": "CreativeWork", "conformsTo": {"@id": SPECIFICATION}, "about": {"@id": "./"}},
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": PROFILE.rpartition("/")[2]},
        _root(run, list(files), actions),
        *(_file(name, fact) for name, fact in facts.items()),
        *actions,
        *_instruments(run),
        *_intermediates(run, names),
        *(entity for origin in run.origins for entity in _basis(origin)),
        *(_author(author, number) for number, author in enumerate(run.citation.authors, 1)),
    ]
    unique = {entity["@id"]: entity for entity in entities}
    context = [f"{SPECIFICATION}/context", {"sha256": "https://schema.org/sha256"}]
    return {"@context": context, "@graph": list(unique.values())}


def _references(identifiers: list[str]) -> dict[str, str] | list[dict[str, str]]:
    """Return a list of references, or a single one without a list, as RO-Crate recommends."""
    found = [{"@id": identifier} for identifier in identifiers]
    return found[0] if len(found) == 1 else found


def _root(run: PublishedRun, files: list[str], actions: list[Entity]) -> Entity:
    return {
        "@id": "./",
        "@type": "Dataset",
        "conformsTo": {"@id": PROFILE},
        "name": run.title,
        "identifier": run.identifier,
        "description": run.description,
        "datePublished": run.date,
        "license": {"@id": _licence(run.origins[0])},
        "author": _references([identify_author(author, number) for number, author in enumerate(run.citation.authors, 1)]),
        "publisher": {"@id": identify_author(run.citation.authors[0], 1)},
        "isBasedOn": _references([_basis_id(origin) for origin in run.origins]),
        "hasPart": _references([quote(name) for name in files]),
        "mentions": _references([action["@id"] for action in actions]),
    }


def _file(name: str, fact: Mapping[str, Any]) -> Entity:
    return {
        "@id": quote(name),
        "@type": "File",
        "name": name,
        "encodingFormat": FORMATS[Path(name).suffix],
        "contentSize": str(fact["size"]),
        "sha256": fact["sha256"],
    }


def _action(number: int, record: Record, names: Mapping[str, str], agent: str) -> Entity:
    """Return one step as an action: its command, times, inputs and outputs."""
    return {
        "@id": f"#step-{number}",
        "@type": "CreateAction",
        "name": record["step"],
        "description": plain_line(record["argv"]),
        "startTime": _moment(record["started"]),
        "endTime": _moment(record["ended"]),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "instrument": {"@id": _instrument_id(record)},
        "agent": {"@id": agent},
        "object": _references([_file_id(entry, names) for entry in record["inputs"]]),
        "result": _references([_file_id(entry, names) for entry in record["outputs"]]),
    }


def _file_id(entry: Mapping[str, Any], names: Mapping[str, str]) -> str:
    return names.get(entry["path"], f"#{quote(entry['path'])}")


def _moment(utc: str) -> str:
    """Return a time with a numeric offset, the only form that the profile's validator accepts."""
    return utc.replace("Z", "+00:00")


def _instrument_id(record: Record) -> str:
    return f"#relm-{record['code']['commit'] or record['software']['relm']}"


def _instruments(run: PublishedRun) -> list[Entity]:
    """Return the versions of this package that ran."""
    return [
        {
            "@id": _instrument_id(record),
            "@type": "SoftwareApplication",
            "name": "relm",
            "version": record["code"]["commit"] or record["software"]["relm"],
            **({"url": run.citation.url} if run.citation.url else {}),
            "softwareRequirements": [f"{name} {version}" for name, version in record["software"].items()],
        }
        for record in run.records
    ]


def _intermediates(run: PublishedRun, names: Mapping[str, str]) -> list[Entity]:
    """Return the files of steps that are not in the folder."""
    entries = [entry for record in run.records for entry in (*record["inputs"], *record["outputs"])]
    found = []
    for entry in entries:
        if entry["path"] not in names:
            hashes = {"sha256": entry["sha256"], "contentSize": str(entry["size"])} if entry["sha256"] else {}
            found.append({"@id": _file_id(entry, names), "@type": "CreativeWork", "name": entry["path"], **hashes})
    return found


def _basis_id(origin: Origin) -> str:
    return f"#{quote(origin.use.replace(' ', '-'))}-{quote(origin.name)}"


def _licence(origin: Origin) -> str:
    return f"https://spdx.org/licenses/{origin.licence}" if _SPDX.match(origin.licence) else f"#licence-{quote(origin.licence)}"


def _basis(origin: Origin) -> list[Entity]:
    """Return a work that the run uses, and its licence."""
    work = {
        "@id": _basis_id(origin),
        "@type": "CreativeWork",
        "name": origin.title,
        "license": {"@id": _licence(origin)},
        **({"url": origin.homepage} if origin.homepage else {}),
    }
    words = "SPDX identifier" if _SPDX.match(origin.licence) else "The licence's name"
    described = f"{words} of the licence of {origin.title}: {origin.licence}"
    return [work, {"@id": _licence(origin), "@type": "CreativeWork", "name": origin.licence, "description": described}]


def identify_author(author: Author, number: int) -> str:
    """Return the identifier of an author: their page, or their number."""
    return author.page or f"#author-{number}"


def _author(author: Author, number: int) -> Entity:
    kind = "Person" if author.is_person else "Organization"
    url = {"url": author.page} if author.page else {}
    return {"@id": identify_author(author, number), "@type": kind, "name": author.name, **url}
