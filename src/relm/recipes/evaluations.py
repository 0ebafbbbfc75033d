"""Evaluations: their declarations, their options, and their jobs.

An evaluation reads a model's weights, or a run's log, and writes `eval/TASK.json`. A recipe's `evaluate` names most of them as
they are declared here. An evaluation that scores a published test file is a protocol: `recipes/evaluations/NAME.yaml` describes
the file and names its protocol, and `evaluate` names the file's description. Tasks of the language-model evaluation harness are
named `lm_eval:TASK`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn, Registry, add_options
from relm.recipes.objectives import Objective
from relm.recipes.remote_files import RemoteFile
from relm.recipes.section import Section, Slug, read_yaml, validate

Input = Literal["manifest", "tokenizer", "file", "task_folder", "log"]
"""A file that an evaluation reads beside the model: the manifest of the last phase's examples, with their shards; the recipe's
tokenizer; a published test file; the folder of the harness's task files; or the logs of all phases, in which case no weights
are read."""

Fact = Literal["context", "batch_size", "phase", "language", "phases", "harness_task", "task_files"]
"""A key of `EvaluationJob`, beside the options, that follows from the recipe."""


@dataclass(frozen=True)
class EvaluationDeclaration:
    """One kind of evaluation."""

    name: str
    """Name in a recipe's `evaluate`, in metrics and of the result; of a test file's evaluation, the name of the protocol."""
    summary: str
    """Help of the command, which begins in lower case and has no full stop."""
    run: str
    """Function as "module:function". It gets keyword arguments: `model_folder`, `output`, `task`; each input and fact by its
    name; `options`, if it has any; `limit`, if it takes one; `execution`, unless it reads the log alone. For a `file` it gets
    `file_sha256` as well, for a `log` it gets `logs` and `trained_on`. It returns a sentence for the user."""
    inputs: tuple[Input, ...]
    """Files that are read beside the model."""
    objectives: tuple[str, ...] = ("causal",)
    """Objectives of the last phase for which it is defined."""
    facts: tuple[Fact, ...] = ()
    """Facts of the recipe that change the figures."""
    options: type[Section] | None = None
    """Section of its options, which is a key of the same name in a recipe or a test file."""
    of_trained_weights_alone: bool = False
    """Only trained weights are evaluated, not the starting weights or the authors': the result is text for a reader, or
    describes the training."""
    takes_limit: bool = False
    """It can score the first N examples alone, as a smoke twin does."""
    names_result_by_output: bool = True
    """The evaluation's command names the result after its output file; false: always after the evaluation."""
    command: str = ""
    """Name of the command that users call; default: the evaluation's name with hyphens."""
    epilog: str = ""
    """Sentence at the end of the command's help."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", self.command or self.name.replace("_", "-"))

    @property
    def reads_log_alone(self) -> bool:
        """True if no weights are scored."""
        return "log" in self.inputs

    @property
    def is_protocol(self) -> bool:
        """True if it scores a published test file."""
        return "file" in self.inputs

    @property
    def is_named_in_recipes(self) -> bool:
        """True if a recipe's `evaluate` names it as it is declared."""
        return not self.is_protocol and "harness_task" not in self.facts


EVALUATIONS: Registry[EvaluationDeclaration] = Registry("evaluation")
PROTOCOLS: Registry[EvaluationDeclaration] = Registry("protocol")
"""The evaluations that score a published test file."""

HARNESS = "lm_eval:"
"""Prefix of a task of the language-model evaluation harness, in `evaluate`."""
HARNESS_TASKS = Path("recipes/harness")
"""Folder of the project's own task files for the harness."""

Evaluation = Annotated[str, Field(pattern=r"^(lm_eval:)?[A-Za-z0-9][A-Za-z0-9_.-]*$")]


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
    """Return the objectives of the last phase for which an entry of `evaluate` is defined; published tests are causal only."""
    return EVALUATIONS[evaluation].objectives if evaluation in names_in_recipes() else ("causal",)


def is_of_trained_weights_alone(evaluation: str) -> bool:
    """Return True if an entry of `evaluate` is left out for the starting weights and the authors'."""
    return evaluation in names_in_recipes() and EVALUATIONS[evaluation].of_trained_weights_alone


Begin = Literal["none", "tokenizer", "every_window"]
"""Tokens that are prepended to a text that a causal model scores."""


class RandomWindows(Section):
    """The loss on windows that begin at random tokens, as nanoGPT estimates it while it trains."""

    batches: int = Field(default=20, gt=0)
    """Number of batches, each of the last phase's global batch size; the figure is the mean of their mean losses."""
    seed: int = Field(default=0, ge=0)
    """Random seed of the windows' start positions."""


class TextPerplexity(Section):
    """Perplexity of a text."""

    detokeniser: Literal["none", "gpt2_wikitext"] = "none"
    """Detokeniser of the text before it is scored. none: the text is unchanged; gpt2_wikitext: WikiText's spaces around
    punctuation are removed, by the rules of Megatron-LM that Graphcore's GPT-2 uses."""
    documents: Literal["one", "joined_rows", "level_1_headings"] = "one"
    """Documents of the file. one: the whole file is one document; joined_rows: its lines are concatenated to one document, as
    in Hugging Face's page on perplexity; level_1_headings: one document per WikiText page, each beginning at ` = Title = `, as
    in lm_eval's data set."""
    windows: Literal["overlapping", "rolling", "strided"] = "overlapping"
    """Windows of a document that is longer than the context. overlapping: windows begin every `stride` tokens, the first one
    scores all its tokens and each later one its last `stride` (Megatron-LM, and so Graphcore's GPT-2); rolling: windows share
    one token only, and the last one reaches back as far as the context allows (lm_eval); strided: as in Hugging Face's page on
    perplexity, where each window scores the tokens after the end of the one before."""
    context: int | None = Field(default=None, gt=1)
    """Number of tokens that a prediction can see; null: the model's number of positions."""
    stride: int | None = Field(default=None, gt=0)
    """Tokens from one window to the next; null, or more than the model has positions: the context, so that windows do not
    overlap. rolling has no stride."""
    begin: Begin = "tokenizer"
    """Tokens that are prepended. none: no tokens; tokenizer: those that the tokenizer adds before a text that it encodes, its
    bos or nothing; every_window: every window begins with bos, which counts in its length, so a window of L tokens has bos and
    L - 1 tokens of text. The first token prepended to a document is never scored."""
    first_token: Literal["given", "scored"] = "given"
    """Treatment of a document's first token, which is bos if that is prepended. given: it is not scored; scored: it is scored,
    conditioned on the tokenizer's bos or else its end-of-text token. So lm_eval scores a bos that the tokenizer adds."""
    words: Literal["single_spaces", "whitespace"] = "whitespace"
    """Word count for the perplexity per word, of the text before the detokeniser. single_spaces: parts between single spaces of
    the stripped text, minus one, as in Megatron-LM; whitespace: parts between runs of whitespace, as in lm_eval."""

    @model_validator(mode="after")
    def windows_have_their_options(self) -> Self:
        if self.windows == "rolling" and self.stride is not None:
            raise ValueError("stride: rolling windows have none; leave it out")
        if self.stride is not None and self.context is not None and self.stride > self.context:
            raise ValueError(f"stride ({self.stride}) exceeds context ({self.context}): tokens would be left out")
        if self.stride is not None and self.context is not None and self.stride > self.longest_stride(self.context):
            raise ValueError(f"stride ({self.stride}): bos and {self.context - 1} tokens fill a window; give at most as many")
        return self

    def longest_stride(self, context: int) -> int:
        """Return the longest stride that leaves no token out: a strided window scores no token beyond its context."""
        return context - 1 if self.begin == "every_window" and self.windows == "strided" else context


class Lambada(Section):
    """Prediction of the last word of passages (Paperno et al. 2016), by three protocols at once."""

    text_key: str = "text"
    """Key of the passage in each line's JSON object."""
    begin: Begin = "tokenizer"
    """Tokens that are prepended to a passage. none: no tokens; tokenizer: those that the tokenizer adds before a text that it
    encodes, its bos or nothing, which a truncated passage loses; every_window: bos, which a truncated passage keeps."""


class MaskedLm(Section):
    """Loss of masked tokens on held-out examples, by two protocols: one with fixed masks, and that of run_mlm.py.

    The latter is the script of transformers 4.2.2 that the Hugging Face blog ran: masks are drawn anew at each evaluation, and
    the means of batches are averaged. If masks are stored with the examples, only the first protocol applies.
    """

    seed: int = Field(default=0, ge=0)
    """Random seed of all masks. Those of the first protocol depend on it and on the example's index alone."""
    redraws: int = Field(default=3, gt=0)
    """Number of times that masks are drawn for the second protocol; it reports their mean and, of several, their spread."""
    batch_size: int = Field(default=8, gt=0)
    """Sequences per batch, over whose masked tokens the second protocol takes each mean (its per_device_eval_batch_size)."""
    processes: int = Field(default=1, gt=0)
    """Number of equal parts of the examples, each batched separately by the second protocol; 8 on a TPU v3-8."""


class Samples(Section):
    """Texts that the model generates, for a person to read."""

    prompt: list[str] | None = None
    """Prompts, one for each text; null: a few that suit an encyclopedia."""
    seed: int = Field(default=0, ge=0)
    """Random seed of the sampling."""


class PseudoPerplexity(Section):
    """Pseudo-perplexity: each token is masked alone and predicted from all others (Salazar et al. 2020)."""

    examples: int = Field(default=100, gt=0)
    """Number of held-out examples, from the first on; each takes as many forward passes as it has tokens."""


class Diacritics(Section):
    """Accuracy of restored diacritics, by letter, word and ambiguous word.

    Two baselines have the same figures: the text without diacritics, and each word's most frequent form in the training text.
    """

    examples: int | None = Field(default=None, gt=0)
    """Number of held-out texts, from the first on; null: all."""


class PublishedTest(Section):
    """`recipes/evaluations/NAME.yaml`: one test file, and the protocol by which it is scored."""

    title: str
    """Short description of the text."""
    licence: str
    """SPDX identifier, or the licence's name."""
    homepage: str | None = Field(default=None, pattern=r"^https?://")
    """A page about the data."""
    protocol: Annotated[str, NameIn(PROTOCOLS)]
    """Evaluation of the file. perplexity: of a UTF-8 text; lambada: the last words of passages, one JSON object per line."""
    files: dict[Slug, RemoteFile] = Field(min_length=1, max_length=1)
    """Name of the one file -> its content and sources."""
    perplexity: TextPerplexity = TextPerplexity()
    """Options of the protocol perplexity."""
    lambada: Lambada = Lambada()
    """Options of the protocol lambada."""

    @property
    def file(self) -> str:
        """Name of the one file."""
        return next(iter(self.files))

    @model_validator(mode="after")
    def options_belong_to_the_protocol(self) -> Self:
        for other in PROTOCOLS.names:
            if other != self.protocol and getattr(self, other) != type(self).model_fields[other].default:
                raise ValueError(f"{other}: options of another protocol than {self.protocol}; leave them out")
        return self


def load_test(path: Path) -> PublishedTest:
    """Return the test in a file of `recipes/evaluations/`."""
    return validate(PublishedTest, read_yaml(path), path)


class PhaseLength(Section):
    """Length of a phase, in steps and sequences."""

    steps: int = Field(gt=0)
    """Number of optimizer steps."""
    global_batch_size: int = Field(gt=0)
    """Sequences per optimizer step."""


class EvaluationJob(Section):
    """The identity of an evaluation: everything that changes its figures, beside the files that it reads.

    The graph computes it from the resolved recipe, and `relm evaluate --job` takes it.
    """

    revision: int | None = None
    """Revision of the evaluations' code; it counts only for the graph, which runs an evaluation again when it changes."""
    evaluation: Annotated[str, NameIn(EVALUATIONS)]
    """Name of the declaration."""
    task: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the result; null: the evaluation's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the evaluation that differ from their defaults."""
    context: int | None = Field(default=None, gt=0)
    """Context length in tokens: the last phase's sequence length."""
    batch_size: int | None = Field(default=None, gt=0)
    """Sequences per batch: the last phase's global batch size."""
    phase: Objective | None = None
    """Objective of the last phase with its options, as a recipe's phase has them."""
    language: str | None = None
    """Language of the dataset, such as ro."""
    phases: dict[Slug, PhaseLength] | None = None
    """All phases, in order."""
    harness_task: str | None = None
    """Name of the task, as the harness calls it."""
    task_files: dict[str, str] | None = None
    """Path inside the folder of the harness's task files -> sha256."""

    @model_validator(mode="after")
    def has_the_facts_of_its_evaluation(self) -> Self:
        declaration = EVALUATIONS[self.evaluation]
        if missing := [fact for fact in declaration.facts if fact != "task_files" and getattr(self, fact) is None]:
            raise ValueError(
                f"{self.evaluation} depends on {' and '.join(missing)}; give {'it' if len(missing) == 1 else 'them'}"
            )
        return self

    def arguments(self, source: Path) -> dict[str, Any]:
        """Return the keyword arguments of the evaluation's function that follow from the job.

        Args:
            source: name of the job in errors.

        Raises:
            RelmError: the options have faults, or the evaluation has none.
        """
        declaration = EVALUATIONS[self.evaluation]
        facts: dict[str, Any] = {fact: getattr(self, fact) for fact in declaration.facts if fact != "task_files"}
        options = validate(declaration.options or Section, self.options, source)
        return {"task": self.task or self.evaluation, **facts, **({"options": options} if declaration.options else {})}


def register_evaluation(declaration: EvaluationDeclaration) -> EvaluationDeclaration:
    """Add an evaluation; one with options gets a key of its name in recipes or, if it is a protocol, in test files.

    Raises:
        RelmError: the name is taken.
    """
    from relm.recipes.recipe import Recipe  # imported here because that module imports this one

    _declare(declaration)
    if declaration.options is not None:
        owner = PublishedTest if declaration.is_protocol else Recipe
        add_options(owner, declaration.name, declaration.options, f"Options of the evaluation {declaration.name}.")
    return declaration


def _declare(declaration: EvaluationDeclaration) -> None:
    EVALUATIONS.register(declaration)
    if declaration.is_protocol:
        PROTOCOLS.register(declaration)


def find_evaluation(task: str, tests: Mapping[str, PublishedTest]) -> EvaluationDeclaration | None:
    """Return the declaration behind the name of a result; None: there is no such evaluation.

    Args:
        task: the name of the result.
        tests: the published tests that the recipe evaluates.
    """
    if task in names_in_recipes():
        return EVALUATIONS[task]
    if task.startswith(task_of(HARNESS)):
        return EVALUATIONS["lm_eval"]
    return EVALUATIONS[tests[task].protocol] if task in tests else None


_declare(
    EvaluationDeclaration(
        name="held_out",
        summary="perplexity by token, word and byte on the held-out documents, beside unigram and bigram models",
        run="relm.evaluation.perplexity:evaluate_held_out",
        inputs=("manifest",),
        facts=("context",),
        names_result_by_output=False,
    )
)
_declare(
    EvaluationDeclaration(
        name="random_windows",
        summary="the loss on windows that begin at random tokens, held out and in training, as nanoGPT estimates it",
        run="relm.evaluation.random_windows:evaluate_random_windows",
        inputs=("manifest",),
        facts=("context", "batch_size"),
        options=RandomWindows,
        names_result_by_output=False,
    )
)
_declare(
    EvaluationDeclaration(
        name="samples",
        summary="let the model write a few texts",
        run="relm.evaluation.samples:write_declared_samples",
        inputs=("tokenizer",),
        options=Samples,
        of_trained_weights_alone=True,
        names_result_by_output=False,
    )
)
_declare(
    EvaluationDeclaration(
        name="masked_lm",
        summary="perplexity and accuracy of masked tokens: with masks that stay, and as transformers' Trainer draws them",
        run="relm.evaluation.masked_lm:evaluate_masked_lm",
        objectives=("masked",),
        inputs=("manifest",),
        facts=("phase",),
        options=MaskedLm,
        takes_limit=True,
    )
)
_declare(
    EvaluationDeclaration(
        name="pseudo_perplexity",
        summary="each token predicted from all others, masked alone (Salazar et al. 2020)",
        run="relm.evaluation.pseudo_perplexity:evaluate_pseudo_perplexity",
        objectives=("masked",),
        inputs=("manifest",),
        options=PseudoPerplexity,
        takes_limit=True,
    )
)
_declare(
    EvaluationDeclaration(
        name="diacritics",
        summary="the accuracy of restored diacritics: by character, word and ambiguous word, beside two baselines",
        run="relm.evaluation.diacritics:evaluate_diacritics",
        objectives=("seq2seq",),
        inputs=("manifest", "tokenizer"),
        facts=("phase", "language"),
        options=Diacritics,
        takes_limit=True,
    )
)
_declare(
    EvaluationDeclaration(
        name="training",
        summary="the time and the speed of training, from its log",
        run="relm.evaluation.training_speed:evaluate_logs",
        objectives=("causal", "masked", "seq2seq", "span_corruption"),
        inputs=("log",),
        facts=("phases",),
        of_trained_weights_alone=True,
        command="training-speed",
    )
)
_declare(
    EvaluationDeclaration(
        name="perplexity",
        summary="perplexity of a text by token, word and byte, by a published protocol or one of your own",
        run="relm.evaluation.text_perplexity:evaluate_text",
        inputs=("file", "tokenizer"),
        options=TextPerplexity,
        takes_limit=True,
        epilog="docs/evaluation.md says which published number is which protocol.",
    )
)
_declare(
    EvaluationDeclaration(
        name="lambada",
        summary="the last words of passages by three protocols at once: last token, last word, and lm_eval's lambada_openai",
        run="relm.evaluation.lambada:evaluate_lambada",
        inputs=("file", "tokenizer"),
        options=Lambada,
        takes_limit=True,
    )
)
_declare(
    EvaluationDeclaration(
        name="lm_eval",
        summary="any task of the language-model evaluation harness, in an environment of its own (make harness)",
        run="relm.evaluation.harness:evaluate_harness",
        inputs=("task_folder", "tokenizer"),
        facts=("harness_task", "task_files"),
        takes_limit=True,
        command="harness",
    )
)
