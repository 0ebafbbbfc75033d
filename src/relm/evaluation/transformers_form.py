"""Conversion of relm's own models to classes of `transformers`, which write text with its `generate`."""

from typing import Any

from relm.evaluation.foreign_models import only_errors_logged
from relm.models.gpt2 import Gpt2
from relm.models.t5 import T5

# The keys of a configuration that name an activation.
ACTIVATIONS = ("activation_function", "dense_act_fn")


def as_transformers(model: Gpt2 | T5) -> Any:
    """Return the model as the class that its `config.json` names, in evaluation mode; the two share their weights.

    Every form of relm's GPT-2 and T5 is a form of that class; biases that a GPT-2 lacks are zeros there.
    """
    import transformers

    described = model.config.to_huggingface()
    kind = getattr(transformers, described["architectures"][0])
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = kind.config_class(**{"bos_token_id": None, "eos_token_id": None, **described})
    for name in ACTIVATIONS:
        if getattr(config, name, None) == "gelu_new":
            setattr(config, name, "gelu_pytorch_tanh")  # the same function, as one operation in place of eight
    with only_errors_logged():  # `transformers` takes a T5's separate head for a mistake in its configuration
        return kind.from_pretrained(None, config=config, state_dict=model.huggingface_weights())
