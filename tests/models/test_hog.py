"""HOG features: fixed, of unit norm, each record's its own."""

import math

import pytest
import torch
from sklearn.datasets import load_digits

from prifedsync.config import ModelConfig
from prifedsync.models import build, features
from prifedsync.values import BadValue


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    return torch.from_numpy(bunch.images).float().unsqueeze(1) / 16, torch.from_numpy(bunch.target)


@pytest.mark.parametrize(
    ("shape", "size"), [((1, 8, 8), 128), ((8, 8), 128), ((1, 28, 28), 392), ((32, 32), 512), ((1, 10, 64), 1280)]
)
def test_eight_values_a_cell(shape, size):
    assert features("hog", shape)(torch.rand(5, *shape)).shape == (5, size)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_norm_whatever_the_image(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(10, *shape, generator=generator, dtype=dtype)
    one_pixel = torch.zeros(1, *shape, dtype=dtype)
    one_pixel[0, 0, 3, 3] = 1
    images = torch.cat(
        [noise, noise * 1e-3, noise * 1e3, one_pixel, torch.zeros_like(one_pixel), torch.ones_like(one_pixel)]
    )
    found = features("hog", shape)(images)
    assert found.dtype == dtype
    assert torch.allclose(found.norm(dim=1), torch.ones(len(images), dtype=dtype), atol=1e-6)


def test_a_constant_image_has_no_direction():
    flat = features("hog", (1, 8, 8))(torch.full((1, 1, 8, 8), 0.3))
    assert torch.allclose(flat, torch.full_like(flat, -1 / math.sqrt(128)))


def test_a_record_s_features_are_its_own(digits):
    hog, x = features("hog", (1, 8, 8)), digits[0][:50]
    together = hog(x)
    assert torch.allclose(together, torch.cat([hog(image[None]) for image in x]), atol=1e-6)
    assert torch.allclose(together[:25], hog(torch.cat([x[:25], 1000 * x[25:]]))[:25], atol=1e-6)
    assert torch.allclose(together.flip(0), hog(x.flip(0)), atol=1e-6)
    assert hog(x[:0]).shape == (0, 128)


def test_more_records_than_are_taken_at_once(digits):
    x = digits[0].repeat(4, 1, 1, 1)
    found = features("hog", (1, 8, 8))(x)
    assert torch.allclose(found, features("hog", (1, 8, 8))(digits[0]).repeat(4, 1), atol=1e-6)


def test_brightness_and_contrast_do_not_matter(digits):
    hog, x = features("hog", (1, 8, 8)), digits[0][:50]
    assert torch.allclose(hog(x), hog(0.25 * x + 3), atol=1e-5)


def test_directions_turn_with_the_image(digits):
    """A quarter turn moves cells and shifts directions by two of eight, and changes nothing else."""
    hog, x = features("hog", (1, 8, 8)), digits[0][:50]
    turned = hog(x.rot90(1, (2, 3))).view(50, 8, 4, 4)
    expected = hog(x).view(50, 8, 4, 4).rot90(1, (2, 3)).roll(-2, 1)
    assert torch.allclose(turned, expected, atol=1e-5)


def test_light_to_dark_is_not_dark_to_light():
    ramp = torch.linspace(0, 1, 8).expand(1, 1, 8, 8)
    right, left = (features("hog", (1, 8, 8))(image).view(8, 16) for image in (ramp, 1 - ramp))
    assert right.sum(1).argmax() == 0
    assert left.sum(1).argmax() == 4


def test_whole_numbers_are_read_as_values(digits):
    hog, x = features("hog", (1, 8, 8)), digits[0][:5]
    assert torch.allclose(hog((x * 16).long()), hog(x), atol=1e-6)


@pytest.mark.parametrize("shape", [(64,), (3, 8, 8), (1, 7, 8), (1, 9, 9), (1, 30, 30), (1, 1, 8, 8), (1, 4, 64), ()])
def test_what_is_not_a_small_image_is_refused(shape):
    with pytest.raises(BadValue) as refused:
        features("hog", shape)
    says = f"model.features = hog cannot be computed for records of shape {shape}: it needs images of one channel, "
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)


def test_digits_are_told_apart(digits):
    """Softmax regression on these features, without privacy: about 98 % where the bare pixels give 96 %."""
    z, y = features("hog", (1, 8, 8))(digits[0]), digits[1]
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[360:], order[:360]
    net = build(ModelConfig(features="hog"), (128,), 10, 0)
    optimiser = torch.optim.SGD(net.parameters(), lr=8.0, momentum=0.9)
    for _ in range(80):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(z[train]), y[train]).backward()
        optimiser.step()
    assert (net(z[test]).argmax(1) == y[test]).float().mean() > 0.97
