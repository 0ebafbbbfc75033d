"""The optimizer section of a recipe: what is accepted, what is rejected, and the message."""

from typing import Any

import pytest
from pydantic import ValidationError

from relm.recipes.optimization import Optimizer


def refusal(**settings: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Optimizer.model_validate({"learning_rate": 0.1, **settings})
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "sgd", "betas": (0.9, 0.98)},
            "betas: read with name: adamw or adam or lamb or muon only, found (0.9, 0.98) with name: sgd",
        ),
        ({"name": "adafactor", "epsilon": 1e-6}, "epsilon: read with name: adamw or adam or lamb or muon only, found 1e-06"),
        ({"name": "adamw", "lamb": {"adapted": "all"}}, "lamb: read with name: lamb only, found {'adapted': 'all'}"),
        ({"name": "lamb", "form": "transformers"}, "form: read with name: adamw or adam only"),
        ({"name": "lamb", "groups": {"head": {"learning_rate": 1}}}, "groups: read with name: adamw or adam or muon only"),
        ({"name": "adamw", "muon": {"momentum": 0.9}}, "muon: read with name: muon only"),
        ({"groups": {"biases": {"learning_rate": 1}}}, "'embeddings', 'head', 'vectors' or 'matrices'"),
        ({"groups": {"head": {"weight_decay": 0.1}}}, "groups.head.learning_rate"),
        ({"groups": {"head": {"learning_rate": 0}}}, "greater than 0"),
        ({"groups": {"head": {"learning_rate": 1, "epsilon": 1e-8}}}, "groups.head.epsilon"),
        ({"name": "muon", "muon": {"momentum": 1}}, "muon.momentum"),
        ({"name": "muon", "muon": {"norm_epsilon": 0}}, "muon.norm_epsilon"),
        ({"name": "adam", "form": "graphcore_bert"}, "form: graphcore_bert needs name: adamw, found adam"),
        ({"name": "adafactor", "adafactor": {"warmup_init": True}}, "warmup_init: needs relative_step: true"),
        ({"name": "adafactor", "adafactor": {"relative_step": True}}, "found 0.1; give 1.0, or set relative_step: false"),
    ],
)
def test_keys_of_another_optimizer_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    assert message in refusal(**settings)


def test_a_recipe_resolved_and_read_again_is_accepted() -> None:
    """All keys are written out then, defaults of other optimizers included."""
    for keys in (
        {"name": "sgd", "sgd": {"momentum": 0.9}},
        {"name": "lamb", "lamb": {"adapted": "all"}},
        {"form": "transformers"},
        {"name": "muon", "groups": {"head": {"learning_rate": 0.2, "betas": (0.8, 0.9)}}},
    ):
        settings = Optimizer.model_validate({"learning_rate": 0.1, **keys})
        assert Optimizer.model_validate(settings.model_dump()) == settings
        assert Optimizer.model_validate_json(settings.model_dump_json()) == settings


def test_the_old_keys_have_their_old_defaults() -> None:
    """Only keys that differ from the default are in a run's fingerprint."""
    assert Optimizer(learning_rate=0.5).model_dump(exclude_defaults=True) == {"learning_rate": 0.5}
    old = {"name": "adamw", "betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 0.0, "gradient_clipping": None}
    assert Optimizer(learning_rate=0.5, **old) == Optimizer(learning_rate=0.5)
