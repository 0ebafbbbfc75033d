"""The datasets, models and tests that a run uses, with their licences and the sources of their files."""

from collections.abc import Sequence
from dataclasses import dataclass

from relm.recipes.datasets import Dataset
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.files.own_folders import expand_home
from relm.recipes.files.remote_files import RemoteFile, Source
from relm.recipes.published_models import PretrainedModel
from relm.recipes.redaction import shorten_path


@dataclass(frozen=True)
class Origin:
    """A dataset, model or test that a run uses."""

    use: str
    name: str
    title: str
    licence: str
    homepage: str | None
    files: Sequence[tuple[str, RemoteFile]]
    folder: str | None = None

    @property
    def places(self) -> list[list[str]]:
        """The described sources of each file."""
        return [[format_source(source) for source in remote.sources] for _, remote in self.files]


def describe_origin(use: str, name: str, spec: Dataset | PretrainedModel | PublishedTest) -> Origin:
    """Return the origin of a dataset, model or test that a recipe names, and its use."""
    folder = getattr(spec, "folder", None)
    folder_name = None if folder is None else shorten_path(expand_home(folder))
    return Origin(use, name, spec.title, spec.licence, spec.homepage, list(dict(spec.files).items()), folder_name)


def format_source(source: Source) -> str:
    """Return a source as one phrase."""
    inside = f", {source.member} inside" if source.member else ""
    if source.url:
        return source.url + inside
    if source.pypi:
        return f"Python package {source.pypi}{inside}"
    if source.npm:
        return f"npm package {source.npm}{inside}"
    return f"Hugging Face {source.repository_type} {source.huggingface} at {source.revision}, {source.file}{inside}"
