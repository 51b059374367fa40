"""The layers that have a rule, and what they note in one forward pass: their inputs, and the gradient at their outputs.

To find the gradient d at a layer's output, a zero tensor (a probe) is added to the output, and the loss is differentiated
with respect to the probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from . import convolution, layer_rules
from .layer_rules import LayerRule, trainable
from .layers import RULES, BatchRule
from .per_sample import PerRecord

Named = Mapping[str, Tensor]
Losses = Callable[[Named, Tensor, Tensor, Named], Tensor]  # weights, x [B, …], y [B], masks → [B]


class Bookkeeping:
    """Which layers of a module have a rule, and the tape that they write on while it is open."""

    def __init__(self, own_rules: Mapping[type[nn.Module], LayerRule]) -> None:
        self.own_rules = own_rules  # the user's, by module class
        self.layers: dict[str, nn.Module] = {}
        self.output_shapes: dict[str, tuple[int, ...]] = {}  # layer → shape of one record's output
        self.unfolded: set[str] = set()  # convolutions that are computed as products of patches
        self._tape: _Tape | None = None

    def has_rule(self, module: nn.Module) -> bool:
        return type(module) in RULES or type(module) in self.own_rules

    def follow(self, name: str, layer: nn.Module, output_shape: tuple[int, ...]) -> None:
        """From now on, the layer writes on an open tape."""
        self.layers[name] = layer
        self.output_shapes[name] = output_shape
        layer.register_forward_hook(partial(self._note, name))

    def covered(self) -> set[str]:
        """The parameters that the followed layers hold."""
        return {_joined(name, own) for name, layer in self.layers.items() for own in trainable(layer)}

    def gradients(self, losses: Losses, weights: Named, fixed: Named, zero: Tensor, x: Tensor, y: Tensor, masks: Named
                  ) -> dict[str, PerRecord]:  # fmt: skip
        """One client's per-sample gradients by parameter; `fixed` are weights and buffers that are not trained."""

        def one(probes: Named, x: Tensor, y: Tensor, masks: Named) -> tuple[Tensor, dict[str, Tensor]]:
            # mapped over records, each record is alone in its forward, whatever the module does with the first axis
            with self._open(alone(probes)) as tape:
                return losses(weights, x[None], y[None], alone(masks)).sum(), tape.inputs

        probes = {name: zero.expand(len(x), *shape) for name, shape in self.output_shapes.items()}
        d, a = vmap(grad(one, has_aux=True))(probes, x, y, masks)
        gradients: dict[str, PerRecord] = {}
        for name, layer in self.layers.items():
            if a[name].shape[1] != 1:
                raise ValueError(f"the first axis of the input of {name} is not the record")
            rule = self._rule(name, layer, {**fixed, **weights}, masks)
            for own, of_parameter in rule(layer, a[name].squeeze(1), d[name]).items():
                gradients[_joined(name, own)] = of_parameter
        return gradients

    def convolve(self, name: str, layer: convolution.Convolution, a: Tensor) -> Tensor:
        """The convolution as a product of patches; an open tape keeps the patches for the layer rule."""
        unfolded = convolution.patches(layer, a)
        if self._tape:
            self._tape.patches[name] = unfolded
        return convolution.convolved(layer, a, unfolded)

    def values_a_record(self) -> int:
        """About how many numbers are held for one record while gradients are computed."""
        values = sum(torch.Size(shape).numel() for shape in self.output_shapes.values())
        return values + sum(self._values_of_layer(name, layer) for name, layer in self.layers.items())

    def _values_of_layer(self, name: str, layer: nn.Module) -> int:
        shape = self.output_shapes[name]
        if type(layer) in self.own_rules:  # it may form every gradient
            return 2 * sum(parameter.numel() for parameter in trainable(layer).values())
        if isinstance(layer, (nn.Conv1d, nn.Conv2d)):  # patches, and the gradient that is formed
            return layer.weight[0].numel() * torch.Size(shape[1:]).numel() + 2 * layer.weight.numel()
        if isinstance(layer, nn.Embedding):  # which tokens are equal, and their rows
            tokens = torch.Size(shape[:-1]).numel()
            return tokens * (tokens + 4 * layer.embedding_dim)
        if isinstance(layer, nn.Linear) and len(shape) > 1:
            return 2 * layer.weight.numel()
        return 0

    def _rule(self, name: str, layer: nn.Module, state: Named, masks: Named) -> BatchRule:
        if name in self.unfolded:
            return convolution.from_patches
        own = self.own_rules.get(type(layer))
        if own is None:
            return RULES[type(layer)]
        own_state = _under(name, state)
        own_masks = _under(name, masks)
        return lambda layer, a, d: layer_rules.mapped(own, layer, own_state, own_masks, a, d)

    @contextmanager
    def _open(self, probes: Named) -> Iterator[_Tape]:
        self._tape = _Tape(probes)
        try:
            yield self._tape
        finally:
            self._tape = None

    def _note(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if self._tape is None:
            return None
        if len(args) != 1:
            raise ValueError(f"{name} is called with {len(args)} positional arguments instead of one tensor")
        return self._tape.note(name, args[0], output)


class _Tape:
    """The inputs of the followed layers in one forward pass."""

    def __init__(self, probes: Named) -> None:
        self.probes = probes
        self.inputs: dict[str, Tensor] = {}
        self.patches: dict[str, Tensor] = {}  # of unfolded convolutions: noted instead of the input

    def note(self, name: str, seen: Tensor, output: Tensor) -> Tensor:
        if name in self.inputs:
            raise ValueError(f"{name} was called twice for one record")
        self.inputs[name] = self.patches.get(name, seen)
        return output + self.probes[name]


def alone(values: Named) -> dict[str, Tensor]:
    """One record as a batch of one."""
    return {name: value[None] for name, value in values.items()}


def _under(layer: str, values: Named) -> dict[str, Tensor]:
    """The values that belong to a layer or its submodules, by their names in the layer."""
    prefix = _joined(layer, "")
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _joined(layer: str, parameter: str) -> str:
    return f"{layer}.{parameter}" if layer else parameter
