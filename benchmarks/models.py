"""Compare a training step of our models with `transformers`: `python benchmarks/models.py bert-base --length 128 --masked 20`.

Forward, backward and AdamW, on the same weights and batch, precision and threads, attention through
`scaled_dot_product_attention` in both. The two take turns, so that both see the same machine; that their losses agree is
checked first. Peak memory is measured in a fresh process each. For masked language models, the ratio that gathering the masked
positions gives by operations only is printed next to the ratio of times.
"""

import argparse
import dataclasses
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn

from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.models.contract import LanguageModel
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.t5 import T5
from relm.models.t5_configuration import T5Config

Config = BertConfig | Gpt2Config | T5Config
MODELS: dict[type, type[LanguageModel]] = {BertConfig: Bert, Gpt2Config: Gpt2, T5Config: T5}
CLASSES = {BertConfig: "BertForMaskedLM", Gpt2Config: "GPT2LMHeadModel", T5Config: "T5ForConditionalGeneration"}
CONFIGS: dict[str, Config] = {
    "bert-base": BertConfig(12, 12, 768, 3072, positions=512, vocabulary_size=30_522),
    "bert-large": BertConfig(24, 16, 1024, 4096, positions=512, vocabulary_size=30_522),
    "gpt2": Gpt2Config(12, 12, 768, positions=1024, vocabulary_size=50_257),
    "t5-small": T5Config(8, 6, 64, 512, 1024, vocabulary_size=32_128),  # T5 1.1
}
# A batch of the kind that the examples make: the last sequence ends early, and what follows is padding.
LAST_SEQUENCE = 0.9
WARM_UP = 1
MEASURED = ("forward and backward", "the same, processor", "whole step", "the same, processor")


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings of a measurement."""

    model: str
    length: int
    masked: int
    batch: int
    layers: int | None
    dropout: float
    precision: str
    threads: int
    repeats: int

    @property
    def config(self) -> Config:
        """The architecture, perhaps with fewer layers."""
        config = CONFIGS[self.model]
        dropouts = {field.name: self.dropout for field in dataclasses.fields(config) if field.name.endswith("dropout")}
        return dataclasses.replace(config, layers=self.layers or config.layers, **dropouts)

    def our_batch(self) -> dict[str, Tensor]:
        """Return a batch in the form of `Examples.batch`."""
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(1000, self.config.vocabulary_size, (self.batch, self.length + 1), generator=draw)
        if isinstance(self.config, Gpt2Config):
            return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
        end = int(self.length * LAST_SEQUENCE)
        attention = torch.ones(self.batch, self.length, dtype=torch.int64)
        attention[-1, end:] = 0
        if isinstance(self.config, T5Config):
            labels = ids[:, 1 : 1 + self.length // 4].clone()
            labels[-1, end // 4 :] = -100
            return {"input_ids": ids[:, :-1] * attention, "attention_mask": attention.bool(), "labels": labels}
        positions = torch.stack([torch.randperm(end, generator=draw)[: self.masked].sort().values for _ in range(self.batch)])
        return {
            "input_ids": ids[:, :-1] * attention,
            "attention_mask": attention,
            "token_type_ids": torch.zeros_like(attention),
            "masked_positions": positions,
            "masked_labels": ids[:, 1:].gather(1, positions),
        }

    def their_batch(self) -> dict[str, Tensor]:
        """Return the same in the form of `transformers`: a label for every position."""
        batch = self.our_batch()
        if isinstance(self.config, T5Config):
            return batch
        if "labels" in batch:
            # Its causal loss shifts by itself, so the last place is left without a label.
            return {"input_ids": batch["input_ids"], "labels": batch["input_ids"].clone()}
        dense = torch.full_like(batch["input_ids"], -100).scatter_(1, batch["masked_positions"], batch["masked_labels"])
        return {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")} | {"labels": dense}


def our_model(setting: Setting) -> nn.Module:
    model = MODELS[type(setting.config)](setting.config)
    model.initialise(torch.Generator().manual_seed(0))
    return model


def their_model(setting: Setting) -> nn.Module:
    import transformers

    described = setting.config.to_huggingface()
    kind = getattr(transformers, CLASSES[type(setting.config)])
    config = transformers.AutoConfig.for_model(described.pop("model_type"), **described, use_cache=False)
    model = kind._from_config(config, attn_implementation="sdpa")
    if isinstance(setting.config, T5Config):  # the library ties a T5's head whatever its configuration says
        model.lm_head = nn.Linear(setting.config.hidden_size, setting.config.vocabulary_size, bias=False)
    return model


def our_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return sum(term.nats / term.count for term in model.terms(batch).values())


def their_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return model(**batch).loss


def clocks() -> tuple[float, float]:
    """Return the seconds by the clock, and of processor time, which a crowded machine disturbs less."""
    return time.perf_counter(), time.process_time()


@dataclasses.dataclass
class Contestant:
    """A model with its optimizer, loss and batch."""

    model: nn.Module
    loss: Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
    batch: Mapping[str, Tensor]
    precision: str

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def step(self) -> tuple[float, ...]:
        """Return the seconds by both clocks of forward and backward, then of the whole step."""
        started = clocks()
        self.forward().backward()
        differentiated = clocks()
        self.optimizer.step()
        self.optimizer.zero_grad()
        ended = clocks()
        return tuple(after - before for before, after in zip(started * 2, differentiated + ended, strict=True))

    def forward(self) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self.loss(self.model, self.batch)


def contestant(setting: Setting, ours: bool) -> Contestant:
    if ours:
        return Contestant(our_model(setting), our_loss, setting.our_batch(), setting.precision)
    return Contestant(their_model(setting), their_loss, setting.their_batch(), setting.precision)


def require_agreement(setting: Setting, ours: Contestant, theirs: Contestant) -> None:
    """Give both the same weights, and check that they compute the same loss, dropout off."""
    state = theirs.model.state_dict()
    strange = [name for name in ours.model.state_dict() if name not in state]
    assert not strange, strange
    theirs.model.load_state_dict(ours.model.state_dict(), strict=False)
    if not isinstance(setting.config, T5Config):  # its head is its own
        theirs.model.tie_weights()
    batch = dict(ours.batch)
    if isinstance(setting.config, Gpt2Config):
        batch["labels"] = torch.cat([batch["input_ids"][:, 1:], torch.full((setting.batch, 1), -100)], dim=1)
    with torch.no_grad():
        pair = [float(side.loss(side.model.eval(), b)) for side, b in ((ours, batch), (theirs, theirs.batch))]
    assert abs(pair[0] / pair[1] - 1) < 1e-5, f"the losses differ: {pair}"
    print(f"both compute the loss {pair[0]:.5f}")
    ours.model.train()
    theirs.model.train()


def peak_memory(setting: Setting, ours: bool) -> int:
    """Return the peak memory in MB of a process for two steps of one of them."""
    torch.set_num_threads(setting.threads)
    alone = contestant(setting, ours)
    alone.model.train()
    for _ in range(2):
        alone.step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def compare_times(setting: Setting) -> None:
    """Print seconds and ratios of both, measured in alternation."""
    torch.set_num_threads(setting.threads)
    ours, theirs = contestant(setting, ours=True), contestant(setting, ours=False)
    parameters = sum(parameter.numel() for parameter in ours.model.parameters())
    print(f"{setting.model}: {parameters:,} parameters, {setting}")
    require_agreement(setting, ours, theirs)
    times: dict[str, list[tuple[float, ...]]] = {"relm": [], "transformers": []}
    sides = [("relm", ours), ("transformers", theirs)]
    for turn in range(WARM_UP + setting.repeats):
        for name, side in sides if turn % 2 else reversed(sides):
            taken = side.step()
            if turn >= WARM_UP:
                times[name].append(taken)
    for part, label in enumerate(MEASURED):
        mine, other = ([taken[part] for taken in times[name]] for name in ("relm", "transformers"))
        ratios = [b / a for a, b in zip(mine, other, strict=True)]
        print(f"{label}: relm {spread(mine)} s, transformers {spread(other)} s, ratio {spread(ratios)}")


def print_arithmetic(setting: Setting) -> None:
    """Print the ratios of multiplications that are saved by leaving out unmasked positions."""
    config = setting.config
    if not isinstance(config, BertConfig):
        return
    width = config.hidden_size
    layer = 4 * width**2 + 2 * width * config.intermediate_size
    keys_and_values, attention = 2 * width**2, 2 * setting.length * width
    head = width**2 + width * config.vocabulary_size
    dense = setting.length * (config.layers * (layer + attention) + head)
    unmasked = setting.length - setting.masked
    gathered = dense - unmasked * head
    last_layer_too = gathered - unmasked * (layer + attention - keys_and_values)
    print(
        f"multiplications of a token, forward: a layer {layer:,} ({keys_and_values:,} of them for keys and values), "
        f"attention {attention:,}, head {head:,}\n"
        f"of a sequence: {setting.length} x ({config.layers} x (layer + attention) + head) = {dense:,}\n"
        f"the head at {setting.masked} places: {gathered:,}, ratio {dense / gathered:.3f}\n"
        f"the last layer too, but for keys and values: {last_layer_too:,}, ratio {dense / last_layer_too:.3f}"
    )


def settings() -> Setting:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(CONFIGS))
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--masked", type=int, default=20, help="masked positions of a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="bfloat16 by autocast")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    given: dict[str, Any] = vars(parser.parse_args())
    return Setting(**given)


def main() -> None:
    setting = settings()
    print_arithmetic(setting)
    # First, for a process begins with the peak of the one that started it.
    for ours, name in ((True, "relm"), (False, "transformers")):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            print(f"peak memory of {name}: {fresh.submit(peak_memory, setting, ours).result():,} MB")
    compare_times(setting)


if __name__ == "__main__":
    main()
