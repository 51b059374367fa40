"""What a simulation shows of its records: shares of labels, and how much clipping cuts off. Never on a private run.

Both are computed from records without noise, so the guarantee does not cover them. They are for researchers, who want to
know how unlike the clients are, and whether the clip norm fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import Records, Task
from ..local import Job, Net
from .loop import Session
from .prepare import Prepared

MOST_CLIENTS = 1_000  # of which shares of labels are kept
MOST_UNITS = 500  # of which gradients are looked at, over all clients
MOST_VALUES = 2**24  # numbers of the gradients that are made at once


def statistics_of(prepared: Prepared, run: Session) -> dict[str, Any] | None:
    """For the record; None unless the run is a simulation and its records are here."""
    if prepared.config.privacy.randomness != "seeded" or prepared.federation is None:
        return None
    return {"labels": _labels(prepared), "clipping": _clipping(prepared, run)}


# ---------------------------------------------------------------------- labels


def _labels(prepared: Prepared) -> dict[str, Any] | None:
    """The share of each label at each client, in the order of the record's clients; None for a regression."""
    task = prepared.held.task
    if task.kind == "regression" or len(prepared.held.clients) > MOST_CLIENTS:
        return None
    names = _label_names(prepared, task)
    return {"names": names, "shares": [_shares(client.train.y, len(names)) for client in prepared.held.clients]}


def _label_names(prepared: Prepared, task: Task) -> list[str]:
    said = prepared.rules.label.values if prepared.rules else ()
    return [str(each) for each in said] or [str(label) for label in range(task.classes)]


def _shares(y: Tensor, classes: int) -> list[float]:
    counts = torch.bincount(y.long(), minlength=classes)
    return [round(count / len(y), 3) for count in counts.tolist()]


# ---------------------------------------------------------------------- clipping


def _clipping(prepared: Prepared, run: Session) -> dict[str, Any] | None:
    """What clipping does to single gradients, at the first weights and at the released model.

    None where no client clips gradients: without noise, or where the change of a round is clipped.
    """
    units = list(_units(prepared))
    if not units:
        return None
    models = {"start": prepared.start}
    if prepared.rule.uploads:
        models["end"] = run.server.released
    found = {name: _cut(prepared.net, weights, units) for name, weights in models.items()}
    return {"units": len(units), **found}


@dataclass(frozen=True)
class _Unit:
    """What is clipped as one: a record, or all records of a person."""

    clip_norm: float
    x: Tensor
    y: Tensor


def _units(prepared: Prepared) -> Iterable[_Unit]:
    """Some units, evenly over the clients that clip gradients."""
    records = {client.name: client.train for client in prepared.held.clients}
    clipping = [job for job in prepared.jobs if job.plan and job.plan.mechanism.steps]
    for place in _evenly(len(clipping), MOST_UNITS):
        job = clipping[place]
        yield from _units_of(job, records[job.client], max(1, MOST_UNITS // len(clipping)))


def _units_of(job: Job, records: Records, most: int) -> Iterable[_Unit]:
    assert job.plan is not None
    whose = torch.arange(len(records)) if records.persons is None else records.persons.cpu()
    each = whose.unique()
    for place in _evenly(len(each), most):
        rows = (whose == each[place]).nonzero().flatten()
        yield _Unit(job.plan.mechanism.clip_norm, records.x[rows], records.y[rows])


def _evenly(count: int, most: int) -> list[int]:
    """At most so many of 0, 1, …, count − 1, evenly spaced."""
    kept = min(count, most)
    return [place * count // kept for place in range(kept)]


def _cut(net: Net, weights: Tensor, units: Sequence[_Unit]) -> dict[str, float]:
    """The share of gradients that are clipped, and the quartiles of their norms over the clip norm."""
    step = max(1, MOST_VALUES // net.count)
    pieces = [_norms(net, weights, units[at : at + step]) for at in range(0, len(units), step)]
    ratio = torch.cat(pieces) / torch.tensor([unit.clip_norm for unit in units], dtype=torch.float64)
    low, middle, high = torch.quantile(ratio, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    found = {"clipped": float((ratio > 1).double().mean()), "lower_quartile": low, "median": middle, "upper_quartile": high}
    return {name: float(f"{value:.3g}") for name, value in found.items()}


def _norms(net: Net, weights: Tensor, units: Sequence[_Unit]) -> Tensor:
    """The norm of each unit's mean gradient; 0 where it is not finite, as in training. Double [units]."""
    width = max(len(unit.y) for unit in units)
    x = torch.stack([_filled(unit.x, width) for unit in units]).to(weights.device)
    y = torch.stack([_filled(unit.y, width) for unit in units]).to(weights.device)
    rows = torch.tensor([len(unit.y) for unit in units], device=weights.device)
    valid = torch.arange(width, device=weights.device) < rows[:, None]
    share = (valid / rows[:, None]).to(weights.dtype)
    with net.exact():
        means = net.plain_sums(
            weights.expand(len(units), -1), x, y, valid, net.no_masks(len(units), width), share
        )  # fmt: skip
    norms = means.double().norm(dim=1)
    return torch.where(norms.isfinite(), norms, 0.0).cpu()


def _filled(rows: Tensor, width: int) -> Tensor:
    """With its first row again and again up to this width."""
    return torch.cat([rows, rows[:1].expand(width - len(rows), *rows.shape[1:])])
