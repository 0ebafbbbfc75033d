"""A GPT-2's hidden states at some positions, the only ones that its last layer then computes.

That layer needs keys and values at every position, but not queries, feed-forward and normalisation. In a model of 12 layers
that saves 7 % of the work before the head.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from relm.models.decoder import Attention, Block
from relm.models.gpt2 import Gpt2


def hidden_at(model: Gpt2, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return `model.hidden(input_ids)` at some positions, (positions, hidden), but for rounding; `rows` must be sorted."""
    length = input_ids.shape[1]
    slots, most = _number_within_rows(rows)
    if 2 * most > length:  # nothing to gain
        return model.hidden(input_ids)[rows, columns]
    body = model.transformer
    x = body.with_positions(body.wte(input_ids))
    for layer in body.h[:-1]:
        x = layer(x, None)
    last = cast(Block, body.h[-1])
    queries = columns.new_zeros(len(input_ids), most)
    queries[rows, slots] = columns  # unused slots query the first position, and nobody takes their result
    chosen = x[rows, columns] + _attend(last.attn, last.ln_1(x), queries)[rows, slots]
    normalised: Tensor = body.ln_f(chosen + last.mlp(last.ln_2(chosen)))
    return normalised


def _number_within_rows(rows: Tensor) -> tuple[Tensor, int]:
    """Return (positions,) numbers from 0 within each row, and the largest count of positions in a row."""
    _, counts = torch.unique_consecutive(rows, return_counts=True)
    before = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return torch.arange(len(rows), device=rows.device) - before, int(counts.max())


def _attend(attention: Attention, x: Tensor, queries: Tensor) -> Tensor:
    """Return attention on (batch, sequence, hidden) at the positions `queries`, (batch, n): (batch, n, hidden)."""
    batch, length, hidden = x.shape
    weight, bias = attention.c_attn.weight, attention.c_attn.bias
    asking = x.gather(1, queries[:, :, None].expand(-1, -1, hidden))
    query = F.linear(asking, weight[:, :hidden].t(), None if bias is None else bias[:hidden])
    both = F.linear(x, weight[:, hidden:].t(), None if bias is None else bias[hidden:])
    query, key, value = (
        part.view(batch, -1, attention.heads, hidden // attention.heads).transpose(1, 2)
        for part in (query, *both.tensor_split(2, dim=2))
    )
    seen = torch.arange(length, device=x.device) <= queries[:, None, :, None]
    return attention.joined(F.scaled_dot_product_attention(query, key, value, attn_mask=seen))
