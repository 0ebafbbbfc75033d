"""Compare tokens a second with plain `generate` of `transformers`: `python benchmarks/generation.py gpt2 --batch 1 8`.

relm writes with `generate` too; the ratio is what its own streams of random numbers and windows cost. A random GPT-2
with the same weights in both, prompts of one length, precision and threads; attention through `scaled_dot_product_attention` in
both. The two take turns, so that both see the same machine; that greedy texts are the same, token for token, is checked first.
Peak memory is measured in a fresh process each.

`--ipu-simulator` compares two ways of one simulated IPU instead: a loop on it, with a cache of keys and values, and a pass over
the whole text for each token.
"""

import argparse
import dataclasses
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from relm.evaluation.execution import Execution
from relm.evaluation.generation.continuation import Continuer, TransformersContinuer
from relm.evaluation.generation.ipu_continuation import IpuContinuer
from relm.evaluation.generation.sampling import Sampling, random_stream
from relm.evaluation.generation.stop import Stop
from relm.evaluation.ipu_model import IpuCausalModel
from relm.evaluation.models import OwnDecoder
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.models.gpt2 import Gpt2, Gpt2Config

CONFIGS = {
    "quickstart": Gpt2Config(3, 4, 128, positions=64, vocabulary_size=4096),
    "small": Gpt2Config(6, 6, 384, positions=512, vocabulary_size=16_384),
    "gpt2": Gpt2Config(12, 12, 768, positions=1024, vocabulary_size=50_257),
}
SAMPLED, GREEDY = Sampling(temperature=0.8, top_k=50, top_p=0.95), Sampling(temperature=0)
TOKENIZER = Path(__file__).parents[1] / "results" / "shakespeare_char" / "tokenizer.json"  # no text ends at any of its tokens
Texts = list[list[int]]
Sides = dict[str, Callable[[Texts], Texts]]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings of a measurement."""

    model: str
    prompt: int
    length: int
    sampled: bool
    threads: int
    repeats: int
    layers: int | None
    ipu_simulator: bool

    @property
    def config(self) -> Gpt2Config:
        """The architecture, perhaps with fewer layers."""
        config = CONFIGS[self.model]
        return dataclasses.replace(config, layers=self.layers or config.layers)

    @property
    def sampling(self) -> Sampling:
        """The choice of tokens."""
        return SAMPLED if self.sampled else GREEDY

    def prompts(self, batch: int) -> Texts:
        """Random ids."""
        draw = torch.Generator().manual_seed(batch)
        ids = torch.randint(self.config.vocabulary_size, (batch, self.prompt), generator=draw)
        return [list(map(int, row)) for row in ids]


def weights(setting: Setting) -> Gpt2:
    model = Gpt2(setting.config)
    model.initialise(torch.Generator().manual_seed(0))
    return model


def ours(setting: Setting, model: Gpt2) -> Callable[[Texts], Texts]:
    execution = Execution(threads=setting.threads)
    continuer = TransformersContinuer(OwnDecoder(Path(setting.model), "", model, execution), execution)
    return lambda prompts: written(setting, continuer, prompts)


def written(setting: Setting, continuer: Continuer, prompts: Texts) -> Texts:
    streams = [random_stream(0, number) for number in range(len(prompts))]
    return continuer.write(prompts, setting.length, setting.sampling, streams, Stop(load_tokenizer(TOKENIZER), None, ()))


def on_simulated_ipu(setting: Setting, model: Gpt2, batch: int) -> Sides:
    """Return the two ways in which one IPU writes; what it would compile is run once before."""
    loaded = IpuCausalModel(Path(setting.model), "", model, Execution("ipu_simulator", threads=setting.threads))
    ways = {"cached, one call": IpuContinuer(loaded), "uncached, a call a token": IpuContinuer(loaded)}
    ways["uncached, a call a token"].loops = lambda *_: False  # type: ignore[method-assign]
    for continuer in ways.values():
        continuer.prepare(setting.prompts(batch), setting.length, setting.sampling)
    return {name: partial(written, setting, continuer) for name, continuer in ways.items()}


def theirs(setting: Setting, model: Gpt2 | None) -> Callable[[Texts], Texts]:
    import transformers

    described = {**setting.config.to_huggingface(), "bos_token_id": None, "eos_token_id": None}
    config = transformers.AutoConfig.for_model(described.pop("model_type"), **described)
    peer = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").eval()
    if model is not None:
        peer.load_state_dict(model.state_dict(), strict=False)
        peer.tie_weights()
    drawn = {"temperature": SAMPLED.temperature, "top_k": SAMPLED.top_k, "top_p": SAMPLED.top_p} if setting.sampled else {}
    options: dict[str, Any] = {"do_sample": setting.sampled, "max_new_tokens": setting.length, "pad_token_id": 0, **drawn}

    def write(prompts: Texts) -> Texts:
        ids = torch.tensor(prompts)
        found: Texts = peer.generate(ids, attention_mask=torch.ones_like(ids), **options)[:, ids.shape[1] :].tolist()
        return found

    return write


def peak_memory(setting: Setting, batch: int, is_ours: bool) -> int:
    """Return the peak memory in MB of a process that loads its own weights and writes once."""
    torch.set_num_threads(setting.threads)
    write = ours(setting, weights(setting)) if is_ours else theirs(setting, None)
    write(setting.prompts(batch))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def spread(values: list[float], digits: int = 1) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def transformers_beside(setting: Setting, model: Gpt2, batch: int) -> Sides:
    """Return relm's way of writing and the peer's, whose greedy texts are the same."""
    greedy = dataclasses.replace(setting, sampled=False, length=min(setting.length, 16))
    prompts = setting.prompts(batch)
    assert ours(greedy, model)(prompts) == theirs(greedy, model)(prompts), "the two write other texts"
    return {"relm": ours(setting, model), "transformers": theirs(setting, model)}


def compare(setting: Setting, batch: int) -> None:
    """Print tokens a second and ratios of two ways of writing, in turns."""
    torch.set_num_threads(setting.threads)
    model, prompts = weights(setting), setting.prompts(batch)
    sides = (on_simulated_ipu if setting.ipu_simulator else transformers_beside)(setting, model, batch)
    first, second = sides
    if setting.ipu_simulator and not setting.sampled:
        assert sides[first](prompts) == sides[second](prompts), "the two write other texts"
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(setting.repeats):
        for name in sides if turn % 2 else reversed(list(sides)):
            started = time.perf_counter()
            tokens = sum(map(len, sides[name](prompts)))
            rates[name].append(tokens / (time.perf_counter() - started))
    ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
    figures = ", ".join(f"{name} {spread(found)} tokens/s" for name, found in rates.items())
    print(f"batch {batch}: {figures}, ratio {spread(ratios, 2)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(CONFIGS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="texts at once")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--length", type=int, default=32, help="tokens after it")
    parser.add_argument("--sampled", action="store_true", help="temperature 0.8, top-k 50, top-p 0.95; default: greedy")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--ipu-simulator", action="store_true", help="the two ways of one IPU, simulated on the CPU")
    given = vars(parser.parse_args())
    batches = given.pop("batch")
    setting = Setting(**given)
    print(f"{setting.model}: {weights(setting).parameter_count():,} parameters, {setting}")
    # First, for a process begins with the peak of the one that started it.
    for name in () if setting.ipu_simulator else ("relm", "transformers"):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            print(f"peak memory of {name}: {fresh.submit(peak_memory, setting, batches[-1], name == 'relm').result():,} MB")
    for batch in batches:
        compare(setting, batch)


if __name__ == "__main__":
    main()
