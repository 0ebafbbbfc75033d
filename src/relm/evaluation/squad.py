"""SQuAD 1.1 by fine-tuning: the ordinary training loop on windows of the training file, then answers to the development file.

Each seed is a run of its own, whose checkpoints make it resumable to the same bytes; a seed that has been scored leaves its
answers, its figures and its log. The protocol is that of the original BERT's `run_squad.py`, except that the learning rate
falls from its peak at the end of the warm-up, as in transformers, and that windows are read in a seeded permutation.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from relm.artifact import canonical_json, read_json, write_json
from relm.errors import RelmError
from relm.evaluation.answer_choice import Floats, SearchLimits, rank_answers
from relm.evaluation.evaluated_text import read_content
from relm.evaluation.execution import Execution
from relm.evaluation.model_folder import readable, weights_sha256
from relm.evaluation.result import Result
from relm.evaluation.squad_scoring import score_answers
from relm.examples.answer_windows import AnswerWindows, Windowed, WindowLengths, window_questions
from relm.examples.manifest import write_manifest
from relm.examples.spans import write_span_table
from relm.examples.squad import first_questions, parse_squad
from relm.examples.tokenizers import LoadedTokenizer, load_tokenizer
from relm.models.bert_configuration import BertConfig
from relm.models.bert_span import BertForSpans
from relm.models.configuration import folder_config
from relm.recipes.architectures import BertArchitecture
from relm.recipes.fine_tuning import Squad
from relm.recipes.recipe import Recipe
from relm.recipes.section import validate
from relm.training.loop import pretrain
from relm.training.phase_run import derived_seed

PHASE = "squad"
# Raised with a change of the code that changes figures, so that runs in progress begin anew.
REVISION = 1
FIGURES, ANSWERS = "figures.json", "predictions.json"
DESCRIPTION = (
    "Fine-tuned on SQuAD 1.1, once for each seed; exact match and F1 of the answers to the development file are those of "
    "evaluate-v1.1.py, from 0 to 1, as means over the seeds with the standard deviation of one run."
)


@dataclass(frozen=True)
class TuningRun:
    """Execution of the training runs, which changes no figure but for rounding."""

    micro_batch_size: int | None = None
    """Sequences of a forward pass; None: the whole batch."""
    checkpoint_interval: int = 500
    """Steps between checkpoints."""
    keep_models: bool = False
    """Keep the weights of each seed after its answers have been scored."""


def evaluate_squad(
    model_folder: Path,
    tokenizer: Path,
    training_file: Path,
    file: Path,
    output: Path,
    task: str,
    options: Squad,
    training_sha256: str | None = None,
    file_sha256: str | None = None,
    execution: Execution | None = None,
    how: TuningRun | None = None,
    limit: int | None = None,
) -> str:
    """Fine-tune a model on SQuAD 1.1, once for each seed, and write `eval/TASK.json`.

    An interrupted call is resumed by the same call, with the same bytes as result; checkpoints lie in `eval/TASK/`.

    Args:
        model_folder: a BERT or RoBERTa of relm's own, or one of transformers' with the same options.
        tokenizer: its `tokenizer.json`.
        training_file: train-v1.1.json.
        file: dev-v1.1.json.
        output: the JSON file.
        task: the name of the evaluation in it.
        options: how to train, and how to choose answers.
        training_sha256: the expected sha256 of the training file; None: any.
        file_sha256: the expected sha256 of the development file; None: any.
        execution: the device, for training and answers, and the precision of matrix products in both.
        how: how training is executed; None: with as many sequences in a forward pass as the device computes at once.
        limit: the count of questions, from the first on, of either file; None: all.

    Raises:
        Preempted: TERM or INT was received; a checkpoint was saved.
        RelmError: a file has another sha256 or a fault; the model is no BERT or RoBERTa, or lacks weights; tokenizer and model
            do not belong together; the loss is not finite.
    """
    execution = execution or Execution()
    execution.require_device_of_all_models()
    content, found_sha256 = read_content(file, file_sha256)
    trained_sha256 = read_content(training_file, training_sha256)[1]
    with readable(model_folder, "BERT or RoBERTa"):
        config, model_sha256 = _encoder_config(model_folder), weights_sha256(model_folder)
    loaded = load_tokenizer(tokenizer)
    paragraphs = first_questions(parse_squad(content, str(file)), limit)
    questions = window_questions(paragraphs, loaded, window_lengths(options), labelled=False)
    facts: dict[str, str | int] = {
        "training_sha256": trained_sha256,
        "tokenizer_sha256": loaded.sha256,
        "precision": execution.precision,
        **({} if limit is None else {"limit": limit}),
    }
    # Figures that are there already are those of this development file.
    fingerprint = _fingerprint(options, {**facts, "model_sha256": model_sha256, "file_sha256": found_sha256})
    how = how or TuningRun(micro_batch_size=fitting_micro_batch(options, execution.batch_tokens))
    tuning = Tuning(model_folder, tokenizer, config, options, execution, how, fingerprint, limit)
    folder = output.with_suffix("") / fingerprint
    manifest = tuning.write_examples(training_file, folder / "examples")
    figures = [
        tuning.score_seed(seed, manifest, folder / f"seed-{seed}", loaded, questions)
        for seed in range(options.seed, options.seed + options.seeds)
    ]
    protocol = {
        "in_words": DESCRIPTION,
        "file": file.name,
        "file_sha256": found_sha256,
        "training_file": training_file.name,
        **facts,
        **options.model_dump(),
    }
    found = _summary(figures, questions)
    Result(task=task, protocol=protocol, figures=found, model_sha256=model_sha256).write(output)
    return (
        f"fine-tuned {options.seeds} times and answered {found['questions']:,} questions: exact match "
        f"{found['exact_match']:.4f} +- {found['exact_match_std']:.4f}, F1 {found['f1']:.4f} +- {found['f1_std']:.4f}"
    )


def _fingerprint(options: Squad, facts: Mapping[str, str | int]) -> str:
    """Return the name of the folder in which these options are trained and scored, from whatever decides a seed's figures."""
    identity = {"revision": REVISION, "options": options.model_dump(exclude={"seed", "seeds"}), **facts}
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:12]


def fitting_micro_batch(options: Squad, tokens: int) -> int:
    """Return the largest divisor of the batch size whose sequences have at most so many tokens, or 1.

    >>> fitting_micro_batch(Squad(batch_size=32, sequence_length=384), 16_384)
    32
    >>> fitting_micro_batch(Squad(batch_size=30, sequence_length=384), 2_000)
    5
    """
    most = max(1, tokens // options.sequence_length)
    return next(size for size in range(min(most, options.batch_size), 0, -1) if options.batch_size % size == 0)


def _encoder_config(folder: Path) -> BertConfig:
    """Return the architecture in a folder.

    Raises:
        ValueError: it is none of a BERT or RoBERTa, or has options that these lack.
    """
    return folder_config(folder, BertConfig, None, ())


def _summary(figures: list[Mapping[str, float]], questions: Windowed) -> dict[str, float | int]:
    """Return means and standard deviations over the seeds, which are 0 for one seed, and each seed's figures."""
    found: dict[str, float | int] = {}
    for name in ("exact_match", "f1"):
        values = [each[name] for each in figures]
        found[name] = float(np.mean(values))
        found[f"{name}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        found |= {f"{name}_{number}": value for number, value in enumerate(values)}
    return {**found, "seeds": len(figures), "questions": len(questions.questions), "windows": len(questions.windows.lengths)}


@dataclass(frozen=True)
class Tuning:
    """Fine-tuning of one model by the training loop."""

    model_folder: Path
    tokenizer: Path
    config: BertConfig
    options: Squad
    execution: Execution
    how: TuningRun
    fingerprint: str
    limit: int | None = None
    """Number of questions of the training file, from the first on; None: all."""

    def write_examples(self, file: Path, folder: Path) -> Path:
        """Write the windows of the training file, unless they are there, and return their manifest."""
        manifest, table = folder / "manifest.json", folder / "train.arrow"
        if not manifest.exists():
            folder.mkdir(parents=True, exist_ok=True)
            phase = self.recipe(0, 1).pretrain[PHASE]
            write_span_table(file, self.tokenizer, table, phase, window_lengths(self.options), self.limit)
            write_manifest({"train": [table]}, manifest)
        return manifest

    def score_seed(
        self, seed: int, manifest: Path, folder: Path, loaded: LoadedTokenizer, questions: Windowed
    ) -> Mapping[str, float]:
        """Return the figures of one seed; it is trained unless that has been done, and then leaves no weights."""
        if not (folder / FIGURES).exists():
            model = self._train(seed, manifest, folder)
            logits = answer_logits(model, questions.windows, self.execution)
            limits = SearchLimits(self.options.n_best, self.options.longest_answer)
            ranked = rank_answers(loaded, questions.questions, questions.windows, logits, limits)
            asked = [each.question for each in questions.questions]
            answers = {question.id: found[0].text for question, found in zip(asked, ranked, strict=True)}
            write_json(folder / ANSWERS, answers)
            write_json(folder / FIGURES, score_answers(asked, answers))
        for finished in ("start", f"{PHASE}/checkpoints", *(() if self.how.keep_models else (f"{PHASE}/model",))):
            shutil.rmtree(folder / finished, ignore_errors=True)
        found: Mapping[str, float] = read_json(folder / FIGURES)
        return found

    def _train(self, seed: int, manifest: Path, folder: Path) -> Path:
        """Return the folder of the model that was fine-tuned with a seed."""
        start, model = folder / "start", folder / PHASE / "model"
        self._write_start(seed, start)
        recipe = self.recipe(seed, count_steps(manifest, self.options))
        pretrain(recipe, PHASE, manifest, self.tokenizer, start, model, self.fingerprint)
        return model

    def _write_start(self, seed: int, folder: Path) -> None:
        """Write the encoder with a head whose weights the seed draws; the same bytes each time."""
        generator = torch.Generator().manual_seed(derived_seed(seed, "head of answers"))
        try:
            model = BertForSpans.on_encoder(self.model_folder, generator)
        except (ValueError, OSError) as error:
            raise RelmError(f"{self.model_folder}: lacks the weights of an encoder: {error}; give a BERT or RoBERTa") from None
        folder.mkdir(parents=True, exist_ok=True)
        model.save_folder(folder, {})

    def recipe(self, seed: int, steps: int) -> Recipe:
        """Return the run of one seed as the training loop takes it."""
        options = self.options
        sizes = {name: value for name, value in asdict(self.config).items() if name in BertArchitecture.model_fields}
        optimizer = {
            key: getattr(options, key)
            for key in ("learning_rate", "weight_decay", "epsilon", "bias_correction", "gradient_clipping")
        }
        content = {
            "title": "fine-tuning on SQuAD 1.1",
            "data": {"dataset": PHASE},
            "tokenizer": {"from_model": PHASE},
            "model": {"architecture": self.config.family, **sizes},
            "init_from": PHASE,
            "seed": seed,
            "pretrain": {
                PHASE: {
                    "objective": "spans",
                    "sequence_length": options.sequence_length,
                    "global_batch_size": options.batch_size,
                    "steps": steps,
                    "optimizer": optimizer,
                    "schedule": {"name": "linear", "warmup_steps": int(options.warmup_share * steps)},
                    "precision": self.execution.precision,
                }
            },
            "run": {
                "device": self.execution.device,
                "threads": self.execution.threads,
                "micro_batch_size": self.how.micro_batch_size,
                "checkpoint_interval": self.how.checkpoint_interval,
            },
        }
        return validate(Recipe, content, Path(PHASE))


def window_lengths(options: Squad) -> WindowLengths:
    """Return the lengths of windows."""
    return WindowLengths(options.sequence_length, options.doc_stride, options.max_query_length)


def count_steps(manifest: Path, options: Squad) -> int:
    """Return the optimizer steps: as in the original, an epoch is as many sequences as there are questions."""
    questions = int(read_json(manifest.parent / "train.arrow.json")["questions"])
    return max(1, int(questions / options.batch_size * options.epochs))


def answer_logits(folder: Path, windows: AnswerWindows, execution: Execution) -> tuple[Floats, Floats]:
    """Return a model's logits of first and last tokens, (windows, sequence) each, float32."""
    device = execution.open()
    model = device.place(BertForSpans.from_folder(folder).eval())
    inputs = {name: torch.from_numpy(array) for name, array in windows.inputs().items()}
    count, length = windows.input_ids.shape
    size, pieces = max(1, execution.batch_tokens // length), []
    with torch.inference_mode():
        for first in range(0, count, size):
            fed = device.feed({name: tensor[first : first + size] for name, tensor in inputs.items()})
            with device.autocast(execution.precision):
                logits = model.logits(fed["input_ids"], fed["attention_mask"], fed["token_type_ids"])
            pieces.append(logits.float().cpu().numpy())
    starts, ends = np.concatenate(pieces).transpose(1, 0, 2)
    return starts, ends
