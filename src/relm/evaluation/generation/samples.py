"""Texts that the model writes for a person to read; they have no figures."""

from dataclasses import asdict
from pathlib import Path

from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.generation.texts import Prompt, Writer, Writing
from relm.evaluation.result import Sample
from relm.evaluation.runner import Scored, evaluation
from relm.progress import ProgressBar
from relm.recipes.evaluation.evaluations import Samples

# Openings of an encyclopedia's articles; the empty one lets the model choose its subject.
PROMPTS = ("", "", "The history of", "In mathematics,", "He was born in", "The city of")


@evaluation
def write_samples(
    model_folder: Path, tokenizer: Path, options: Samples, execution: Execution = ON_THE_HOST, length: int = 100
) -> Scored:
    """Let a causal language model continue each prompt once, by `length` tokens at most.

    Every text begins after the token that begins texts, or else after an end of text, as documents did in training, or else
    after a line end. A model that relm did not train writes after the tokens that its tokenizer puts before a text, if any.
    `seed` and a text's number decide its random stream, so that another prompt changes no other text.
    """
    writing = Writing(length, seed=options.seed)
    writer = Writer(model_folder, tokenizer, execution)
    given = [_prompt(writer, text) for text in (PROMPTS if options.prompt is None else options.prompt)]
    texts = list(ProgressBar(writer.texts(given, writing), total=len(given), unit=" texts", disable=None))
    written, samples = sum(text.tokens for text in texts), [Sample(prompt=text.prompt, text=text.text) for text in texts]
    sentence = f"wrote {len(texts)} texts of {written:,} tokens"
    return Scored({}, _protocol(writer, writing), writer.model.sha256, sentence, (written, "tokens"), samples)


def _prompt(writer: Writer, text: str) -> Prompt:
    encoded = writer.loaded.tokenizer.encode(text, add_special_tokens=False).ids
    return Prompt(text, [*(writer.begins or writer.beginning()), *encoded])


def _begins_with(writer: Writer) -> str:
    """Return the tokens before each text, with English names for an end of text or line."""
    bos, eos = writer.special.bos, writer.special.eos
    if not writer.begins and bos in (None, eos):
        return "a line end" if eos is None else "an end of text"
    return " ".join(str(writer.loaded.tokenizer.id_to_token(number)) for number in writer.begins or writer.beginning())


def _protocol(writer: Writer, writing: Writing) -> dict[str, object]:
    sampling = writing.sampling
    begins_with = _begins_with(writer)
    return {
        "in_words": f"What the model wrote at the first attempt, each text after {begins_with}, up to {writing.length} tokens: "
        f"{sampling.describe()}. Nothing was selected.",
        "tokenizer_sha256": writer.loaded.sha256,
        **asdict(sampling),
        "seed": writing.seed,
        "length": writing.length,
        "begins_with": begins_with,
        "selected": "none",
    }
