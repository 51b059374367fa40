"""Convolutions as matrix products of patches: their per-sample gradients, and on a GPU their forward pass too.

Notation: a is the layer's input and d the gradient of the loss at its output, both with the record as first axis.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .per_sample import Formed, PerRecord

ALIGNED = 8  # on a GPU the number of rows of a patch matrix is a multiple of this
Convolution = nn.Conv1d | nn.Conv2d


def from_input(layer: Convolution, a: Tensor, d: Tensor) -> dict[str, PerRecord]:
    """The layer rule on a CPU: a linear layer over patches, whose gradients are small enough to form."""
    by_group = d.flatten(2).unflatten(1, (layer.groups, -1))
    weight = by_group @ _patch_rows(layer, a)  # [B, groups, out / groups, kernel · in / groups]
    shaped = weight.reshape(len(d), len(layer.weight), *layer.weight.shape[2:], -1).movedim(-1, 2).contiguous()
    return {"weight": Formed(shaped), "bias": Formed(d.flatten(2).sum(2))}


def _patch_rows(layer: Convolution, a: Tensor) -> Tensor:
    """Patches [B, groups, places, kernel · in / groups]. Channels come last, so that copied memory is contiguous."""
    a = _padded(layer, a).movedim(1, -1).contiguous()
    sides = len(layer.kernel_size)
    for side, (size, step, stride) in enumerate(zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)):
        a = a.unfold(1 + side, step * (size - 1) + 1, stride)[..., ::step]  # the kernel's side becomes the last axis
    a = a.movedim(1 + sides, -1).unflatten(-1, (layer.groups, -1)).movedim(-2, 1)
    return a.flatten(2 + sides).flatten(2, 1 + sides)


def from_patches(layer: Convolution, unfolded: Tensor, d: Tensor) -> dict[str, PerRecord]:
    """The layer rule on a GPU, from the patches that the forward pass unfolded.

    The bias' sum is written as a product with ones, so that the compiler does not fuse it with the backward pass.
    """
    ones = d.new_ones(unfolded.shape[3], ALIGNED)
    return {"weight": _weight_from_patches(layer, unfolded, d), "bias": Formed((d.flatten(2) @ ones)[..., 0])}


def _weight_from_patches(layer: Convolution, unfolded: Tensor, d: Tensor) -> Formed:
    by_group = d.flatten(2).unflatten(1, (layer.groups, -1))
    weight = (by_group @ unfolded.transpose(2, 3))[..., : layer.weight[0].numel()]
    return Formed(weight.reshape(-1, *layer.weight.shape))


def patches(layer: Convolution, a: Tensor) -> Tensor:
    """What a convolution multiplies its weight with: [B, groups, in · kernel / groups, places].

    On a GPU rows of zeros are appended, so that the product's loads are aligned.
    """
    kernel = layer.kernel_size
    stride = layer.stride
    dilation = layer.dilation
    a = _padded(layer, a)
    if isinstance(layer, nn.Conv1d):
        a, kernel, stride, dilation = a.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    if a.device.type == "cpu":
        unfolded = F.unfold(a, kernel, dilation=dilation, stride=stride)
    else:  # shifted slices: the compiler fuses them, and they work for stacked clients
        high = range(a.shape[2] - dilation[0] * (kernel[0] - 1))[:: stride[0]]
        wide = range(a.shape[3] - dilation[1] * (kernel[1] - 1))[:: stride[1]]
        shifts = [(i * dilation[0], j * dilation[1]) for i in range(kernel[0]) for j in range(kernel[1])]
        slices = [a[:, :, i : i + high.stop : stride[0], j : j + wide.stop : stride[1]] for i, j in shifts]
        unfolded = torch.stack(slices, 2).flatten(1, 2).flatten(2)
    grouped: Tensor = unfolded.unflatten(1, (layer.groups, -1))
    if a.device.type == "cpu":
        return grouped
    return F.pad(grouped, (0, 0, 0, -grouped.shape[2] % ALIGNED))


def convolved(layer: Convolution, a: Tensor, unfolded: Tensor) -> Tensor:
    """The convolution's output as a product: with stacked clients, each with its own weight, far faster than cuDNN."""
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


def _padded(layer: Convolution, a: Tensor) -> Tensor:
    if layer.padding == "valid" or not any(layer._reversed_padding_repeated_twice):
        return a
    # the amounts that the layer itself pads with, last axis first
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(a, layer._reversed_padding_repeated_twice, mode=mode)


def _padding(layer: Convolution) -> list[tuple[int, int]]:
    """How much is added before and after each side, first axis first."""
    if layer.padding == "valid":
        return [(0, 0)] * len(layer.kernel_size)
    flat = layer._reversed_padding_repeated_twice
    return [(flat[2 * i], flat[2 * i + 1]) for i in reversed(range(len(flat) // 2))]
