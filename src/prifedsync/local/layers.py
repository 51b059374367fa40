"""Per-record gradients of single layers, without asking autograd for them (book-keeping).

Notation: a is a layer's input and d the gradient of the summed loss at its output, both with the record as first axis. A
record's gradient follows from its own a and d alone; for a linear layer it is the outer product d·aᵀ, whose norm is
‖d‖·‖a‖ and which is never formed. All this holds for a layer called once per record; `net.py` makes sure of that.
Norms and sums are in double precision: nothing over- or underflows whatever a hostile starting point does to a and d.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PerRecord(Protocol):
    """The gradients of all records of a batch for one parameter."""

    def norms(self) -> Tensor: ...  # [B], double
    def total(self, scale: Tensor) -> Tensor: ...  # Σ scale_b · gradient_b, double; a record with scale 0 adds exactly 0


def norm(values: Tensor) -> Tensor:
    """‖·‖₂ over all but the first axis, in double precision; doubles are scaled before they are squared."""
    flat = values.double().flatten(1)
    if values.dtype != torch.float64:  # the square of any single-precision number is a double
        return flat.square().sum(1).sqrt()
    largest = flat.abs().amax(1).clamp_min(torch.finfo(torch.float64).tiny)
    sizes: Tensor = torch.linalg.vector_norm(flat / largest.unsqueeze(1), dim=1)
    return largest * sizes


def scaled(values: Tensor, scale: Tensor) -> Tensor:
    """Each record times its scale; with scale 0 it is exactly zero, even where the record is not finite."""
    by_record = scale.reshape(-1, *[1] * (values.dim() - 1))
    return torch.where(by_record > 0, values.double(), 0.0) * by_record


@dataclass(frozen=True)
class Formed:
    """Gradients that were written down: [B, *shape of the parameter]."""

    gradients: Tensor

    def norms(self) -> Tensor:
        return norm(self.gradients)

    def total(self, scale: Tensor) -> Tensor:
        return scaled(self.gradients, scale).sum(0)


@dataclass(frozen=True)
class Outer:
    """Gradients d·aᵀ of a linear layer's weight, never formed."""

    d: Tensor
    a: Tensor

    def norms(self) -> Tensor:
        return norm(self.d) * norm(self.a)

    def total(self, scale: Tensor) -> Tensor:
        finite_a = torch.where(scale.unsqueeze(1) > 0, self.a.double(), 0.0)
        return scaled(self.d, scale).T @ finite_a


@dataclass(frozen=True)
class Rows:
    """Gradients of an embedding's table: a few rows for each record, equal tokens of one record added up."""

    tokens: Tensor  # [B, T]
    d: Tensor  # [B, T, D]
    table: int

    def _shares(self) -> Tensor:
        """[B, T, D]: the whole gradient of a token's row, divided by how often the record has the token."""
        same = (self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)).double()
        return torch.bmm(same, self.d.double()) / same.sum(2, keepdim=True)

    def norms(self) -> Tensor:
        same = (self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)).double()
        return norm(self._shares() * same.sum(2, keepdim=True).sqrt())

    def total(self, scale: Tensor) -> Tensor:
        rows = scaled(self._shares(), scale).flatten(0, 1)
        return rows.new_zeros(self.table, rows.shape[1]).index_add(0, self.tokens.flatten(), rows)


def _linear(layer: nn.Linear, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    if a.dim() == 2:
        return {"weight": Outer(d, a), "bias": Formed(d)}
    a, d = a.flatten(1, -2), d.flatten(1, -2)
    return {"weight": Formed(torch.einsum("bto,bti->boi", d, a)), "bias": Formed(d.sum(1))}


def _convolution(layer: nn.Conv1d | nn.Conv2d, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    """A linear layer over patches, its gradients small enough to form."""
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    if layer.padding != "valid":
        # the amounts that the layer itself pads with, last axis first
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        a = F.pad(a, layer._reversed_padding_repeated_twice, mode=mode)
    if isinstance(layer, nn.Conv1d):
        a, kernel, stride, dilation = a.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    patches = F.unfold(a, kernel, dilation=dilation, stride=stride)  # [B, in · kernel, places]
    patches = patches.unflatten(1, (layer.groups, -1))
    by_group = d.flatten(2).unflatten(1, (layer.groups, -1))
    weight = torch.einsum("bgol,bgkl->bgok", by_group, patches).reshape(-1, *layer.weight.shape)
    return {"weight": Formed(weight), "bias": Formed(d.flatten(2).sum(2))}


def _embedding(layer: nn.Embedding, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    tokens, d = a.flatten(1), d.reshape(a.shape[0], -1, layer.embedding_dim)
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


Rule = Callable[..., dict[str, PerRecord]]
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
