"""The precision in which XLA multiplies float32 tensors: a setting of the whole process."""

import logging


def xla_precision() -> str:
    """Return the precision in which XLA multiplies float32 tensors."""
    import torch_xla.backends as backends

    return str(backends.get_mat_mul_precision())


def set_xla_precision(precision: str | None) -> None:
    """Set the precision in which XLA multiplies float32 tensors; None leaves it unchanged.

    PyTorch/XLA writes it into a program when it lowers the program, but finds compiled programs only by the traced operations
    (2.9): a program that this process has compiled before keeps its precision.
    """
    import torch_xla.backends as backends

    if precision not in (None, xla_precision()):
        backends.logger.setLevel(logging.ERROR)  # it warns of a second call even at the first
        backends.set_mat_mul_precision(precision)
