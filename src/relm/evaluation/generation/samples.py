"""Texts that the model writes for a person to read, without any figure."""

from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from relm.evaluation.execution import Execution
from relm.evaluation.generation.texts import Prompt, Writer, Writing
from relm.evaluation.result import Result, Sample
from relm.progress import ProgressBar
from relm.recipes.evaluation.evaluations import Samples

# Openings of an encyclopedia's articles; the empty one lets the model choose its subject.
PROMPTS = ("", "", "The history of", "In mathematics,", "He was born in", "The city of")


def write_samples(
    model_folder: Path,
    tokenizer: Path,
    output: Path,
    options: Samples,
    task: str,
    execution: Execution | None = None,
    length: int = 100,
) -> str:
    """Let the model continue each prompt once, and write `eval/samples.json`.

    Every text begins after the token that begins texts or else after an end of text, as documents did in training; if the
    tokenizer has neither, after the end of a line. A model that was not trained by relm writes after the tokens that its
    tokenizer puts before a text, if any. `seed` and the number of a text decide its random stream, so that another prompt
    changes no other text.

    Args:
        model_folder: folder of any causal language model, as `save_pretrained` writes it.
        tokenizer: the model's `tokenizer.json`.
        output: the JSON file; `text` holds the prompt and the text that the model wrote after it.
        task: the name of the evaluation in the result.
        length: the most tokens after each prompt.
    """
    started = perf_counter()
    writing = Writing(length, seed=options.seed)
    writer = Writer(model_folder, tokenizer, execution)
    given = [_prompt(writer, text) for text in (PROMPTS if options.prompt is None else options.prompt)]
    texts = list(ProgressBar(writer.texts(given, writing), total=len(given), unit=" texts", disable=None))
    Result(
        task=task,
        protocol=_protocol(writer, writing),
        figures={},
        model_sha256=writer.model.sha256,
        samples=[Sample(prompt=text.prompt, text=text.text) for text in texts],
    ).write(output)
    written = sum(text.tokens for text in texts)
    return f"wrote {len(texts)} texts of {written:,} tokens; {written / (perf_counter() - started):,.0f} tokens/s"


def _prompt(writer: Writer, text: str) -> Prompt:
    encoded = writer.loaded.tokenizer.encode(text, add_special_tokens=False).ids
    return Prompt(text, [*(writer.begins or writer.beginning()), *encoded])


def _begins_with(writer: Writer) -> str:
    """Return the tokens before each text; an end of text or of a line is named in English."""
    if writer.begins:
        return " ".join(str(writer.loaded.tokenizer.id_to_token(number)) for number in writer.begins)
    bos, eos = writer.special.bos, writer.special.eos
    if bos in (None, eos):
        return "a line end" if eos is None else "an end of text"
    return str(writer.loaded.tokenizer.id_to_token(bos))


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
