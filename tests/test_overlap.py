"""A record that several clients hold leaks through each of them, and every stated number says so."""

import pytest

from prifedsync.accounting import NoisySteps, PrivacyPlan, Sampling
from prifedsync.accounting.progress import WorstEpsilon
from prifedsync.accounting.statement import Statement
from prifedsync.config import load
from prifedsync.data import Client, Federation
from prifedsync.data import load as load_records
from prifedsync.run import RoundDone, prepare, resume, train
from prifedsync.values import BadValue

SPLIT = (
    "rounds=3", "data.clients=6", "data.partition=dirichlet", "data.records_per_client=300", "compare=[]",
    "evaluate_every=0",
)  # fmt: skip
NOISE = ("privacy.noise_multiplier=3.0",)


def config_of(*more, overlap=True):
    return load("digits", [*SPLIT, f"data.overlap={str(overlap).lower()}", *(more or NOISE)])


def plan_of(**fields):
    steps = {"noise_multiplier": 2.0, "records": 100, "batch": "full", "local_steps": 1}
    return PrivacyPlan(mechanism=NoisySteps(**steps), rounds=1, **fields)


@pytest.mark.parametrize(("copies", "epsilon"), [(1, 4.38), (2, 6.57), (3, 8.39)])
def test_one_gaussian_of_mu_one_held_by_several(copies, epsilon):
    """Reference values: μ = 1 in each client, so √c in all."""
    held = plan_of(copies=copies)
    assert held.guarantee().epsilon(1e-5).upper == pytest.approx(epsilon, abs=0.005)
    assert held.guarantee().mu().upper == pytest.approx(copies**0.5, rel=1e-6)


def test_each_holder_tosses_its_own_coin():
    plan = PrivacyPlan(
        mechanism=NoisySteps(noise_multiplier=2.0, records=60, batch=6, local_steps=2, sampling=Sampling.POISSON),
        rounds=4, participation=0.5,
    )  # fmt: skip
    both, twice = plan.changed(copies=2), plan.changed(rounds=8)
    for participation in ("honest", "adversarial"):
        assert both.guarantee(participation).epsilon(1e-5) == twice.guarantee(participation).epsilon(1e-5)
    assert both.guarantee(taken=3).epsilon(1e-5) == twice.guarantee(taken=6).epsilon(1e-5)


@pytest.mark.parametrize("copies", [0, -1, 1.5])
def test_a_number_of_holders_that_is_none(copies):
    with pytest.raises(BadValue, match="copies"):
        plan_of(copies=copies)


def test_a_run_states_the_guarantee_of_a_record_that_many_hold():
    record = train(config_of()).record
    federation = load_records(config_of().data, 0)
    assert federation.copies > 1
    first = record.clients[0]
    steps = NoisySteps(**{
        key: first.plan[key] for key in ("noise_multiplier", "records", "batch", "local_steps", "clip_norm", "clip_margin")
    })  # fmt: skip
    plans = [PrivacyPlan(mechanism=steps, rounds=3, copies=copies) for copies in (1, federation.copies)]
    alone, shared = (Statement.of(plan, 1e-5, 6).honest.epsilon.upper for plan in plans)
    assert record.guarantee["epsilon"]["upper"] == pytest.approx(shared)
    assert shared > 1.2 * alone
    assert record.guarantee["copies"] == federation.copies
    for client in record.clients:
        assert client.planned["epsilon"]["upper"] == pytest.approx(shared)
        assert client.taken["epsilon"]["upper"] == pytest.approx(shared)
    assert any(f"up to {federation.copies}" in warning for warning in record.warnings)
    assert f"the {federation.copies} clients that hold it" in record.sentence


def test_the_papers_value_is_left_as_the_paper_has_it():
    record = train(load("digits-paper", [*SPLIT, "data.overlap=true", "data.records_per_client=100"])).record
    apart = train(load("digits-paper", [*SPLIT, "data.overlap=false", "data.records_per_client=100"])).record
    assert record.guarantee["paper"]["mu_weak"] == apart.guarantee["paper"]["mu_weak"]
    assert record.guarantee["mu"]["upper"] > apart.guarantee["mu"]["upper"]


def test_those_who_took_part_less_are_covered_by_those_who_took_part_most():
    """Which others hold a client's record is not asked; they may be those that took part in every round."""
    record = train(config_of("rounds=6", "participation=0.5", *NOISE)).record
    taken = [client.rounds_taken for client in record.clients]
    assert len(set(taken)) > 1
    assert len({client.taken["epsilon"]["upper"] for client in record.clients}) == 1


def test_without_overlap_nothing_is_composed():
    record = train(config_of("data.records_per_client=200", *NOISE, overlap=False)).record
    assert record.guarantee["copies"] == 1
    assert not any("overlap" in warning for warning in record.warnings)


@pytest.mark.parametrize("mechanism", ["noisy-steps", "output-gaussian", "output-laplace"])
def test_a_target_is_met_by_a_record_that_many_hold(mechanism):
    target = ("privacy.target.epsilon=4.0", f"privacy.mechanism={mechanism}")
    shared, apart = (
        train(config_of(*target)).record,
        train(config_of(*target, "data.records_per_client=200", overlap=False)).record,
    )
    for record in (shared, apart):
        assert 3.9 < record.guarantee["epsilon"]["upper"] <= 4.0
    assert shared.clients[0].plan["noise_multiplier"] > 1.3 * apart.clients[0].plan["noise_multiplier"]
    assert shared.clients[0].plan["rounds"] == 3  # what a client spends is its own


def test_clients_that_differ_are_refused():
    with pytest.raises(BadValue, match=r"data\.overlap"):
        prepare(config_of('clients."client-00".noise_multiplier=2.0', *NOISE))


def test_without_noise_there_is_nothing_to_say():
    record = train(config_of("privacy.mechanism=none")).record
    assert record.guarantee is None
    assert not any("overlap" in warning for warning in record.warnings)


def test_epsilon_so_far_counts_all_holders():
    spending = [WorstEpsilon([plan_of(copies=copies)], 1e-5) for copies in (1, 3)]
    done = [RoundDone("private", 1, 1, 1, None, None, 0.0, each, True) for each in spending]
    assert done[0].epsilon_so_far() == pytest.approx(4.38, abs=0.1)
    assert done[1].epsilon_so_far() == pytest.approx(8.39, abs=0.1)
    assert done[1].epsilon_planned() == pytest.approx(8.39, abs=0.1)


def test_a_federation_from_python_keeps_its_copies():
    federation = load_records(config_of().data, 0)
    held = Federation(tuple(Client(c.name, c.train, c.test) for c in federation.clients), federation.task, copies=3)
    assert train(config_of(), clients=held).record.guarantee["copies"] == 3
    for wrong in (0, 7):  # six clients
        with pytest.raises(BadValue, match="copies"):
            train(config_of(), clients=Federation(held.clients, held.task, copies=wrong))


def test_a_run_is_not_resumed_with_fewer_holders(tmp_path):
    """They are part of the plan, and the plan is bound to the run."""
    federation = load_records(config_of().data, 0)

    def dies(event):
        if getattr(event, "round", None) == 2:
            raise OSError("killed")

    held = [Federation(federation.clients, federation.task, copies=copies) for copies in (3, 2)]
    config = config_of("performance.checkpoint_seconds=0", *NOISE)
    with pytest.raises(OSError, match="killed"):
        train(config, clients=held[0], out=tmp_path / "run", watch=dies)
    with pytest.raises(BadValue, match="differs from the run that was begun: plans"):
        resume(tmp_path / "run", clients=held[1])
    assert resume(tmp_path / "run", clients=held[0]).record.guarantee["copies"] == 3
