"""The tables' numbers, from runs that were made up: rounds, accuracies, twins, and costs on their safe side."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from prifedsync.accounting import NoisySteps, PrivacyPlan, Sampling
from prifedsync.experiments.declared import Experiment
from prifedsync.experiments.pages import CERTIFIED, certified_cells, markdown, reached_cells, summary
from prifedsync.experiments.running import Run, Runs
from prifedsync.experiments.tables import STOPPED, TOLERANCE, Asked, Pair, assembled, run
from prifedsync.record import plan_as_json
from prifedsync.terminal import print_tables
from prifedsync.values import BadValue

from .settings import QUICK, write_mnist

FEW = Asked(rows=(1,), overrides=("rounds=6",))


def plan_of(rounds=6, participation=1.0, copies=1, **steps):
    given = {"noise_multiplier": 2.0, "records": 600, "batch": 16, "local_steps": 38, "sampling": Sampling.FIXED} | steps
    return PrivacyPlan(mechanism=NoisySteps(**given), rounds=rounds, participation=participation, copies=copies)


def made_up(personal, released=None, *plans):
    plans = [plan_as_json(plan) for plan in plans]
    return Run({}, personal, released or [0.5] * len(personal), plans, 10.0, "a device", {"torch": "9"})


def few(pairs, asked=FEW, table="table1"):
    experiment = replace(Experiment.named(table), rows=Experiment.named(table).rows[:1])
    return assembled(experiment, asked, {1: pairs})


def close(upper, bound):
    """An upper end that is one, and no more than the tables' tolerance above the best there is."""
    assert bound.lower <= upper <= bound.upper + 2 * TOLERANCE


def test_rounds_accuracies_and_the_twin_are_those_of_the_round_that_passed():
    private = made_up([0.2, 0.91, 0.95], [0.1, 0.3, 0.4], plan_of())
    twin = made_up([0.3, 0.97, 0.99], [0.2, 0.6, 0.7])
    (row,) = few([Pair(0, private, twin)])["rows"]
    (found,) = row["runs"]
    assert (found["rounds"], found["reached"]) == (2, True)
    assert (found["accuracy"], found["global"]) == (91.0, 30.0)
    assert (found["nonprivate"], found["nonprivate_global"]) == (97.0, 60.0)
    assert (row["rounds"], row["rounds_over_paper"]) == (2, 2 / 93)
    assert found["at_these_rounds"]["kind"] == STOPPED
    assert found["at_these_rounds"]["rounds"] == 2


def test_what_never_passed_is_shown_so():
    table = few([Pair(0, made_up([0.2, 0.5], None, plan_of()), None)])
    (row,) = table["rows"]
    assert (row["rounds"], row["rounds_over_paper"], row["runs"][0]["reached"]) == (None, None, False)
    assert reached_cells(table)[0][4] == "> 2"


def test_several_seeds_give_the_median_and_each_number():
    pairs = [Pair(seed, made_up([0.1] * n + [0.9], None, plan_of()), None) for seed, n in ((0, 3), (1, 1), (2, 2))]
    table = few(pairs, replace(FEW, seeds=(0, 1, 2)))
    assert table["rows"][0]["rounds"] == 3
    assert reached_cells(table)[0][4] == "4, 2, 3"
    short = few([*pairs[:2], Pair(2, made_up([0.1], None, plan_of()), None)], replace(FEW, seeds=(0, 1, 2)))
    assert short["rows"][0]["rounds"] is None  # one that never passed has no place among the others


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_costs_are_the_certified_ones(participation):
    plan = plan_of(participation=participation)
    (row,) = few([Pair(0, made_up([0.9], None, plan), None)])["rows"]
    for which, rounds in ((row["planned"], 6), (row["runs"][0]["at_these_rounds"], 1)):
        assert which["rounds"] == rounds
        for sampling in Sampling:
            mine = plan.changed(rounds=rounds, sampling=sampling)
            found = which[sampling.value]
            close(found["epsilon"]["upper"], mine.guarantee().epsilon(1e-5))
            close(found["mu"]["upper"], mine.guarantee().mu(1e-5))
            close(found["worst_case_participation"]["epsilon"]["upper"], mine.guarantee("adversarial").epsilon(1e-5))


def test_the_plan_that_ran_is_accounted_not_the_one_declared():
    """With its own number of records and its margin for rounding."""
    (row,) = few([Pair(0, made_up([0.9], None, plan_of(records=100, clip_margin=0.1)), None)])["rows"]
    ran = plan_of(records=100, clip_margin=0.1)
    close(row["planned"]["fixed"]["epsilon"]["upper"], ran.guarantee().epsilon(1e-5))


def test_a_record_that_many_clients_hold_is_composed_over_them():
    table = few([Pair(0, made_up([0.9], None, plan_of(copies=3)), None)])
    (row,) = table["rows"]
    assert row["copies"] == 3
    close(row["planned"]["fixed"]["epsilon"]["upper"], plan_of(rounds=18).guarantee().epsilon(1e-5))
    close(row["planned_counting_one_holder"]["fixed"]["epsilon"]["upper"], plan_of().guarantee().epsilon(1e-5))
    page = markdown(table, "")
    assert page.index("up to 3 clients") < page.index("If only one holder of a record is counted")
    alone = few([Pair(0, made_up([0.9], None, plan_of()), None)])
    assert alone["rows"][0]["planned_counting_one_holder"] is None
    assert "up to" not in markdown(alone, "")


def test_of_several_seeds_the_worst_plan_is_stated():
    """A seed decides the split, and with it how many records the smallest client has."""
    pairs = [Pair(seed, made_up([0.9], None, plan_of(records=n)), None) for seed, n in ((0, 600), (1, 50), (2, 400))]
    (row,) = few(pairs, replace(FEW, seeds=(0, 1, 2)))["rows"]
    for sampling in Sampling:
        worst = plan_of(records=50, sampling=sampling).guarantee().epsilon(1e-5)
        close(row["planned"][sampling.value]["epsilon"]["upper"], worst)


def test_of_clients_that_differ_the_worst_of_each_number_is_stated():
    """The client with the largest ε need not have the largest μ."""
    early = plan_of(records=4000, noise_multiplier=0.45, local_steps=1)
    late = plan_of(records=40, noise_multiplier=8.0, local_steps=1)
    (row,) = few([Pair(0, made_up([0.9], None, early, late), None)])["rows"]
    drawn = {sampling: [plan.changed(sampling=sampling) for plan in (early, late)] for sampling in Sampling}
    for sampling, plans in drawn.items():
        for which, rounds in ((row["planned"], 6), (row["runs"][0]["at_these_rounds"], 1)):
            costs = [plan.changed(rounds=rounds).guarantee() for plan in plans]
            found = which[sampling.value]
            close(found["epsilon"]["upper"], max((f.epsilon(1e-5) for f in costs), key=lambda bound: bound.upper))
            close(found["mu"]["upper"], max((f.mu(1e-5) for f in costs), key=lambda bound: bound.upper))


def test_what_the_paper_prints_keeps_its_own_settings():
    asked = Asked(rows=(1,), overrides=("privacy.noise_multiplier=0.5", "local.batch=60", "rounds=2"))
    table = few([Pair(0, made_up([0.9], None, plan_of(2, noise_multiplier=0.5, batch=60)), None)], asked)
    assert certified_cells(table, "at_the_papers_rounds")[0][:4] == ["1", "1", "16", "93"]
    assert certified_cells(table, "planned")[0][:4] == ["1", "0.25", "60", "2"]
    assert "Overridden here: privacy.noise_multiplier=0.5, local.batch=60, rounds=2" in markdown(table, "")


def test_printed_costs_are_never_below_the_certified_ones():
    plan = plan_of(rounds=7, participation=0.5, noise_multiplier=1.3)
    table = few([Pair(0, made_up([0.9], None, plan), None)], Asked(rows=(1,), overrides=("rounds=7",)))
    (cells,), cost = certified_cells(table, "planned"), table["rows"][0]["planned"]
    printed = dict(zip(CERTIFIED[5:], cells[5:], strict=False))
    assert float(cells[5]) >= cost["fixed"]["mu"]["upper"]
    assert float(cells[6]) >= cost["fixed"]["epsilon"]["upper"]
    assert float(cells[7]) >= cost["poisson"]["mu"]["upper"]
    assert float(cells[8]) >= cost["poisson"]["epsilon"]["upper"]
    assert float(printed["others choose, fixed: ε ≤"]) >= cost["fixed"]["worst_case_participation"]["epsilon"]["upper"]
    assert float(cells[6]) < 1.001 * cost["fixed"]["epsilon"]["upper"]


def test_a_twin_that_rows_share_is_timed_once():
    experiment = replace(Experiment.named("table1"), rows=Experiment.named("table1").rows[:2])
    pairs = {row: [Pair(0, made_up([0.1 * row, 0.9], None, plan_of()), made_up([0.9, 0.9]))] for row in (1, 2)}
    assert assembled(experiment, Asked(overrides=("rounds=6",)), pairs)["seconds"] == 30.0


def test_a_mean_over_fewer_seeds_says_which():
    def shown(*twins):
        pairs = [Pair(at, made_up([0.9], None, plan_of()), twin) for at, twin in enumerate(twins)]
        return reached_cells(few(pairs, replace(FEW, seeds=(0, 1, 2))))[0][6:9]

    one, other = made_up([0.98]), made_up([0.96])
    assert shown(None, one, other) == ["90.00", "50.00", "97.00 (seeds 1, 2)"]
    assert shown(one, None, None)[2] == "98.00 (seed 0)"
    assert shown(one, other, other)[2] == "96.67"
    assert shown(None, None, None)[2] == "–"


def test_numbers_stay_whole_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    rounds = (103, 87, 108)
    pairs = [Pair(at, made_up([0.1] * (n - 1) + [0.9], None, plan_of()), None) for at, n in enumerate(rounds)]
    pairs[1] = replace(pairs[1], twin=made_up([0.98] * 200))
    table = few(pairs, replace(FEW, seeds=(0, 1, 2)))
    print_tables(summary(table), table.get("sentence"), "page")
    printed = Counter(capsys.readouterr().out.replace(",", " ").split())
    (reached,), (certified,) = reached_cells(table), certified_cells(table, "planned")
    assert not Counter(" ".join([*reached[:-1], *certified]).replace(",", " ").split()) - printed


def test_the_page_never_calls_the_limit_a_guarantee():
    text = markdown(few([Pair(0, made_up([0.9], None, plan_of()), None)]), "prifedsync reproduce table1")
    assert "no bound" in text
    assert "the stop depends on the data" in text
    assert "`prifedsync reproduce table1`" in text
    assert all(
        len(line.split("|")) == len(CERTIFIED) + 2 for line in text.splitlines() if re.match(r"\| 1 \| 1 \| 16 \| 6 ", line)
    )


def test_the_sentence_of_table_2_from_the_papers_own_rounds():
    """0.83 × the μ for 1.39 × the samples, after 2.78 × the iterations."""
    experiment = Experiment.named("table2")
    pairs = {}
    for row in experiment.rows:
        config = experiment.config(row, 0)
        plan = plan_of(
            config.rounds, 0.5, batch=config.local.batch, local_steps=config.local.local_steps,
            noise_multiplier=config.privacy.noise_multiplier,
        )  # fmt: skip
        pairs[row.number] = [Pair(0, made_up([0.1] * (int(row.paper["rounds"]) - 1) + [0.9], None, plan), None)]
    sentence = assembled(experiment, Asked(), pairs)["sentence"]
    assert "the paper's μ is 0.83 × that of B = 16" in sentence
    assert "after 2.78 × the iterations and 1.39 × the samples" in sentence
    assert assembled(experiment, Asked(), {number: pairs[number] for number in (1, 2)})["sentence"] is None


@pytest.mark.parametrize("rows", [(0,), (10,), (1, 99)])
def test_rows_that_are_not_there_are_refused(rows, tmp_path):
    with pytest.raises(BadValue, match="rows 1 to 9"):
        run(Experiment.named("table1"), Asked(rows=rows), Runs(tmp_path, only_finished=True))


def test_rows_of_one_participation_share_a_twin_as_long_as_the_longest(tmp_path):
    """Three rows, one run without privacy; each row reads it after its own number of rounds."""
    data, told = write_mnist(tmp_path / "data"), []
    experiment = replace(Experiment.named("table1"), target=0.75)
    asked = Asked(rows=(1, 2, 3), overrides=QUICK, data=data, device="cpu")
    pairs = run(experiment, asked, Runs(tmp_path / "out", told=told.append))
    assert len([title for title in told if "without privacy" in title]) == 1
    assert len(told) == 4
    lengths = [len(pairs[number][0].private.personal) for number in (1, 2, 3)]
    assert all(pairs[number][0].twin == pairs[1][0].twin for number in (2, 3))
    assert len(pairs[1][0].twin.personal) == max(lengths)


def test_only_what_is_finished(tmp_path):
    experiment = Experiment.named("table1")
    assert run(experiment, FEW, Runs(tmp_path, only_finished=True)) == {1: []}
