"""Layer rules of the user's own: per-sample gradients by bookkeeping for a module class that the package does not know.

A layer rule is a function of the layer, its input and the gradient at its output, all for ONE record:

    def rule(layer: MyLayer, a: Tensor, d: Tensor) -> dict[str, Tensor | Outer]

    layer   the module, at the current weights: read its parameters and buffers as in forward
    a       what the layer was called with, without the record's axis
    d       the gradient of this record's loss at the layer's output, without the record's axis
    returns for each trainable parameter that the layer itself holds (not those of its submodules) the gradient of this
            record's loss: a tensor of the parameter's shape, or `Outer(d, a)` for a matrix d·aᵀ of two vectors, which is
            never formed

The layer must be called once for each record, with one tensor, and return one tensor. Its parameters must be used in its
own forward only. A rule must not draw random numbers.

What protects the guarantee from a wrong rule:
    one record   The rule runs under `torch.func.vmap`: it is given one record and cannot reach the others.
    the clip     Norm and sum are computed here, from what the rule returned. Whatever that is, it is clipped.
    agreement    Before the first step, clipped gradients of a few records are compared with plain autograd. If they
                 differ, bookkeeping is not used, and `Net.why` says which rule was wrong.
    binding      The rule's code is part of `Net.code`: secret draws are bound to it, and a run that goes on with another
                 rule is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, vmap

from ...values import BadValue
from .layers import RULES
from .per_sample import Formed, Outer, PerRecord

# One record at a time: (layer, its input, the gradient at its output) → the gradient of each parameter of the layer.
LayerRule = Callable[[Any, Tensor, Tensor], Mapping[str, Tensor | Outer]]
LayerRules = Mapping[type[nn.Module], LayerRule]


def checked(rules: LayerRules | None) -> dict[type[nn.Module], LayerRule]:
    """The rules as a mapping of their own; refuses what is not a rule for a module class."""
    rules = {} if rules is None else rules
    if not isinstance(rules, Mapping):
        remedy = "give a mapping of module class → rule"
        raise BadValue("layer_rules", type(rules).__name__, "is not a mapping", remedy)
    for kind, rule in rules.items():
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise BadValue("layer_rules", kind, "is not a module class", "use the class of the layer as the key")
        if kind in RULES:
            remedy = "give rules for module classes of your own, for example a subclass"
            raise BadValue("layer_rules", kind.__name__, "already has a rule of the package", remedy)
        if not callable(rule):
            remedy = "give a function of layer, input and output gradient"
            raise BadValue(f"layer_rules of {kind.__name__}", rule, "is not a function", remedy)
    return dict(rules)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters that the module itself holds."""
    return {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}


def mapped(
    rule: LayerRule, layer: nn.Module, state: Mapping[str, Tensor], masks: Mapping[str, Tensor], a: Tensor, d: Tensor
) -> dict[str, PerRecord]:
    """The rule mapped over records: a and d [B, …] → the layer's parameters → their per-sample gradients.

    `state` are the current values of the layer's parameters and buffers, by their names in the layer; `masks` are those
    of its dropout submodules, [B, …] each.
    """
    at_weights = _AtWeights(layer, rule)
    outer: set[str] = set()

    def one(a: Tensor, d: Tensor, masks: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
        current = {f"layer.{name}": value for name, value in (*state.items(), *masks.items())}
        gradients = functional_call(at_weights, current, (a, d))
        factors: dict[str, tuple[Tensor, ...]] = {}
        for name, parameter in trainable(layer).items():
            gradient = _checked_gradient(layer, name, parameter, gradients)
            if isinstance(gradient, Outer):
                outer.add(name)
                factors[name] = gradient.d, gradient.a
            else:
                factors[name] = (gradient,)
        return factors

    batch = vmap(one)(a, d, dict(masks))
    return {name: Outer(*parts) if name in outer else Formed(*parts) for name, parts in batch.items()}


class _AtWeights(nn.Module):
    """Calls the rule; a module, so that `functional_call` can give the layer its current weights meanwhile."""

    def __init__(self, layer: nn.Module, rule: LayerRule) -> None:
        super().__init__()
        self.layer = layer
        self._rule = rule

    def forward(self, a: Tensor, d: Tensor) -> Mapping[str, Tensor | Outer]:
        try:
            return self._rule(self.layer, a, d)
        except Exception as error:  # a rule of the user's may fail in any way
            kind = type(self.layer).__name__
            raise ValueError(f"the layer rule of {kind} fails: {type(error).__name__}: {error}") from error


def _checked_gradient(layer: nn.Module, name: str, parameter: Tensor, gradients: Any) -> Tensor | Outer:
    """What the rule returned for this parameter, if it has the parameter's shape."""
    rule = f"the layer rule of {type(layer).__name__}"
    if not isinstance(gradients, Mapping) or name not in gradients:
        raise ValueError(f"{rule} returns no gradient of {name}")
    gradient: Tensor | Outer = gradients[name]
    if isinstance(gradient, Outer):
        shape = (*gradient.d.shape, *gradient.a.shape)
    elif isinstance(gradient, Tensor):
        shape = tuple(gradient.shape)
    else:
        raise ValueError(f"{rule} returns no tensor and no Outer for {name}")
    if shape != tuple(parameter.shape):
        raise ValueError(f"{rule} returns a gradient of {name} of shape {shape} instead of {tuple(parameter.shape)}")
    return gradient
