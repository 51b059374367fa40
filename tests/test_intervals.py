"""Scores with intervals: resamples against records really repeated, coverage, undefined scores, and both means by hand."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prifedsync.metrics import ACCURACY, AUC, F1, METRICS, RMSE, Metric, differences, measured, measuring, scores
from prifedsync.metrics.resampling import FEWEST_RESAMPLES, MOST_DRAWN, RESAMPLES, Resampling
from prifedsync.metrics.statistics import statistic_of
from prifedsync.scores import Interval, Score
from prifedsync.values import BadValue


def right(count, of):
    """Answers of which the first `count` are right."""
    y = torch.ones(of)
    outputs = torch.where(torch.arange(of) < count, 1.0, -1.0)[:, None]
    return outputs, y


def together(*parts):
    outputs, y = zip(*parts, strict=True)
    return torch.cat(outputs), torch.cat(y), [len(each) for each in y]


# ---------------------------------------------------------------------- resamples


@pytest.mark.parametrize("name", ["accuracy", "auc", "f1", "rmse", "f1 of four classes"])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_weighted_score_is_the_score_of_repeated_records(name, data):
    """Scores tie often, and a class is often absent."""
    metric = METRICS[name.split()[0]]
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    total = sum(sizes)
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    many = "classes" in name
    outputs = torch.randint(-2, 3, (total, 4 if many else 1), generator=draw).float()
    y = torch.randint(0, 4 if many else 2, (total,), generator=draw)
    y = y if many else y.float()
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=total, max_size=total)), dtype=np.float64)
    starts = np.cumsum(sizes) - sizes
    found = statistic_of(metric, outputs, y, starts)(weights[None])[0]
    for client, start in enumerate(starts):
        places = np.repeat(np.arange(sizes[client]), weights[start : start + sizes[client]].astype(int)) + start
        one = scores(metric, outputs[places], y[places], [len(places)])[0].item() if len(places) else math.nan
        assert found[client] == pytest.approx(one, abs=1e-12, nan_ok=True)


def test_resamples_stay_within_a_client_and_are_uniform():
    sizes = [3, 50, 1]
    weights = np.concatenate(list(Resampling(sizes, seed=1).weights()))
    assert weights.shape == (RESAMPLES, 54)
    assert (np.add.reduceat(weights, [0, 3, 53], axis=1) == sizes).all()
    assert weights.mean(0) == pytest.approx(np.ones(54), abs=0.16)  # 5 standard deviations of a mean of 1,000
    assert weights[:, 3:53].var() == pytest.approx(1 - 1 / 50, rel=0.05)


def test_the_seed_alone_decides_resamples_and_very_many_records_get_fewer():
    first, again, other = (next(Resampling([40], seed=seed).weights()) for seed in (5, 5, 6))
    assert (first == again).all()
    assert (first != other).any()
    assert Resampling([MOST_DRAWN // 400]).count == 400
    assert Resampling([10**9]).count == FEWEST_RESAMPLES


def test_whole_persons_are_resampled():
    """Ten persons with thirty rows each are ten observations: the interval is that of ten, not of three hundred."""
    person = torch.arange(10).repeat_interleave(30)
    outputs = torch.where(person < 5, 1.0, -1.0)[:, None]
    y = torch.ones(300)
    (by_row,) = measured([ACCURACY], outputs, y, [300])
    (by_person,) = measured([ACCURACY], outputs, y, [300], groups=[person])
    (ten,) = measured([ACCURACY], outputs[::30], y[::30], [10])
    assert by_person.clients[0].value == by_row.clients[0].value == 0.5
    assert by_person.clients[0].interval == ten.clients[0].interval == by_person.scores.pooled.interval
    width = by_person.clients[0].interval.high - by_person.clients[0].interval.low
    assert width > 4 * (by_row.clients[0].interval.high - by_row.clients[0].interval.low)
    with pytest.raises(BadValue, match="must name one person for each test record"):
        measured([ACCURACY], outputs, y, [300], groups=[person[:-1]])


# ---------------------------------------------------------------------- intervals


@pytest.mark.parametrize(("records", "share"), [(200, 0.7), (80, 0.85)])
def test_an_interval_covers_the_truth_as_often_as_it_says(records, share):
    """300 draws: between 90 and 98 %, which is 4 standard deviations below and 2.4 above 95 %."""
    draw = torch.Generator().manual_seed(records)
    good = torch.rand(300, records, generator=draw) < share
    outputs = torch.where(good, 1.0, -1.0).reshape(-1, 1)
    (found,) = measured([ACCURACY], outputs, torch.ones(300 * records), [records] * 300)
    covered = sum(each.interval.low <= share <= each.interval.high for each in found.clients)
    assert 0.90 <= covered / 300 <= 0.98


def test_an_interval_of_the_area_under_the_curve_covers_it():
    """Positive scores are N(1, 1), negative ones N(0, 1): the area is Φ(1/√2)."""
    draw = torch.Generator().manual_seed(3)
    y = (torch.arange(300 * 120) % 3 == 0).float()
    outputs = (torch.randn(len(y), generator=draw) + y)[:, None]
    (found,) = measured([AUC], outputs, y, [120] * 300)
    truth = 0.5 * (1 + math.erf(0.5))
    covered = sum(each.interval.low <= truth <= each.interval.high for each in found.clients)
    assert 0.90 <= covered / 300 <= 0.98


def test_means_have_intervals_of_their_own():
    """Half of the clients with 400 records, half with 4: the mean over clients varies with the small ones."""
    draw = torch.Generator().manual_seed(0)
    sizes = [400] * 5 + [4] * 5
    outputs = torch.where(torch.rand(sum(sizes), generator=draw) < 0.7, 1.0, -1.0)[:, None]
    (found,) = measured([ACCURACY], outputs, torch.ones(sum(sizes)), sizes)
    own = found.scores.own
    clients = math.sqrt(0.7 * 0.3 * (5 / 400 + 5 / 4)) / 10  # standard errors, about
    records = math.sqrt(0.7 * 0.3 / sum(sizes))
    assert own.interval.high - own.interval.low == pytest.approx(2 * 1.96 * clients, rel=0.35)
    assert own.record_interval.high - own.record_interval.low == pytest.approx(2 * 1.96 * records, rel=0.15)
    assert own.record_interval == found.scores.pooled.interval  # of a mean over records


def test_records_that_are_all_right_leave_some_doubt():
    """Every resample is all right too. The exact end for 20 of 20 is 0.025 ** (1 / 20)."""
    outputs, y, sizes = together(right(20, 20), right(0, 5), right(1, 1))
    (found,) = measured([ACCURACY], outputs, y, sizes)
    first, second, third = (each.interval for each in found.clients)
    assert first == Interval(pytest.approx(0.8316, abs=1e-4), 1.0)
    assert second == Interval(0.0, pytest.approx(0.5218, abs=1e-4))
    assert third == Interval(pytest.approx(0.025), 1.0)


@pytest.mark.parametrize("good", [True, False])
def test_means_of_perfect_scores_leave_some_doubt_too(good):
    """Of 20, 5 and 10 records that are all right: 35 in the mean over records, and 3 · 5 in the mean over clients."""
    outputs, y, sizes = together(*(right(of if good else 0, of) for of in (20, 5, 10)))
    (found,) = measured([ACCURACY], outputs, y, sizes)
    own = found.scores.own
    for interval, units in ((own.interval, 15), (own.record_interval, 35), (found.scores.pooled.interval, 35)):
        end = 0.025 ** (1 / units)
        assert interval == (Interval(pytest.approx(end), 1.0) if good else Interval(0.0, pytest.approx(1 - end)))


def test_the_exact_end_of_a_mean_over_clients_is_on_the_safe_side():
    """Clients with any chances of which the mean lies below the end are all right in at most 2.5 % of the cases."""
    draw = np.random.default_rng(0)
    sizes = np.array([20, 5, 10])
    end = 0.025 ** (1 / 15)
    chances = 1 - draw.random((20_000, 3)) ** draw.uniform(1, 12, (20_000, 1))
    below = chances[chances.mean(1) < end]
    assert len(below) > 1_000
    assert (below**sizes).prod(1).max() <= 0.025


@pytest.mark.parametrize("metric", [AUC, F1, RMSE])
def test_where_resamples_do_not_vary_there_is_no_interval(metric):
    """All pairs are in order, all guesses right, all errors equal; the second client's scores do vary."""
    y = torch.tensor([0.0, 1.0] * 15)
    perfect = 0.3 * (2 * y - 1) if metric is not RMSE else y + 0.25
    other = perfect.clone()
    other[:10] = -other[:10]
    (found,) = measured([metric], torch.cat([perfect, other])[:, None], y.repeat(2), [30, 30])
    assert found.clients[0].value is not None
    assert found.clients[0].interval is None
    assert found.clients[1].interval.low < found.clients[1].interval.high
    (alone,) = measured([metric], perfect[:, None], y, [30])
    own = alone.scores.own
    assert own.interval is own.record_interval is alone.scores.pooled.interval is None


def test_a_function_of_all_records_has_no_interval_and_a_mean_over_records_has_one():
    outputs, y = right(3, 4)
    alone = Metric(name="mine", of=lambda outputs, y: (outputs[:, 0] > 0).double().mean())
    each = Metric(name="each", of=lambda outputs, y: (outputs[:, 0] > 0).double(), mean=True)
    without, own = measured([alone, each], outputs, y, [4])
    assert without.clients[0].value == own.clients[0].value == 0.75
    assert without.clients[0].interval is without.scores.own.interval is without.scores.pooled.interval is None
    assert own.clients[0].interval == measured([ACCURACY], outputs, y, [4])[0].clients[0].interval


def test_a_thousand_resamples_of_ten_thousand_records_take_about_a_second():
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (10_000,), generator=draw).float()
    outputs = torch.randn(10_000, 1, generator=draw)
    begun = time.process_time()
    measured([AUC], outputs, y, [10_000])
    assert time.process_time() - begun < 6  # 0.8 s where nothing else runs


# ---------------------------------------------------------------------- differences between two models


def answers(good):
    return torch.where(torch.as_tensor(good), 1.0, -1.0)[:, None]


def test_the_interval_of_a_difference_is_that_of_pairs():
    """Both models fail on the same 60 of 200 records, and one of them on 12 more: Var = (0.06 − 0.06²) / 200."""
    first, second = answers(torch.arange(200) >= 60), answers(torch.arange(200) >= 72)
    y = torch.ones(200)
    (one,), (other,) = (measured([ACCURACY], outputs, y, [200]) for outputs in (first, second))
    (found,) = differences(one, other)
    assert one.clients[0].interval.low < other.clients[0].interval.high  # they overlap
    assert found.low > 0
    assert (found.low + found.high) / 2 == pytest.approx(0.06, abs=0.006)
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt((0.06 - 0.06**2) / 200), rel=0.12)
    (back,) = differences(other, one)
    assert (back.low, back.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_the_interval_of_a_difference_covers_it_as_often_as_it_says():
    """Scores that depend on each other: a record is hard for both models. 300 clients with 150 records each."""
    draw = torch.Generator().manual_seed(1)
    hard = torch.rand(300 * 150, generator=draw)
    first, second = (answers(hard + 0.2 * torch.rand(300 * 150, generator=draw) < share) for share in (0.8, 0.7))
    y = torch.ones(300 * 150)
    (one,), (other,) = (measured([ACCURACY], outputs, y, [150] * 300) for outputs in (first, second))
    covered = sum(each.low <= 0.1 <= each.high for each in differences(one, other))
    assert 0.90 <= covered / 300 <= 0.98


def test_a_model_that_diverged_at_one_client_is_paired_at_the_others():
    """Its resamples must not move: at the clients after it they would be other ones."""
    draw = torch.Generator().manual_seed(2)
    y = torch.ones(180)
    first, second = (torch.randn(180, 1, generator=draw) + 0.5 for _ in range(2))
    broken = second.clone()
    broken[7] = math.nan
    (one,), (other,), (nan,) = (measured([ACCURACY], outputs, y, [60, 60, 60]) for outputs in (first, second, broken))
    assert None not in differences(one, other)
    assert differences(one, nan) == (None, *differences(one, other)[1:])
    assert nan.clients[1:] == other.clients[1:]


def test_whole_persons_are_in_a_difference():
    person = torch.arange(30).repeat_interleave(10)
    first, second = answers(person >= 6), answers(person >= 9)
    by_person = [measured([ACCURACY], outputs, torch.ones(300), [300], groups=[person])[0] for outputs in (first, second)]
    one_each = [measured([ACCURACY], outputs[::10], torch.ones(30), [30])[0] for outputs in (first, second)]
    assert differences(*by_person)[0] == pytest.approx(differences(*one_each)[0], abs=1e-12)


def test_a_difference_that_does_not_vary():
    """Right and wrong on each of 20 records: by the exact ends of both. An order without doubt has no interval."""
    y = torch.ones(20)
    (one,), (other,) = (measured([ACCURACY], answers([good] * 20), y, [20]) for good in (True, False))
    end = 0.025 ** (1 / 20)
    assert differences(one, other) == (Interval(pytest.approx(2 * end - 1), 1.0),)
    assert differences(one, one) == (Interval(pytest.approx(end - 1), pytest.approx(1 - end)),)
    y = (torch.arange(20) == 0).float()
    (one,), (other,) = (measured([AUC], outputs, y, [20]) for outputs in (y[:, None], torch.zeros(20, 1)))
    assert (one.clients[0].value, other.clients[0].value) == (1.0, 0.5)
    assert differences(one, other) == (None,)


def test_metrics_without_weights_have_no_differences():
    mine = Metric(name="mine", of=lambda outputs, y: outputs.mean())
    (one,) = measured([mine], answers([True, False]), torch.ones(2), [2, 0])
    assert differences(one, one) == (None, None)


# ---------------------------------------------------------------------- undefined scores, and means by hand


def test_an_undefined_score_says_why_and_is_in_no_mean():
    """Of five clients, one has one class, one has no records, and one a model that diverged."""
    outputs = torch.tensor([0.1, 0.9, 0.2, 0.8, 0.3, 0.7, math.nan, 0.5, 0.9, 0.1])[:, None]
    y = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0])
    auc, accuracy = measured([AUC, ACCURACY], outputs, y, [2, 4, 0, 2, 2])
    assert [each.value for each in auc.clients] == [1.0, None, None, None, 0.0]
    assert [each.why for each in auc.clients] == [
        "", "one class only", "no test records", "the model's outputs are not finite", "",
    ]  # fmt: skip
    assert auc.scores.own == Score(0.5, 0.0, 2, 0.5, 4, auc.scores.own.interval, auc.scores.own.record_interval)
    assert [each.value for each in accuracy.clients] == [0.5, 1.0, None, None, 0.5]
    assert accuracy.scores.own.clients == 3
    assert auc.scores.pooled == Score(None, None, 0)  # one of the models gave no answer


def test_both_means_by_hand():
    """Ten records of which 9 are right, and 90 of which 45 are: (0.9 + 0.5) / 2, and (9 + 45) / 100."""
    outputs, y, sizes = together(right(9, 10), right(45, 90))
    (found,) = measured([ACCURACY], outputs, y, sizes)
    own = found.scores.own
    assert (own.mean, own.record_mean, own.worst) == (pytest.approx(0.7), pytest.approx(0.54), 0.5)
    assert (own.clients, own.records) == (2, 100)
    assert found.scores.pooled.mean == pytest.approx(0.54)


def test_a_mean_over_records_of_errors_weighs_the_clients_scores():
    outputs = torch.tensor([1.0, 1.0, 1.0, 3.0])[:, None]
    (found,) = measured([RMSE], outputs, torch.zeros(4), [3, 1])
    own = found.scores.own
    assert (own.mean, own.record_mean, own.worst) == (2.0, 1.5, 3.0)
    assert found.scores.pooled.mean == pytest.approx(math.sqrt(3))  # of all records together: another number


def test_nobody_has_test_records():
    (found,) = measured([F1], torch.zeros(0, 1), torch.zeros(0), [0, 0])
    assert [each.why for each in found.clients] == ["no test records"] * 2
    assert found.scores.own == found.scores.pooled == Score(None, None, 0)


def test_an_interval_needs_enough_resamples_that_have_a_score(monkeypatch):
    """One positive record among 3 is missing in 30 % of the resamples."""
    outputs = torch.tensor([0.5, 0.1, 0.9])[:, None]
    y = torch.tensor([1.0, 0.0, 0.0])
    assert measured([AUC], outputs, y, [3])[0].clients[0].interval == Interval(0.0, 1.0)
    monkeypatch.setattr(measuring, "DEFINED", 0.8)
    assert measured([AUC], outputs, y, [3])[0].clients[0].interval is None
