"""Output perturbation: what is clipped, in which norm, and from where the change is measured."""

import pytest
import torch

from prifedsync.accounting import OutputPerturbation
from prifedsync.local import Key, SeededDraws
from prifedsync.local.perturbation import clipped, released

GAUSSIAN = OutputPerturbation(noise_multiplier=1.0, clip_norm=2.0)
LAPLACE = OutputPerturbation(noise_multiplier=1.0, clip_norm=2.0, noise="laplace")


@pytest.mark.parametrize(("mechanism", "order"), [(GAUSSIAN, 2), (LAPLACE, 1)], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("size", [1e-300, 1e-3, 1.0, 10.0, 1e30, 1e300])
def test_a_change_keeps_its_direction_and_no_more_than_the_clip(mechanism, order, size):
    change = torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64) * size
    found = clipped(change, mechanism)
    length = {1: 7.0, 2: 5.0}[order] * size
    assert torch.linalg.vector_norm(found, ord=order).item() == pytest.approx(min(2.0, length), rel=1e-11)
    assert torch.linalg.vector_norm(found, ord=order) <= 2.0
    torch.testing.assert_close(found / found.abs().max(), change / change.abs().max())


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
def test_what_is_not_finite_is_no_change_at_all(mechanism):
    for bad in (float("nan"), float("inf")):
        assert clipped(torch.tensor([1.0, bad, 2.0]), mechanism).tolist() == [0, 0, 0]
    assert clipped(torch.zeros(3), mechanism).tolist() == [0, 0, 0]


@pytest.mark.parametrize("mechanism", [GAUSSIAN, LAPLACE])
def test_the_change_is_measured_from_the_start(mechanism):
    """Trainings that end far apart, or nowhere, release models at most 2·clip_norm apart; the start is not clipped."""
    start, key = torch.full((50,), 100.0, dtype=torch.float64), Key("a", 0, 0, "output")
    ends = [start + 1e6, start - 1e6, start * float("nan"), start]
    models = [released(start, end, mechanism, SeededDraws(1), key).value for end in ends]
    order = 1 if mechanism.noise == "laplace" else 2
    grid = 50 * 2.0**-12  # rounding after the noise costs nothing
    for one in models:
        for other in models:
            assert torch.linalg.vector_norm(one - other, ord=order) <= 2 * mechanism.clip_norm + grid
    assert torch.equal(models[2], models[3])
    assert float((models[0] - models[1]).sum()) == pytest.approx(4 * (1 if order == 1 else 50**0.5), abs=grid)
    assert abs(float(models[3].mean()) - 100) < 2
