"""The experiments' files against the paper's tables as the accounting tests have them."""

import math

import pytest

from prifedsync.experiments.declared import TABLES, Experiment
from prifedsync.experiments.figures import declared
from prifedsync.experiments.tables import Asked, assembled

from ..paper_tables import ROWS

EVERY = [(name, row.number) for name in TABLES for row in Experiment.named(name).rows]


def row_of(name, number):
    experiment = Experiment.named(name)
    return experiment, experiment.rows[number - 1]


def test_there_are_21_rows():
    assert len(EVERY) == len(ROWS) == 21


@pytest.mark.parametrize(("place", "printed"), list(zip(EVERY, ROWS, strict=True)), ids=str)
def test_each_row_is_the_papers(place, printed):
    experiment, row = row_of(*place)
    config = experiment.config(row, seed=3)
    assert config.participation == printed.participation
    assert config.privacy.noise_multiplier == 2 * printed.sigma
    assert (config.local.batch, config.local.local_steps) == (printed.batch, printed.local_steps)
    assert config.local.sampling == "fixed"
    assert config.seed == 3
    assert experiment.records == printed.records
    assert (row.paper["rounds"], row.paper["mu"]) == (printed.rounds, printed.mu)
    assert config.rounds == math.ceil(experiment.planned * printed.rounds)


@pytest.mark.parametrize("name", TABLES)
def test_the_printed_mu_are_recomputed_in_the_table(name):
    """All 21: the limit that the paper prints is the one beside it, whatever else is overridden."""
    experiment = Experiment.named(name)
    table = assembled(experiment, Asked(overrides=("local.local_steps=5", "rounds=2")), {})
    assert len(table["rows"]) == len(experiment.rows)
    for row in table["rows"]:
        assert row["at_the_papers_rounds"]["rounds"] == row["paper"]["rounds"]
        assert f"{row['at_the_papers_rounds']['mu_clt']:.2f}" == f"{row['paper']['mu']:.2f}"
        assert row["runs"] == []
        assert row["planned"] is None


def test_what_the_first_row_costs():
    """The reference values of docs/maths.md: ε 13.88 for fixed batches, 7.55 for Poisson ones."""
    row = assembled(Experiment.named("table1"), Asked(), {})["rows"][0]["at_the_papers_rounds"]
    assert row["fixed"]["epsilon"]["upper"] == pytest.approx(13.88, abs=0.01)
    assert row["poisson"]["epsilon"]["upper"] == pytest.approx(7.548, abs=0.01)
    assert row["fixed"]["epsilon"]["lower"] <= row["fixed"]["epsilon"]["upper"]


def test_the_protocol_of_the_papers_experiments():
    """What the authors' code does, where the paper is silent too: docs/reproduction.md."""
    mnist, cifar = (Experiment.named(name).config(Experiment.named(name).rows[0], 0) for name in ("table1", "table3"))
    for config in (mnist, cifar):
        assert (config.rule.name, config.rule.mixing, config.rule.delivery) == ("interpolate", 0.1, "push")
        assert (config.server_rate, config.averaging, config.privacy.clip_norm) == (1.0, 0.0, 1.0)
        assert (config.local.optimiser, config.local.state) == ("adam", "carried")
        assert (config.data.clients, config.data.test_records) == (100, 200)
    assert (mnist.local.learning_rate, mnist.model.name, mnist.model.dropout) == (0.001, "mnist-cnn", True)
    assert (mnist.data.partition, mnist.data.shards_per_client) == ("shards", 4)
    assert (cifar.local.learning_rate, cifar.local.weight_decay) == (0.005, 0.0005)
    assert (cifar.local.schedule, cifar.local.schedule_every, cifar.local.schedule_factor) == ("step", 10, 0.99)
    assert (cifar.data.partition, cifar.data.concentration, cifar.data.overlap) == ("dirichlet", 0.5, True)
    assert (cifar.data.records_per_client, cifar.local.augment) == (500, "crop-flip")


def test_overrides_lie_on_top():
    experiment, row = row_of("table1", 1)
    assert experiment.config(row, 0, ["rounds=2", "participation=0.3"]).rounds == 2
    assert experiment.config(row, 0, ["participation=0.3"]).participation == 0.3


@pytest.mark.parametrize("figure", declared(), ids=lambda figure: figure.name)
def test_a_figures_labels_say_what_its_rows_are(figure):
    experiment = Experiment.named(figure.table)
    for number, label in figure.rows.items():
        config = experiment.config(experiment.rows[int(number) - 1], 0)
        said = dict(part.split(" = ") for part in label.split(", ")) | dict(
            part.rstrip(")").split(" = ") for part in figure.title.partition("(")[2].split(", ") if " = " in part
        )
        said |= {"p": figure.title.rpartition("p = ")[2].rstrip(")")} if "p = " in figure.title else {}
        true = {"σ": config.privacy.noise_multiplier / 2, "B": config.local.batch, "p": config.participation}
        assert said, "a label must say something"
        for symbol, value in said.items():
            assert float(value) == true[symbol]
