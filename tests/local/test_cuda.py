"""On a GPU the same sums come out: convolutions as products of patches, sums in single precision. Skipped without one."""

import pytest
import torch

from prifedsync.local import Net, losses

from .zoo import CASES, clipped_sum

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(autouse=True)
def _exact(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # on by default for recurrent layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_clipped_sums_on_the_gpu_are_those_of_the_oracle(name, dtype):
    case = CASES[name]
    module = case.module()
    x, y = case.records(6)
    net = Net(module, losses.BY_TASK[case.task], x, y, dtype, "cuda")
    clip = 0.5
    expected = clipped_sum(module, case.task, x, y, clip)
    to = {"device": "cuda"}
    xs = x.to(dtype=dtype if x.is_floating_point() else x.dtype, **to).expand(3, *x.shape)
    ys = y.to(dtype=dtype if y.is_floating_point() else y.dtype, **to).expand(3, *y.shape)
    valid = torch.ones(3, len(x), dtype=torch.bool, **to)
    masks = {n: torch.ones(3, len(x), *shape, dtype=dtype, **to) for n, (_, shape) in net.dropouts.items()}
    start = net.initial().expand(3, -1)
    sums = net.clipped_sums(start, xs, ys, valid, torch.full((3,), clip, dtype=torch.float64, **to), masks)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-9
    for row in sums.double().cpu():
        assert (row - expected).norm() <= tolerance * max(1.0, expected.norm())
