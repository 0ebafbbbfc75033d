"""Write `envs/licences.csv`: the licence of each locked package, one row a package of a lock.

pip reads the metadata from wherever it is configured to look, and installs nothing. A licence is the SPDX expression that the
metadata has (License-Expression), else its License field, else its classifiers, in the words that `envs/licences.yaml`
translates; what that file states for a package comes before all of these. A package without a licence is an error, and so is
one whose licence is not allowed. Needs the environment and its network; run by ``make licences``.
"""

import csv
import fnmatch
import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parent
TABLE = FOLDER / "licences.csv"
# The first whose report has License-Expression.
PIP = "pip>=25.1"


class Row(NamedTuple):
    """A line of the table."""

    lock: str
    package: str
    version: str
    licence: str
    read: str
    """The source of the licence: License-Expression, License, classifiers, or what `licences.yaml` says."""


def read_rules() -> dict[str, Any]:
    """Return `licences.yaml`."""
    rules: dict[str, Any] = yaml.safe_load((FOLDER / "licences.yaml").read_text())
    return rules


def read_packages(lock: Path) -> dict[str, str]:
    """Return the packages of a lock with their versions."""
    found = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", lock.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def read_metadata(python: Path, lock: Path) -> dict[str, Mapping[str, Any]]:
    """Return package -> its metadata, of the locked version, as pip reports it.

    Raises:
        SystemExit: pip could not get it.
    """
    options = [line for line in lock.read_text().splitlines() if line.startswith("--")]
    with tempfile.TemporaryDirectory() as scratch:
        wanted, report = Path(scratch) / "wanted.txt", Path(scratch) / "report.json"
        # No hashes: with them pip fetches whole wheels, without them the metadata alone. A local version is another one.
        lines = [*options, *(f"{name}==={version}" for name, version in read_packages(lock).items())]
        wanted.write_text("\n".join(lines) + "\n")
        command = [
            *(str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"),
            *("--ignore-requires-python", "--report", str(report), "--requirement", str(wanted)),
        ]
        if subprocess.run(command).returncode:
            sys.exit(f"write_licences: {lock.name}: pip could not get the metadata of what it names; its message is above")
        installed = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return {canonicalize_name(metadata["name"]): metadata for metadata in installed}


def find_licence(name: str, metadata: Mapping[str, Any], rules: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a package's licence as an SPDX expression, and what it was read from; None if nothing says it."""
    if stated := rules["stated"].get(name):
        return stated["licence"], stated["read"]
    if expression := metadata.get("license_expression"):
        return canonicalize_license_expression(expression), "License-Expression"
    if licence := _translate(metadata.get("license") or "", rules["words"]):
        return licence, "License"
    classifiers = [line for line in metadata.get("classifier", []) if line.startswith("License ::")]
    found = [_translate(line.rpartition("::")[2], rules["words"]) for line in classifiers]
    return (" AND ".join(map(str, found)), "classifiers") if found and all(found) else None


def _translate(text: str, words: Mapping[str, str]) -> str | None:
    """Return the SPDX expression that a metadata field means, or None."""
    text = text.strip()
    if text in words:
        return words[text]
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return None


def find_fault(name: str, licence: str, rules: Mapping[str, Any]) -> str | None:
    """Return the part of a licence that is neither allowed nor an exception for this package, or None.

    Of a choice (OR) one licence must be allowed, of a conjunction (AND) all.
    """
    exceptions = [entry["allows"] for pattern, entry in rules["exceptions"].items() if fnmatch.fnmatch(name, pattern)]
    allowed = {*rules["allowed"], *(each for licences in exceptions for each in licences)}
    for part in licence.split(" AND "):
        if not allowed & set(part.strip("() ").split(" OR ")):
            return part
    return None


def list_rows(lock: Path, metadata: Mapping[str, Mapping[str, Any]], rules: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of a lock.

    Raises:
        SystemExit: a package has no licence, or one that is not allowed.
    """
    for name, version in sorted(read_packages(lock).items()):
        found = find_licence(name, metadata[name], rules)
        if found is None:
            said = metadata[name].get("license") or metadata[name].get("classifier")
            sys.exit(
                f"write_licences: {lock.name}: {name} {version}: no SPDX licence in {said!r:.200}; state it in licences.yaml"
            )
        if fault := find_fault(name, found[0], rules):
            sys.exit(
                f"write_licences: {lock.name}: {name} {version}: {fault} is not allowed; see `exceptions` in licences.yaml"
            )
        yield Row(lock.name, name, version, *found)


def write_table(rows: Iterable[Row]) -> None:
    """Write the table."""
    with open(TABLE, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


def main() -> None:
    rules = read_rules()
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        python = Path(scratch) / "bin" / "python"
        if subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", PIP]).returncode:
            sys.exit(f"write_licences: {PIP} could not be installed; pip's message is above")
        rows = [row for lock in sorted(FOLDER.glob("*.txt")) for row in list_rows(lock, read_metadata(python, lock), rules)]
    write_table(rows)
    print(f"{TABLE}: {len(rows)} rows")


if __name__ == "__main__":
    main()
