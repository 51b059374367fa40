"""The pull of a rule works on what was clipped and noised: the stronger it is, the nearer to its anchor a model ends."""

from functools import cache
from itertools import pairwise

import pytest
import torch

from prifedsync.engines import ENGINES, Reference, Vectorised
from prifedsync.local import Optimiser, SeededDraws
from prifedsync.rules import Attentive, Ditto, FedProx, MeanRegularised, PFedMe, Pulled

from ..engines.settings import ask, jobs_under, net_of, records_of
from ..engines.test_device import OnDevice
from ..local.zoo import CASES

KINDS = ENGINES | {"on device": OnDevice}
ENGINE = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
RULES = [FedProx(), MeanRegularised(), PFedMe(inner_steps=3), Attentive(), Ditto(), Ditto(publish=True)]
RULE = pytest.mark.parametrize("rule", RULES, ids=str)
HOW = {  # strengths up to where a step of gradient descent goes all the way to the anchor
    "sgd": (Optimiser(learning_rate=0.5), (0.0, 0.3, 0.8, 1.9)),
    "adam": (Optimiser(name="adam", learning_rate=0.05), (0.0, 1.0, 4.0, 16.0)),
}
CASE, CLIP, SIZES = CASES["linear without bias"], 0.3, (4, 4, 4)
net = cache(lambda: net_of(CASE))


def distance(kind, rule, optimiser, strength):
    """How far from its anchor each client's personal model ends, on the mean over clients and two rounds.

    The noise of a step is nine times as long as the clip; the draws are the same whatever the strength.
    """
    options = {"strength": strength, "mixing": 0.5, "optimiser": optimiser, "batch": 2}
    jobs = jobs_under(rule, local_steps=4, sizes=SIZES, clip_norm=CLIP, noise_multiplier=2.0, **options)
    records, clients = records_of(CASE, SIZES), list(range(len(SIZES)))
    engine = kind(net(), jobs, records, rule, SeededDraws(3), start=net().initial() + 1)
    take_steps, anchors, weights, seen = engine.take_steps, {}, engine.start, []

    def noted(round, group, part, rule_steps, begun, slots):
        if part == ("kept" if rule.kept else "upload"):
            anchors.update(zip([client.index for client in group], begun.anchor, strict=True))
        return take_steps(round, group, part, rule_steps, begun, slots)

    engine.take_steps = noted
    for round in range(2):
        uploads = ask(engine, round, clients, weights).rows.value
        models = torch.stack([engine.personal(i).value for i in clients])
        to = uploads if rule.outer else torch.stack([anchors[i] for i in clients])
        assert rule.attends or rule.outer or torch.equal(to, weights.expand_as(to))
        seen.append((models - to).norm(dim=1).mean().item())
        weights = uploads.mean(0)
    return sum(seen) / len(seen)


def falls(kind, rule, optimiser):
    """Strictly from strength to strength, and by a third or more in the end."""
    how, strengths = HOW[optimiser]
    found = [distance(kind, rule, how, strength) for strength in strengths]
    return all(later < earlier for earlier, later in pairwise(found)) and found[-1] < 0.67 * found[0]


@ENGINE
@RULE
@pytest.mark.parametrize("optimiser", HOW)
def test_the_stronger_the_pull_the_nearer_the_anchor(kind, rule, optimiser):
    assert falls(kind, rule, optimiser)


def dropped(steps, weights, anchor, strength):
    return 0 * weights


def clipped(steps, weights, anchor, strength):
    """As if it were part of what is clipped."""
    pull = strength * (weights - anchor)
    return pull * (CLIP / pull.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)


def astray(steps, weights, anchor, strength):
    """To nobody's anchor."""
    return strength * weights


@pytest.mark.parametrize(
    ("kind", "rule", "optimiser"),
    [
        *((Vectorised, rule, optimiser) for rule in RULES for optimiser in HOW),
        *((kind, rule, "sgd") for kind in (Reference, OnDevice) for rule in (FedProx(), Ditto(publish=True))),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("fault", [dropped, clipped, astray], ids=lambda fault: fault.__name__)
def test_a_pull_that_is_lost_or_clipped_or_goes_astray_is_noticed(kind, rule, optimiser, fault, monkeypatch):
    monkeypatch.setattr(Pulled, "pull", fault)
    assert not falls(kind, rule, optimiser)
