"""Evaluations: their declarations and their options.

An evaluation reads weights or a run's log, and writes `eval/TASK.json`. `evaluate` in a recipe names an evaluation, a test file
(`recipes/evaluations/NAME.yaml`) that an evaluation called its protocol scores, or `lm_eval:TASK` of the evaluation harness.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from relm.recipes.declaration import Registry
from relm.recipes.evaluation.fine_tuning import Glue, Squad
from relm.recipes.evaluation.protocol_options import Lambada, MultipleChoice, TextPerplexity
from relm.recipes.section import Section

Input = Literal["manifest", "tokenizer", "file", "training_file", "mismatched_file", "task_folder", "log"]
"""A file that an evaluation reads besides the model: the manifest of the last phase's examples, with their shards; the recipe's
tokenizer; a published test file; the file that a model is fine-tuned on before the test file is scored; a second test file,
which the same model is scored on; the folder of the harness's task files; or the logs of all phases, in which case no weights
are read."""

Fact = Literal["context", "batch_size", "phase", "language", "phases", "harness_task", "task_files"]
"""A key of `EvaluationJob`, other than the options, that follows from the recipe."""


@dataclass(frozen=True)
class EvaluationDeclaration:
    """One kind of evaluation."""

    name: str
    """Name in a recipe's `evaluate`, in metrics and of the result; of a test file's evaluation, the name of the protocol."""
    summary: str
    """Help of the command, which begins in lower case and has no full stop."""
    run: str
    """Function as "module:function", as `relm.evaluation.runner.evaluation` makes one of a protocol that returns figures. It
    gets keyword arguments: `model_folder`, `output`, `task`; each input and fact by its
    name; `options`, if it has any; `limit`, if it takes one; `execution`, unless it reads only the log. For a `file` it gets
    `file_sha256` as well, for a `training_file` `training_sha256`, for a `mismatched_file` `mismatched_sha256`, for a `log`
    `logs` and `trained_on`. It returns a sentence for the user."""
    inputs: tuple[Input, ...]
    """Files that it reads besides the model."""
    optional_inputs: tuple[Input, ...] = ()
    """Further files that it reads if a test has them."""
    objectives: tuple[str, ...] = ("causal",)
    """Objectives of the last phase for which it is defined."""
    facts: tuple[Fact, ...] = ()
    """Facts of the recipe that change the figures."""
    options: type[Section] | None = None
    """Section of its options, which is a key of the same name in a recipe or a test file."""
    trained_only: bool = False
    """It does not evaluate starting weights or the authors': the result is text for a reader, or describes the training."""
    seed_of_run: bool = False
    """The figure is an estimate on a random sample, which each of a recipe's `seeds` draws again: the options' `seed` grows
    with the run's. Otherwise all runs are evaluated alike."""
    takes_limit: bool = False
    """It can score only the first N examples, as a smoke twin does."""
    names_result_by_output: bool = True
    """The evaluation's command names the result after its output file; false: always after the evaluation."""
    command: str = ""
    """Name of the command that users call; default: the evaluation's name with hyphens."""
    named_options: tuple[str, ...] = ()
    """Options that the command needs unless a test's file has them."""
    epilog: str = ""
    """Sentence at the end of the command's help."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", self.command or self.name.replace("_", "-"))

    @property
    def reads_only_log(self) -> bool:
        """True if no weights are scored."""
        return "log" in self.inputs

    @property
    def is_protocol(self) -> bool:
        """True if it scores a published test file."""
        return "file" in self.inputs

    @property
    def fine_tunes(self) -> bool:
        """True if a model is trained on the task before it is scored, which takes time and memory as training does."""
        return "training_file" in self.inputs

    @property
    def is_named_in_recipes(self) -> bool:
        """True if a recipe's `evaluate` names it as it is declared."""
        return not self.is_protocol and "harness_task" not in self.facts


HARNESS = "lm_eval:"
"""Prefix of a task of the language-model evaluation harness, in `evaluate`."""
HARNESS_TASKS = Path("recipes/harness")
"""Folder of the project's own task files for the harness."""

Evaluation = Annotated[str, Field(pattern=r"^(lm_eval:)?[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class RandomWindows(Section):
    """The loss on windows that begin at random tokens, as nanoGPT estimates it while it trains."""

    batches: int = Field(default=20, gt=0)
    """Number of batches, each of the last phase's global batch size; the figure is the mean of their mean losses."""
    seed: int = Field(default=0, ge=0)
    """Random seed of the windows' start positions."""


class MaskedLm(Section):
    """Loss of masked tokens on held-out examples, by two protocols: one with fixed masks, and that of run_mlm.py.

    The latter is the script of transformers 4.2.2 that the Hugging Face blog ran: masks are drawn again at each evaluation, and
    the means of batches are averaged. If masks are stored with the examples, only the first protocol applies.
    """

    seed: int = Field(default=0, ge=0)
    """Random seed of all masks. Those of the first protocol depend only on it and the example's index."""
    redraws: int = Field(default=3, gt=0)
    """Number of times that masks are drawn for the second protocol; it reports their mean and, of several, their spread."""
    batch_size: int = Field(default=8, gt=0)
    """Sequences per batch, over whose masked tokens the second protocol takes each mean (its per_device_eval_batch_size)."""
    processes: int = Field(default=1, gt=0)
    """Number of equal parts of the examples, each batched separately by the second protocol; 8 on a TPU v3-8."""
    examples: Literal["as_trained", "by_default"] = "as_trained"
    """Builder of the held-out examples. as_trained: that of the last phase; by_default: relm's own, with the phase's keys but
    without its as_published, so that models trained with and without an original's defects predict the same tokens."""


class Samples(Section):
    """Texts that the model generates, for a person to read."""

    multi_line = frozenset({"prompt"})

    prompt: list[str] | None = None
    """Prompts, one for each text; null: a few that suit an encyclopedia."""
    seed: int = Field(default=0, ge=0)
    """Random seed of the sampling."""


class Diacritics(Section):
    """Accuracy of restored diacritics, by letter, word and ambiguous word.

    Two baselines have the same figures: the text without diacritics, and each word's most frequent form in the training text.
    """

    examples: int | None = Field(default=None, gt=0)
    """Number of held-out texts, from the first on; null: all."""


_RESUMES = (
    "Runs and answers are written to the folder TASK next to the output. TERM or INT: saves a checkpoint and exits with 75; "
    "the same command resumes, with the same bytes as result."
)
EVALUATIONS: Registry[EvaluationDeclaration] = Registry(
    "evaluation",
    EvaluationDeclaration(
        name="held_out",
        summary="perplexity by token, word and byte on the held-out documents, and of unigram and bigram models",
        run="relm.evaluation.perplexity:evaluate_held_out",
        inputs=("manifest",),
        facts=("context",),
        names_result_by_output=False,
    ),
    EvaluationDeclaration(
        name="random_windows",
        summary="the loss on windows that begin at random tokens, held out and in training, as nanoGPT estimates it",
        run="relm.evaluation.random_windows:evaluate_random_windows",
        inputs=("manifest",),
        facts=("context", "batch_size"),
        options=RandomWindows,
        seed_of_run=True,
        names_result_by_output=False,
    ),
    EvaluationDeclaration(
        name="samples",
        summary="let the model write a few texts",
        run="relm.evaluation.generation.samples:write_samples",
        inputs=("tokenizer",),
        options=Samples,
        trained_only=True,
        names_result_by_output=False,
    ),
    EvaluationDeclaration(
        name="masked_lm",
        summary="perplexity and accuracy of masked tokens: with masks that stay, and as transformers' Trainer draws them",
        run="relm.evaluation.masked_lm:evaluate_masked_lm",
        objectives=("masked",),
        inputs=("manifest",),
        facts=("phase",),
        options=MaskedLm,
        takes_limit=True,
    ),
    EvaluationDeclaration(
        name="diacritics",
        summary="the accuracy of restored diacritics: by character, word and ambiguous word, with two baselines",
        run="relm.evaluation.diacritics.restored_texts:evaluate_diacritics",
        objectives=("seq2seq",),
        inputs=("manifest", "tokenizer"),
        facts=("phase", "language"),
        options=Diacritics,
        takes_limit=True,
    ),
    EvaluationDeclaration(
        name="training",
        summary="the time and the speed of training, from its log",
        run="relm.evaluation.training_speed:evaluate_training",
        objectives=("causal", "masked", "seq2seq"),
        inputs=("log",),
        facts=("phases",),
        trained_only=True,
        command="training-speed",
    ),
    EvaluationDeclaration(
        name="perplexity",
        summary="perplexity of a text by token, word and byte, by a published protocol or one of your own",
        run="relm.evaluation.text_perplexity:evaluate_text",
        inputs=("file", "tokenizer"),
        options=TextPerplexity,
        takes_limit=True,
        epilog="docs/evaluation.md says which published number is which protocol.",
    ),
    EvaluationDeclaration(
        name="lambada",
        summary="the last words of passages by three protocols at once: last token, last word, and lm_eval's lambada_openai",
        run="relm.evaluation.lambada:evaluate_lambada",
        inputs=("file", "tokenizer"),
        options=Lambada,
        takes_limit=True,
    ),
    EvaluationDeclaration(
        name="multiple_choice",
        summary="the likeliest of several choices: HellaSwag, ARC and PIQA, as lm_eval and llm.c score them",
        run="relm.evaluation.choices.multiple_choice:evaluate_multiple_choice",
        inputs=("file", "tokenizer"),
        options=MultipleChoice,
        takes_limit=True,
    ),
    EvaluationDeclaration(
        name="squad",
        summary="fine-tune a BERT or RoBERTa on SQuAD 1.1 with several seeds, and score its answers: exact match and F1",
        run="relm.evaluation.fine_tuning.tuning:evaluate_tuning",
        objectives=("masked",),
        inputs=("training_file", "file", "tokenizer"),
        options=Squad,
        takes_limit=True,
        epilog=_RESUMES,
    ),
    EvaluationDeclaration(
        name="glue",
        summary="fine-tune a BERT or RoBERTa on a task of GLUE with several seeds, and score its classes or scores",
        run="relm.evaluation.fine_tuning.tuning:evaluate_tuning",
        objectives=("masked",),
        inputs=("training_file", "file", "tokenizer"),
        optional_inputs=("mismatched_file",),
        options=Glue,
        takes_limit=True,
        named_options=("task",),
        epilog=_RESUMES,
    ),
    EvaluationDeclaration(
        name="lm_eval",
        summary="any task of the language-model evaluation harness, in a separate environment (make harness)",
        run="relm.evaluation.harness.tasks:evaluate_harness",
        inputs=("task_folder", "tokenizer"),
        facts=("harness_task", "task_files"),
        takes_limit=True,
        command="harness",
    ),
)
PROTOCOLS = Registry("protocol", *(declaration for declaration in EVALUATIONS if declaration.is_protocol))
"""The evaluations that score a published test file."""


def task_of(evaluation: str) -> str:
    """Return the name of an entry of `evaluate` in file names and metrics.

    >>> task_of("lambada"), task_of("lm_eval:hellaswag")
    ('lambada', 'lm_eval_hellaswag')
    """
    return evaluation.replace(":", "_")


def names_in_recipes() -> list[str]:
    """Return the evaluations that a recipe names as they are declared."""
    return [declaration.name for declaration in EVALUATIONS if declaration.is_named_in_recipes]


def objectives_of(evaluation: str) -> tuple[str, ...]:
    """Return the objectives that an entry of `evaluate` allows in the last phase; a published test states them in its file."""
    return EVALUATIONS[evaluation].objectives if evaluation in names_in_recipes() else ("causal",)
