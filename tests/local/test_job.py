"""A job: what it refuses about its records and its arithmetic, and which iterates it averages."""

import pytest

from prifedsync.accounting import Neighbours, NoisySteps, OutputPerturbation, PrivacyPlan
from prifedsync.local import CLIP_MARGIN, Job, Optimiser, UnnoisedSteps
from prifedsync.values import BadValue

ARITHMETIC = "float32", CLIP_MARGIN
OPEN = UnnoisedSteps(records=10, batch=5, local_steps=4)


def private(neighbours=Neighbours.REPLACE, margin=CLIP_MARGIN, steps=4, **changed):
    mechanism = NoisySteps(noise_multiplier=1.0, records=10, batch=5, local_steps=steps, clip_margin=margin)
    plan = PrivacyPlan(mechanism=mechanism, rounds=2, neighbours=neighbours)
    return Job(client="a", plan=plan, optimiser=Optimiser(), **changed)


def test_under_replace_one_the_number_of_records_is_public_and_right():
    private().check(10, *ARITHMETIC)
    with pytest.raises(BadValue, match=r"clients.a.records = 10 but the client has 9; under replace-one"):
        private().check(9, *ARITHMETIC)
    Job(client="a", plan=None, optimiser=Optimiser(), unnoised_steps=OPEN).check(10, *ARITHMETIC)
    with pytest.raises(BadValue, match=r"clients.a.records = 10 but the client has 11"):
        Job(client="a", plan=None, optimiser=Optimiser(), unnoised_steps=OPEN).check(11, *ARITHMETIC)


def test_under_add_remove_it_is_nominal():
    for present in (0, 1, 9, 10, 50):
        private(Neighbours.ADD_REMOVE).check(present, *ARITHMETIC)


def test_a_margin_must_cover_the_arithmetic():
    with pytest.raises(BadValue, match=r"clients.a.clip_margin = 0.0 does not cover rounding in float32; plan with"):
        private(margin=0.0).check(10, *ARITHMETIC)


def test_noisy_steps_or_open_ones():
    with pytest.raises(BadValue, match="unnoised_steps"):
        private(unnoised_steps=OPEN)
    with pytest.raises(BadValue, match="unnoised_steps = None must be given"):
        Job(client="a", plan=None, optimiser=Optimiser())
    output = PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=1.0), rounds=2)
    job = Job(client="a", plan=output, optimiser=Optimiser(), unnoised_steps=OPEN)
    assert (job.steps, job.noisy, job.output) == (OPEN, None, output.mechanism)
    job = private()
    assert (job.steps, job.noisy, job.output) == (job.plan.mechanism, job.plan.mechanism, None)


@pytest.mark.parametrize(
    ("averaging", "steps", "first"), [(0, 4, 3), (0.1, 4, 3), (0.5, 4, 2), (1, 4, 0), (0.5, 1, 0), (0.3, 10, 7)]
)
def test_the_last_share_of_the_iterates_is_averaged(averaging, steps, first):
    assert private(steps=steps, averaging=averaging).upload.averaged_from == first


@pytest.mark.parametrize("field", ["averaging", "mixing"])
def test_shares_lie_between_nothing_and_all(field):
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(BadValue, match=field):
            private(**{field: wrong})
