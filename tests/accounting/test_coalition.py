"""Two targets: the least noise that meets one against everybody and one against a coalition."""

from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prifedsync.accounting import CannotMeet, Crowd, NoisySteps, OutputPerturbation, PrivacyPlan, Target, calibrated
from prifedsync.accounting.coalition import crowd_of, meeting, members_of, shared
from prifedsync.limits import LEAST_NOISE
from prifedsync.values import BadValue

ROUNDS = 30
MASKED = Crowd.alike(10, masks=True)


def plan(records=100, noise=LEAST_NOISE, batch="full", local_steps=1, clip_norm=1.0, **own):
    mechanism = NoisySteps(
        noise_multiplier=noise, records=records, batch=batch, local_steps=local_steps, clip_norm=clip_norm
    )
    return PrivacyPlan(mechanism=mechanism, **{"rounds": ROUNDS, **own})


def alike(one, clients=10, **how):
    return members_of([(f"c{k}", 1.0, 0.1, one) for k in range(clients)], **how)


@pytest.mark.parametrize("mu_everybody", [None, 0.15, 0.3, 1.0])
@pytest.mark.parametrize("colluders", [0, 5, 8, 9])
def test_alike_clients_get_the_least_noise_that_meets_both(colluders, mu_everybody):
    """Δ√R·max(1/(μ₁√h), 1/μ₂), to the 0.1 % of all calibration and not below."""
    one = plan() if mu_everybody is None else calibrated(plan(), Target("mu", mu_everybody))
    found = meeting(alike(one), Target("mu", 0.1), colluders, MASKED)
    exact = 2 * sqrt(ROUNDS) * max(1 / (0.1 * sqrt(10 - colluders)), 1 / (mu_everybody or 1e9))
    noises = {each.mechanism.noise_multiplier for each in found}
    assert len(noises) == 1
    assert exact <= noises.pop() <= exact * 1.001


def test_attempts_and_short_lists_need_more():
    spare = meeting(alike(replace(plan(), attempts=3)), Target("mu", 0.1), 2, replace(MASKED, least=7))
    exact = 2 * sqrt(33) / (0.1 * sqrt(5))
    assert exact <= spare[0].mechanism.noise_multiplier <= exact * 1.001


@pytest.mark.parametrize("batch", ["full", 10])
@pytest.mark.parametrize("weigh", [float, lambda size: 1.0])
def test_unlike_clients_all_meet_the_target(batch, weigh):
    sizes = [20, 50, 100, 400, 1000]
    clients = [(f"c{n}", weigh(n), 0.1 + n / 1e4, plan(n, batch=batch, clip_norm=1 + n / 500)) for n in sizes]
    crowd = Crowd.alike(5, masks=True)
    target = Target("mu", 0.2)
    found = meeting(members_of(clients), target, 2, crowd)
    raised = members_of([(*client[:3], each) for client, each in zip(clients, found, strict=True)])
    seen = crowd_of(raised, 5, masks=True)
    spent = [each.guarantee(against=seen.server(2, place)).mu().upper for place, each in enumerate(found)]
    assert max(spent) <= 0.2
    assert max(spent) >= 0.2 * (1 - 2e-3)  # somebody needs it all
    alone = members_of([(*client[:3], calibrated(client[3], target)) for client in clients])
    assert variance(member.spread for member in raised) <= variance(member.spread for member in alone)


def variance(spreads):
    return sum(spread**2 for spread in spreads)


UNLIKE = [[1.0] * 4, [1.0, 5.0], [1.0, 1.0, 1.0, 100.0], [1.0, 2.0, 4.0, 8.0, 16.0], [3.0, 3.0, 1.0], [0.1] + [1.0] * 9]


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8), st.data())
def test_shared_noise_is_enough_and_the_least_of_its_family(needed, data):
    honest = data.draw(st.integers(1, len(needed)))
    found = shared(needed, honest)
    for j, need in enumerate(needed):
        quietest = sorted(s**2 for k, s in enumerate(found) if k != j)[: honest - 1]
        assert found[j] ** 2 + sum(quietest) >= need**2 * (1 - 1e-12)
    assert variance(found) <= variance(needed) * (1 + 1e-12)  # own noise each
    top = max(needed) ** 2
    for floor in (top * step / 400 for step in range(1, 401)):
        other = sum(max(floor, need**2 - (honest - 1) * floor) for need in needed)
        assert variance(found) <= other * (1 + 1e-12)


@pytest.mark.parametrize("needed", UNLIKE)
def test_no_split_at_a_need_of_a_client_has_less_noise(needed):
    for honest in range(1, len(needed) + 1):
        least = min(
            sum(max(each**2 / honest, need**2 - (honest - 1) * each**2 / honest) for need in needed) for each in needed
        )
        assert variance(shared(needed, honest)) == pytest.approx(least, rel=1e-12)
    assert shared([7.0] * 9, 4) == pytest.approx([3.5] * 9, rel=1e-15)


def test_one_needy_client_does_not_make_all_others_loud():
    """A client of weight 1 among four of weight 1/100: the others keep 1/100 of its noise, and not 1/√5."""
    clients = [(f"c{k}", 1.0 if k else 100.0, 0.1, plan()) for k in range(5)]
    found = meeting(members_of(clients), Target("mu", 0.2), 0, Crowd.alike(5, masks=True))
    own = 2 * sqrt(ROUNDS) / 0.2
    assert own * 0.99 <= found[0].mechanism.noise_multiplier <= own * 1.001
    assert own / sqrt(5) <= found[1].mechanism.noise_multiplier <= own / sqrt(5) * 1.001


def test_copies_with_few_honest_clients_are_composed():
    found = meeting(alike(plan(copies=4)), Target("mu", 0.2), 8, MASKED)
    exact = 2 * sqrt(4 * ROUNDS) / 0.2
    assert exact <= found[0].mechanism.noise_multiplier <= exact * 1.001


def test_a_client_with_a_target_of_its_own_keeps_the_larger_noise():
    loud = replace(alike(plan())[0], plan=plan(noise=200.0))
    found = meeting([loud, *alike(plan())[1:]], Target("mu", 0.1), 0, MASKED)
    assert found[0].mechanism.noise_multiplier == 200.0
    assert found[1].mechanism.noise_multiplier == pytest.approx(2 * sqrt(ROUNDS) / (0.1 * sqrt(10)), rel=1e-3)


def test_given_noise_is_kept_and_judged():
    enough = 2 * sqrt(ROUNDS) / (0.1 * sqrt(10)) * 1.01
    kept = members_of([("a", 1.0, 0.1, plan(noise=enough)), *((f"c{k}", 1.0, 0.1, plan()) for k in range(9))],
                      frozenset({"a"}))  # fmt: skip
    assert meeting(kept, Target("mu", 0.1), 0, MASKED)[0].mechanism.noise_multiplier == enough
    too_little = replace(kept[0], plan=plan(noise=enough / 2))
    with pytest.raises(BadValue, match=r"missed by client .*noise_multiplier of their own keep it \(a\)"):
        meeting([too_little, *kept[1:]], Target("mu", 0.1), 0, MASKED)


def test_output_perturbation_and_copies():
    once = PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=LEAST_NOISE), rounds=ROUNDS)
    found = meeting(alike(once), Target("mu", 0.1), 0, MASKED)
    exact = 2 * sqrt(ROUNDS) / (0.1 * sqrt(10))
    assert exact <= found[0].mechanism.noise_multiplier <= exact * 1.001
    shared = meeting(alike(plan(copies=2)), Target("mu", 0.1), 0, MASKED)
    assert 2 * exact <= shared[0].mechanism.noise_multiplier <= 2 * exact * 1.001


def test_holders_of_one_record_that_move_the_sum_unlike_are_refused():
    """Equal noise in the sum, and one client of ten times the sensitivity: the others' numbers know nothing of it."""
    clients = [(f"c{n}", 1.0, 0.1, plan(n, copies=2)) for n in (100, 100, 1000, 1000)]
    with pytest.raises(BadValue, match="they do not count alike in the sum"):
        meeting(members_of(clients), Target("mu", 0.5), 0, Crowd.alike(4, masks=True))


def test_one_client_may_stand_for_all():
    found = meeting(alike(plan(), clients=1), Target("mu", 0.1), 5, MASKED)
    exact = 2 * sqrt(ROUNDS) / (0.1 * sqrt(5))
    assert exact <= found[0].mechanism.noise_multiplier <= exact * 1.001


REFUSED = [
    (
        plan(local_steps=2),
        0,
        MASKED,
        "nothing can be claimed: a round has several .*; remove the cause, or the target",
    ),
    (plan(), 0, Crowd.alike(10), "masks are off"),
    (plan(), 0, replace(MASKED, not_summed="the rule attends"), "the rule attends"),
    (plan(), 10, MASKED, "colluders = 10 must be a whole number of at least 0 and at most 9"),
    (plan(), 7, replace(MASKED, least=7), "colluders = 7 is too many: a sum may have 7 clients only"),
]


@pytest.mark.parametrize(("one", "colluders", "crowd", "says"), REFUSED, ids=[each[3] for each in REFUSED])
def test_what_cannot_be_claimed_is_refused(one, colluders, crowd, says):
    with pytest.raises(BadValue, match=says):
        meeting(alike(one), Target("mu", 0.1), colluders, crowd)


def test_too_much_noise_is_an_answer():
    with pytest.raises(CannotMeet, match="noise multiplier above"):
        meeting(alike(plan(rounds=10**6)), Target("mu", 0.001), 0, MASKED)
