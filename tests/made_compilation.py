"""Compilations and recipes of few keys, for tests of their consequences."""

from typing import Any

from relm.recipes.recipe import Recipe
from relm.training.machine.compile_record import Compilation, Compiled, CompiledProgram, ProgramMemory, Refusal

VERSIONS = {"jax": "0.7.1", "libtpu": "0.0.21"}
GIB = 2**30


def program(name: str, flops: float, size: float, phase: str = "main", memory: ProgramMemory | None = None) -> CompiledProgram:
    """Return a program that fits: 1.5 GiB of 15.

    Args:
        size: bytes read and written.
    """
    half = GIB // 2
    taken = memory or ProgramMemory(
        capacity=15 * GIB, peak=3 * half, arguments=half, results=half, shared=half, temporaries=GIB, code=0
    )
    return _made(phase, name, memory=taken, flops=flops, bytes_accessed=size)


def refused(name: str, phase: str = "main") -> CompiledProgram:
    """Return a program that does not fit."""
    words = "Used 17.49G of 15.48G hbm"
    return _made(phase, name, refusal=Refusal(used="17.49G", capacity="15.48G", words=words, largest=()))


def _made(phase: str, name: str, **facts: Any) -> CompiledProgram:
    compiled = Compiled(program=f"{name:0<64}", layout="v3:2x2", versions=VERSIONS, seconds=1.0, **facts)
    return CompiledProgram(phase=phase, name=name, compiled=compiled)


def compilation(*programs: CompiledProgram, **changes: Any) -> Compilation:
    """Return a compilation for a v3-8, by default of 16 sequences a step in one micro-batch without checkpointing."""
    phases = {each.phase: 16 for each in programs}
    facts: dict[str, Any] = {
        "recipe": "tiny",
        "topology": "v3-8",
        "layout": "v3:2x2",
        "devices": 8,
        "chips": 4,
        "vocabulary": "99 tokens",
    }
    facts |= {"sequences": phases, "micro_batches": phases, "activation_checkpointing": False}
    return Compilation(**{**facts, "programs": programs, **changes})


def recipe(
    steps: int = 10,
    batch: int = 16,
    length: int = 32,
    precision: str = "bfloat16",
    micro_batch: int | None = None,
    phase: str = "main",
    recomputes: bool = False,
) -> Recipe:
    """Return a recipe of one phase."""
    settings = {"objective": "causal", "sequence_length": length, "global_batch_size": batch, "steps": steps}
    settings |= {"precision": precision, "optimizer": {"learning_rate": 0.001}}
    run = {"device": "tpu", "topology": "v3-8", "micro_batch_size": micro_batch, "activation_checkpointing": recomputes}
    return Recipe.model_validate(
        {
            "title": "Tiny",
            "data": {"dataset": "texts"},
            "tokenizer": {"train": "characters"},
            "model": {"architecture": "gpt2", "layers": 2, "heads": 2, "hidden_size": 64, "positions": 512},
            "pretrain": {phase: settings},
            "run": run,
        }
    )


# The figures of libtpu 0.0.21 for a step of bert_large_wikitext103_v3-8_bf16.
REAL_MEMORY = ProgramMemory(
    capacity=16_621_523_436,
    peak=14_678_704_128,
    arguments=4_022_366_208,
    results=4_022_185_984,
    shared=4_022_170_624,
    temporaries=10_719_093_760,
    code=407_458_816,
)
REAL_BERT_LARGE = compilation(
    program("step", 18_571_428_102_144.0, 156_713_517_056.0, memory=REAL_MEMORY),
    sequences={"main": 128},
    micro_batches={"main": 128},
)
