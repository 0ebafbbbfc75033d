"""Debian's `docker-registry` on this machine, with tiny images."""

import contextlib
import hashlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def docker_registry(folder: Path, address: str | None = None) -> Iterator[str]:
    """Run the registry of Debian's package at an address, by default at a free port; yield its HOST:PORT."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("there is no docker-registry on this machine (apt-get install docker-registry)")
    host = address or f"127.0.0.1:{free_port()}"
    configuration = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": host},
    }
    (folder / "registry.json").write_text(json.dumps(configuration))
    with open(folder / "registry.log", "w") as log:
        process = subprocess.Popen([program, "serve", str(folder / "registry.json")], stdout=log, stderr=log)
    try:
        for _ in range(200):
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"http://{host}/v2/", timeout=5).ok:
                    break
            assert process.poll() is None, (folder / "registry.log").read_text()
            time.sleep(0.05)
        yield host
    finally:
        process.terminate()
        process.wait()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def push_blob(host: str, name: str, content: bytes) -> dict[str, Any]:
    """Upload bytes, and return how a manifest refers to them."""
    begun = requests.post(f"http://{host}/v2/{name}/blobs/uploads/", timeout=10)
    begun.raise_for_status()
    location, digest = begun.headers["Location"], digest_of(content)
    headers = {"Content-Type": "application/octet-stream"}
    requests.put(location, params={"digest": digest}, data=content, headers=headers, timeout=10).raise_for_status()
    return {"digest": digest, "size": len(content)}


def push_manifest(host: str, name: str, reference: str, manifest: dict[str, Any]) -> str:
    """Push a manifest under a tag or its digest, and return its digest."""
    content = json.dumps(manifest).encode()
    headers = {"Content-Type": manifest["mediaType"]}
    url = f"http://{host}/v2/{name}/manifests/{reference}"
    requests.put(url, data=content, headers=headers, timeout=10).raise_for_status()
    return digest_of(content)


def push_image(host: str, name: str, tag: str, words: str) -> str:
    """Push a tiny image whose configuration has ``words``, and return its digest."""
    configuration = json.dumps({"architecture": "amd64", "os": "linux", "author": words}).encode()
    layer = push_blob(host, name, b"a layer")
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **push_blob(host, name, configuration)},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", **layer}],
    }
    return push_manifest(host, name, tag, manifest)


def push_index(host: str, name: str, tag: str, digest: str) -> str:
    """Push an index of one platform's image that is there already, and return the index's digest."""
    size = len(requests.get(f"http://{host}/v2/{name}/manifests/{digest}", headers={"Accept": MANIFEST}, timeout=10).content)
    platform = {"os": "linux", "architecture": "amd64"}
    entry = {"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform}
    return push_manifest(host, name, tag, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
