"""The package's layer rules: per-sample gradients of single layers from a and d, without a backward pass to the weights.

Notation: a is a layer's input and d the gradient of the summed loss at its output, both with the record as first axis. A
record's gradient follows from its own a and d alone. For a linear layer it is the outer product d·aᵀ, whose norm is
‖d‖·‖a‖, and which is never formed. All this holds for a layer that is called once for each record; `agreement.py` makes
sure of that. Rules of the user's own: `layer_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import convolution
from .per_sample import Formed, Outer, PerRecord, Rows


def _linear(layer: nn.Linear, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    if a.dim() == 2:
        return {"weight": Outer(d, a), "bias": Formed(d)}
    a = a.flatten(1, -2)
    d = d.flatten(1, -2)
    return {"weight": Formed(torch.einsum("bto,bti->boi", d, a)), "bias": Formed(d.sum(1))}


def _embedding(layer: nn.Embedding, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    tokens = a.flatten(1)
    d = d.reshape(a.shape[0], -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        d = torch.where((tokens == layer.padding_idx).unsqueeze(2), 0.0, d)
    return {"weight": Rows(tokens, d, layer.num_embeddings)}


def _layer_norm(layer: nn.LayerNorm, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    normal = F.layer_norm(a, layer.normalized_shape, None, None, layer.eps)
    lead = tuple(range(1, a.dim() - len(layer.normalized_shape)))
    weight, bias = (d * normal, d) if not lead else ((d * normal).sum(lead), d.sum(lead))
    return {"weight": Formed(weight), "bias": Formed(bias)}


def _group_norm(layer: nn.GroupNorm, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    normal = F.group_norm(a, layer.num_groups, None, None, layer.eps)
    return {"weight": Formed((d * normal).flatten(2).sum(2)), "bias": Formed(d.flatten(2).sum(2))}


BatchRule = Callable[..., dict[str, PerRecord]]  # layer, a [B, …], d [B, …] → parameter → gradients
RULES: dict[type[nn.Module], BatchRule] = {
    nn.Linear: _linear,
    nn.Conv1d: convolution.from_input,
    nn.Conv2d: convolution.from_input,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
