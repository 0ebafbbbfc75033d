"""The steps that remove documents: duplicates, and those that share words with a test."""

from pathlib import Path

from relm.errors import RelmError
from relm.recipes.evaluation.published_tests import ITEM_FORMATS
from relm.steps.contract import WORKERS, Arguments, Job, Step, argument, given_path, path, paths, unite_values


def list_removed_job(a: Arguments) -> Job:
    from relm.evaluation.removed_documents import ComparedTest, list_removed

    text_keys: dict[str, str] = unite_values("--text-key", map(tuple, a.text_key))
    tests = [ComparedTest(name, form, given_path(file), text_keys.pop(name, "text")) for name, form, file in a.test]
    if text_keys:
        raise RelmError(f"--text-key: {min(text_keys)} is the name of no --test; give the name of a test, and the key")
    if unknown := [test.form for test in tests if test.form not in ITEM_FORMATS]:
        raise RelmError(
            f"--test: {unknown[0]} is no format of tests; give a name, a format ({', '.join(ITEM_FORMATS)}), a file"
        )
    return Job(
        lambda: list_removed(a.documents, a.output, a.duplicates, tests, a.workers, cut=a.cut_passages),
        inputs=[*a.documents, *(test.file for test in tests)],
        outputs=[a.output],
    )


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
        "list documents to be removed: duplicates, and those that share 13 words in a row with a test",
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
                nargs=3,
                action="append",
                default=[],
                metavar=("NAME", "FORMAT", "FILE"),
                help=f"list documents that share words with a test (may be repeated); FORMAT: {', '.join(ITEM_FORMATS)}",
            ),
            argument(
                "--cut-passages",
                action="store_true",
                help="cut the shared passages out of the documents instead, by the rules of Megatron-LM's filter_ngrams.py",
            ),
            argument(
                "--text-key",
                nargs=2,
                action="append",
                default=[],
                metavar=("NAME", "KEY"),
                help="key of a passage in a test of the format lambada (may be repeated); default: text",
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
