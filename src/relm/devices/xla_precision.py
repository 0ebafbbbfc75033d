"""The precision in which XLA multiplies float32 tensors: a setting of the whole process."""

import logging


def xla_precision() -> str:
    """Return the precision in which XLA multiplies float32 tensors."""
    import torch_xla.backends as backends

    return str(backends.get_mat_mul_precision())


def set_xla_precision(precision: str | None) -> None:
    """Set the precision in which XLA multiplies float32 tensors; None leaves it as it is.

    PyTorch/XLA writes it into a program when it lowers the program, but searches its compiled programs by the traced operations
    alone (2.9): a program that was compiled before in this process keeps its precision.
    """
    import torch_xla.backends as backends

    if precision not in (None, xla_precision()):
        backends.logger.setLevel(logging.ERROR)  # it warns of a second setting even at the first
        backends.set_mat_mul_precision(precision)
