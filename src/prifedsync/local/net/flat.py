"""A module as a function of one flat vector of its trainable weights.

Axis letters: C clients, B records of a batch, P trainable parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ...values import BadValue
from .bookkeeping import Bookkeeping
from .convolution import Convolution
from .inspection import adopt
from .layer_rules import LayerRule

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs [B, …], targets [B] → [B]
Masks = Mapping[str, Tensor]  # name of a dropout's buffer → [B, …]


class FlatModule:
    """A private copy of a module. It starts in double precision on the CPU, and `place` moves it to where it trains."""

    def __init__(self, module: nn.Module, loss: Loss, layer_rules: Mapping[type[nn.Module], LayerRule]) -> None:
        self.loss = loss
        self.module = copy.deepcopy(module)
        adopt(self.module)
        self._frozen_statistics = [layer for layer in self.module.modules() if not layer.training]
        parameters = dict(self.module.named_parameters())
        self.names = tuple(name for name, p in parameters.items() if p.requires_grad)
        if not self.names:
            raise BadValue("model", type(module).__name__, "has no trainable parameter", "unfreeze at least one")
        _check_parameters(parameters)
        self.shapes = tuple(parameters[name].shape for name in self.names)
        self.sizes = tuple(shape.numel() for shape in self.shapes)
        self.count = sum(self.sizes)
        self.dropouts: dict[str, tuple[float, tuple[int, ...]]] = {}  # buffer → rate, shape of one record's mask
        self.bookkeeping = Bookkeeping(layer_rules)
        self.dtype = torch.float64
        self.device = torch.device("cpu")
        self.compute = torch.float64  # the arithmetic of the products
        self.fixed: dict[str, Tensor] = {}  # what is not trained, in the arithmetic of the products if that differs
        self.aligned = 1  # linear layers are padded to multiples of this while a program runs
        self._only_outputs = False  # while a model is evaluated
        self.module.to(device="cpu", dtype=torch.float64)

    def place(self, dtype: torch.dtype, device: torch.device, compute: torch.dtype) -> None:
        """Move it to where it trains; linear layers, and on a GPU convolutions, get a forward of this package's."""
        self.module.to(device=device, dtype=dtype)
        self.dtype = dtype
        self.device = device
        self.compute = compute
        if compute != dtype:
            state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
            others = {name: value for name, value in state.items() if name not in self.names and name not in self.dropouts}
            self.fixed = {n: value.detach().to(compute) for n, value in others.items() if value.is_floating_point()}
        for layer in self.module.modules():
            if type(layer) is nn.Linear:
                layer.forward = partial(self._multiply, layer)  # type: ignore[method-assign]
        if device.type == "cuda":
            for name, layer in self.bookkeeping.layers.items():
                if type(layer) in (nn.Conv1d, nn.Conv2d):
                    self.bookkeeping.unfolded.add(name)
                    layer.forward = partial(self._convolve, name, cast(Convolution, layer))

    # ------------------------------------------------------------------ weights

    def initial(self) -> Tensor:
        """The module's own weights as one vector [P]."""
        own = dict(self.module.named_parameters())
        return torch.cat([own[name].detach().flatten() for name in self.names])

    def off_zero(self) -> Tensor:
        """Weights that are nowhere zero: a layer whose weights are zero would hide the layers before it."""
        start = self.initial()
        spread = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=start.dtype)
        return start + 0.1 * spread

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The vector as named parameters."""
        parts = flat.split(self.sizes)
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def state_dict(self, flat: Tensor) -> dict[str, Tensor]:
        """A plain state_dict of the user's module with these weights."""
        state = {name: value.detach().cpu().clone() for name, value in self.module.state_dict().items()}
        tied = {id(p): n for n, p in self.module.named_parameters()}
        new = {name: value.detach().cpu().clone() for name, value in self.named(flat).items()}
        for name, value in self.module.state_dict(keep_vars=True).items():
            state[name] = new.get(tied.get(id(value), name), state[name])
        return state

    # ------------------------------------------------------------------ forward

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        """The model's outputs with dropout off: [P], [B, …] → [B, …]."""
        self.module.eval()
        self._only_outputs = True
        try:
            outputs: Tensor = functional_call(self.module, self.named(flat), (x,))
            return outputs
        finally:
            self._only_outputs = False
            self.module.train()
            for layer in self._frozen_statistics:
                layer.eval()

    def losses(self, named: Mapping[str, Tensor], x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        """The loss of each record under the named weights and dropout masks: [B, …], [B] → [B]."""
        given = {**named, **self.fixed, **{name: mask.to(self.compute) for name, mask in masks.items()}}
        outputs = functional_call(self.module, given, (x.to(self.compute) if x.is_floating_point() else x,))
        return self.loss(outputs.float() if self.compute == torch.bfloat16 else outputs, y)

    def no_masks(self, clients: int, width: int) -> dict[str, Tensor]:
        """Masks under which dropout drops nothing, [C, B, …] each."""
        one = torch.ones((), dtype=self.dtype, device=self.device)
        return {name: one.expand(clients, width, *shape) for name, (_, shape) in self.dropouts.items()}

    @property
    def tokens(self) -> int:
        """How many tokens every embedding table has; two if there is no table."""
        tables = [layer for layer in self.module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))]
        return min((table.num_embeddings for table in tables), default=2)

    @property
    def convolves(self) -> bool:
        return any(isinstance(layer, (nn.Conv1d, nn.Conv2d)) for layer in self.module.modules())

    def _multiply(self, layer: nn.Linear, a: Tensor) -> Tensor:
        """A linear layer, padded with zeros if the program wants that; they change no value."""
        inner = -layer.in_features % self.aligned
        outer = -layer.out_features % self.aligned
        if self._only_outputs or not (inner or outer):
            return F.linear(a, layer.weight, layer.bias)
        weight = F.pad(layer.weight, (0, inner, 0, outer))
        product = F.linear(F.pad(a, (0, inner)), weight)[..., : layer.out_features]
        return product if layer.bias is None else product + layer.bias

    def _convolve(self, name: str, layer: Convolution, a: Tensor) -> Tensor:
        if self._only_outputs:  # one model and no gradients: cuDNN is faster
            plain: Tensor = cast(Any, type(layer)).forward(layer, a)
            return plain
        return self.bookkeeping.convolve(name, layer, a)


def _check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise BadValue("model parameter", name, "has no shape yet", "call the model once before you give it")
        if parameter.is_complex():
            raise BadValue("model parameter", name, "is complex", "write it as two real ones")
