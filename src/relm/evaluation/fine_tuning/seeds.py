"""Fine-tuning of an encoder on a task by the ordinary training loop, once for each seed, and the figures of each model.

Each seed is a separate run that resumes from its checkpoints to the same bytes. A scored seed leaves its answers and figures.
"""

import hashlib
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError

from relm.artifact import canonical_json, checked_sidecar, read_sealed, read_sidecar, seal, sha256_of, write_json
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.tuning_batches import (
    ScoredBatches,
    count_devices,
    fitting_micro_batch,
    require_even_batches,
    tokens_at_once,
)
from relm.evaluation.fine_tuning.tuning_pipeline import compute_ipu_logits, require_layers
from relm.evaluation.model_folder import readable, weights_sha256
from relm.examples.contract import Batch
from relm.examples.manifest import write_manifest
from relm.models.bert_configuration import BertConfig
from relm.models.bert_model import EncoderModel
from relm.models.configuration import folder_config
from relm.recipes.architectures import BertArchitecture
from relm.recipes.evaluation.fine_tuning import FineTuning
from relm.recipes.identity import KEY
from relm.recipes.phase import Phase
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import COMPILED
from relm.recipes.section import validate
from relm.training.interruption import run_lock
from relm.training.kill_points import kill_point
from relm.training.loop import pretrain
from relm.training.phase_run import derived_seed

log = logging.getLogger(__name__)

FIGURES, ANSWERS, TABLE = "figures.json", "predictions.json", "train.arrow"
KINDS = "BERT or RoBERTa"


@dataclass(frozen=True)
class TuningRun:
    """Execution of the training runs, which changes figures by rounding at most."""

    micro_batch_size: int | None = None
    """Sequences of a forward pass; None: chosen by the device."""
    checkpoint_interval: int = 500
    """Steps between checkpoints."""
    keep_models: bool = False
    """Keep the weights of a scored seed."""


BY_DEFAULT = TuningRun()


class TunedTask(Protocol):
    """A task that an encoder is fine-tuned on: its training examples, its head, and the figures of a trained model."""

    name: ClassVar[str]
    """Name of the training phase, and of its folder."""
    title: ClassVar[str]
    """Title of the training run."""
    revision: ClassVar[int]
    """Number to raise with a change of the code that changes figures, so that runs in progress start again."""
    head: ClassVar[str]
    """Purpose of the seed that the head's weights are drawn with."""

    @property
    def options(self) -> FineTuning:
        """Return the options of the training."""

    @property
    def protocol(self) -> str:
        """Return the protocol in a sentence or two."""

    @property
    def objective(self) -> str:
        """Return the objective of the training examples."""

    def write_table(self, file: Path, tokenizer: Path, table: Path, phase: Phase) -> None:
        """Write the training examples of a file as one table with its sidecar."""

    def count_examples(self, sidecar: Mapping[str, Any]) -> int:
        """Return the count of examples in an epoch, from the sidecar of the table."""

    def start(self, folder: Path, generator: torch.Generator) -> EncoderModel:
        """Return the encoder in a folder with a new head."""

    def score(self, model: Path, execution: Execution) -> tuple[Any, Mapping[str, float]]:
        """Return the answers of a trained model as JSON values, and its figures."""

    def count(self, examples: Mapping[str, Any]) -> dict[str, int]:
        """Return the counts of the result, given the sidecar of the training examples."""

    def describe(self, found: Mapping[str, float | int], training_file: Path) -> str:
        """Describe the figures of all seeds, as the end of a sentence that begins with "fine-tuned 5 times"."""


@dataclass(frozen=True)
class TunedEncoder:
    """The model that is fine-tuned."""

    folder: Path
    config: BertConfig
    sha256: str
    """sha256 of its weights."""
    tokenizer: Path
    """Its `tokenizer.json`."""


def read_encoder(folder: Path, tokenizer: Path) -> TunedEncoder:
    """Return the encoder in a model's folder."""
    with readable(folder, KINDS):
        return TunedEncoder(folder, folder_config(folder, BertConfig), weights_sha256(folder), tokenizer)


def tune_and_score(
    task: TunedTask,
    encoder: TunedEncoder,
    training_file: Path,
    output: Path,
    execution: Execution,
    how: TuningRun,
    facts: Mapping[str, str | int],
) -> tuple[list[Mapping[str, float]], Mapping[str, Any]]:
    """Return the figures of each seed, which stay next to the output, and the sidecar of the training examples.

    `facts` decide a seed's figures, as the options and the model do.
    """
    options = task.options
    if options.sequence_length > (positions := encoder.config.positions):
        raise RelmError(
            f"sequence_length is {options.sequence_length}, but {encoder.folder} has {positions} positions; shorten it"
        )
    identity = {"revision": task.revision, "options": options.model_dump(exclude={"seed", "seeds"}), **facts}
    identity |= {"model_sha256": encoder.sha256, "config": asdict(encoder.config)}
    fingerprint = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:12]
    folder = training_folder(output) / fingerprint
    _require_output(output, folder)
    seeds = {seed: folder / f"seed-{seed}" for seed in range(options.seed, options.seed + options.seeds)}
    programs = folder / COMPILED
    if not all((own / FIGURES).exists() for own in seeds.values()):
        how = _divide_batches(options, encoder, execution, how, programs)
    tuning = _Tuning(task, encoder, replace(execution, executable_cache=programs), how, fingerprint)
    tuning.recipe(options.seed, steps=1)  # rejects incompatible options before anything is written
    with run_lock(training_folder(output) / "lock"):
        manifest = tuning.write_examples(training_file, folder / "examples")
        figures = [tuning.score_seed(seed, manifest, own) for seed, own in seeds.items()]
        shutil.rmtree(programs, ignore_errors=True)
        return figures, read_sidecar(manifest.parent / TABLE)


def training_folder(output: Path) -> Path:
    """Return the folder of a result's training runs, next to the result, or next to its folder if a key names that."""
    named = output.parent if KEY.fullmatch(output.parent.name) else output
    return named.with_name(output.stem)


def _require_output(output: Path, folder: Path) -> None:
    """Reject a folder as output, and warn of seeds next to it that are not used."""
    if output.is_dir():
        raise RelmError(f"--output {output}: is a folder, expected a file; name one, such as {output / 'squad11.json'}")
    if not folder.exists() and any(folder.parent.glob(f"*/seed-*/{FIGURES}")):
        log.warning(
            "%s: keeps seeds of other options, files, weights or versions, which are not used; fine-tuning new ones",
            folder.parent,
        )


def _divide_batches(
    options: FineTuning, encoder: TunedEncoder, execution: Execution, how: TuningRun, programs: Path
) -> TuningRun:
    """Return the execution of training, with the sequences of a forward pass."""
    if execution.pipeline is not None:
        require_layers(execution.pipeline, encoder.config.layers, encoder.folder)
        if how.micro_batch_size is not None:
            raise RelmError(
                f"--micro-batch-size is {how.micro_batch_size}, but --pipeline has a micro_batch_size, "
                f"{execution.pipeline.micro_batch_size}; leave --micro-batch-size out"
            )
        return replace(how, micro_batch_size=execution.pipeline.micro_batch_size)
    devices = count_devices(execution, programs)
    size = how.micro_batch_size or fitting_micro_batch(options, tokens_at_once(execution, devices), devices)
    require_even_batches(options, size, devices, execution.device)
    return replace(how, micro_batch_size=size)


def read_figures(folder: Path) -> Mapping[str, float]:
    """Return the figures of a seed that has been scored."""
    remedy = f"restore it, or delete {folder} to fine-tune this seed again"
    found = read_sealed(folder / FIGURES, remedy)
    if not isinstance(found, dict) or found.keys() != {"figures", "answers_sha256"}:
        raise RelmError(f"{folder / FIGURES}: has no hash of its answers; {remedy}")
    if not (answers := folder / ANSWERS).is_file() or sha256_of(answers) != found["answers_sha256"]:
        raise RelmError(f"{answers}: changed since it was made, or absent: {FIGURES} records another sha256; {remedy}")
    figures: Mapping[str, float] = found["figures"]
    return figures


def compute_logits(model: EncoderModel, inputs: Batch, execution: Execution, folder: Path) -> npt.NDArray[np.float32]:
    """Return a model's logits (sequences, ...), float32, for the three inputs, (sequences, length) each."""
    if execution.pipeline is not None:
        return compute_ipu_logits(model, inputs, execution, folder)
    device = execution.open()
    placed: Any = device.place(model.eval())
    count, length = inputs["input_ids"].shape
    batches, pieces = ScoredBatches.on(device, execution, count, length), []
    with torch.no_grad(), device.translate_errors():
        for batch in batches.split(inputs):
            fed = device.feed(device.stage(batch))
            with device.autocast(execution.precision):
                logits = placed.logits(fed["input_ids"], fed["attention_mask"], fed["token_type_ids"])
            pieces.append(logits.float().cpu().numpy())
    found: npt.NDArray[np.float32] = np.concatenate(pieces)[:count]
    return found


@dataclass(frozen=True)
class _Tuning:
    """Fine-tuning of one model by the training loop."""

    task: TunedTask
    encoder: TunedEncoder
    execution: Execution
    how: TuningRun
    fingerprint: str

    def write_examples(self, file: Path, folder: Path) -> Path:
        """Write the examples of the training file unless they exist undamaged, and return their manifest."""
        manifest, table = folder / "manifest.json", folder / TABLE
        try:
            checked_sidecar(table)
        except RelmError:
            folder.mkdir(parents=True, exist_ok=True)
            self.task.write_table(file, self.encoder.tokenizer, table, self.recipe(0, steps=1).pretrain[self.task.name])
        write_manifest({"train": [table]}, manifest)
        return manifest

    def score_seed(self, seed: int, manifest: Path, folder: Path) -> Mapping[str, float]:
        """Return the figures of one seed, training it if need be, and delete its weights."""
        if not (folder / FIGURES).exists():
            answers, figures = self.task.score(self._train(seed, manifest, folder), self.execution)
            write_json(folder / ANSWERS, answers)
            kill_point("answers-written")
            write_json(folder / FIGURES, seal({"figures": figures, "answers_sha256": sha256_of(folder / ANSWERS)}))
        phase = self.task.name
        for finished in ("start", f"{phase}/checkpoints", *(() if self.how.keep_models else (f"{phase}/model",))):
            shutil.rmtree(folder / finished, ignore_errors=True)
        return read_figures(folder)

    def _train(self, seed: int, manifest: Path, folder: Path) -> Path:
        """Return the folder of the model that was fine-tuned with a seed."""
        phase, options = self.task.name, self.task.options
        start, model = folder / "start", folder / phase / "model"
        self._write_start(seed, start)
        examples = self.task.count_examples(read_sidecar(manifest.parent / TABLE))
        recipe = self.recipe(seed, max(1, int(examples / options.batch_size * options.epochs)))  # rounded as in the originals
        programs = self.execution.executable_cache  # which all seeds share
        pretrain(recipe, phase, manifest, self.encoder.tokenizer, start, model, self.fingerprint, programs=programs)
        return model

    def _write_start(self, seed: int, folder: Path) -> None:
        """Write the encoder with a head whose weights the seed draws, the same bytes each time."""
        generator = torch.Generator().manual_seed(derived_seed(seed, self.task.head))
        source = self.encoder.folder
        try:
            model = self.task.start(source, generator)
        except (ValueError, OSError, SafetensorError) as error:
            raise RelmError(f"{source}: lacks the weights of an encoder: {error}; give a {KINDS}") from None
        folder.mkdir(parents=True, exist_ok=True)
        model.save_folder(folder, {})

    def recipe(self, seed: int, steps: int) -> Recipe:
        """Return the run of one seed as the training loop takes it."""
        options, phase, config = self.task.options, self.task.name, self.encoder.config
        sizes = {name: value for name, value in asdict(config).items() if name in BertArchitecture.model_fields}
        optimizer = {
            key: getattr(options, key)
            for key in ("learning_rate", "weight_decay", "epsilon", "bias_correction", "gradient_clipping")
        }
        content = {
            "title": self.task.title,
            "data": {"dataset": phase},
            "tokenizer": {"from_model": phase},
            "model": {"architecture": config.family, **sizes},
            "init_from": phase,
            "seed": seed,
            "pretrain": {
                phase: {
                    "objective": self.task.objective,
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
                **({} if self.execution.pipeline is None else {"pipeline": self.execution.pipeline.model_dump()}),
            },
        }
        return validate(Recipe, content, Path(phase))
