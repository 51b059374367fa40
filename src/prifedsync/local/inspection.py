"""What a module must be like before one of its gradients is clipped: each record by itself, nothing remembered.

Everything here is found out before the first step, on a handful of records, and refused by the layer's name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..values import BadValue

CLOSE = 1e-9  # relative, in double precision


class KeyedDropout(nn.Module):
    """Dropout whose mask is given from outside, one for each record, so that it can be drawn by key."""

    mask: Tensor

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
    keyed: dict[nn.Module, KeyedDropout] = {}  # one under two names stays one
    for name, layer in list(module.named_modules()):
        shown = f"{name} ({type(layer).__name__})"
        if isinstance(layer, (_BatchNorm, _InstanceNorm)) and not _statistics_are_fixed(layer):
            mixes = "mixes the records of a batch" if isinstance(layer, _BatchNorm) else "keeps statistics of the records"
            raise BadValue("model layer", shown, mixes, "use nn.GroupNorm, or freeze the layer")
        if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse):
            remedy = "leave max_norm, scale_grad_by_freq and sparse at their defaults"
            raise BadValue("model layer", shown, "rewrites its table or its gradients", remedy)
        for child_name, child in list(layer._modules.items()):
            if isinstance(child, _DropoutNd):
                if isinstance(child, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
                    full = f"{name}.{child_name}".lstrip(".")
                    raise BadValue("model layer", f"{full} ({type(child).__name__})", "is not supported", "use nn.Dropout")
                setattr(layer, child_name, keyed.setdefault(child, KeyedDropout(child, child.p)))


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
    dice = torch.get_rng_state()
    together = outputs(x)
    for name, buffer in module.named_buffers():
        if name not in buffers or not torch.equal(buffer, buffers[name]):
            raise BadValue(
                "model buffer", name, "is updated in forward, without noise", "keep no statistics of the records"
            )
    if together.shape[:1] != x.shape[:1]:
        raise BadValue("model output", tuple(together.shape), f"for {len(x)} records", "the first axis must be the record")
    if not (torch.equal(torch.get_rng_state(), dice) and _close(outputs(x), together)):
        raise BadValue("model", type(module).__name__, "gives two answers to one question", "use nn.Dropout modules, which "
                       "can be drawn by key, and no randomness of its own in forward")  # fmt: skip
    for changed in range(len(x)):
        other = x.clone()
        neighbour = x[(changed + 1) % len(x)]  # a real record: an invented one may be out of a table's range
        invented = 2 * neighbour + 1 if x.is_floating_point() else (neighbour == 0).to(x.dtype)
        other[changed] = invented if torch.equal(neighbour, x[changed]) else neighbour
        keep = torch.arange(len(x)) != changed
        if not _close(outputs(other)[keep], together[keep]):
            _refuse_mixing(module)
    for alone in range(len(x)):
        if not _close(outputs(x[alone : alone + 1]), together[alone : alone + 1]):
            _refuse_mixing(module)


def check_memory(module: nn.Module, x: Tensor, weights: dict[str, Tensor]) -> None:
    """Refuse a module that remembers what it saw: two copies, one of which has seen other records first, must agree."""
    fresh, used = copy.deepcopy(module), copy.deepcopy(module)
    other = torch.flip(x, [0])[:1] if len(x) > 1 else torch.zeros_like(x)
    functional_call(used, weights, (other,))
    if not _close(functional_call(fresh, weights, (x,)), functional_call(used, weights, (x,))):
        raise BadValue("model", type(module).__name__, "remembers the records it saw first, without noise",
                       "let nothing in it depend on earlier calls")  # fmt: skip


def check_every_record(module: nn.Module, x: Tensor) -> str | None:
    """What goes wrong when the module sees these records, in words; None if nothing does.

    Mapped over records, a token outside its table would read another record's row instead of failing.
    """
    try:
        with torch.no_grad():
            for piece in x.split(1024):
                module(piece)
    except Exception as error:  # a module of the user's may fail in any way
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


class Uses(TorchFunctionMode):
    """While it is open, counts how often each of these tensors goes into something that comes out as a tensor."""

    def __init__(self, watched: dict[str, Tensor]) -> None:
        super().__init__()
        self.of = dict.fromkeys(watched, 0)
        self._names = {id(tensor): name for name, tensor in watched.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            for leaf in tree_leaves((args, kwargs)):
                if id(leaf) in self._names:
                    self.of[self._names[id(leaf)]] += 1
        return result


def _refuse_mixing(module: nn.Module) -> None:
    raise BadValue(
        "model", type(module).__name__, "mixes records: changing one record moved the output of another",
        "let forward treat each record by itself (no mean, norm or sort over the first axis)",
    )  # fmt: skip


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=CLOSE, atol=CLOSE, equal_nan=True)
