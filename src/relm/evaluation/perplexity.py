"""Perplexity on the held-out documents, by token, word and byte, beside what counts alone achieve on the same tokens."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from relm.artifact import write_json
from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.evaluation.baselines import LARGEST_TRAINING, BigramModel, Tokens, blocks, unigram_entropy
from relm.evaluation.models import load_for_evaluation, require_context
from relm.examples.causal import window_count
from relm.examples.manifest import Manifest, Split, read_manifest
from relm.examples.storage import TokenStream
from relm.recipe import Run

LARGEST_EXPONENT = 700.0
# Logits in memory at once: half a gigabyte in float32.
LARGEST_LOGITS = 2**27


def evaluate_held_out(
    model_folder: Path, manifest: Path, output: Path, context: int, batch_size: int = 16, threads: int | None = None
) -> str:
    """Score the held-out documents and write `eval/held_out.json`.

    All held-out documents are one stream of tokens, ends of text included, where the tokenizer has one. It is cut into windows
    of `context` labels that do not overlap, the last one shorter; so every token but the stream's first is scored once, given
    the tokens before it in its window. Logarithms are natural; sums are taken in float64.

    Args:
        model_folder: Hugging Face folder of a GPT-2.
        manifest: of the examples; its tokenizer is the model's.
        output: the JSON file.
        context: tokens that the model sees at once.
        batch_size: windows at once, fewer where memory asks for it; it changes figures by rounding at most.
        threads: of the CPU; None: all cores this process may use.

    Raises:
        RelmError: model, manifest and context do not fit together.
    """
    started = perf_counter()
    facts = read_manifest(manifest)
    model, model_sha256 = load_for_evaluation(model_folder, facts.tokenizer.vocabulary_size)
    require_context(model_folder, model, context)
    stream = TokenStream(manifest, facts.split("held_out", manifest))
    held_out = facts.splits["held_out"]
    if len(stream) < 2 or not held_out.words:
        raise RelmError(f"{manifest}: split held_out has {held_out.words} words, which is nothing to score; use more documents")
    batch_size = fitting_batch_size(batch_size, context * model.config.vocabulary_size)
    nats = stream_nats(open_device(Run(threads=threads)).place(model).logits, stream, context, batch_size)
    if not math.isfinite(nats):
        raise RelmError(f"{model_folder}: the loss is {nats}: training diverged; lower the learning rate and train again")
    training = TokenStream(manifest, facts.split("train", manifest))
    levels = baseline_nats(training, stream, facts.tokenizer.vocabulary_size)
    found = figures(nats, len(stream) - 1, held_out, *levels)
    result = {
        "task": "held_out",
        "protocol": protocol(facts, context, training),
        "figures": found,
        "model_sha256": model_sha256,
    }
    write_json(output, result)
    return _sentence(found, perf_counter() - started)


def fitting_batch_size(wanted: int, logits: int) -> int:
    """How many windows of so many logits are scored at once: at least one, at most `wanted`."""
    return max(1, min(wanted, LARGEST_LOGITS // logits))


def stream_nats(model: Callable[[Tensor], Tensor], stream: TokenStream, context: int, batch_size: int) -> float:
    """Sum of -ln P over every token of the stream but the first.

    Args:
        model: input ids (batch, sequence) int64 -> logits (batch, sequence, vocabulary).
    """
    sums: list[float] = []
    with torch.inference_mode(), tqdm(total=len(stream) - 1, unit=" tokens", unit_scale=True, disable=None) as bar:
        for windows in _windows(stream, context, batch_size):
            tokens = torch.from_numpy(windows)
            for logits, labels in zip(model(tokens[:, :-1]), tokens[:, 1:], strict=True):
                # A window at a time: the logarithms of a whole batch would double the memory.
                losses = F.cross_entropy(logits.float(), labels, reduction="none")
                sums.append(float(losses.double().sum()))
            bar.update(windows.size - len(windows))
    return math.fsum(sums)


def _windows(stream: TokenStream, context: int, batch_size: int) -> Iterator[Tokens]:
    """Batches of windows, (windows, context + 1) int64, and the shorter last one."""
    whole = window_count(len(stream), context)
    for first in range(0, whole, batch_size):
        starts = range(first * context, min(first + batch_size, whole) * context, context)
        yield np.stack([stream.tokens(start, start + context + 1) for start in starts])
    rest = stream.tokens(whole * context, len(stream))
    if len(rest) > 1:
        yield rest[None]


def baseline_nats(training: TokenStream, scored: TokenStream, vocabulary_size: int) -> tuple[float, float]:
    """Nats a token of the unigram and the bigram level, on every token of `scored` but the first."""
    unigram = unigram_entropy(blocks(scored, len(scored)), vocabulary_size)
    bigram = BigramModel.estimated(blocks(training, LARGEST_TRAINING), vocabulary_size)
    return unigram, bigram.nats(blocks(scored, len(scored))) / (len(scored) - 1)


def figures(nats: float, tokens: int, split: Split, unigram: float, bigram: float) -> dict[str, float]:
    """All figures, from the sum of nats over `tokens` scored tokens and the levels of counts."""
    per_token = nats / tokens
    return {
        "nats_per_token": per_token,
        "perplexity_per_token": math.exp(per_token),
        # Where hardly anything is written with spaces, a word is an article, and its perplexity no number.
        **({"perplexity_per_word": math.exp(nats / split.words)} if nats / split.words < LARGEST_EXPONENT else {}),
        "bits_per_byte": nats / math.log(2) / split.bytes,
        "unigram_nats_per_token": unigram,
        "bigram_nats_per_token": bigram,
        "nats_below_unigram": unigram - per_token,
        "nats_below_bigram": bigram - per_token,
        "tokens_scored": tokens,
        "documents": split.documents,
        "words": split.words,
        "bytes": split.bytes,
    }


def protocol(facts: Manifest, context: int, training: TokenStream) -> dict[str, Any]:
    """How it was measured, in words and values."""
    ends = "<|endoftext|> follows each document" if facts.tokenizer.end_of_text_id is not None else "nothing between these"
    return {
        "tokenizer_sha256": facts.tokenizer.sha256,
        "context": context,
        "stride": context,
        "scored": f"every token of the concatenated held-out documents but the first; {ends}",
        "given": "the tokens before it in its window; windows do not overlap",
        "words": "runs of characters other than whitespace in the documents' text",
        "bytes": "of the documents' text in UTF-8",
        "precision": "float32, summed in float64, natural logarithms",
        "unigram": "entropy of the scored tokens themselves",
        "bigram": "interpolated Kneser-Ney, estimated on training tokens",
        "bigram_training_tokens": min(len(training), LARGEST_TRAINING),
    }


def _sentence(found: dict[str, float], seconds: float) -> str:
    return (
        f"scored {found['tokens_scored']:,} held-out tokens: {found['nats_per_token']:.4f} nats per token (unigram "
        f"{found['unigram_nats_per_token']:.4f}, bigram {found['bigram_nats_per_token']:.4f}), "
        f"{found['bits_per_byte']:.4f} bits per byte; {found['tokens_scored'] / seconds:,.0f} tokens/s"
    )
