"""Metrics against definitions written another way, and metrics of one's own."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prifedsync.metrics import AUC, METRICS, Metric, metric_of, scores
from prifedsync.values import BadValue

OUTPUTS = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 5.0]])
Y = torch.tensor([0, 1, 1, 1])


def pairs_won(values, labels):
    """AUC by its definition: of every positive and negative record, who has the higher score; a tie is half a win."""
    ups = [value for value, label in zip(values, labels, strict=True) if label]
    downs = [value for value, label in zip(values, labels, strict=True) if not label]
    if not ups or not downs:
        return None
    wins = sum(1.0 if up > down else 0.5 if up == down else 0.0 for up, down in product(ups, downs))
    return wins / (len(ups) * len(downs))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=40))
@example([(0, True), (0, False)])  # by places in a sorted list this is 0 or 1, never a half
@example([(1, False), (1, True), (1, False), (0, True), (2, False)])
def test_area_under_the_curve_is_the_share_of_pairs_won_ties_included(drawn):
    """Five scores for up to forty records: nearly every list has ties within and between the classes."""
    values = [value for value, _ in drawn]
    labels = [label for _, label in drawn]
    found = AUC.of(torch.tensor(values).float()[:, None], torch.tensor(labels).float())
    expected = pairs_won(values, labels)
    assert (found is None) == (expected is None)
    assert found is None or found == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=2, max_size=20), st.randoms())
def test_the_order_of_records_does_not_matter(drawn, dice):
    shuffled = list(drawn)
    dice.shuffle(shuffled)
    both = [
        AUC.of(torch.tensor([float(v) for v, _ in rows])[:, None], torch.tensor([float(label) for _, label in rows]))
        for rows in (drawn, shuffled)
    ]
    assert both[0] == both[1]


def test_the_registry_says_what_each_is():
    assert {name: (m.mean, m.lower_is_better, m.tasks) for name, m in METRICS.items()} == {
        "accuracy": (True, False, ("classes", "binary")),
        "auc": (False, False, ("classes", "binary")),
        "f1": (False, False, ("classes", "binary")),
        "rmse": (True, True, ("regression",)),
    }
    assert [metric_of("auto", task).name for task in ("classes", "binary", "regression")] == ["accuracy"] * 2 + ["rmse"]
    with pytest.raises(BadValue, match=r"metrics = rmse does not go with data\.task = classes"):
        METRICS["rmse"].check("classes", 10)
    with pytest.raises(BadValue, match="metrics = auc needs two classes, not 10"):
        AUC.check("classes", 10)


def distance(outputs, y):
    return (outputs[:, 1] - y).abs()


def test_a_mean_over_records_and_a_score_of_all_are_the_same_number():
    each = Metric(name="distance", of=distance, mean=True, lower_is_better=True)
    root = Metric(name="distance", of=distance, mean=True, root=True)
    together = metric_of("python:metric", "classes", lambda outputs, y: distance(outputs, y).mean())
    by_hand = [(1 + 0 + 1) / 3, 4.0]
    assert scores(each, OUTPUTS, Y, [3, 1]).tolist() == pytest.approx(by_hand)
    assert scores(together, OUTPUTS, Y, [3, 1]).tolist() == pytest.approx(by_hand)
    assert scores(root, OUTPUTS, Y, [3, 1]).tolist() == pytest.approx([math.sqrt(score) for score in by_hand])


@pytest.mark.parametrize("score", [0.25, np.float32(0.25), torch.tensor(0.25), torch.tensor([0.25]), np.array(0.25)])
def test_any_kind_of_number_is_a_score(score):
    assert scores(Metric(name="m", of=lambda outputs, y: score), OUTPUTS, Y, [4]).tolist() == [0.25]


@pytest.mark.parametrize("undefined", [None, math.nan])
def test_a_score_may_be_undefined(undefined):
    assert scores(Metric(name="m", of=lambda outputs, y: undefined), OUTPUTS, Y, [4]).isnan().all()


def test_models_that_diverged_and_clients_without_records_are_not_asked():
    asked = []
    metric = Metric(name="m", of=lambda outputs, y: asked.append(len(y)) or 1.0)
    outputs = OUTPUTS.clone()
    outputs[0, 0] = math.nan
    found = scores(metric, outputs, Y, [2, 0, 2])
    assert found.isnan().tolist() == [True, True, False]
    assert asked == [2]


@pytest.mark.parametrize(
    ("of", "mean", "says"),
    [
        (lambda outputs, y: 1 / 0, False, "raised ZeroDivisionError: division by zero for 4 records; call it by itself"),
        (lambda outputs, y: 1 / 0, True, "raised ZeroDivisionError: division by zero for 4 records; call it by itself"),
        (lambda outputs, y: "good", False, "returned 'good', which is no number; return a number, or None"),
        (lambda outputs, y: "0.5", False, "returned '0.5', which is no number"),
        (lambda outputs, y: [1.0], False, "returned [1.0], which is no number"),
        (lambda outputs, y: outputs, False, "returned tensor("),
        (lambda outputs, y: 1.0, True, "returned a float for 4 records; return one number for each record"),
        (lambda outputs, y: outputs, True, "returned a tensor of shape (4, 2) for 4 records"),
    ],
)
def test_a_metric_that_fails_is_refused_in_one_line(of, mean, says):
    with pytest.raises(BadValue) as refusal:
        scores(Metric(name="mine", of=of, mean=mean), OUTPUTS, Y, [4])
    assert str(refusal.value).startswith(f"metrics = mine {says}")
    assert "\n" not in str(refusal.value)


def test_what_is_no_metric_is_refused():
    with pytest.raises(BadValue, match="must be a function or a Metric, and is a float"):
        metric_of("python:metric", "classes", 0.5)
    with pytest.raises(BadValue, match="metrics = python:metric was given from Python when this run began; give it again"):
        metric_of("python:metric", "classes")
    with pytest.raises(BadValue, match='metrics = distance is given from Python, and the config says "auto"'):
        metric_of("auto", "classes", distance)
    with pytest.raises(BadValue, match="no module nowhere"):
        metric_of("nowhere:metric", "classes")
