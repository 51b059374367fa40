"""The rules of raw rows: from every source to JSON and back, and nothing of the records in them."""

import json
import math

import numpy as np
import pytest
import torch

from prifedsync.config import DataConfig
from prifedsync.data import Client, Federation, Records, Task, load
from prifedsync.data.array_encoding import ArrayEncoding
from prifedsync.data.images import IMAGES
from prifedsync.data.preprocessing import MOST_VALUES, Preprocessing
from prifedsync.values import BadValue


def there_and_back(rules):
    return Preprocessing.from_json(json.loads(json.dumps(rules.as_json(), allow_nan=False)))


def rules_of(config):
    rules = Preprocessing.of(load(config, 0), config)
    assert there_and_back(rules) == rules
    return rules


def npz(folder, x):
    np.savez(folder / "a.npz", x=x, y=np.arange(len(x)) % 2)
    return DataConfig(source="npz", path=str(folder), classes=2, ranges={"*": (0, 10)}, missing={"*": 4})


def test_npz_files(tmp_path):
    rules = rules_of(npz(tmp_path, np.random.default_rng(0).uniform(0, 10, (20, 2, 3))))
    assert rules.encoding == ArrayEncoding(span=(0, 10), missing=4)
    assert rules.shape == (2, 3)
    assert rules.columns == ("x0", "x1", "x2", "x3", "x4", "x5")
    assert rules.label.task == Task("classes", 2)


def test_other_records_have_the_same_rules(tmp_path):
    few = rules_of(npz(tmp_path, np.full((9, 3), 2.0)))
    many = rules_of(npz(tmp_path, np.random.default_rng(0).normal(50, 80, (90, 3))))
    assert few.as_json() == many.as_json()


def test_embedded_sources():
    assert rules_of(DataConfig(source="digits")).encoding == ArrayEncoding(divisor=16)
    cancer = rules_of(DataConfig(source="breast-cancer"))
    assert cancer.columns[0] == "mean radius"
    assert cancer.shape == (30,)


def test_images_are_encoded_as_they_are_described():
    images = IMAGES["cifar10"]
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 4, 4), dtype=np.uint8)
    expected = torch.from_numpy(pixels).double().div(255)
    expected = (expected - torch.tensor(images.mean).reshape(-1, 1, 1)) / torch.tensor(images.std).reshape(-1, 1, 1)
    encoded = images.encoding.encoded(images.encoding.filled(pixels))
    np.testing.assert_allclose(encoded, expected, rtol=1e-5, atol=1e-6)
    assert encoded.dtype == np.float32
    assert ArrayEncoding.from_json(json.loads(json.dumps(images.encoding.as_json()))) == images.encoding


def test_a_federation_of_tokens():
    x = torch.randint(0, 5, (8, 6))
    part = Records(x, torch.zeros(8))
    rules = Preprocessing.of(Federation((Client("a", part, part),), Task("regression", 0)), DataConfig())
    assert rules.encoding == ArrayEncoding(tokens=True)
    assert there_and_back(rules) == rules


@pytest.mark.parametrize(
    ("key", "value"),
    [("shape", [MOST_VALUES, 2]), ("divisor", 0), ("std", [0.0]), ("mean", [math.inf]), ("span", [3, 1]), ("missing", "x")],
)
def test_values_that_no_run_writes_are_refused(key, value):
    said = Preprocessing.of(load(DataConfig(), 0), DataConfig()).as_json()
    (said if key in said else said["values"])[key] = value
    with pytest.raises(BadValue):
        Preprocessing.from_json(said)
