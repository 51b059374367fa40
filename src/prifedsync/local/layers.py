"""Per-record gradients of single layers, without asking autograd for them (book-keeping).

Notation: a is a layer's input and d the gradient of the summed loss at its output, both with the record as first axis. A
record's gradient follows from its own a and d alone; for a linear layer it is the outer product d·aᵀ, whose norm is
‖d‖·‖a‖ and which is never formed. All this holds for a layer called once per record; `net.py` makes sure of that.
Norms are in double precision: nothing over- or underflows whatever a hostile starting point does to a and d. Sums have the
precision of the scales they are taken with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST_FACTOR = 2.0**-100  # of a product in single precision; subnormal numbers begin at 2⁻¹²⁶
ALIGNED = 8  # rows of patches on a GPU come in multiples of this


class PerRecord(Protocol):
    """The gradients of all records of a batch for one parameter."""

    def parts(self) -> tuple[Tensor, ...]: ...  # [B, …]: all that a record's gradient is a function of
    def norms(self) -> Tensor: ...  # [B], double
    def total(self, scale: Tensor) -> Tensor: ...  # Σ scale_b · gradient_b; a record with scale 0 adds exactly 0


def norm(values: Tensor) -> Tensor:
    """‖·‖₂ over all but the first axis, in double precision; doubles are scaled before they are squared."""
    flat = values.flatten(1)
    if values.dtype != torch.float64:  # the square of any single-precision number is a double
        doubles: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
        return doubles
    largest = flat.abs().amax(1).clamp_min(torch.finfo(torch.float64).tiny)
    sizes: Tensor = torch.linalg.vector_norm(flat / largest.unsqueeze(1), dim=1)
    return largest * sizes


def scaled(values: Tensor, scale: Tensor) -> Tensor:
    """Each record times its scale; with scale 0 it is exactly zero, even where the record is not finite."""
    by_record = scale.reshape(-1, *[1] * (values.dim() - 1))
    return torch.where(by_record > 0, values, 0.0).to(scale.dtype).mul_(by_record)


def _normal(values: Tensor) -> Tensor:
    """Records that are nothing but numbers near the smallest of single precision become zero: those have lost digits."""
    largest = values.abs().amax(1, keepdim=True)
    return torch.where(largest >= SMALLEST_FACTOR, values, 0.0)


@dataclass(frozen=True)
class Formed:
    """Gradients that were written down: [B, *shape of the parameter]."""

    gradients: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        return (self.gradients,)

    def norms(self) -> Tensor:
        return norm(self.gradients)

    def total(self, scale: Tensor) -> Tensor:
        return scaled(self.gradients, scale).sum(0)


@dataclass(frozen=True)
class Outer:
    """Gradients d·aᵀ of a linear layer's weight, never formed."""

    d: Tensor
    a: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        return self.d, self.a

    def norms(self) -> Tensor:
        return norm(self.d) * norm(self.a)

    def total(self, scale: Tensor) -> Tensor:
        finite_a = torch.where(scale.unsqueeze(1) > 0, self.a, 0.0).to(scale.dtype)
        scaled_d = scaled(self.d, scale)
        if scale.dtype != torch.float64:
            finite_a = _normal(finite_a)
            scaled_d = _normal(scaled_d)
        return scaled_d.T @ finite_a


@dataclass(frozen=True)
class Rows:
    """Gradients of an embedding's table: a few rows for each record, equal tokens of one record added up."""

    tokens: Tensor  # [B, T]
    d: Tensor  # [B, T, D]
    table: int

    def parts(self) -> tuple[Tensor, ...]:
        return self.tokens, self._shares()

    def _shares(self) -> Tensor:
        """[B, T, D]: the whole gradient of a token's row, divided by how often the record has the token."""
        same = (self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)).double()
        return torch.bmm(same, self.d.double()) / same.sum(2, keepdim=True)

    def norms(self) -> Tensor:
        same = (self.tokens.unsqueeze(2) == self.tokens.unsqueeze(1)).double()
        return norm(self._shares() * same.sum(2, keepdim=True).sqrt())

    def total(self, scale: Tensor) -> Tensor:
        rows = scaled(self._shares(), scale.double()).flatten(0, 1)  # many tokens a record: singles would not do
        total = rows.new_zeros(self.table, rows.shape[1]).index_add(0, self.tokens.flatten(), rows)
        return total.to(scale.dtype)


def _linear(layer: nn.Linear, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    if a.dim() == 2:
        return {"weight": Outer(d, a), "bias": Formed(d)}
    a, d = a.flatten(1, -2), d.flatten(1, -2)
    return {"weight": Formed(torch.einsum("bto,bti->boi", d, a)), "bias": Formed(d.sum(1))}


def _convolution(layer: nn.Conv1d | nn.Conv2d, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    """A linear layer over patches, its gradients small enough to form."""
    by_group = d.flatten(2).unflatten(1, (layer.groups, -1))
    weight = by_group @ _rows(layer, a)  # [B, groups, out / groups, kernel · in / groups]
    shaped = weight.reshape(len(d), len(layer.weight), *layer.weight.shape[2:], -1).movedim(-1, 2).contiguous()
    return {"weight": Formed(shaped), "bias": Formed(d.flatten(2).sum(2))}


def _rows(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> Tensor:
    """Patches [B, groups, places, kernel · in / groups]. With channels last, what is copied lies side by side."""
    a = _padded(layer, a).movedim(1, -1).contiguous()
    sides = len(layer.kernel_size)
    for side, (size, step, stride) in enumerate(zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)):
        a = a.unfold(1 + side, step * (size - 1) + 1, stride)[..., ::step]  # the kernel's side becomes the last axis
    a = a.movedim(1 + sides, -1).unflatten(-1, (layer.groups, -1)).movedim(-2, 1)
    return a.flatten(2 + sides).flatten(2, 1 + sides)


def of_patches(layer: nn.Conv1d | nn.Conv2d, unfolded: Tensor, d: Tensor) -> dict[str, PerRecord]:
    """The same from the patches, on a GPU; there a sum is slow to take together with what d is computed from, a product
    is taken apart."""
    ones = d.new_ones(unfolded.shape[3], ALIGNED)
    return {"weight": _of_weight(layer, unfolded, d), "bias": Formed((d.flatten(2) @ ones)[..., 0])}


def _of_weight(layer: nn.Conv1d | nn.Conv2d, unfolded: Tensor, d: Tensor) -> Formed:
    by_group = d.flatten(2).unflatten(1, (layer.groups, -1))
    weight = (by_group @ unfolded.transpose(2, 3))[..., : layer.weight[0].numel()]
    return Formed(weight.reshape(-1, *layer.weight.shape))


def patches(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> Tensor:
    """What a convolution multiplies its weight with: [B, groups, in · kernel / groups, places]; on a GPU with rows of
    zeros, so that products read several rows at a time."""
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    a = _padded(layer, a)
    if isinstance(layer, nn.Conv1d):
        a, kernel, stride, dilation = a.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    if a.device.type == "cpu":
        unfolded = F.unfold(a, kernel, dilation=dilation, stride=stride)
    else:  # shifted slices: a compiler fuses them, and stacked clients take them at once
        high = range(a.shape[2] - dilation[0] * (kernel[0] - 1))[:: stride[0]]
        wide = range(a.shape[3] - dilation[1] * (kernel[1] - 1))[:: stride[1]]
        shifts = [(i * dilation[0], j * dilation[1]) for i in range(kernel[0]) for j in range(kernel[1])]
        slices = [a[:, :, i : i + high.stop : stride[0], j : j + wide.stop : stride[1]] for i, j in shifts]
        unfolded = torch.stack(slices, 2).flatten(1, 2).flatten(2)
    grouped: Tensor = unfolded.unflatten(1, (layer.groups, -1))
    if a.device.type == "cpu":
        return grouped
    return F.pad(grouped, (0, 0, 0, -grouped.shape[2] % ALIGNED))


def convolved(layer: nn.Conv1d | nn.Conv2d, a: Tensor, unfolded: Tensor) -> Tensor:
    """The convolution's output as a product: for stacked clients, each with a weight of its own, far faster than cuDNN."""
    places = [
        (side + sum(pad) - step * (size - 1) - 1) // stride + 1
        for side, pad, step, size, stride in zip(
            a.shape[2:], _padding(layer), layer.dilation, layer.kernel_size, layer.stride, strict=True
        )
    ]
    weight = layer.weight.flatten(1).unflatten(0, (layer.groups, -1))
    product = F.pad(weight, (0, unfolded.shape[2] - weight.shape[2])) @ unfolded
    outputs = product.flatten(1, 2)
    if layer.bias is not None:
        outputs = outputs + layer.bias.unsqueeze(1)
    shaped: Tensor = outputs.unflatten(2, places)
    return shaped


def _padded(layer: nn.Conv1d | nn.Conv2d, a: Tensor) -> Tensor:
    if layer.padding == "valid" or not any(layer._reversed_padding_repeated_twice):
        return a
    # the amounts that the layer itself pads with, last axis first
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(a, layer._reversed_padding_repeated_twice, mode=mode)


def _padding(layer: nn.Conv1d | nn.Conv2d) -> list[tuple[int, int]]:
    """How much is added before and after each side, first axis first."""
    if layer.padding == "valid":
        return [(0, 0)] * len(layer.kernel_size)
    flat = layer._reversed_padding_repeated_twice
    return [(flat[2 * i], flat[2 * i + 1]) for i in reversed(range(len(flat) // 2))]


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
