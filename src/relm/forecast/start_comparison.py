"""Compares a run's start with figures of the original's code, before the run is paid for.

The code that trains computes weights, order, rates and options from the recipe, on any CPU and without data.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from relm.errors import RelmError
from relm.examples.as_published.llm_c import LlmCOrder, geometry_of
from relm.examples.contract import numbers_at
from relm.examples.manifest import read_manifest
from relm.examples.order import rank_positions
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.recipes.phase import Phase
from relm.recipes.plan import Plan
from relm.recipes.starts import LossOracle, OptionsOracle, OrderOracle, RatesOracle, Start, WeightsOracle, load_start
from relm.training.architecture import configuration, initial_model
from relm.training.schedules import learning_rate_of

if TYPE_CHECKING:
    from relm.models.contract import LanguageModel

Verdict = Literal["equal", "differs", "not compared"]
STEPS_AT_ONCE = 500
SEQUENCES_AT_ONCE = 8


class Finding(NamedTuple):
    """One comparison."""

    name: str
    verdict: Verdict
    detail: str
    """The compared figures and their source; for a difference, its place and what to do."""

    def __str__(self) -> str:
        return f"  {self.name:<20} {self.verdict:<13} {self.detail}"


class _Difference(Exception):
    """A difference from the original; its text becomes a finding's."""


def describe_start(plan: Plan, path: Path) -> str:
    """Return a line for each comparison of a run's start with its original; raise if something differs."""
    if not path.exists():
        return (
            f"{plan.name}: {path} does not exist, so the start cannot be compared with an original\n"
            f"  other checks before it is paid for: relm estimate {plan.name} (does it fit, how long does it take), "
            f"snakemake results/smoke/{plan.name.partition('@')[0].removeprefix('smoke/')} (its small twin runs)"
        )
    findings = list(compare_start(plan, load_start(path)))
    lines = "\n".join(map(str, findings))
    differing = [finding.name for finding in findings if finding.verdict == "differs"]
    if differing:
        raise RelmError(f"{plan.name}: its start differs from the original's: {', '.join(differing)}\n{lines}")
    return f"{plan.name}: its start equals the original's, as far as it was compared\n{lines}"


def compare_start(plan: Plan, start: Start) -> Iterator[Finding]:
    """Yield a finding for each oracle, the fastest first, and for each that is missing."""
    comparisons: list[tuple[str, Any, Callable[[Plan, Any], str]]] = [
        ("options", start.options, compare_options),
        ("learning rates", start.rates, compare_rates),
        ("order of sequences", start.order, compare_order),
        ("initial weights", start.weights, compare_weights),
    ]
    for name, oracle, compare in comparisons:
        yield _find(name, oracle, lambda compare=compare, oracle=oracle: compare(plan, oracle))  # type: ignore[misc]
    if start.first_loss is not None and not _manifest(plan).exists():
        detail = f"needs the examples: `snakemake {_manifest(plan)}` makes them, then run the command again"
        yield Finding("first loss", "not compared", detail)
        return
    yield _find("first loss", start.first_loss, lambda: compare_first_loss(plan, start.first_loss))


def _find(name: str, oracle: Any, compare: Callable[[], str]) -> Finding:
    if oracle is None:
        return Finding(name, "not compared", "no figure of the original is known")
    try:
        return Finding(name, "equal", f"{compare()}: {oracle.source}")
    except _Difference as difference:
        return Finding(name, "differs", f"{difference} ({oracle.source})")


def compare_options(plan: Plan, oracle: OptionsOracle) -> str:
    """Compare keys of the recipe with the original's values."""
    for key, expected in oracle.values.items():
        found: Any = plan.recipe.model_dump(mode="json")
        for part in key.split("."):
            if isinstance(found, dict) and part not in found:
                raise _Difference(f"{key}: the recipe has no key {part} there; correct it in the file of the start")
            found = found[part] if isinstance(found, dict) else None
        if found != expected:
            raise _Difference(f"{key} is {found}, the original has {expected}; correct the recipe")
    return f"{len(oracle.values)} keys"


def compare_rates(plan: Plan, oracle: RatesOracle) -> str:
    """Compare the learning rates of all updates with those that the original printed."""
    phase = _first_phase(plan)
    rates = {step: learning_rate_of(phase, step) for step in range(1, phase.steps + 1)}
    unit = 10.0**-oracle.decimals
    for step, value in oracle.borders.items():
        if step in rates and abs(rates[step] - value) <= unit / 2 * (1 + 1e-5):
            rates[step] = value
    printed = "".join(f"{rate:.{oracle.decimals}f}\n" for rate in rates.values())
    if hashlib.sha256(printed.encode()).hexdigest() != oracle.sha256:
        wrong = [step for step, value in oracle.milestones.items() if round(rates.get(step, -1.0), oracle.decimals) != value]
        where = "between the listed milestones"
        if wrong:
            found = rates.get(wrong[0], float("nan"))
            where = f"at step {wrong[0]:,}: {found:.{oracle.decimals}f}, not {oracle.milestones[wrong[0]]}"
        raise _Difference(
            f"{len(rates):,} rates differ from the original's, {where}; compare steps, optimizer.learning_rate and schedule"
        )
    return f"{len(rates):,} steps, to {oracle.decimals} decimals"


def compare_order(plan: Plan, oracle: OrderOracle) -> str:
    """Compare the order in which the run reads its sequences with the original's, for all updates."""
    phase = _first_phase(plan)
    shards = tuple(tokens for count, tokens in oracle.shards for _ in range(count))
    if _manifest(plan).exists():
        _compare_shards(_manifest(plan), shards)
    try:
        order = LlmCOrder(geometry_of(phase, shards))
    except RelmError as error:
        raise _Difference(str(error)) from None
    if short := [tokens for tokens, count in zip(shards, order.geometry.samples, strict=True) if not count]:
        raise _Difference(
            f"a shard has {short[0]:,} tokens, and {order.geometry.sample_tokens + 1:,} are read at once; compare as_published "
            "(ranks, batch), sequence_length and order.shards in the file of the start"
        )
    digest, batch = hashlib.sha256(), order.geometry.batch
    rows = np.arange(batch) * phase.sequence_length
    for first in range(1, phase.steps + 1, STEPS_AT_ONCE):
        steps = range(first, min(first + STEPS_AT_ONCE, phase.steps + 1))
        positions = np.concatenate([rank_positions(step, phase.global_batch_size) for step in steps])
        starts = order.starts(*numbers_at(order, plan.recipe.seed, positions)).reshape(-1, batch)  # type: ignore[arg-type]
        if (starts != starts[:, :1] + rows).any():
            raise _Difference("the sequences of a batch do not follow one another; report this as a fault of relm")
        digest.update(order.locate(starts[:, 0]).astype("<i8").tobytes())
    if digest.hexdigest() != oracle.sha256:
        raise _Difference(
            f"the positions of {phase.steps:,} updates have sha256 {digest.hexdigest()[:12]}..., the original's have "
            f"{oracle.sha256[:12]}...; compare as_published (seed, ranks, batch), sequence_length, global_batch_size and steps"
        )
    return f"{phase.steps * phase.global_batch_size:,} sequences of {phase.steps:,} steps"


def _compare_shards(manifest: Path, shards: tuple[int, ...]) -> None:
    found = tuple(shard.tokens for shard in read_manifest(manifest).split("train", manifest))
    for number, (here, there) in enumerate(zip(found, shards, strict=False), 1):
        if here != there:
            raise _Difference(f"training shard {number} of {manifest} has {here:,} tokens, the original's has {there:,}")
    if len(found) != len(shards):
        raise _Difference(f"{manifest} has {len(found)} training shards, the original has {len(shards)}")


def compare_weights(plan: Plan, oracle: WeightsOracle) -> str:
    """Compare the initial weights with the original's, by the hash of each matrix."""
    if plan.recipe.init_from is not None:
        raise _Difference(f"init_from is {plan.recipe.init_from}, but the original draws its weights; leave it out")
    matrices = {name: value for name, value in _initial_model(plan).named_parameters() if value.dim() == 2}
    found = {name: hashlib.sha256(_float32(value)).hexdigest() for name, value in matrices.items()}
    for code, expected in oracle.sha256.items():
        if found == expected:
            return f"{len(found)} matrices, as torch draws them with its code {code}"
    wrong = min(({name for name in {**e, **found} if found.get(name) != e.get(name)} for e in oracle.sha256.values()), key=len)
    first = next(name for name in [*found, *sorted(wrong)] if name in wrong)
    raise _Difference(
        f"{len(wrong)} matrices, the first {first}; compare seed, model.initialisation and the sizes of the model. If these "
        f"are the original's, this CPU rounds normal numbers differently from {' and '.join(oracle.sha256)}"
    )


def _float32(value: Any) -> bytes:
    values: bytes = value.detach().contiguous().numpy().astype("<f4").tobytes()
    return values


def compare_first_loss(plan: Plan, oracle: LossOracle | None) -> str:
    """Compare the loss of the first batch, in nats per token, with the original's."""
    import torch

    from relm.examples.builders import open_examples
    from relm.progress import ProgressBar

    assert oracle is not None, "it is compared only if it exists"
    phase = _first_phase(plan)
    examples = open_examples(_manifest(plan), "train", phase, plan.recipe.seed, check_content=False)
    batch = examples.batch(*numbers_at(examples, plan.recipe.seed, rank_positions(1, phase.global_batch_size)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _initial_model(plan).to(device).eval()
    nats = tokens = 0.0
    with torch.no_grad(), ProgressBar(total=phase.global_batch_size, unit=" sequences", disable=None) as bar:
        for first in range(0, phase.global_batch_size, SEQUENCES_AT_ONCE):
            part = {name: torch.from_numpy(rows[first : first + SEQUENCES_AT_ONCE]).to(device) for name, rows in batch.items()}
            term = next(iter(model(part).values()))
            nats, tokens = nats + float(term.nats), tokens + float(term.count)
            bar.update(len(next(iter(part.values()))))
    found = nats / tokens
    if not abs(found - oracle.nats_per_token) <= oracle.tolerance:
        raise _Difference(
            f"{found:.4f} nats per token, but the original logs {oracle.nats_per_token}. If weights and order are equal, "
            "tokens or the model's forward pass differ: compare the files of tokens and the keys of model"
        )
    return f"{found:.4f} of {oracle.nats_per_token} nats per token"


def _initial_model(plan: Plan) -> "LanguageModel":
    return initial_model(configuration(plan.recipe, tokenizer_of(plan)[0]), plan.recipe.seed, None)


def _first_phase(plan: Plan) -> Phase:
    return plan.recipe.pretrain[plan.phases[0]]


def _manifest(plan: Plan) -> Path:
    return plan.manifest(plan.phases[0])
