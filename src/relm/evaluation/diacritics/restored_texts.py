"""Evaluation of a model that restores the diacritics of held-out texts, with two baselines that need no model.

The texts are the targets of the held-out table, so that training and evaluation define a text alike and the manifest's sha256
fixes all inputs. `relm.evaluation.diacritics.diacritics_scoring` compares two texts.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.diacritics.diacritics_baselines import Forms, Training, count_training_forms
from relm.evaluation.diacritics.diacritics_scoring import RestorationCounts, compare_texts, plain, words_of
from relm.evaluation.diacritics.restoration import Restorer
from relm.evaluation.diacritics.table_texts import UNKNOWN, Texts
from relm.evaluation.diacritics.text_to_text import load_text_to_text, require_lengths
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.result import Sample
from relm.evaluation.runner import Scored, evaluation
from relm.examples.builders import open_examples
from relm.examples.diacritics import with_standard_letters, without_diacritics
from relm.examples.seq2seq import Seq2SeqExamples
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.progress import ProgressBar
from relm.recipes.evaluation.evaluations import Diacritics
from relm.recipes.objectives import Objective

# The expected output of the example on the card of iliemihai/mt5-base-romanian-diacritics.
WORKED_EXAMPLES = {
    "ro": "A început să îi taie un fir de păr, iar fata stă în față, ține cămașa de in în mână și cântă nota SI."
}
# Prefix of a baseline's figures -> its description.
BASELINES = {
    "no_diacritics": "the text without diacritics",
    "most_frequent_form": "each word in the form that the training text has most often, upper and lower case taken together; "
    "of equally frequent ones the first by code points; a word that training never had stays without diacritics",
}
SCORING = {
    "words": "runs of letters, each matched with a word that is the same without diacritics and case; right if equal, case "
    "included",
    "ambiguous_words": "those whose form without diacritics stands for several words of the training text, upper and lower "
    "case taken together",
    "unseen_words": "those of which training has no form",
    "extra_words": "of the output, without a match; they cost nothing",
    "characters": "letters of the reference; a word without a match has none right",
    "diacritics": "letters of the reference that have one",
    "standard_letters": "letters and marks composed on both sides; in Romanian ş and ţ with a cedilla count as ș and ț",
    "unknown_tokens": "of the reference; a word with one is never right",
    "texts_in_parts": "too long for source or target, so given in parts, halved between words until they fit",
    "truncated_texts": "the model wrote as many tokens as it may and came to no end; what is missing is wrong",
}


@evaluation
def evaluate_diacritics(
    model_folder: Path,
    manifest: Path,
    tokenizer: Path,
    phase: Objective,
    options: Diacritics | None = None,
    limit: int | None = None,
    execution: Execution = ON_THE_HOST,
    language: str = "ro",
) -> Scored:
    """Restore the diacritics of the held-out texts with any encoder-decoder.

    The manifest is that of pairs of a text without diacritics and the text, in whose training split the forms of words are
    counted; `phase` defines a text, and the lengths of source and target. The language decides which letters are standard.
    """
    options = options or Diacritics()
    loaded = load_tokenizer(tokenizer)
    examples = _open_examples(manifest, phase, loaded)
    model = load_text_to_text(model_folder, loaded.vocabulary_size, execution)
    require_lengths(model, examples.source_length, examples.target_length)
    bounds = [bound for bound in (options.examples, limit) if bound is not None]
    held_out = Texts(examples.tables, loaded, language, min(bounds, default=None))
    training = Training(manifest, sha256_of(manifest), tokenizer, loaded.sha256, language)
    wanted = {plain(word) for texts in held_out for text in texts for word in words_of(text)}
    if not wanted:
        raise RelmError(f"{manifest}: {held_out.count:,} held-out texts have no words; use more documents")
    forms = count_training_forms(training, wanted, execution.threads)
    restorer = Restorer(model, loaded, examples, language, execution.batch_tokens)
    figures = _figures(manifest, held_out, restorer, forms)
    worked_example, samples = _worked_example(restorer)
    protocol = {
        "in_words": _describe_protocol(phase.seq2seq.texts),
        "tokenizer_sha256": loaded.sha256,
        "manifest_sha256": training.manifest_sha256,
        "source_length": examples.source_length,
        "target_length": examples.target_length,
        **{name: value for name, value in (("examples", options.examples), ("limit", limit)) if value is not None},
        "language": language,
        **SCORING,
        **BASELINES,
        "precision": execution.precision,
    }
    figures |= worked_example
    return Scored(figures, protocol, model.sha256, _describe_figures(figures), (figures["words"], "words"), samples)


def _open_examples(manifest: Path, phase: Objective, loaded: LoadedTokenizer) -> Seq2SeqExamples:
    if phase.objective != "seq2seq":
        raise RelmError(
            f"objective: {phase.objective} restores no diacritics; give the settings of a phase with objective seq2seq"
        )
    examples = open_examples(manifest, "held_out", phase, seed=0)
    assert isinstance(examples, Seq2SeqExamples), "the objective says so"
    made_with = examples.tables.manifest.tokenizer.sha256
    if made_with != loaded.sha256:
        raise RelmError(
            f"{loaded.path}: has sha256 {loaded.sha256}, but {manifest} was made with {made_with}; give that tokenizer"
        )
    return examples


def _figures(manifest: Path, held_out: Texts, restorer: Restorer, forms: Forms) -> dict[str, float | int]:
    """Return all figures except the worked example's."""
    counts = {name: RestorationCounts() for name in ("", *BASELINES)}
    events: Counter[str] = Counter()
    with ProgressBar(total=held_out.count, unit=" texts", disable=None) as bar:
        for texts in held_out:
            events["unknown_tokens"] += sum(text.count(UNKNOWN) for text in texts)
            for restored in restorer.restore(texts, bar):
                events += Counter({"texts_in_parts": len(restored.parts) > 1, "truncated_texts": restored.truncated})
                for part, output in restored.parts:
                    source = without_diacritics(part)
                    likeliest = with_standard_letters(forms.restore(source), restorer.language)
                    for name, found in {"": output, "no_diacritics": source, "most_frequent_form": likeliest}.items():
                        counts[name] += compare_texts(part, found, forms.ambiguous)
                    events["unseen_words"] += sum(plain(word) not in forms.counts for word in words_of(part))
    of = counts[""]
    if not of.diacritics:
        raise RelmError(
            f"{manifest}: {held_out.count:,} held-out texts have no diacritics to restore; use text that has some, and a "
            "tokenizer that keeps them"
        )
    accuracies = {
        f"{name}_{figure}" if name else figure: value
        for name, found in counts.items()
        for figure, value in found.accuracies().items()
    }
    return {
        **accuracies,
        "texts": held_out.count,
        "texts_in_parts": events["texts_in_parts"],
        "truncated_texts": events["truncated_texts"],
        "words": of.words,
        "ambiguous_words": of.ambiguous_words,
        "unseen_words": events["unseen_words"],
        "extra_words": of.extra_words,
        "characters": of.characters,
        "diacritics": of.diacritics,
        "unknown_tokens": events["unknown_tokens"],
        "training_words": forms.words,
    }


def _worked_example(restorer: Restorer) -> tuple[dict[str, float], list[Sample] | None]:
    """Return the figure and sample of the worked example, if the language has one."""
    example = WORKED_EXAMPLES.get(restorer.language.lower().split("-")[0])
    if example is None:
        return {}, None
    written = restorer.restore([example])[0].output
    accuracy = compare_texts(example, written, ()).accuracies()["word_accuracy"]
    return {"worked_example_word_accuracy": accuracy}, [Sample(prompt=without_diacritics(example), text=written)]


def _describe_protocol(texts: str) -> str:
    unit = {"lines": "line", "documents": "document"}[texts]
    return (
        f"Each held-out {unit} loses its diacritics, and the model writes it again, the likeliest token at each step; a word "
        "is right if it is the original one. Baselines: the same texts without diacritics, and with the most frequent form of "
        "each word in the training text."
    )


def _describe_figures(found: Mapping[str, float | int]) -> str:
    ambiguous = ""
    if "ambiguous_word_accuracy" in found:
        ambiguous = (
            f", of ambiguous words {found['ambiguous_word_accuracy']:.4f} "
            f"({found['most_frequent_form_ambiguous_word_accuracy']:.4f})"
        )
    return (
        f"restored {found['texts']:,} texts of {found['words']:,} words: word accuracy {found['word_accuracy']:.4f} (most "
        f"frequent form {found['most_frequent_form_word_accuracy']:.4f}){ambiguous}, character accuracy "
        f"{found['character_accuracy']:.4f}"
    )
