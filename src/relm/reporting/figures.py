"""Names, formats and explanations of measured figures."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from relm.evaluation.result import describe_ties

# Maps a figure to its name, its format and its explanation, in the order in which figures are shown.
FIGURES = {
    "nats_per_token": ("Loss", ".4f", "nats per token"),
    "bits_per_byte": ("Bits per byte", ".4f", "of the text in UTF-8; independent of the tokenizer"),
    "perplexity_per_token": ("Perplexity per token", ",.2f", "depends on the tokenizer; lower is better"),
    "perplexity_per_word": ("Perplexity per word", ",.2f", "e to the mean loss of a word; lower is better"),
    "token_ratio": ("Tokens per word", ".6f", ""),
    "loss": ("Loss on random windows", ".4f", "nats per token, an estimate on some held-out windows"),
    "loss_standard_error": ("Its standard error", ".4f", "from the spread of the batches' means"),
    "train_loss": ("Loss on random training windows", ".4f", "nats per token"),
    "train_loss_standard_error": ("Its standard error", ".4f", "from the spread of the batches' means"),
    "last_token_accuracy": ("Last token", ".4f", "share of passages whose last token is the likeliest"),
    "strict_accuracy": ("Last word, strict", ".4f", "share of passages of whose last word every token is the likeliest"),
    "lambada_openai_accuracy": ("Last word, lm_eval", ".4f", "accuracy of its lambada_openai"),
    "lambada_openai_perplexity": ("Perplexity, lm_eval", ",.2f", "of the last word, as its lambada_openai has it"),
    "masked_perplexity": ("Masked perplexity", ".3f", "of masked tokens, with masks that are always the same"),
    "masked_nats_per_token": ("Masked loss", ".4f", "nats per masked token, with the same masks"),
    "masked_accuracy": ("Masked accuracy", ".4f", "share of masked tokens that are the likeliest"),
    "redrawn_perplexity": ("Perplexity, masks redrawn", ".3f", "as run_mlm.py evaluates: e to the mean of the batches' means"),
    "redrawn_perplexity_standard_deviation": ("Its standard deviation", ".3f", "from one draw of the masks to another"),
    "redrawn_nats": ("Loss, masks redrawn", ".4f", "mean of the batches' means"),
    "next_sentence_accuracy": ("Next-sentence accuracy", ".4f", "share of pairs that are classified correctly"),
    "next_sentence_nats": ("Next-sentence loss", ".4f", "nats per pair"),
    **{
        f"{prefix}{figure}": (f"{name}{ending}", ".4f", meaning if not prefix else "")
        for prefix, ending in (
            ("", ""),
            ("no_diacritics_", ", without diacritics"),
            ("most_frequent_form_", ", most frequent form"),
        )
        for figure, name, meaning in (
            ("word_accuracy", "Words right", "share of words that are the original's"),
            ("ambiguous_word_accuracy", "Ambiguous words right", "of words that could be several"),
            ("character_accuracy", "Letters right", "share of letters"),
            ("diacritic_accuracy", "Diacritics right", "share of letters that have one"),
        )
    },
    **{
        f"{figure}{suffix}": (name if not suffix else shown, ".2%" if suffix == "_tied" else ".4f", meaning)
        for figure, name in (
            ("lm_eval_accuracy", "Accuracy, lm_eval"),
            ("lm_eval_accuracy_per_character", "Accuracy by character, lm_eval"),
            ("lm_eval_accuracy_per_byte", "Accuracy by byte, lm_eval"),
            ("llm_c_accuracy", "Accuracy, llm.c"),
            ("llm_c_accuracy_per_token", "Accuracy by token, llm.c"),
        )
        for suffix, shown, meaning in (
            ("", "", "share of questions whose right choice is the likeliest, the first of equal ones"),
            ("_stderr", "Its standard error", ""),
            ("_tie_split", "The same, ties split", "1/k where the right choice is one of k likeliest"),
            ("_tied", "Its ties", "questions with several likeliest choices, exactly or but for rounding"),
        )
    },
    "exact_match": ("Exact match", ".4f", "share of answers that are right, without case, articles and punctuation"),
    "exact_match_std": ("Its standard deviation", ".4f", "from one seed of fine-tuning to another"),
    **{
        f"{figure}{suffix}{kind}": (
            "Its standard deviation" if kind else f"{name}{', mismatched' if suffix else ''}",
            ".4f",
            "from one seed of fine-tuning to another" if kind else meaning,
        )
        for figure, name, meaning in (
            ("accuracy", "Accuracy", "share of examples whose class is right"),
            ("f1", "F1", "of the words of answers, mean over questions; of GLUE, of the pairs of equal meaning"),
            ("matthews_correlation", "Matthews correlation", "of the classes, from -1 to 1"),
            ("pearson_correlation", "Pearson correlation", "of the scores, from -1 to 1"),
            ("spearman_correlation", "Spearman correlation", "of the scores' ranks, from -1 to 1"),
        )
        for suffix in (("", "_mismatched") if figure == "accuracy" else ("",))
        for kind in ("", "_std")
    },
    "worked_example_word_accuracy": ("Worked example", ".4f", "share of its words that are right"),
    "minutes": ("Minutes", ",.1f", "of training, wall time"),
    "sequences_per_second": ("Sequences a second", ",.2f", "over all of training"),
    "steady_sequences_per_second": ("Steady sequences a second", ",.2f", "median between lines of the log"),
    "seeds": ("Seeds of fine-tuning", ",.0f", ""),
    "questions": ("Questions", ",.0f", ""),
    "steps": ("Steps", ",.0f", ""),
    "windows": ("Windows", ",.0f", ""),
    "unigram_nats_per_token": ("Unigram baseline", ".4f", "nats per token, from counts of single tokens"),
    "bigram_nats_per_token": ("Bigram baseline", ".4f", "nats per token, from counts of pairs of tokens"),
    "nats_below_unigram": ("Better than unigrams by", ".4f", "nats per token"),
    "nats_below_bigram": ("Better than bigrams by", ".4f", "nats per token; negative is worse"),
    "tokens_scored": ("Tokens scored", ",.0f", ""),
    "tokens": ("Tokens", ",.0f", ""),
    "examples": ("Examples", ",.0f", ""),
    "examples_mismatched": ("Examples, mismatched", ",.0f", ""),
    "sequences": ("Sequences", ",.0f", ""),
    "masked_tokens": ("Masked tokens", ",.0f", ""),
    "documents": ("Documents", ",.0f", ""),
    "words": ("Words", ",.0f", ""),
    "bytes": ("Bytes", ",.0f", "of text"),
}


class Figure(NamedTuple):
    """One formatted figure."""

    task: str
    key: str
    name: str
    value: str
    meaning: str
    before: str | None = None
    """The same figure of the weights that training started from."""


class Task(NamedTuple):
    """One evaluation: its protocol and its figures."""

    name: str
    description: str
    """The protocol in a sentence or two; empty where it is not recorded."""
    protocol: Mapping[str, Any]
    figures: list[Figure]

    @property
    def compares(self) -> bool:
        """True if there are figures of the starting weights as well."""
        return any(figure.before is not None for figure in self.figures)


def measured_task(name: str, evaluation: Mapping[str, Any], before: Mapping[str, Any] | None) -> Task:
    """Return the figures of `eval/TASK.json`, the well-known ones first, with those of the starting weights."""
    values, earlier = evaluation["figures"], (before or {}).get("figures", {})
    order = sorted(values, key=lambda key: list(FIGURES).index(key) if key in FIGURES else len(FIGURES))
    protocol = dict(evaluation.get("protocol", {}))
    description = str(protocol.pop("in_words", ""))
    if "limit" in protocol:
        description += f" Only the first {protocol['limit']:,} were evaluated."
    if ties := describe_ties(values):
        description += f" {ties}"
    figures = [_figure(name, key, values[key], earlier.get(key)) for key in order]
    return Task(name, description, protocol, figures)


def _figure(task: str, key: str, value: Any, before: Any) -> Figure:
    name, shown = format_figure(key, value)
    meaning = FIGURES[key][2] if key in FIGURES else ""
    return Figure(task, key, name, shown, meaning, None if before is None else format_figure(key, before)[1])


def format_figure(key: str, value: Any) -> tuple[str, str]:
    """Return the name of a figure and its value as text."""
    unknown = key.replace("_", " ").capitalize(), ",.0f" if isinstance(value, int) else ".4g", ""
    name, style, _meaning = FIGURES.get(key, unknown)
    return name, format(value, style) if isinstance(value, (int, float)) else str(value)
