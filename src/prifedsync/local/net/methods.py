"""Three methods to one sum of clipped per-sample gradients, and the plain sum without clipping.

    bookkeeping  every trainable parameter belongs to a layer with a rule, called once (`bookkeeping.py`)
    vmap         torch.func maps the gradient over records
    loop         plain autograd, one record after another

Axis letters: C clients, B records of a batch, P trainable parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from . import per_sample
from .bookkeeping import alone
from .flat import FlatModule, Masks
from .per_sample import Formed, PerRecord
from .persons import FLOOR, Groups
from .programs import GradMethod, Program


def clipped_sums(
    net: FlatModule, program: Program, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks,
    groups: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Σ over valid records, or persons, of v·min(1, clip/‖v‖) for each client, one [C, size] a parameter."""
    whose = () if groups is None else (groups,)
    if program.grad_method == "loop":
        clients = enumerate(zip(flat, x, y, valid, clip, strict=True))
        rows = [by_loop(net, *one, _of_client(masks, c), *(each[c] for each in whose)) for c, one in clients]
        return tuple(torch.stack(rows).split(net.sizes, 1))

    def one_client(
        flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks, groups: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        whose = None if groups is None else Groups(groups, program.most_rows)
        return per_sample.clipped(gradients(net, program, flat, x, y, masks), valid, clip, program.sums, whose)

    return over_clients(one_client, flat, x, y, valid, clip, masks, *whose)


def gradients(net: FlatModule, program: Program, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> list[PerRecord]:
    """One client's per-sample gradients, one entry a parameter."""
    net.aligned = program.aligned
    try:
        if program.grad_method == "bookkeeping":
            return by_bookkeeping(net, flat, x, y, masks)
        return by_vmap(net, flat, x, y, masks)
    finally:
        net.aligned = 1


def by_bookkeeping(net: FlatModule, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> list[PerRecord]:
    weights = net.named(flat.to(net.compute))
    zero = flat.new_zeros((), dtype=net.compute)
    by_name = net.bookkeeping.gradients(net.losses, weights, net.fixed, zero, x, y, masks)
    return [by_name[name] for name in net.names]


def by_vmap(net: FlatModule, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> list[PerRecord]:
    def one(weights: dict[str, Tensor], x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        return net.losses(weights, x[None], y[None], alone(masks)).sum()

    formed = vmap(grad(one), in_dims=(None, 0, 0, 0))(net.named(flat.to(net.compute)), x, y, masks)
    return [Formed(formed[name]) for name in net.names]


def by_loop(
    net: FlatModule, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, clip: Tensor, masks: Masks,
    groups: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One client's clipped sum [P], one record after another; where they have persons, one person after another."""
    total = flat.new_zeros(net.count, dtype=torch.float64)
    there = torch.nonzero(valid).flatten().tolist()

    def of_row(i: int) -> Tensor:
        own_masks = {name: mask[i : i + 1] for name, mask in masks.items()}
        return one_record(net, flat, x[i : i + 1], y[i : i + 1], own_masks)

    for rows in [[i] for i in there] if groups is None else _by_group(there, groups):
        gradient, size = (of_row(rows[0]), None) if groups is None else _mean([of_row(i) for i in rows])
        size = per_sample.norm(gradient[None]) if size is None else size
        scale = per_sample.clip_scale([size], valid[rows[:1]], clip).item()
        if scale:  # otherwise the gradient is not finite
            total.add_(gradient, alpha=scale)
    return total


def _by_group(rows: list[int], groups: Tensor) -> list[list[int]]:
    """The rows of each person."""
    group_of = groups.tolist()
    found: dict[int, list[int]] = {}
    for i in rows:
        found.setdefault(group_of[i], []).append(i)
    return list(found.values())


def _mean(gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean of a person's gradients, double [P], and what counts as its norm [1]."""
    rows = torch.stack(gradients).double()
    mean = rows.mean(0)
    return mean, torch.maximum(per_sample.norm(mean[None]), FLOOR * per_sample.norm(rows).mean())


def one_record(net: FlatModule, flat: Tensor, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
    """The gradient of a single record by plain autograd: [P], [1, …], [1] → [P]."""
    x = x.clone()  # an aligned address of its own: kernels may round differently by where a row lies in memory
    weights = net.named(flat.to(net.compute))
    by_name = autograd(lambda *given: net.losses(*given).sum(), weights, x, y, masks)
    return torch.cat([by_name[name].flatten() for name in net.names]).to(flat.dtype)


def plain_sums(
    net: FlatModule, method: GradMethod, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor, masks: Masks,
    share: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Σ over valid records of v, or of share·v, for each client, not clipped: one [C, size] a parameter."""
    weighted = () if share is None else (share.to(flat.dtype),)

    def total(
        weights: dict[str, Tensor], x: Tensor, y: Tensor, valid: Tensor, masks: Masks, share: Tensor | None = None
    ) -> Tensor:
        losses = net.losses(weights, x, y, masks)
        return torch.where(valid, losses if share is None else share * losses, 0.0).sum()

    def one_client(flat: Tensor, *given: Any) -> tuple[Tensor, ...]:
        weights = net.named(flat.to(net.compute))
        by_name = autograd(total, weights, *given) if method == "loop" else grad(total)(weights, *given)
        return tuple(by_name[name].flatten().to(flat.dtype) for name in net.names)

    if method == "loop":
        clients = enumerate(zip(flat, x, y, valid, strict=True))
        rows = [one_client(*one, _of_client(masks, c), *(each[c] for each in weighted)) for c, one in clients]
        parts = tuple(torch.stack(part) for part in zip(*rows, strict=True))
    else:
        parts = over_clients(one_client, flat, x, y, valid, masks, *weighted)
    some = valid.any(1, keepdim=True)  # a batch of padding alone: zero times NaN would be NaN
    return tuple(torch.where(some, part, 0.0) for part in parts)


def over_clients(one_client: Callable[..., tuple[Tensor, ...]], *given: Any) -> tuple[Tensor, ...]:
    """The function mapped over the first axis; a single client is called directly, which is faster."""
    if len(given[0]) > 1:
        parts: tuple[Tensor, ...] = vmap(one_client)(*given)
        return parts
    return tuple(part.unsqueeze(0) for part in one_client(*tree_map(lambda tensor: tensor[0], given)))


def autograd(total: Callable[..., Tensor], weights: dict[str, Tensor], *given: Any) -> dict[str, Tensor]:
    """The gradient of a scalar function of the weights, by plain autograd."""
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    with torch.enable_grad():
        loss = total(leaves, *given)
        of_leaves = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, of_leaves, strict=True))


def _of_client(masks: Masks, c: int) -> dict[str, Tensor]:
    return {name: mask[c] for name, mask in masks.items()}
