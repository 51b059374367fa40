"""Models that are scored together get the scores they get alone, by plain torch and scikit-learn."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score, root_mean_squared_error
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from prifedsync import run
from prifedsync.config import load
from prifedsync.engines import Vectorised
from prifedsync.engines.scoring import Scorer
from prifedsync.local import Net, losses
from prifedsync.metrics import METRICS

from ..local.zoo import CASES, with_weights

SIZES = (5, 0, 30, 9, 1, 7, 12, 8)  # one client without test records, one with a single one
BY_TASK = {"classes": ("accuracy", "f1"), "binary": ("accuracy", "auc", "f1"), "regression": ("rmse",)}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


class OneMetric(Scorer):
    """Scores by one metric, as they are without the others."""

    def __init__(self, net, tests, metric):
        super().__init__(net, tests, [metric])

    def own(self, model, clients):
        return [score for (score,) in super().own(model, clients)]

    def each(self, weights):
        return [score for (score,) in super().each(weights)]

    def pooled(self, models):
        return [score for (score,) in super().pooled(models)]


def scorer_of(case, metric="accuracy", sizes=SIZES, device="cpu", module=None):
    net = Net(module or case.module(), losses.BY_TASK[case.task], *case.records(5, seed=99), torch.float64, device)
    return OneMetric(net, [case.records(size, seed=10 + i) for i, size in enumerate(sizes)], METRICS[metric])


def models_of(net, count):
    spread = torch.randn(count, net.count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return net.initial() + 0.3 * spread.to(net.device)


def plain_score(metric, outputs, y):
    """By scikit-learn."""
    if not len(y):
        return None
    if metric == "rmse":
        return root_mean_squared_error(y, outputs.flatten())
    many = outputs.shape[1] > 1
    guesses, y = (outputs.argmax(1) if many else (outputs.flatten() > 0).long()), y.long()
    if metric == "accuracy":
        return accuracy_score(y, guesses)
    if metric == "auc":
        return roc_auc_score(y, outputs.flatten()) if 0 < y.sum() < len(y) else None
    if many:
        return f1_score(y, guesses, labels=y.unique(), average="macro", zero_division=0)
    return f1_score(y, guesses) if guesses.any() or y.any() else None


def alone(case, metric, weights, x, y):
    with torch.no_grad():
        outputs = with_weights(case.module(), weights.cpu()).eval()(x) if len(x) else None
    return plain_score(metric, outputs, y)


def same(found, expected, metric):
    """Accuracies are equal; the others within the rounding of doubles that are added up in another order."""
    return [score is None for score in found] == [score is None for score in expected] and all(
        one == other if metric == "accuracy" else math.isclose(one, other, abs_tol=1e-12)
        for one, other in zip(found, expected, strict=True)
        if one is not None
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "metric"), [(name, metric) for name, case in CASES.items() for metric in BY_TASK[case.task]]
)
def test_models_scored_together_get_the_scores_they_get_alone(name, metric, device):
    case = CASES[name]
    scorer = scorer_of(case, metric, device=device)
    models = models_of(scorer.net, len(SIZES))
    tests = [case.records(size, seed=10 + i) for i, size in enumerate(SIZES)]
    clients = [7, 1, 0, 2, 3, 4, 6, 5]
    own = [alone(case, metric, models[i], *tests[i]) for i in clients]
    assert same(scorer.own(models.__getitem__, clients), own, metric)
    assert same(scorer.each(models[0]), [alone(case, metric, models[0], *test) for test in tests], metric)
    everything = [torch.cat(part) for part in zip(*tests, strict=True)]
    assert same(scorer.pooled(models), [alone(case, metric, model, *everything) for model in models], metric)
    assert scorer._can_stack == (case.grad_method != "loop" and not (device == "cuda" and scorer.net.convolves))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mlp", "conv2d", "embedding"])
def test_a_record_that_several_clients_have_is_answered_once(name, device, monkeypatch):
    """Six draws with repetition from a pool of seven records; the labels are each client's own."""
    case, asked, honest = CASES[name], [], Net.outputs
    scorer = scorer_of(case, device=device)
    (x, y), generator = case.records(7, seed=5), torch.Generator().manual_seed(0)
    drawn = [torch.randint(7, (6,), generator=generator) for _ in range(5)]
    tests = [(x[picked], y[picked.roll(i)]) for i, picked in enumerate(drawn)]
    scorer = OneMetric(scorer.net, tests, METRICS["accuracy"])
    models = models_of(scorer.net, 5)
    own = [alone(case, "accuracy", model, *test) for model, test in zip(models, tests, strict=True)]
    assert scorer.own(models.__getitem__, range(5)) == own
    monkeypatch.setattr(Net, "outputs", lambda net, w, x: asked.append(len(x)) or honest(net, w, x))
    assert scorer.each(models[0]) == [alone(case, "accuracy", models[0], *test) for test in tests]
    assert sum(asked) == len(torch.cat(drawn).unique()) <= 7
    x, y = (torch.cat(part) for part in zip(*tests, strict=True))
    for some in (len(y), 11):  # all of them, and a sample
        scorer.sample, scorer._can_stack = scorer.sample[torch.linspace(0, len(y) - 1, some).long()], False
        picked = scorer.sample.cpu()
        asked.clear()
        assert scorer.pooled(models) == [alone(case, "accuracy", model, x[picked], y[picked]) for model in models]
        assert asked == [len(x[picked].unique(dim=0))] * 5


@pytest.mark.parametrize("name", ["mlp", "conv2d", "embedding", "regression"])
def test_the_memory_that_is_taken_does_not_change_a_score(name, monkeypatch):
    case = CASES[name]
    metric = BY_TASK[case.task][0]
    stacks = []
    honest = Scorer._stacked
    monkeypatch.setattr(Scorer, "_stacked", lambda self, w, x: stacks.append(len(w)) or honest(self, w, x))
    found, sizes = [], []
    for models_at_once in (1, 6, 10_000):
        scorer = scorer_of(case, metric, sizes=range(1, 41))
        models = models_of(scorer.net, 40)
        scorer.memory = models_at_once * (40 * scorer._record_bytes + 16 * scorer.net.count)
        scorer._can_stack = scorer._can_stack and models_at_once > 1
        stacks.clear()
        found.append([*scorer.own(models.__getitem__, range(40)), *scorer.each(models[0]), *scorer.pooled(iter(models))])
        sizes.append(max(stacks, default=1))
    assert sizes[0] == 1 < sizes[1] < sizes[2] == 40
    assert same(found[0], found[1], metric)
    assert same(found[0], found[2], metric)


LINEAR = scorer_of(CASES["linear"], sizes=(3,))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(1, 10**7))
def test_unequal_clients_are_neither_padded_much_nor_stacked_beyond_the_memory(sizes, memory):
    scorer = copy.copy(LINEAR)
    scorer.sizes, scorer.memory = sizes, memory
    groups = list(scorer._groups(range(len(sizes))))
    assert sorted(i for group in groups for i in group) == [i for i, size in enumerate(sizes) if size]
    for group in groups:
        width = max(sizes[i] for i in group)
        assert len(group) * width <= 2 * sum(sizes[i] for i in group)
        assert len(group) == 1 or len(group) * (width * scorer._record_bytes + 16 * scorer.net.count) <= memory


@pytest.mark.parametrize(("task", "metric"), [(task, metric) for task, metrics in BY_TASK.items() for metric in metrics])
def test_only_the_model_that_diverged_has_no_score(task, metric):
    case = next(case for case in CASES.values() if case.task == task)
    scorer = scorer_of(case, metric, sizes=(20, 21, 22, 23))
    models = models_of(scorer.net, 4)
    before = scorer.own(models.__getitem__, range(4)), scorer.pooled(models)
    models[2] = math.inf
    for found, was in zip((scorer.own(models.__getitem__, range(4)), scorer.pooled(models)), before, strict=True):
        assert None not in was
        assert same(found, [*was[:2], None, was[3]], metric)
    assert scorer.each(models[2]) == [None] * 4


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_nothing_to_score(metric):
    scorer = scorer_of(CASES["linear"], metric, sizes=(0, 4, 0))
    model = models_of(scorer.net, 1)[0]
    assert scorer.own(lambda i: model, []) == scorer.pooled([]) == []
    assert scorer.own(None, [2, 0]) == [None, None]  # no model is asked for
    assert [score is None for score in scorer.each(model)] == [True, False, True]
    nobody = scorer_of(CASES["linear"], metric, sizes=(0, 0))
    assert nobody.own(None, [0, 1]) == nobody.each(model) == nobody.pooled([model, model]) == [None, None]


class Peeks(nn.Module):
    """Looks at a value when it is scored, which cannot be done to stacked models."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        if not self.training and x.sum().item() == math.pi:
            return self.head(-x.flatten(1))
        return self.head(x.flatten(1))


def test_a_module_that_cannot_be_stacked_is_scored_one_after_another():
    plain, peeking = scorer_of(CASES["linear"]), scorer_of(CASES["linear"], module=Peeks())
    assert peeking.net.grad_method == "bookkeeping"
    assert (plain._can_stack, peeking._can_stack) == (True, False)
    models = models_of(plain.net, len(SIZES))
    for ask in (lambda s: s.own(models.__getitem__, range(len(SIZES))), lambda s: s.pooled(models)):
        assert ask(peeking) == ask(plain)


def test_a_module_that_answers_otherwise_when_it_is_stacked_is_found_out(monkeypatch):
    honest = Scorer._stacked
    monkeypatch.setattr(Scorer, "_stacked", lambda self, w, x: honest(self, w, x).flip(0))
    assert not scorer_of(CASES["linear"])._can_stack


class Waits(TorchDispatchMode):
    """Counts how often a value is asked for, for which one would wait on a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "local_scalar_dense" in str(func) or "nonzero" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "metric"), [("mlp", "accuracy"), ("regression", "rmse")])
def test_nobody_waits_for_the_score_of_one_client(name, metric):
    scorer = scorer_of(CASES[name], metric, sizes=range(50))
    models = models_of(scorer.net, 50)
    assert scorer._can_stack
    with Waits() as waits:
        scorer.own(models.__getitem__, range(50))
        scorer.each(models[0])
        scorer.pooled(models)
    assert waits.count == 0
    with waits:
        models[0, 0].item()
    assert waits.count == 1


def test_only_clients_that_changed_are_scored_again(monkeypatch):
    chosen, scored, released = [], [], []
    honest = Vectorised.train, Scorer.own, Scorer.each

    def train(self, round, helpers):
        uploads = honest[0](self, round, helpers)
        chosen.append([self.place(name) for name in uploads.trained])
        return uploads

    def own(self, model, clients):
        scored.append(list(clients))
        return honest[1](self, model, clients)

    def each(self, weights):
        released.append(len(chosen))
        return honest[2](self, weights)

    monkeypatch.setattr(Vectorised, "train", train)
    monkeypatch.setattr(Scorer, "own", own)
    monkeypatch.setattr(Scorer, "each", each)
    # under a rule by which clients have models of their own
    few = ["data.clients=8", "rounds=6", "compare=[]", "participation=0.3", "evaluate_every=2", "rule.name=interpolate"]
    run.train(load("digits", few))
    since = [sorted({*chosen[r], *chosen[r + 1]}) for r in (0, 2, 4)]
    never = set(range(8)).difference(*chosen[:4])  # all have a score at the end
    assert scored == [since[0], since[1], sorted({*since[2], *never})]
    assert any(len(clients) < 8 for clients in scored)
    assert released[:3] == [2, 4, 6]
