"""Texts that the model writes, for a person to read: no figure comes of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from tqdm import tqdm

from relm.artifact import write_json
from relm.devices.contract import open_device
from relm.evaluation.generate import Sampling, generated
from relm.evaluation.models import load_for_evaluation
from relm.examples.tokenizers import load_tokenizer
from relm.recipe import Run

# Openings of an encyclopedia's articles; the empty one lets the model choose what it writes about.
PROMPTS = ("", "", "The history of", "In mathematics,", "He was born in", "The city of")


def write_samples(
    model_folder: Path,
    tokenizer: Path,
    output: Path,
    prompts: Sequence[str] | None = None,
    seed: int = 0,
    length: int = 100,
    sampling: Sampling | None = None,
    threads: int | None = None,
) -> str:
    """Let the model continue each prompt, the first attempt taken, and write `eval/samples.json`.

    Every text begins after an end of text, as documents did in training; where the tokenizer has none, after the end of a line.
    It has a random stream of its own, which follows from
    `seed` and its place, so that another prompt changes no other text.

    Args:
        model_folder: Hugging Face folder of a GPT-2.
        tokenizer: the model's `tokenizer.json`.
        output: the JSON file; `text` holds the prompt and what the model wrote after it.
        prompts: beginnings; None: `PROMPTS`.
        seed: of the sampling.
        length: tokens at most after each prompt.
        sampling: how tokens are chosen; None: the defaults of `Sampling`.
        threads: of the CPU; None: all cores this process may use.

    Raises:
        RelmError: the model or tokenizer cannot be read, or they do not belong together.
    """
    started = perf_counter()
    loaded = load_tokenizer(tokenizer)
    model, model_sha256 = load_for_evaluation(model_folder, loaded.vocabulary_size)
    model = open_device(Run(threads=threads)).place(model)
    sampling = sampling or Sampling()
    end = loaded.special.end_of_text
    begin = loaded.tokenizer.encode("\n", add_special_tokens=False).ids if end is None else [end]
    samples, written = [], 0
    for place, prompt in enumerate(tqdm(PROMPTS if prompts is None else prompts, unit=" texts", disable=None)):
        ids = [*begin, *loaded.tokenizer.encode(prompt, add_special_tokens=False).ids]
        new = generated(model.logits, ids, length, model.config.positions, end, sampling, _text_seed(seed, place))
        samples.append({"prompt": prompt, "text": prompt + loaded.tokenizer.decode(new, skip_special_tokens=False)})
        written += len(new)
    begins_with = "a line end" if end is None else "<|endoftext|>"
    protocol = {**asdict(sampling), "seed": seed, "length": length, "begins_with": begins_with, "selected": "none"}
    result = {
        "task": "samples",
        "protocol": protocol,
        "samples": samples,
        "figures": {},
        "model_sha256": model_sha256,
    }
    write_json(output, result)
    return f"wrote {len(samples)} texts of {written:,} tokens; {written / (perf_counter() - started):,.0f} tokens/s"


def _text_seed(seed: int, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"sample {place} of seed {seed}".encode()).digest()[:7], "big")
