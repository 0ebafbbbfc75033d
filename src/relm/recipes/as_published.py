"""Originals whose examples a recipe may reproduce bit for bit: their declarations, and the section `as_published`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn, Registry, refuse_keys_of_others
from relm.recipes.section import Section


@dataclass(frozen=True)
class BuilderDeclaration:
    """An original's script whose examples can be built bit for bit."""

    name: str
    """Name in `as_published.builder`."""
    objective: str
    """Objective of its examples."""
    options: Collection[str] = ()
    """Keys of `as_published` that it reads, except `builder`."""
    pregenerate: str | None = None
    """Function like `ObjectiveDeclaration.pregenerate`; None: the objective's own."""
    read: str | None = None
    """Function like `ObjectiveDeclaration.read`; None: the objective's own."""
    defects: Collection[str] = ()
    """Names of its defects that `as_published.corrected` can leave out, one by one."""
    splits_sentences: bool = True
    """Its examples depend on the text's language where `masked.sentences` is split; False: its rows are lines."""


BUILDERS = Registry[BuilderDeclaration](
    "builder",
    BuilderDeclaration(
        name="tpu_pretrain",
        objective="masked",
        options=("seed",),
        pregenerate="relm.examples.as_published.tpu_pretrain:pregenerate_tpu_pretrain",
        defects=("unk_for_mask", "partly_masked_words", "empty_second_segments"),
    ),
    BuilderDeclaration(
        name="graphcore_bert",
        objective="masked",
        options=("seed",),
        pregenerate="relm.examples.as_published.graphcore_bert:pregenerate_graphcore_bert",
    ),
    BuilderDeclaration(
        name="graphcore_gpt2",
        objective="causal",
        options=("seed", "epochs"),
        read="relm.examples.as_published.graphcore_gpt2:open_graphcore_gpt2",
    ),
    BuilderDeclaration(
        name="graphcore_gpt2_generated",
        objective="causal",
        options=("seed", "examples", "vocabulary_size"),
        read="relm.examples.as_published.graphcore_gpt2_generated:open_generated_tokens",
    ),
    BuilderDeclaration(
        name="llm_c",
        objective="causal",
        options=("seed", "ranks", "batch"),
        read="relm.examples.as_published.llm_c:open_llm_c",
    ),
    BuilderDeclaration(
        name="modded_nanogpt",
        objective="causal",
        options=("ranks", "batch"),
        read="relm.examples.as_published.llm_c:open_llm_c",
    ),
    BuilderDeclaration(
        name="run_mlm",
        objective="masked",
        pregenerate="relm.examples.as_published.run_mlm:pregenerate_run_mlm",
        splits_sentences=False,
    ),
    BuilderDeclaration(
        name="t5x_diacritics",
        objective="seq2seq",
        read="relm.examples.as_published.t5x_diacritics:open_t5x_diacritics",
        defects=("scored_padding", "second_end_of_text"),
    ),
)


def register_builder(declaration: BuilderDeclaration) -> None:
    """Add an original's script to those whose examples a recipe may reproduce."""
    BUILDERS.register(declaration)


class AsPublished(Section):
    """Examples that are identical bit for bit to those of an original's script, its defects included."""

    builder: Annotated[str, NameIn(BUILDERS)]
    """Original script. tpu_pretrain: allenai/tpu_pretrain, pregenerate_training_data.py; graphcore_bert: Graphcore's BERT for
    TensorFlow 1, create_pretraining_data.py; graphcore_gpt2: Graphcore's GPT-2, the index maps of its GPTDataset;
    graphcore_gpt2_generated: its generated tokens, which read no document; run_mlm: run_mlm.py of transformers 4.2.2; llm_c:
    the sequences of llm.c's train_gpt2.cu, in the order of its shuffling loader; modded_nanogpt: those of modded-nanogpt's
    optimization track, in the files' order; t5x_diacritics: the padding and the ends of
    iliemihai/t5x_diacritics, whose texts come in relm's order."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random number generator (Python's or numpy's) that the original uses."""
    epochs: int = Field(default=1, gt=0)
    """Number of epochs that are shuffled together; for graphcore_gpt2."""
    examples: int | None = Field(default=None, gt=0)
    """Number of generated examples, which graphcore_gpt2_generated requires."""
    vocabulary_size: int | None = Field(default=None, gt=1)
    """Exclusive limit of generated tokens, which graphcore_gpt2_generated requires; the model's vocabulary has as many."""
    ranks: int | None = Field(default=None, gt=0)
    """Number of the original's processes, each of which has a generator for shuffling in llm_c; llm_c and modded_nanogpt
    require it."""
    batch: int | None = Field(default=None, gt=0)
    """Sequences in a batch of one of these processes; llm_c and modded_nanogpt require it. ranks times batch
    divides global_batch_size."""

    corrected: list[str] = Field(default_factory=list)
    """Defects of the original that are not repeated, so that the effect of one can be measured. Of tpu_pretrain: unk_for_mask,
    partly_masked_words, empty_second_segments; of t5x_diacritics: scored_padding, second_end_of_text."""

    @model_validator(mode="after")
    def defects_and_options_are_the_builders(self) -> Self:
        known = BUILDERS[self.builder].defects
        for name in self.corrected:
            if name not in known:
                choice = f"expected some of {', '.join(known)}" if known else "none of its defects can be left out"
                raise ValueError(f"corrected: {self.builder} has no defect {name}; {choice}")
        if self.corrected != sorted(set(self.corrected)):
            raise ValueError(f"corrected: expected each name once, in the order of the alphabet; found {self.corrected}")
        refuse_keys_of_others(self, "builder", {builder.name: builder.options for builder in BUILDERS})
        if self.builder == "graphcore_gpt2_generated" and None in (self.examples, self.vocabulary_size):
            raise ValueError("graphcore_gpt2_generated needs examples and vocabulary_size; give both")
        if self.builder in ("llm_c", "modded_nanogpt") and None in (self.ranks, self.batch):
            raise ValueError(f"{self.builder} needs ranks and batch, those of the original's run; give both")
        return self
