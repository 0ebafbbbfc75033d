"""Licences of the locked packages: each is listed at its locked version, and allowed or an exception with its reason."""

import csv
import fnmatch
import re
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.licenses import canonicalize_license_expression

from small_project import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "envs"))

import write_licences
from write_licences import Row, find_fault, find_licence, list_rows, read_packages, read_rules

LOCKS = sorted((CHECKOUT / "envs").glob("*.txt"))
RULES = read_rules()


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The committed table."""
    with open(write_licences.TABLE, newline="") as file:
        header, *lines = csv.reader(file)
    assert tuple(header) == Row._fields
    return [Row(*line) for line in lines]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_each_locked_package_is_listed_at_its_version(lock: Path, rows: list[Row]) -> None:
    """If this fails after a change of a lock: make licences."""
    assert {row.package: row.version for row in rows if row.lock == lock.name} == read_packages(lock)


def test_each_licence_is_an_spdx_expression_that_is_allowed_or_excepted(rows: list[Row]) -> None:
    for row in rows:
        assert canonicalize_license_expression(row.licence) == row.licence
        assert find_fault(row.package, row.licence, RULES) is None, row


def test_the_list_agrees_with_the_metadata_that_is_installed_here(rows: list[Row]) -> None:
    compared = [row for row in rows if row.lock in ("torch-cpu.txt", "cpu.txt", "loggers.txt", "test.txt")]
    assert len(compared) > 150
    for row in compared:
        installed = metadata(row.package)
        # In the importlib.metadata of Python 3.11 this is the JSON of pip's report, whose names are the same.
        assert find_licence(row.package, installed.json | {"license_expression": installed["License-Expression"]}, RULES) == (
            row.licence,
            row.read,
        )


def test_no_rule_is_without_use(rows: list[Row]) -> None:
    names = {row.package for row in rows}
    parts = {part.strip("()") for row in rows for part in re.split(" AND | OR ", row.licence)}
    assert set(RULES["stated"]) - names == set()
    assert [pattern for pattern in RULES["exceptions"] if not fnmatch.filter(names, pattern)] == []
    assert set(RULES["allowed"]) - parts == set()
    for pattern, entry in RULES["exceptions"].items():
        licences = " AND ".join(row.licence for row in rows if fnmatch.fnmatch(row.package, pattern))
        assert [each for each in entry["allows"] if each not in licences.split(" AND ")] == [], pattern
        assert entry["reason"]


def test_what_falls_under_nvidias_terms_is_named_so(rows: list[Row]) -> None:
    proprietary = {row.package for row in rows if "NVIDIA-Proprietary" in row.licence}
    assert {"nvidia-cublas", "nvidia-cudnn-cu12", "cuda-toolkit", "nvidia-nvshmem-cu12"} < proprietary
    assert all(name.startswith("nvidia-") or name == "cuda-toolkit" for name in proprietary)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"license_expression": "mit and bsd-3-clause"}, ("MIT AND BSD-3-Clause", "License-Expression")),
        ({"license": "Apache 2.0"}, ("Apache-2.0", "License")),
        ({"license": "MIT", "classifier": ["License :: OSI Approved :: ISC License (ISCL)"]}, ("MIT", "License")),
        ({"license": "Copyright ...", "classifier": ["License :: OSI Approved :: MIT License"]}, ("MIT", "classifiers")),
        ({"license": "BSD", "classifier": ["License :: OSI Approved :: BSD License"]}, None),
        ({"classifier": ["Topic :: Text Processing"]}, None),
        ({}, None),
    ],
)
def test_a_licence_is_read_from_the_most_exact_field(given: dict[str, Any], expected: tuple[str, str] | None) -> None:
    assert find_licence("package", given, RULES) == expected


@pytest.mark.parametrize(
    ("name", "licence", "fault"),
    [
        ("any", "MIT AND BSD-3-Clause", None),
        ("any", "GPL-3.0-only OR MIT", None),
        ("any", "MIT AND GPL-3.0-only", "GPL-3.0-only"),
        ("any", "AGPL-3.0-only", "AGPL-3.0-only"),
        ("chardet", "LGPL-2.1-or-later", None),
        ("chardet", "GPL-3.0-only", "GPL-3.0-only"),
        ("any", "LGPL-2.1-or-later", "LGPL-2.1-or-later"),
    ],
)
def test_a_licence_must_be_allowed_for_the_package(name: str, licence: str, fault: str | None) -> None:
    assert find_fault(name, licence, RULES) == fault


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"license": "BSD"}, "write_licences: a.txt: some-name 1.0: no SPDX licence in 'BSD'; state it in licences.yaml"),
        ({"license_expression": "AGPL-3.0-only"}, "some-name 1.0: AGPL-3.0-only is not allowed; see `exceptions`"),
    ],
)
def test_a_package_without_an_allowed_licence_ends_the_command(given: dict[str, str], message: str, tmp_path: Path) -> None:
    lock = tmp_path / "a.txt"
    lock.write_text("some_name==1.0 \\\n    --hash=sha256:1\n")
    with pytest.raises(SystemExit, match=re.escape(message)):
        list(list_rows(lock, {"some-name": given}, RULES))
