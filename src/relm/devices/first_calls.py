"""The first calls of a CPU's mathematical libraries, made before one whose result counts.

On a busy Xeon with AVX-512 FP16, 2 of 127 fresh processes with two threads computed all losses of their first batch 3e-5 too
high, both with the same wrong bits. Later batches and processes with one thread were always right. Which operation fails is
unknown: `torch.exp` was right in 1,542 processes. So each operation of a model is computed once in all threads, forward and
backward, when a CPU with several threads is opened.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows and widths large enough that torch and MKL divide each operation between all threads.
ROWS = 256
WIDTH = 128
VOCABULARY = 2048

_made: set[int] = set()


def make_first_calls(threads: int) -> bool:
    """Compute a small model's operations in `threads` threads, once in a process, and return True if this call did so.

    Generators of random numbers are not read or changed. One thread needs no such calls.
    """
    if threads == 1 or threads in _made:
        return False
    _made.add(threads)
    with torch.enable_grad():
        loss, weights = compute_losses()
        torch.autograd.grad(loss.sum(), weights)
    return True


def compute_losses() -> tuple[Tensor, list[Tensor]]:
    """Return the losses of a model of one layer, (ROWS,), by fixed weights, and these weights."""
    table = _waves(VOCABULARY, WIDTH)
    up, down = _waves(4 * WIDTH, WIDTH), _waves(WIDTH, 4 * WIDTH)
    weights = [table.requires_grad_(), up.requires_grad_(), down.requires_grad_()]
    hidden = F.embedding(torch.arange(ROWS) * 7 % VOCABULARY, table)
    heads = F.layer_norm(hidden, (WIDTH,)).view(4, ROWS // 4, 4, WIDTH // 4).transpose(1, 2)
    attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    hidden = hidden + attended.transpose(1, 2).reshape(ROWS, WIDTH)
    wide = F.linear(F.rms_norm(hidden, (WIDTH,)), up)
    wide = F.gelu(wide) + F.gelu(wide, approximate="tanh") + F.silu(wide) + torch.tanh(wide)
    logits = F.linear(hidden + F.linear(wide, down), table)
    exponentials = torch.exp(logits - logits.amax(-1, keepdim=True))
    labels = torch.arange(ROWS) * 11 % VOCABULARY
    losses = torch.logsumexp(logits, -1) + F.cross_entropy(logits, labels, reduction="none") + torch.log(exponentials.sum(-1))
    return losses + logits.softmax(-1).amax(-1) + logits.log_softmax(-1).amax(-1), weights


def _waves(rows: int, columns: int) -> Tensor:
    """Return fixed values between -0.1 and 0.1, (rows, columns)."""
    return 0.1 * torch.sin(torch.arange(rows * columns, dtype=torch.float32)).view(rows, columns)
