"""Perplexity on the held-out documents, by token, word and byte, with unigram and bigram levels on the same tokens."""

import math
from pathlib import Path
from typing import Any

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.baselines import BLOCK, LARGEST_TRAINING, BigramModel, blocks, unigram_entropy
from relm.evaluation.causal_model import CausalModel, require_context
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.models import load_causal
from relm.evaluation.result import perplexity
from relm.evaluation.runner import Scored, evaluation
from relm.evaluation.scoring import ScoredSequences, score
from relm.evaluation.windows import overlapping
from relm.examples.manifest import Manifest, Split, read_manifest
from relm.examples.storage import TokenStream
from relm.progress import ProgressBar

DESCRIPTION = (
    "The held-out documents, one after the other, are cut into windows of {context} tokens that do not overlap; every token "
    "but the very first is scored once, given those before it in its window."
)


@evaluation
def evaluate_held_out(model_folder: Path, manifest: Path, context: int, execution: Execution = ON_THE_HOST) -> Scored:
    """Score the held-out documents as one stream of tokens, ends of text included if the tokenizer has one.

    It is cut into windows of `context` labels that do not overlap, the last one shorter.
    """
    facts = read_manifest(manifest)
    model = load_causal(model_folder, facts.tokenizer.vocabulary_size, execution)
    require_context(model, context)
    stream = TokenStream(manifest, facts.split("held_out", manifest))
    held_out = facts.splits["held_out"]
    if len(stream) < 2 or not held_out.words:
        raise RelmError(f"{manifest}: split held_out has {held_out.words} words, too few to score; use more documents")
    nats = sum_stream_nats(model, stream, context, execution.batch_tokens)
    training = TokenStream(manifest, facts.split("train", manifest))
    unigram = unigram_entropy(blocks(stream, len(stream)), facts.tokenizer.vocabulary_size)
    model_of_pairs = BigramModel.estimated(blocks(training, LARGEST_TRAINING), facts.tokenizer.vocabulary_size)
    bigram = model_of_pairs.nats(blocks(stream, len(stream))) / (len(stream) - 1)
    found = figures(nats, len(stream) - 1, held_out, unigram, bigram)
    described = protocol(facts, context, training, execution) | {"manifest_sha256": sha256_of(manifest)}
    sentence = (
        f"scored {found['tokens_scored']:,} held-out tokens: {found['nats_per_token']:.4f} nats per token (unigram "
        f"{found['unigram_nats_per_token']:.4f}, bigram {found['bigram_nats_per_token']:.4f}), "
        f"{found['bits_per_byte']:.4f} bits per byte"
    )
    return Scored(found, described, model.sha256, sentence, (found["tokens_scored"], "tokens"))


def sum_stream_nats(model: CausalModel, stream: TokenStream, context: int, batch_tokens: int) -> float:
    """Return the sum of -ln P over every token of the stream but the first, reading one block of windows at a time."""
    sums: list[float] = []
    size = max(1, BLOCK // context) * context
    with ProgressBar(total=len(stream) - 1, unit=" tokens", unit_scale=True, disable=None) as bar:
        for start in range(0, len(stream) - 1, size):
            tokens = stream.tokens(start, start + size + 1)  # the last token of the previous block is seen but not scored
            windows = overlapping(len(tokens), context, stride=context)
            sequences = ScoredSequences(tokens, windows.starts, windows.ends, windows.scored)
            sums.append(float(score(model, sequences, batch_tokens, bar.update).nats.sum()))
    return math.fsum(sums)


def figures(nats: float, tokens: int, split: Split, unigram: float, bigram: float) -> dict[str, float | int]:
    """Return all figures, from the sum of nats over `tokens` scored tokens and the two levels."""
    per_token = nats / tokens
    return {
        "nats_per_token": per_token,
        **perplexity("perplexity_per_token", per_token),
        # In scripts almost without spaces a word is a whole article, and its perplexity overflows.
        **perplexity("perplexity_per_word", nats / split.words),
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


def protocol(facts: Manifest, context: int, training: TokenStream, execution: Execution) -> dict[str, Any]:
    """Return the protocol of the result: a description, and the values of all options."""
    ends = "an end of text follows each document" if facts.tokenizer.end_of_text_id is not None else "nothing between these"
    return {
        "in_words": DESCRIPTION.format(context=f"{context:,}"),
        "tokenizer_sha256": facts.tokenizer.sha256,
        "context": context,
        "stride": context,
        "begin": "none",
        "scored": f"every token of the concatenated held-out documents but the first; {ends}",
        "given": "the tokens before it in its window; windows do not overlap",
        "words": "runs of characters other than whitespace in the documents' text",
        "bytes": "of the documents' text in UTF-8",
        "precision": f"{execution.precision}, summed in float64, natural logarithms",
        "unigram": "entropy of the scored tokens themselves",
        "bigram": "interpolated Kneser-Ney, estimated on training tokens",
        "bigram_training_tokens": min(len(training), LARGEST_TRAINING),
    }
