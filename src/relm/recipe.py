"""What a recipe, a dataset and a pretrained model are: their schemas, and reading them from YAML.

Every key has a sentence here; the JSON Schema for editors is generated from these classes. Imports yaml and pydantic, nothing
heavy: Snakemake parses recipes in every job.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from relm.errors import RelmError

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
ModelFile = Literal[
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
]
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A mapping of the YAML file: unknown keys are refused, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())


# --- files fetched from elsewhere ------------------------------------------------------------------------------------------


class Source(Section):
    """One place that has a file. Exactly one of `url`, `pypi`, `npm`, `huggingface` is given."""

    url: str | None = Field(default=None, pattern=r"^https?://")
    """Address of the file, or of the archive that holds it."""
    pypi: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+==[^=\s]+$")
    """A release on the Python package index, NAME==VERSION; `file` names the wheel or sdist."""
    npm: str | None = Field(default=None, pattern=r"^(@[a-z0-9._-]+/)?[a-z0-9._-]+@[0-9][^\s@]*$")
    """A release on the npm registry, NAME@VERSION; its tarball is read."""
    huggingface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$")
    """A repository on the Hugging Face hub, OWNER/NAME; `file` names the path in it."""
    repository_type: Literal["model", "dataset"] = "model"
    """Of a Hugging Face repository."""
    revision: str | None = None
    """Of a Hugging Face repository: a commit, better than a tag or branch."""
    file: str | None = None
    """The wheel or sdist of a release, or the path in a Hugging Face repository."""
    sha256: Sha256 | None = None
    """Of what is fetched, where that is an archive or compressed: a wrong archive is then refused before it is opened."""
    member: str | None = None
    """Path of the file inside the fetched zip or tar archive (a wheel is a zip)."""
    decompress: Literal["gzip", "bzip2", "xz"] | None = None
    """How the fetched file, or the archive's member, is compressed."""

    @model_validator(mode="after")
    def exactly_one_kind(self) -> Self:
        kinds = [kind for kind in ("url", "pypi", "npm", "huggingface") if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"a source names exactly one of url, pypi, npm, huggingface; found {kinds or 'none'}")
        for kind, needed in (
            ("pypi", "file"),
            ("pypi", "member"),
            ("npm", "member"),
            ("huggingface", "file"),
            ("huggingface", "revision"),
        ):
            if kind in kinds and getattr(self, needed) is None:
                raise ValueError(f"a source with {kind} also needs {needed}")
        return self


class RemoteFile(Section):
    """A file known by its content: whatever source it comes from, these bytes or none."""

    sha256: Sha256
    """Of the file itself, after extraction from an archive and decompression."""
    size: int = Field(gt=0)
    """In bytes, of the file itself."""
    sources: list[Source] = Field(min_length=1)
    """Tried in this order; a folder named by RELM_MIRROR comes before them all."""


class Dataset(Section):
    """`recipes/data/NAME.yaml`: where documents come from and how they are read. Either `files` or `folder` is given."""

    title: str
    """What it is, in a few words."""
    licence: str
    """SPDX identifier, or the licence's name."""
    language: str
    """BCP 47 code of the text, such as en or ro."""
    homepage: str | None = None
    """A page about the data."""
    format: Literal["mediawiki_xml", "text_files"]
    """mediawiki_xml: a Wikipedia dump, plain or bz2; text_files: one document a file, UTF-8."""
    files: dict[Slug, RemoteFile] = Field(default_factory=dict)
    """File name -> what it is; each file becomes one shard, in this order."""
    folder: str | None = None
    """A folder of one's own text instead of `files`, relative to the checkout or with ~. Its content is its identity."""
    pattern: str = "**/*.txt"
    """Which files of `folder` are documents, as a glob; they are read in sorted order."""
    ends_mid_page: bool = False
    """The file is the beginning of a longer one and ends inside a page, which is dropped; elsewhere a cut file is an error."""
    held_out_one_in: int = Field(default=100, ge=2)
    """One document in so many is held out of training, chosen by a hash of its title, so the choice never depends on order."""
    smoke: Slug | None = None
    """The small dataset of the same format that stands in for this one in `results/smoke/NAME`."""

    @model_validator(mode="after")
    def files_or_folder(self) -> Self:
        if bool(self.files) == (self.folder is not None):
            raise ValueError("a dataset has either files or folder")
        if sidecars := [name for name in self.files if name.endswith(".json")]:
            raise ValueError(
                f"files: {sidecars[0]}: names ending in .json are kept for the records beside the files; rename it"
            )
        if self.folder is not None and self.format != "text_files":
            raise ValueError(f"a folder is read with format: text_files; found {self.format}")
        return self


class PretrainedModel(Section):
    """`recipes/models/NAME.yaml`: starting weights, a tokenizer, or both, as published by somebody."""

    title: str
    """What it is, in a few words."""
    licence: str
    """SPDX identifier, or the licence's name."""
    homepage: str | None = None
    """A page about the model."""
    tokenizer: Literal["gpt2_bpe", "tokenizers_json"] | None = None
    """gpt2_bpe: `vocab.json` and `merges.txt`; tokenizers_json: `tokenizer.json`; none: weights only."""
    weights: bool = False
    """Whether `model.safetensors` and `config.json` are among the files, so that `init_from` may name it."""
    files: dict[ModelFile, RemoteFile] = Field(min_length=1)
    """File name, as `transformers` expects it -> what it is."""

    @model_validator(mode="after")
    def has_what_it_promises(self) -> Self:
        needed = {"gpt2_bpe": {"vocab.json", "merges.txt"}, "tokenizers_json": {"tokenizer.json"}, None: set()}[self.tokenizer]
        if self.weights:
            needed |= {"model.safetensors", "config.json"}
        if missing := sorted(needed - set(self.files)):
            raise ValueError(f"files lacks {', '.join(missing)}")
        return self


# --- recipes ---------------------------------------------------------------------------------------------------------------


class Paper(Section):
    """The publication whose run this is."""

    key: Slug
    """A short name; `snakemake paper_KEY` makes all recipes of the paper."""
    title: str
    """As published."""
    url: str = Field(pattern=r"^https://")
    """Where it can be read."""


class DataChoice(Section):
    """Which documents are trained on."""

    dataset: Slug
    """Name of a file in `recipes/data/`."""
    documents: int | None = Field(default=None, gt=0)
    """Read only so many documents of each shard; null: all."""


class TokenizerChoice(Section):
    """The tokenizer: taken from a model in `recipes/models/`, or trained on the training documents."""

    from_model: Slug | None = None
    """Name of a file in `recipes/models/`."""
    train: Literal["byte_level_bpe"] | None = None
    """Train one of this kind instead."""
    vocabulary_size: int | None = Field(default=None, gt=256)
    """Of a trained tokenizer, special tokens included."""
    training_bytes: int = Field(default=50_000_000, gt=0)
    """How much text, from the first shard's beginning on, a tokenizer is trained on."""

    @model_validator(mode="after")
    def taken_or_trained(self) -> Self:
        if (self.from_model is None) == (self.train is None):
            raise ValueError("a tokenizer has either from_model or train")
        if (self.train is None) != (self.vocabulary_size is None):
            raise ValueError("vocabulary_size goes with train, and train with vocabulary_size")
        return self


class Gpt2Architecture(Section):
    """A GPT-2: decoder-only, learnt positions, normalisation first, head tied to the token embedding."""

    architecture: Literal["gpt2"]
    """Which family."""
    layers: int = Field(gt=0)
    """Transformer blocks."""
    heads: int = Field(gt=0)
    """Attention heads; they divide hidden_size."""
    hidden_size: int = Field(gt=0)
    """Width of the residual stream."""
    positions: int = Field(gt=0)
    """The longest sequence."""
    vocabulary_size: int | None = Field(default=None, gt=0)
    """Rows of the embedding; null: the tokenizer's size."""
    activation: Literal["gelu_tanh", "gelu_erf"] = "gelu_tanh"
    """GPT-2's is the tanh approximation; Graphcore's the exact one."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """On embeddings, attention and residuals alike."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; residual projections get it divided by sqrt(2 layers)."""
    layer_norm_epsilon: float = Field(default=1e-5, gt=0)
    """Added to the variance."""

    @model_validator(mode="after")
    def heads_divide_width(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide hidden_size ({self.hidden_size})")
        return self


class Optimizer(Section):
    """How gradients become updates."""

    name: Literal["adamw"] = "adamw"
    """adamw: Adam with decoupled weight decay and bias correction."""
    learning_rate: float = Field(gt=0)
    """At its peak."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of the first and second moment."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of matrices and embeddings; vectors (biases, normalisation) are never decayed."""
    gradient_clipping: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient; null: none."""


class Schedule(Section):
    """The learning rate over the steps of a phase."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """Its shape after the warm-up, down to floor at the last step."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear increase from 0."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Where it ends, as a share of the peak."""


class Phase(Section):
    """One stretch of training with one objective, length and schedule; the next phase goes on from its weights."""

    objective: Literal["causal"]
    """causal: predict each next token."""
    sequence_length: int = Field(gt=1)
    """Tokens the model sees at once."""
    global_batch_size: int = Field(gt=0)
    """Sequences per optimizer step, over all devices."""
    steps: int = Field(gt=0)
    """Optimizer steps."""
    optimizer: Optimizer
    """How gradients become updates."""
    schedule: Schedule = Schedule()
    """The learning rate over the steps."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; master weights and optimizer state are float32 always."""
    loss_normalisation: Literal["global_tokens"] = "global_tokens"
    """global_tokens: the mean over all scored tokens of the global batch."""

    @model_validator(mode="after")
    def warms_up_within_the_phase(self) -> Self:
        if self.schedule.warmup_steps >= self.steps:
            raise ValueError(f"schedule.warmup_steps ({self.schedule.warmup_steps}) must be below steps ({self.steps})")
        return self


class Run(Section):
    """Where and how it runs. Nothing here changes what the run means, and nothing here is in the fingerprint."""

    device: Literal["cpu", "cuda", "tpu", "ipu"] = "cpu"
    """Which accelerator trains."""
    micro_batch_size: int | None = Field(default=None, gt=0)
    """Sequences per forward pass; null: the global batch."""
    threads: int | None = Field(default=None, gt=0)
    """CPU threads of the trainer; null: all the cores it may use. Another number rounds differently."""
    checkpoint_interval: int = Field(default=500, gt=0)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """How many of the newest stay on disk."""
    log_interval: int = Field(default=10, gt=0)
    """Steps between lines of train.jsonl."""


class Noise(Section):
    """How much a figure moves from seed to seed."""

    standard_deviation: float = Field(gt=0)
    """Of single runs."""
    runs: int = Field(ge=2)
    """How many runs it was computed from."""
    source: str
    """Our own seeds, or the study it is taken from."""


class Expectation(Section):
    """One published figure, and how near is near enough."""

    metric: str = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")
    """TASK.FIGURE, as in eval/TASK.json."""
    value: float
    """As published."""
    tolerance: float = Field(gt=0)
    """A difference up to this counts as the same."""
    basis: str
    """Why this tolerance; a figure without a basis is refused."""
    place: str
    """Table, figure or page that states it."""
    noise: Noise | None = None
    """Seed-to-seed noise; without it the row shows the difference and no verdict beyond it."""
    published_runs: int = Field(default=1, gt=0)
    """Over how many runs the published value is a mean."""
    comparable: bool = True
    """False where the published protocol differs from ours; the row then says so."""


Evaluation = Literal["held_out", "samples"]


class Recipe(Section):
    """`recipes/NAME.yaml`: one run."""

    title: str
    """What it trains, on what."""
    paper: Paper | None = None
    """The publication whose run this is."""
    source: str | None = None
    """The original's code: repository and revision."""
    as_published: bool = False
    """Build the data as the original's script did, defects included; each is a sentence in `deviations` of the right recipe."""
    data: DataChoice
    """Which documents."""
    tokenizer: TokenizerChoice
    """How text becomes ids."""
    model: Gpt2Architecture
    """What is trained."""
    init_from: Slug | None = None
    """Starting weights, from `recipes/models/`; null: random."""
    seed: int = Field(default=0, ge=0)
    """Of the initial weights, the order of the data and dropout."""
    pretrain: dict[Slug, Phase] = Field(min_length=1)
    """Phase name -> phase, in this order."""
    evaluate: list[Evaluation] = Field(default_factory=list)
    """held_out: perplexity by token, word and byte on the held-out documents; samples: text the model writes."""
    run: Run = Run()
    """Where and how it runs."""
    expect: list[Expectation] = Field(default_factory=list)
    """The published figures."""
    deviations: list[str] = Field(default_factory=list)
    """What differs from the paper and why, a sentence each."""

    @model_validator(mode="after")
    def sequences_fit(self) -> Self:
        for name, phase in self.pretrain.items():
            if phase.sequence_length > self.model.positions:
                raise ValueError(
                    f"pretrain.{name}.sequence_length ({phase.sequence_length}) exceeds "
                    f"model.positions ({self.model.positions})"
                )
            if self.run.micro_batch_size and phase.global_batch_size % self.run.micro_batch_size:
                raise ValueError(
                    f"run.micro_batch_size ({self.run.micro_batch_size}) must divide "
                    f"pretrain.{name}.global_batch_size ({phase.global_batch_size})"
                )
        return self


# --- reading ---------------------------------------------------------------------------------------------------------------

Document = TypeVar("Document", bound=Section)


class UniqueKeyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's safe loader, but a key given twice is an error and not a silent choice of the last; 1e-3 is a number."""


def _mapping_without_duplicates(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        line = key_node.start_mark.line + 1
        if key in seen:
            raise RelmError(f"line {line}: key '{key}' was already given in line {seen[key]}")
        seen[key] = line
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


UniqueKeyLoader.add_constructor("tag:yaml.org,2002:map", _mapping_without_duplicates)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        RelmError: the file is absent, not UTF-8, not YAML, or not a mapping; names the file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file{nearest_file(path)}") from None
    except UnicodeDecodeError as error:
        raise RelmError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    try:
        content = yaml.load(text, UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise RelmError(f"{path}, line {line}: not valid YAML: {error.problem or error}") from None
    except RelmError as error:
        raise RelmError(f"{path}, {error}") from None
    if not isinstance(content, dict):
        raise RelmError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
    return content


def nearest_file(path: Path) -> str:
    """' (did you mean X?)' for a missing file with a near name beside it, else nothing."""
    names = [other.stem for other in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f" (did you mean {near[0]}?)" if near else (f"; there are: {', '.join(sorted(names))}" if names else "")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings merge key by key, everything else (lists too) is replaced.

    >>> merge({"run": {"device": "tpu", "threads": 2}, "evaluate": ["a"]}, {"run": {"threads": 4}, "evaluate": []})
    {'run': {'device': 'tpu', 'threads': 4}, 'evaluate': []}
    """
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def read_extended(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A recipe's mapping with the one it `extends`, if any, beneath it."""
    if path in seen:
        chain = " -> ".join(other.stem for other in (*seen, path))
        raise RelmError(f"{seen[0]}: extends goes in a circle: {chain}")
    content = read_yaml(path)
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if not isinstance(parent, str):
        raise RelmError(f"{path}: extends: expected the name of one recipe, found {parent!r}")
    parent_path = path.parent / f"{parent}.yaml"
    if not parent_path.exists():
        raise RelmError(f"{path}: extends: there is no recipe {parent!r}{nearest_file(parent_path)}")
    return merge(read_extended(parent_path, (*seen, path)), content)


def validate(kind: type[Document], content: Mapping[str, Any], path: Path) -> Document:
    """`content` as a `kind`, or one error that lists every fault with its path and, for a misspelt key, the nearest one."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        faults = [_fault_in_words(kind, fault) for fault in error.errors()]
    raise RelmError(f"{path}: {len(faults)} error{'s' if len(faults) > 1 else ''}\n" + "\n".join(f"  {f}" for f in faults))


def _fault_in_words(kind: type[Section], fault: Any) -> str:
    location = tuple(fault["loc"])
    where = ".".join(str(part) for part in location) or "(whole file)"
    if fault["type"] == "extra_forbidden":
        keys = _keys_at(kind, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), keys, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(keys)}"
        return f"{where}: unknown key; {hint}"
    if fault["type"] == "missing":
        return f"{where}: missing, and it has no default"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if isinstance(fault["input"], (str, int, float, bool)) or fault["input"] is None:
        return f"{where}: {message}; found {fault['input']!r}"
    return f"{where}: {message}"


def _keys_at(kind: Any, location: tuple[Any, ...]) -> list[str]:
    """The keys known at a place in the schema, found by walking the annotations."""
    for part in location:
        if isinstance(kind, type) and issubclass(kind, Section):
            kind = kind.model_fields[part].annotation if part in kind.model_fields else None
        else:  # a dict's or list's item: its last type argument
            kind = getattr(kind, "__args__", (None,))[-1]
        options = [
            option for option in getattr(kind, "__args__", ()) if isinstance(option, type) and issubclass(option, Section)
        ]
        if options and getattr(kind, "__origin__", None) not in (dict, list):
            kind = options[0]
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, Section) else []


def load_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file, `extends` resolved."""
    return validate(Recipe, read_extended(path), path)


def load_dataset(path: Path) -> Dataset:
    """The dataset in a file of `recipes/data/`."""
    return validate(Dataset, read_yaml(path), path)


def load_model(path: Path) -> PretrainedModel:
    """The pretrained model in a file of `recipes/models/`."""
    return validate(PretrainedModel, read_yaml(path), path)
