"""The secrets of loggers, which the training step has and no other."""

from collections.abc import MutableMapping

LOGGER_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
"""Variables with a secret, or the path of one, of a logger that `run.loggers` may name."""
LOGGER_ADDRESSES = ("WANDB_BASE_URL",)
"""Variables with a logger's server, whose address may hold a login."""
LOGGING_STEP = "pretrain"


def withhold_logger_keys(step: str, environment: MutableMapping[str, str]) -> None:
    """Remove the secrets of loggers from the environment of a step that does not train, and of the processes that it starts."""
    if step != LOGGING_STEP:
        for name in (*LOGGER_KEYS, *LOGGER_ADDRESSES):
            environment.pop(name, None)
