"""No single host can stop a shipped recipe, except where the documentation says why."""

import re
from urllib.parse import urlsplit

from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.evaluation.published_tests import load_test
from relm.recipes.files.remote_files import RemoteFile, Source
from relm.recipes.published_models import load_model
from small_project import CHECKOUT

LOADERS = {"data": load_dataset, "models": load_model, "evaluations": load_test}
LOADED = {
    f"recipes/{folder}/{path.name}": load(path)
    for folder, load in LOADERS.items()
    for path in sorted((CHECKOUT / "recipes" / folder).glob("*.yaml"))
}


def host_of(source: Source) -> str:
    """Return the host of a source, or the name of the service that has it."""
    if source.url is not None:
        return str(urlsplit(source.url).hostname)
    return "the Hugging Face hub" if source.huggingface else "the npm registry" if source.npm else "the package index"


def hosts_of(remote: RemoteFile) -> set[str]:
    return {host_of(source) for source in remote.sources}


def read_table() -> dict[str, tuple[str, str]]:
    """Return file -> (host, reason) of the table in the documentation."""
    part = (CHECKOUT / "docs" / "running.md").read_text().partition("<!-- files of one host -->")[2].partition("\n## ")[0]
    return {name: (host, reason) for name, host, reason in re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", part, re.M)}


def test_the_files_of_fewer_than_two_hosts_are_those_of_the_table() -> None:
    few = {}
    for name, loaded in LOADED.items():
        hosts = [hosts_of(remote) for remote in loaded.files.values()]
        if isinstance(loaded, Dataset) and loaded.hub is not None:
            hosts.append({"the Hugging Face hub"})
        if few_hosts := [found for found in hosts if len(found) < 2]:
            few[name] = " and ".join(sorted(set().union(*few_hosts))) or "none"
    assert few == {name: host for name, (host, _) in read_table().items()}
    assert all(reason.endswith(".") for _, reason in read_table().values())
