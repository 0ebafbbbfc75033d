"""Bills of materials in CycloneDX 1.6: of a lock, what its environment has; of an image, what it is built from.

The same content gives the same bytes: a bill has neither a time nor a serial number. A lock's component has the hashes of all
files that the lock allows for it, of which pip installs one. Licences are those of `envs/licences.csv`.
"""

import argparse
import csv
import io
import itertools
import json
import re
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from relm.artifact import atomic_file, sha256_of
from relm.containers.context import Context, read_entries
from relm.containers.lock import Image

Component = dict[str, Any]
LICENCES = Path("envs/licences.csv")
DPKG = "/var/lib/dpkg/status"


def describe_lock(lock: Path) -> dict[str, Any]:
    """Return the bill of materials of a checkout's lock."""
    checkout = lock.parents[1]
    subject = {
        **_describe_relm(checkout),
        "type": "application",
        "name": f"relm: {lock.name}",
        "hashes": _hash(sha256_of(lock)),
    }
    return _make_bill({**subject, "bom-ref": lock.name}, list(list_python_packages([lock], checkout)))


def describe_image(image: Image, identifier: str, context: Context, checkout: Path, debian: str | None) -> dict[str, Any]:
    """Return the bill of materials of an image that was built here.

    Args:
        image: its entry in the lock.
        identifier: its id, ``sha256:...``.
        context: what it was built from.
        checkout: the folder with `envs/licences.csv`.
        debian: the image's list of Debian's packages, dpkg's `status`; None: it has none.
    """
    facts = {"id": identifier, **{name.lower(): context.arguments[name] for name in ("COMMIT", "LOCK")}}
    properties = [{"name": f"relm:{name}", "value": value} for name, value in facts.items()]
    subject = {"type": "container", "name": image.image, "version": image.tag, "properties": properties}
    locks = [context.folder / "locks" / f"{name}.txt" for name in ("torch", "packages")]
    (wheel,) = (context.folder / "relm").glob("*.whl")
    components = [
        *(_describe_base(base) for base in dict.fromkeys(context.bases.values())),
        {**_describe_relm(checkout), "hashes": _hash(sha256_of(wheel))},
        *list_python_packages(locks, checkout),
        *(list_debian_packages(debian) if debian else []),
    ]
    return _make_bill({**subject, "bom-ref": f"{image.image}:{image.tag}"}, components)


def list_python_packages(locks: Iterable[Path], checkout: Path) -> Iterator[Component]:
    """Yield the packages of one or more locks, each once; without a licence where the list has none."""
    licences, found = _read_licences(checkout), dict[tuple[str, str], list[str]]()
    for given, entry in itertools.chain.from_iterable(map(read_entries, locks)):
        name, version = re.sub(r"[-_.]+", "-", given.partition("[")[0]), entry.partition("==")[2].split()[0]
        hashes = found.setdefault((name, version), [])
        hashes += [digest for digest in re.findall("--hash=sha256:([0-9a-f]{64})", entry) if digest not in hashes]
    for (name, version), hashes in sorted(found.items()):
        package = f"pkg:pypi/{name}@{quote(version)}"
        licence = {"licenses": [{"expression": licences[name, version]}]} if (name, version) in licences else {}
        described = {"type": "library", "bom-ref": package, "name": name, "version": version}
        yield {**described, "hashes": [each for digest in hashes for each in _hash(digest)], **licence, "purl": package}


def list_debian_packages(status: str) -> Iterator[Component]:
    """Yield the installed packages of dpkg's list."""
    for paragraph in status.strip().split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
            package = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
            yield {"type": "library", "bom-ref": package, "name": name, "version": version, "purl": package}


def read_debian_packages(client: Any, image: str) -> str | None:
    """Return dpkg's list of an image's packages, which never starts for that; None if it has no such list."""
    from docker.errors import NotFound

    container = client.containers.create(image)
    try:
        blocks, _ = container.get_archive(DPKG)
        with tarfile.open(fileobj=io.BytesIO(b"".join(blocks))) as archive:
            file = archive.extractfile(Path(DPKG).name)
            return None if file is None else file.read().decode()
    except NotFound:
        return None
    finally:
        container.remove(force=True)


def write_bill(bill: Mapping[str, Any], path: Path) -> None:
    """Write a bill of materials."""
    with atomic_file(path, "w") as file:
        file.write(json.dumps(bill, indent=1, ensure_ascii=False) + "\n")


def _make_bill(subject: Component, components: list[Component]) -> dict[str, Any]:
    """Return a bill; what it depends on is said once, for the subject."""
    depends = {"ref": subject["bom-ref"], "dependsOn": sorted(component["bom-ref"] for component in components)}
    head = {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6"}
    return {**head, "version": 1, "metadata": {"component": subject}, "components": components, "dependencies": [depends]}


def _describe_relm(checkout: Path) -> Component:
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    licences = [{"expression": project["license"]}]
    return {"type": "application", "bom-ref": f"{name}@{version}", "name": name, "version": version, "licenses": licences}


def _describe_base(base: str) -> Component:
    """Return the image that an image begins with: NAME:TAG@DIGEST, or less."""
    name, _, digest = base.partition("@")
    path, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    algorithm, _, hexadecimal = digest.partition(":")
    if algorithm != "sha256":
        return {"type": "container", "bom-ref": base, "name": path, **({"version": tag} if tag else {})}
    package = f"pkg:oci/{path.rpartition('/')[2]}@{quote(digest, safe='')}?repository_url={quote(path, safe='')}&tag={tag}"
    described = {"type": "container", "bom-ref": base, "name": path, "version": tag or digest, "hashes": _hash(hexadecimal)}
    return {**described, "purl": package}


def _hash(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


def _read_licences(checkout: Path) -> dict[tuple[str, str], str]:
    """Return (package, version) -> its licence, the same in each lock."""
    with open(checkout / LICENCES, newline="") as file:
        return {(row["package"], row["version"]): row["licence"] for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a bill of materials for each lock of this checkout, in CycloneDX 1.6.")
    parser.add_argument("--output", type=Path, default=Path("work/bom"), help="folder for LOCK.cdx.json (default: work/bom)")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for lock in sorted(Path("envs").resolve().glob("*.txt")):
        write_bill(describe_lock(lock), folder / f"{lock.stem}.cdx.json")
        print(folder / f"{lock.stem}.cdx.json")


if __name__ == "__main__":
    main()
