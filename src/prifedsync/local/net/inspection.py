"""What a module must be like before its gradients can be clipped: each record by itself, and no memory of records.

All of this is tested before the first step, on a few records. A refusal names the layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...values import BadValue

CLOSE = 1e-9  # relative, in double precision


class KeyedDropout(nn.Module):
    """Dropout with masks given from outside, one for each record, so that they can be drawn by key."""

    mask: Tensor

    def __init__(self, replaced: nn.Module, rate: float) -> None:
        super().__init__()
        self.whole_channels = not isinstance(replaced, nn.Dropout)
        self.rate = rate
        self.register_buffer("mask", torch.ones(1), persistent=False)  # ones drop nothing

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask

    def mask_shape(self, seen: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one record's mask for an input [B, …] of this shape."""
        return (seen[1], *[1] * (len(seen) - 2)) if self.whole_channels else tuple(seen[1:])


def adopt(module: nn.Module) -> None:
    """In place: replace dropout by keyed dropout and fix frozen batch statistics. Refuses layers that mix records."""
    module.train()
    keyed: dict[nn.Module, KeyedDropout] = {}  # a dropout that is registered under two names stays one module
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
    """Whether a normalisation is part of a frozen extractor: no trainable parameter, and running statistics to use."""
    if isinstance(layer, _InstanceNorm) and not layer.track_running_stats:
        return True  # it normalises one record at a time
    frozen = all(not p.requires_grad for p in layer.parameters(recurse=False))
    has_statistics = layer.running_mean is not None
    if frozen and has_statistics and layer.affine:
        layer.eval()
        return True
    return False


def check_forward(module: nn.Module, x: Tensor, outputs: Callable[[Tensor], Tensor]) -> None:
    """Refuse a forward that draws random numbers, updates a buffer, or lets one record change another's output."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    random_state = torch.get_rng_state()
    together = outputs(x)
    for name, buffer in module.named_buffers():
        if name not in buffers or not torch.equal(buffer, buffers[name]):
            raise BadValue(
                "model buffer", name, "is updated in forward, without noise", "keep no statistics of the records"
            )
    if together.shape[:1] != x.shape[:1]:
        raise BadValue("model output", tuple(together.shape), f"for {len(x)} records", "the first axis must be the record")
    if not (torch.equal(torch.get_rng_state(), random_state) and _close(outputs(x), together)):
        raise BadValue("model", type(module).__name__, "gives two answers to one question", "use nn.Dropout modules, which "
                       "can be drawn by key, and no randomness of its own in forward")  # fmt: skip
    for changed in range(len(x)):
        other = x.clone()
        neighbour = x[(changed + 1) % len(x)]  # a real record: a made-up one may hold a token outside its table
        invented = 2 * neighbour + 1 if x.is_floating_point() else (neighbour == 0).to(x.dtype)
        other[changed] = invented if torch.equal(neighbour, x[changed]) else neighbour
        keep = torch.arange(len(x)) != changed
        if not _close(outputs(other)[keep], together[keep]):
            _refuse_mixing(module)
    for alone in range(len(x)):
        if not _close(outputs(x[alone : alone + 1]), together[alone : alone + 1]):
            _refuse_mixing(module)


def check_memory(module: nn.Module, x: Tensor, weights: dict[str, Tensor]) -> None:
    """Refuse a module that remembers records: two copies, one of which has seen other records first, must agree."""
    fresh = copy.deepcopy(module)
    used = copy.deepcopy(module)
    other = torch.flip(x, [0])[:1] if len(x) > 1 else torch.zeros_like(x)
    functional_call(used, weights, (other,))
    if not _close(functional_call(fresh, weights, (x,)), functional_call(used, weights, (x,))):
        raise BadValue("model", type(module).__name__, "remembers the records it saw first, without noise",
                       "let nothing in it depend on earlier calls")  # fmt: skip


def check_every_record(module: nn.Module, x: Tensor) -> str | None:
    """The error that these records cause in the module; None if they cause none.

    Under vmap, a token outside its table would read another record's row instead of failing.
    """
    try:
        with torch.no_grad():
            for piece in x.split(1024):
                module(piece)
    except Exception as error:  # a module of the user's may fail in any way
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


class Uses(TorchFunctionMode):
    """While it is open, counts how often each of these tensors is an argument of something that returns a tensor.

    While a layer is entered, all uses of its own parameters together count as one: its rule is about its whole forward.
    """

    def __init__(self, watched: dict[str, Tensor]) -> None:
        super().__init__()
        self._count = dict.fromkeys(watched, 0)
        self._names = {id(tensor): name for name, tensor in watched.items()}
        self._entered: set[str] = set()  # parameters of the layers that are running
        self._inside: set[str] = set()  # parameters that their own layer has used

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            for leaf in tree_leaves((args, kwargs)):
                name = self._names.get(id(leaf))
                if name is None:
                    continue
                if name in self._entered:
                    self._inside.add(name)
                else:
                    self._count[name] += 1
        return result

    def enter(self, parameters: set[str], *hook_arguments: Any) -> None:
        self._entered |= parameters

    def leave(self, parameters: set[str], *hook_arguments: Any) -> None:
        self._entered -= parameters

    def counts(self) -> dict[str, int]:
        """How often each tensor was used."""
        return {name: count + (name in self._inside) for name, count in self._count.items()}


@dataclass(frozen=True)
class FirstForward:
    """What one forward pass over a few records shows."""

    outputs: Tensor  # [B, …], double
    uses: dict[str, int]  # trainable parameter → how often it is used
    calls: dict[str, int]  # module → how often it is called
    shapes: dict[str, tuple[int, ...]]  # module → shape of its last output; empty if that is not a tensor


def first_forward(
    module: nn.Module, weights: dict[str, Tensor], x: Tensor, own_rules: Container[type[nn.Module]]
) -> FirstForward:
    """Watch one forward pass; `own_rules` are the module classes with a layer rule of the user's."""
    calls: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        calls[name] = calls.get(name, 0) + 1
        shapes[name] = tuple(output.shape) if isinstance(output, Tensor) else ()

    uses = Uses(weights)
    hooks = []
    for name, layer in module.named_modules():
        hooks.append(layer.register_forward_hook(partial(note, name)))
        if type(layer) in own_rules:
            held = {f"{name}.{own}" if name else own for own, _ in layer.named_parameters(recurse=False)}
            hooks.append(layer.register_forward_pre_hook(partial(uses.enter, held)))
            # first of the hooks after forward: what hooks of the user's do is outside the layer
            hooks.append(layer.register_forward_hook(partial(uses.leave, held), prepend=True))
    try:
        with torch.no_grad(), uses:
            outputs = functional_call(module, weights, (x,))
    finally:
        for hook in hooks:
            hook.remove()
    return FirstForward(outputs, uses.counts(), calls, shapes)


def dropout_masks(module: nn.Module, seen: FirstForward, records: int) -> dict[str, tuple[float, tuple[int, ...]]]:
    """For each dropout that is called, its buffer → its rate and the shape of one record's mask."""
    masks: dict[str, tuple[float, tuple[int, ...]]] = {}
    for name, layer in module.named_modules():
        if not isinstance(layer, KeyedDropout) or name not in seen.calls:
            continue
        if seen.calls[name] > 1:
            raise BadValue("model layer", name, "is a dropout called twice", "give each call its own nn.Dropout")
        if seen.shapes[name][0] != records:
            rule = "is a dropout whose first axis is not the record"
            raise BadValue("model layer", name, rule, "let the record be the first axis")
        masks[f"{name}.mask"] = (layer.rate, layer.mask_shape(seen.shapes[name]))
    return masks


def first_line(error: Exception) -> str:
    """The first line of the error's message, or its kind if there is none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _refuse_mixing(module: nn.Module) -> None:
    raise BadValue(
        "model", type(module).__name__, "mixes records: changing one record moved the output of another",
        "let forward treat each record by itself (no mean, norm or sort over the first axis)",
    )  # fmt: skip


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=CLOSE, atol=CLOSE, equal_nan=True)
