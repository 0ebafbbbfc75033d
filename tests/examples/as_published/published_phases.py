"""Phases whose examples are built as published."""

from relm.recipes.as_published import AsPublished
from relm.recipes.objectives import Objective


def published_objective(builder: str, seed: int, duplication_factor: int, /, **changes: object) -> Objective:
    """Return a phase whose examples an original's builder makes; changes name keys of any of its sections."""
    masked = {
        "packing": "sentence_pairs",
        "sentences": "lines",
        "masks": "static",
        "max_predictions": 20,
        "short_sequence_probability": 0.1,
        "duplication_factor": duplication_factor,
    }
    published = {"builder": builder, "seed": seed}
    given = {"objective": "masked", "sequence_length": 128, "masked": masked, "as_published": published}
    for key, value in changes.items():
        section = published if key in AsPublished.model_fields and key != "seed" else given if key in given else masked
        section[key] = value
    return Objective.model_validate(given)
