"""What a module must be like before one of its gradients is clipped: each record by itself, nothing remembered.

Everything here is found out before the first step, on a handful of records, and refused by the layer's name.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from ..fdp import BadValue

CLOSE = 1e-9  # relative, in double precision


class KeyedDropout(nn.Module):
    """Dropout whose mask is given from outside, one for each record, so that it can be drawn by key."""

    def __init__(self, replaced: nn.Module, rate: float) -> None:
        super().__init__()
        self.whole_channels = not isinstance(replaced, nn.Dropout)
        self.rate = rate
        self.register_buffer("mask", torch.ones(1), persistent=False)  # ones: no dropout unless a mask is given

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask

    def mask_shape(self, seen: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one record's mask for an input [B, …] of this shape."""
        return (seen[1], *[1] * (len(seen) - 2)) if self.whole_channels else tuple(seen[1:])


def adopt(module: nn.Module) -> None:
    """Make a module's dropout keyed and its frozen batch statistics fixed, in place; refuse what mixes records."""
    module.train()
    for name, layer in list(module.named_modules()):
        shown = f"{name} ({type(layer).__name__})"
        if isinstance(layer, (_BatchNorm, _InstanceNorm)) and not _statistics_are_fixed(layer):
            mixes = "mixes the records of a batch" if isinstance(layer, _BatchNorm) else "keeps statistics of the records"
            raise BadValue("model layer", shown, mixes, "use nn.GroupNorm, or freeze the layer")
        if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse):
            raise BadValue("model layer", shown, "rewrites its table or its gradients", "leave max_norm, scale_grad_by_freq "
                           "and sparse at their defaults")  # fmt: skip
        for child_name, child in list(layer.named_children()):
            if isinstance(child, _DropoutNd):
                if isinstance(child, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
                    full = f"{name}.{child_name}".lstrip(".")
                    raise BadValue("model layer", f"{full} ({type(child).__name__})", "is not supported", "use nn.Dropout")
                setattr(layer, child_name, KeyedDropout(child, child.p))


def _statistics_are_fixed(layer: nn.Module) -> bool:
    """A normalisation that belongs to a frozen extractor: nothing to train, running statistics to use as they are."""
    if isinstance(layer, _InstanceNorm) and not layer.track_running_stats:
        return True  # over one record at a time
    frozen = all(not p.requires_grad for p in layer.parameters(recurse=False))
    has_statistics = layer.running_mean is not None
    if frozen and has_statistics and layer.affine:
        layer.eval()
        return True
    return False


def check_forward(module: nn.Module, x: Tensor, outputs: Callable[[Tensor], Tensor]) -> None:
    """Refuse a forward that draws its own randomness, updates a buffer, or lets one record see another."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    together = outputs(x)
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise BadValue("model buffer", name, "is updated in forward, without noise", "keep no statistics of the records")
    if together.shape[:1] != x.shape[:1]:
        raise BadValue("model output", tuple(together.shape), f"for {len(x)} records", "the first axis must be the record")
    if not _close(outputs(x), together):
        raise BadValue("model", type(module).__name__, "gives two answers to one question", "use nn.Dropout modules, which "
                       "can be drawn by key, and no randomness of its own in forward")  # fmt: skip
    for changed in range(len(x)):
        other = x.clone()
        other[changed] = x[(changed + 1) % len(x)] if len(x) > 1 else 0
        if x.is_floating_point():
            other[changed] = 2 * other[changed] + 1
        keep = torch.arange(len(x)) != changed
        if not _close(outputs(other)[keep], together[keep]):
            _refuse_mixing(module)
    for alone in range(len(x)):
        if not _close(outputs(x[alone : alone + 1]), together[alone : alone + 1]):
            _refuse_mixing(module)


def _refuse_mixing(module: nn.Module) -> None:
    raise BadValue(
        "model", type(module).__name__, "mixes records: changing one record moved the output of another",
        "let forward treat each record by itself (no mean, norm or sort over the first axis)",
    )  # fmt: skip


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=CLOSE, atol=CLOSE, equal_nan=True)
