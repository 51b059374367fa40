"""What each client adds to the mean: shares by hand, and who is warned of."""

import pytest

from prifedsync.accounting import OutputPerturbation, PrivacyPlan, Sampling
from prifedsync.accounting.contributions import contributions

from .plans import plan_of


def plan(records, noise=2.0, batch="full", clip=1.0):
    numbers = {"noise_multiplier": noise, "records": records, "batch": batch, "local_steps": 1, "rounds": 3}
    return plan_of(numbers | {"clip_norm": clip, "sampling": Sampling.POISSON}, {})


def of(*sizes, merge="records", **numbers):
    weights = [float(size) if merge == "records" else 1.0 for size in sizes]
    clients = zip([f"c{i}" for i in range(len(sizes))], weights, [plan(size, **numbers) for size in sizes], strict=True)
    return contributions(list(clients), merge)


def test_shares_by_hand():
    """Weights 1/4 and 3/4. Noise 2·½/10 and 4·1/8 in each entry: (1/4·0.1)² to (3/4·0.5)²."""
    found = contributions([("a", 10.0, plan(10, 2.0, clip=0.5)), ("b", 30.0, plan(30, 4.0, batch=8))], "records")
    a, b = found.clients
    assert (a.signal, b.signal) == (0.25, 0.75)
    assert a.noise == pytest.approx(0.025**2 / (0.025**2 + 0.375**2))
    assert a.noise + b.noise == pytest.approx(1)
    assert a.signal_to_noise == pytest.approx(0.25 / a.noise)
    assert (a.records, a.noise_multiplier) == (10, 2.0)
    assert found.as_json()[1]["client"] == "b"


def test_noise_on_the_update_does_not_shrink_with_the_records():
    output = PrivacyPlan(mechanism=OutputPerturbation(noise_multiplier=2.0), rounds=3)
    a, b = contributions([("a", 1.0, output), ("b", 3.0, output)], "records").clients
    assert (a.signal, a.noise, b.noise) == (0.25, pytest.approx(0.1), pytest.approx(0.9))
    assert a.records is None


def test_with_full_batches_weighed_by_records_all_add_the_same_noise():
    found = of(400, 300, 3)
    assert [each.noise for each in found.clients] == pytest.approx([1 / 3] * 3)
    assert found.warnings == ()
    assert not found.alike
    assert of(100, 101, 99).alike


def test_a_tiny_client_that_weighs_as_much_as_the_others_is_warned_of():
    (said,) = of(400, 300, 3, merge="equal").warnings
    assert said == (
        "client c2 adds 100.0% of the noise and 33.3% of the signal to the mean: without it its noise would be 53 times "
        'smaller; leave it out or set merge = "records"'
    )


def test_several_tiny_clients_are_warned_of_together():
    """No one of them drowns the others alone. Where batches are not full, a larger one is a remedy."""
    assert of(*[400] * 4, *[5] * 5, merge="equal", batch=4).warnings == ()  # batches of one size: all add the same noise
    (said,) = of(*[400] * 4, *[5] * 5, merge="equal").warnings
    assert said.startswith("clients c4, c5, c6 and 2 more add 100.0% of the noise and 55.6% of the signal")
    louder = [(f"c{i}", 1.0, plan(400, 1.0 if i else 30.0, batch=4)) for i in range(4)]
    (said,) = contributions(louder, "records").warnings
    assert said.startswith("client c0 adds 99.7% of the noise and 25.0% of the signal")
    assert said.endswith("leave it out or give it a larger batch")


def test_nobody_is_named_who_does_not_drown_the_others():
    """Without c0 the noise is 15 times less. More could leave, as the best mean has the largest client alone."""
    (said,) = of(3, 60, 300, 2400, merge="equal").warnings
    assert said.startswith("client c0 adds 99.7% of the noise and 25.0% of the signal")
    assert "without it its noise would be 15 times smaller" in said


def test_large_factors_are_written_out():
    (said,) = of(1, *[400] * 3, merge="equal").warnings
    assert "would be 170 times smaller" in said


@pytest.mark.parametrize(("small", "warned"), [(255, True), (262, False)])
def test_the_threshold_is_half_the_noise(small, warned):
    """Two clients of one weight: the noise falls by √(1 + r²)/2 without the smaller, r = 1000/small: 2 where r² = 15."""
    assert bool(of(1000, small, merge="equal").warnings) == warned


def test_a_table_shows_all_or_the_outstanding_ones():
    assert list(of(3, 2, 1).shown()) == ["c0", "c1", "c2"]
    assert len(of(*range(1, 21)).shown()) == 20
    many = of(*range(30, 0, -1), merge="equal")
    assert list(many.shown()) == ["c29 (smallest and noisiest)", "c15 (median)", "c0 (largest)"]
    by_records = of(*range(30, 0, -1))
    assert list(by_records.shown())[:3] == ["c29 (smallest)", "c15 (median)", "c0 (largest)"]
