"""The step that compares a published test with training documents."""

from relm.recipes.evaluation.published_tests import ITEM_FORMATS
from relm.steps.contract import EXPECTED, WORKERS, Arguments, Job, Step, argument, expected_sha256, path, paths


def contamination_job(a: Arguments) -> Job:
    from relm.evaluation.contamination import count_contamination

    expected = expected_sha256(a, [a.file])
    return Job(
        lambda: count_contamination(
            file=a.file,
            form=a.format,
            documents=a.documents,
            output=a.output,
            text_key=a.text_key,
            file_sha256=expected.get(a.file),
            workers=a.workers,
        ),
        inputs=[a.file, *a.documents],
        outputs=[a.output],
        expected_sha256=expected,
    )


STEPS: dict[str, Step] = {
    "contamination": Step(
        "count the items of a test that share 13 words in a row with training documents, and show some",
        [
            argument(
                "--format",
                required=True,
                choices=ITEM_FORMATS,
                help="of the test's file; text: each line is an item; squad: SQuAD's JSON; glue: Parquet; others: a JSON "
                "object on each line",
            ),
            path("--file", "the test's file"),
            argument("--text-key", default="text", metavar="KEY", help="for lambada: key of a passage; default: text"),
            paths("--documents", "documents that a model is trained on, JSON lines"),
            EXPECTED,
            WORKERS,
            path("--output", "TEST.json, whose name is the test's"),
        ],
        contamination_job,
        group="evaluation",
    ),
}
