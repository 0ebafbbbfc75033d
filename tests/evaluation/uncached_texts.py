"""Texts that a model writes without a cache, as what other ways of writing are compared with."""

from collections.abc import Sequence

import torch

from relm.evaluation.causal_model import CausalModel
from relm.evaluation.generation.sampling import Sampling, logits_processors, random_stream

GREEDY = Sampling(temperature=0)
ALL = Sampling(temperature=1, top_k=None, top_p=1)
PENALISED = Sampling(temperature=0, repetition_penalty=1.4)


def uncached(model: CausalModel, texts: Sequence[Sequence[int]], length: int, sampling: Sampling = GREEDY) -> list[list[int]]:
    """Return continuations without a cache: text by text, each token from only the newest window."""
    whole = [list(text) for text in texts]
    for number, text in enumerate(whole):
        choose = logits_processors(sampling, [random_stream(0, number)])
        for _ in range(length):
            window = torch.tensor([text if model.positions is None else text[-model.positions :]])
            with torch.inference_mode():
                logits = model.head(model.hidden(window)[:, -1])
                text.append(int(choose(window, logits).argmax()))
    return [text[len(prompt) :] for text, prompt in zip(whole, texts, strict=True)]
