"""Published models: the section of `recipes/models/NAME.yaml`, with starting weights and tokenizers that recipes name."""

from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from relm.recipes.files.remote_files import PinnedFile
from relm.recipes.files.web_address import WebAddress
from relm.recipes.section import Section, read_yaml, validate

ModelFile = Literal[
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "pytorch_model.bin",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "tokenizer.bin",
]

MODEL_FILES: tuple[ModelFile, ...] = get_args(ModelFile)
WEIGHTS_FILES: tuple[ModelFile, ...] = ("model.safetensors", "config.json")
# Weights in the older format: loaded once, restricted to tensors, and written as safetensors.
PICKLED_WEIGHTS: ModelFile = "pytorch_model.bin"
TokenizerKind = Literal[
    "gpt2_bpe", "roberta_bpe", "bert_wordpiece_uncased", "bert_wordpiece_cased", "t5_sentencepiece", "llama2_c",
    "tokenizers_json",
]  # fmt: skip
TOKENIZER_FILES: dict[str, tuple[ModelFile, ...]] = {
    "gpt2_bpe": ("vocab.json", "merges.txt"),
    "roberta_bpe": ("vocab.json", "merges.txt"),
    "bert_wordpiece_uncased": ("vocab.txt",),
    "bert_wordpiece_cased": ("vocab.txt",),
    "t5_sentencepiece": ("spiece.model",),
    "llama2_c": ("tokenizer.bin",),
    "tokenizers_json": ("tokenizer.json",),
}


class PretrainedModel(Section):
    """`recipes/models/NAME.yaml`: published starting weights, a tokenizer, or both."""

    title: str
    """Short description of the model."""
    licence: str
    """SPDX identifier, or the licence's name."""
    homepage: WebAddress | None = None
    """A page about the model."""
    tokenizer: TokenizerKind | None = None
    """Kind of the tokenizer. gpt2_bpe and roberta_bpe: `vocab.json` and `merges.txt`; bert_wordpiece_uncased and
    bert_wordpiece_cased: `vocab.txt`; t5_sentencepiece (mT5 too): `spiece.model`; llama2_c: llama2.c's `tokenizer.bin`;
    tokenizers_json: `tokenizer.json`; null:
    weights only."""
    weights: bool = False
    """The files include `model.safetensors` and `config.json`, so that `init_from` may name the model."""
    files: dict[ModelFile, PinnedFile] = Field(default_factory=dict)
    """File name in `transformers` -> file. Weights released as `pytorch_model.bin` only are converted."""
    configuration: dict[str, Any] | None = None
    """Content of the `config.json` of converted weights."""
    folder: str | None = None
    """Local folder instead of `files`, as `save_pretrained` writes it, relative to the checkout or with ~; one outside the
    checkout is read only if RELM_DATA_FOLDERS allows it. It is identified by its content."""

    @property
    def tokenizer_files(self) -> tuple[ModelFile, ...]:
        """Files of the tokenizer."""
        return TOKENIZER_FILES[self.tokenizer] if self.tokenizer else ()

    @property
    def weights_files(self) -> tuple[ModelFile, ...]:
        """Files of the weights and their configuration; that of a `pytorch_model.bin` is in `configuration` instead."""
        if not self.weights:
            return ()
        return ("pytorch_model.bin", "config.json") if self.converted else WEIGHTS_FILES

    @property
    def converted(self) -> bool:
        """True if the weights are released as `pytorch_model.bin`, and are converted to `model.safetensors`."""
        return self.weights and PICKLED_WEIGHTS in self.files

    @model_validator(mode="after")
    def one_source_has_what_it_promises(self) -> Self:
        sources = [name for name in ("files", "folder") if getattr(self, name)]
        if len(sources) != 1:
            raise ValueError(f"a model has either files or a folder; found {' and '.join(sources) or 'none'}")
        if self.folder is not None and not (self.weights or self.tokenizer):
            raise ValueError("folder: nothing is read from it; set weights: true, a tokenizer, or both")
        if self.converted != (self.configuration is not None):
            raise ValueError(
                "configuration: is only for weights converted from pytorch_model.bin; add it for them, remove it otherwise"
            )
        if self.converted and (twice := {*WEIGHTS_FILES} & {*self.files}):
            raise ValueError(f"files: {min(twice)} is built from pytorch_model.bin and configuration; remove it")
        given = {*self.files, *(["config.json"] if self.converted else [])}
        missing = sorted({*self.tokenizer_files, *self.weights_files} - given)
        if missing and self.folder is None:
            raise ValueError(f"files lacks {', '.join(missing)}")
        return self


def load_model(path: Path) -> PretrainedModel:
    """Return the pretrained model in a file of `recipes/models/`."""
    return validate(PretrainedModel, read_yaml(path), path)
