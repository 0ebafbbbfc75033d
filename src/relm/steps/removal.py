"""The steps that remove documents: duplicates, and passages of tests."""

import argparse
from pathlib import Path
from typing import Any

from relm.recipes.evaluation.published_tests import ITEM_FORMATS
from relm.steps.contract import WORKERS, Arguments, Job, Step, argument, given_path, path, paths


def list_removed_job(a: Arguments) -> Job:
    from relm.evaluation.removed_documents import ComparedTest, list_removed

    tests = [ComparedTest(name, form, given_path(file), *key) for name, form, file, *key in a.test]
    return Job(
        lambda: list_removed(a.documents, a.output, a.duplicates, tests, a.workers),
        inputs=[*a.documents, *(test.file for test in tests)],
        outputs=[a.output],
    )


class NamedTest(argparse.Action):
    """One test: its name, format and file, and the key of a passage."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Arguments, values: Any, option: str | None = None) -> None:
        """Add a test, or end the command with a message."""
        if len(values) not in (3, 4) or values[1] not in ITEM_FORMATS:
            parser.error(f"{option}: expected NAME FORMAT FILE [KEY], with a FORMAT of {', '.join(ITEM_FORMATS)}")
        namespace.test = [*namespace.test, values]


def remove_listed_job(a: Arguments) -> Job:
    from relm.examples.kept_documents import remove_listed

    files: list[Path] = [a.documents, a.removed]
    return Job(
        lambda: remove_listed(a.documents, a.removed, a.output, a.workers),
        inputs=files,
        outputs=[a.output],
    )


STEPS: dict[str, Step] = {
    "list-removed": Step(
        "list documents to be removed: duplicates, and those of which passages of a test are cut out",
        [
            paths(
                "--documents", "files of documents, JSON lines; of duplicates the first one stays, so give held-out files first"
            ),
            argument(
                "--duplicates",
                action="store_true",
                help="list all but the first of documents whose texts are equal but for case and white space",
            ),
            argument(
                "--test",
                nargs="+",
                action=NamedTest,
                default=[],
                metavar=("NAME FORMAT FILE", "KEY"),
                help="cut the passages of a test out of documents, by the rules of Megatron-LM's filter_ngrams.py (may be "
                f"repeated); FORMAT: {', '.join(ITEM_FORMATS)}; KEY: of a passage of lambada, default: text",
            ),
            WORKERS,
            path("--output", "the list, JSON lines: file, line, reason, and of which document or item"),
        ],
        list_removed_job,
        group="data",
    ),
    "remove-listed": Step(
        "write the documents of a file without those that a list of list-removed names",
        [
            path("--documents", "a file of documents, JSON lines"),
            path("--removed", "the list"),
            WORKERS,
            path("--output", "the file of documents that stay"),
        ],
        remove_listed_job,
        group="data",
    ),
}
